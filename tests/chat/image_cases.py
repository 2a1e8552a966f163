"""What the tests of runtime-js read too: images, and what Python makes of them.

`python -m tests.chat.image_cases` writes images.json anew.
"""

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from edgerelax.chat.images import Images

FILE = Path(__file__).with_name("images.json")
TILES = {"side": 12, "split": True, "around": "<a>", "whole": "<w>", "part": "<{row}-{column}>"}
BASE = {"placeholder": "<image>", "token": 9, "tokens": 2, "side": 12}
PLANS: dict[str, dict[str, Any]] = {
    "crop": {"resample": 3, "resize": {"shortest": 14}, "crop": {"height": 12, "width": 12}},
    "small then crop": {
        "resample": 2, "resize": {"shortest": 7}, "crop": {"height": 12, "width": 12},
    },
    "pad": {"resample": 3, "pad": [122, 7, 255], "resize": {"shortest": 12}},
    "stretch": {"resample": 0, "resize": {"height": 12, "width": 12}},
    "split": {"resample": 1, "resize": {"longest": 30}, "tiles": TILES},
    "whole": {"resample": 1, "resize": {"longest": 30}, "tiles": {**TILES, "split": False}},
    "one tile": {"resample": 1, "resize": {"longest": 12}, "tiles": TILES},
}  # fmt: skip
SIZES = ((40, 25), (9, 31), (1, 6))
RESIZED = ((37, 23, 11, 9), (8, 5, 21, 14), (16, 16, 16, 7), (50, 3, 6, 3), (9, 31, 8, 20))


def image_of(width: int, height: int, seed: int) -> Image.Image:
    """An image that the tests in TypeScript make too."""
    k = np.arange(width * height * 3)
    values = ((k * 40503 + seed * 977) >> 4 ^ (k * k) >> 7) & 255
    return Image.fromarray(values.astype(np.uint8).reshape(height, width, 3))


def _encoded(pixels: Any) -> str:
    return base64.b64encode(np.asarray(pixels, np.uint8).tobytes()).decode()


def cases() -> dict[str, Any]:
    """What Python makes of images: sizes, tiles and texts."""
    resized = [
        {"from": [width, height], "to": to, "resample": resample, "seed": seed,
         "pixels": _encoded(image_of(width, height, seed).resize(tuple(to), resample))}
        for seed, (width, height, *to) in enumerate(RESIZED)
        for resample in range(6)
    ]  # fmt: skip
    seen = []
    for seed, (name, plan) in enumerate(PLANS.items()):
        images = msgspec.convert({**BASE, **plan}, Images)
        for width, height in SIZES:
            found = images.seen(image_of(width, height, seed))
            seen.append({
                "name": f"{name} of {width}x{height}", "plan": {**BASE, **plan},
                "from": [width, height], "seed": seed, "rows": found.rows,
                "columns": found.columns, "tiles": [_encoded(tile) for tile in found.tiles],
                "text": images.text(found),
            })  # fmt: skip
    return {"resized": resized, "seen": seen}


if __name__ == "__main__":
    FILE.write_text(json.dumps(cases(), indent=1) + "\n", encoding="utf-8")
