"""How a folder's images become pixels, and text around them: preprocessor_config.json.

What is arithmetic on pixels goes into the artifact; what the host does is a plan, which the chat
engine follows (docs/chat.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgerelax.frontends.hf.reading import read_object
from edgerelax.frontends.language.settings import Settings
from edgerelax.ir.diagnostics import InputError, UnsupportedError

FILES = ("preprocessor_config.json", "processor_config.json")
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "resample": 3,
}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
TILES = {**HALF, "size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364},
         "do_image_splitting": True, "resample": 1}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "CLIPImageProcessor": CLIP,
    "LlavaImageProcessor": {**CLIP, "do_pad": False},
    "SiglipImageProcessor": {**HALF, "size": {"height": 224, "width": 224}, "resample": 3},
    "Idefics3ImageProcessor": TILES,
    "SmolVLMImageProcessor": TILES,
}
"""What processors do where their file says nothing, by `image_processor_type`."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What becomes of an image: pixels of `side`, scaled and shifted by channel, by a plan."""

    side: int
    scale: tuple[float, ...]
    shift: tuple[float, ...]
    plan: Mapping[str, Any]


def processor_of(folder: Path) -> Processor:
    """What the folder says of images. Raises InputError, UnsupportedError for kinds not known."""
    settings = _settings(folder)
    plan = _plan(settings)
    if "tiles" in plan:
        plan["tiles"] |= _texts(folder)
    scale, shift = _arithmetic(settings)
    return Processor(_side(settings, plan), scale, shift, plan)


def _settings(folder: Path) -> Settings:
    for name in FILES:
        if not (folder / name).is_file():
            continue
        found = read_object(folder / name).values
        inner = found.get("image_processor", found)
        if not isinstance(inner, dict):
            raise InputError(f"{name} holds no object")
        if "image_processor_type" in inner or "feature_extractor_type" in inner:
            return _with_defaults(Settings(inner, name))
    raise InputError(
        f"{folder.name} has no {FILES[0]}: how images are made pixels is not known",
        hint="download it from where the model came from",
    )


def _with_defaults(settings: Settings) -> Settings:
    kind = settings.text("image_processor_type", "feature_extractor_type")
    known = (
        kind.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor")
    )
    if known not in DEFAULTS:
        raise UnsupportedError(
            f"{settings.origin}: images by {kind}", hint=f"known are {', '.join(DEFAULTS)}"
        )
    given = {name: value for name, value in settings.values.items() if value is not None}
    if known != "LlavaImageProcessor" and "max_image_size" not in DEFAULTS[known]:
        given.pop("do_pad", None)  # it would make the images of a batch alike
    return Settings({**DEFAULTS[known], **given}, settings.origin)


def _plan(settings: Settings) -> dict[str, Any]:
    """What the host does, in the order of the fields."""
    plan: dict[str, Any] = {"resample": settings.integer("resample")}
    if settings.flag("do_pad", default=False) and not settings.has("max_image_size"):
        plan["pad"] = [int(mean * 255) for mean in _channels(settings, "image_mean")]
    if settings.flag("do_resize", default=True):
        plan["resize"] = _size(settings, "size")
    if settings.flag("do_center_crop", default=False):
        plan["crop"] = _square(_size(settings, "crop_size"))
    if settings.has("max_image_size"):
        tile = _size(settings, "max_image_size").get("longest")
        split = settings.flag("do_image_splitting")
        plan["tiles"] = {"side": tile, "split": split}
    return plan


def _texts(folder: Path) -> dict[str, str]:
    """The texts before tiles."""
    path = folder / "tokenizer_config.json"
    said = read_object(path) if path.is_file() else Settings({}, path.name)
    return {
        "around": said.text("fake_image_token", default="<fake_token_around_image>"),
        "whole": said.text("global_image_token", default="<global-img>"),
        "part": "<row_{row}_col_{column}>",
    }


def _size(settings: Settings, name: str) -> dict[str, int]:
    """{shortest}, {longest}, {shortest, longest} or {height, width}, of what a file may say."""
    value = settings.value(name)
    if isinstance(value, int):
        return {"shortest": value} if name == "size" else {"height": value, "width": value}
    part = settings.part(name)
    assert part is not None
    short = {"shortest_edge": "shortest", "longest_edge": "longest"}
    found = {short.get(key, key): part.integer(key) for key, v in part.values.items() if v}
    if set(found) not in ({"shortest"}, {"longest"}, {"height", "width"}):
        raise UnsupportedError(f"{settings.origin}: {name} is {dict(part.values)}")
    if min(found.values()) < 1 or max(found.values()) > 1 << 15:
        raise InputError(f"{settings.origin}: {name} is {dict(part.values)}")
    return found


def _square(size: Mapping[str, int]) -> dict[str, int]:
    if "shortest" in size:
        return {"height": size["shortest"], "width": size["shortest"]}
    return dict(size)


def _side(settings: Settings, plan: Mapping[str, Any]) -> int:
    """The side of what comes out, which must be a square of one size."""
    last = plan.get("tiles") or plan.get("crop") or plan.get("resize") or {}
    sides = {last.get("height"), last.get("width"), *([last["side"]] if "side" in last else ())}
    if "shortest" in last and "pad" in plan:
        sides = {last["shortest"]}
    found = [side for side in sides if side is not None]
    if len(found) != 1:
        raise UnsupportedError(f"{settings.origin}: images become {last or 'any size'}, no square")
    return int(found[0])


def _arithmetic(settings: Settings) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Factors and summands of the channels."""
    factor = 1.0
    if settings.flag("do_rescale", default=True):
        factor = settings.number("rescale_factor", default=1 / 255)
    mean, std = (_channels(settings, name) for name in ("image_mean", "image_std"))
    if not settings.flag("do_normalize", default=True):
        mean, std = [0.0] * 3, [1.0] * 3
    if not all(std):
        raise InputError(f"{settings.origin}: image_std is {std}")
    scale = tuple(factor / s for s in std)
    return scale, tuple(-m / s for m, s in zip(mean, std, strict=True))


def _channels(settings: Settings, name: str) -> list[float]:
    """A number for each of three channels."""
    given = settings.value(name)
    found = [given] * 3 if isinstance(given, int | float) else settings.items(name, (int, float))
    if len(found) != 3:
        raise InputError(f"{settings.origin}: {name} is {given!r}, images have 3 channels")
    return [float(x) for x in found]
