"""Images of a chat as a model sees them: opened, resized, cut into tiles, and the text around them.

The steps and their order are those of the model's own preprocessor, which the artifact tells
(`images` of chat.json, docs/chat.md); pillow resizes. What is arithmetic on pixels is the
artifact's.
"""

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from edgerelax.ir.diagnostics import InputError

MAX_BYTES = 32 << 20
MAX_PIXELS = 64_000_000
"""Of an image, as it comes and as it is resized: larger ones are refused before they are read."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
LONGEST = 4096
"""The longest side that the preprocessors of models that take tiles make."""

Pixels = NDArray[np.uint8]


class Tiles(msgspec.Struct, frozen=True):
    """Squares of `side` that an image is cut into, and then the whole of it in one, if `split`.

    `around`, `whole` and `part` are texts before tiles; `part` has {row} and {column}, from 1.
    """

    side: int
    split: bool
    around: str
    whole: str
    part: str


class Images(msgspec.Struct, frozen=True):
    """How images become tokens: `images` of a chat.json.

    `placeholder` stands for an image in templates, and in the vocabulary it is `token`; a tile of
    `side` pixels has `tokens` of it. An image is padded to a square of a colour, resized, cropped
    and tiled, so far as these are given. `resample` is the filter by pillow's number.
    """

    placeholder: str
    token: int
    tokens: int
    side: int
    resample: int
    pad: tuple[int, int, int] | None = None
    resize: dict[str, int] | None = None
    crop: dict[str, int] | None = None
    tiles: Tiles | None = None

    def seen(self, image: Image.Image) -> "Seen":
        """What the model sees of an RGB image. Raises InputError for one that cannot be made so."""
        if self.pad is not None:
            image = _padded(image, self.pad)
        if self.resize is not None:
            image = self._resized(image, _target(image.size, self.resize))
        if self.crop is not None:
            image = _cropped(image, self.crop["width"], self.crop["height"])
        if self.tiles is not None:
            return self._tiled(image, self.tiles)
        if image.size != (self.side, self.side):
            raise InputError(
                f"an image of {image.width}x{image.height}; this model takes "
                f"{self.side}x{self.side}"
            )
        return Seen(_pixels(image)[None])

    def _resized(self, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        if size[0] * size[1] > MAX_PIXELS:
            raise InputError(
                f"an image of {image.width}x{image.height} would be resized to "
                f"{size[0]}x{size[1]}: it is too long and narrow"
            )
        return image.resize(size, Image.Resampling(self.resample))

    def _tiled(self, image: Image.Image, tiles: Tiles) -> "Seen":
        side, one = tiles.side, (tiles.side, tiles.side)
        if not tiles.split:
            return Seen(_pixels(self._resized(image, one))[None])
        image = self._resized(image, _whole_tiles(image.size, side))
        if image.size == one:
            return Seen(_pixels(image)[None])
        pixels, rows, columns = _pixels(image), image.height // side, image.width // side
        parts = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
        last = _pixels(self._resized(image, one))[None]
        cut = parts.reshape(rows * columns, side, side, 3)
        return Seen(np.concatenate([cut, last]), rows, columns)

    def text(self, seen: "Seen") -> str:
        """What stands for an image in the prompt, with a placeholder for each of its tokens."""
        one, tiles = self.placeholder * self.tokens, self.tiles
        if tiles is None:
            return one
        whole = f"{tiles.around}{tiles.whole}{one}{tiles.around}"
        if not seen.rows:
            return whole
        lines = [
            "".join(
                tiles.around + tiles.part.format(row=row, column=column) + one
                for column in range(1, seen.columns + 1)
            )
            for row in range(1, seen.rows + 1)
        ]
        return "\n".join([*lines, "", whole])


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Tiles u8[tiles, side, side, 3]; how many of these lie in rows and columns, 0 of one alone."""

    tiles: Pixels
    rows: int = 0
    columns: int = 0


def opened(given: Any) -> bytes | Image.Image:
    """The bytes of a data: URL or a file; an RGB image of pillow's or numpy's [h, w, 3] of u8.

    What is transparent becomes white. Raises InputError for anything else, and for images that are
    too large.
    """
    match given:
        case str():
            return _checked_size(_data(given))
        case Path():
            return _checked_size(_file(given))
        case bytes():
            return _checked_size(given)
        case Image.Image():
            image = given
        case np.ndarray() if given.dtype == np.uint8 and _is_image(given.shape):
            image = Image.fromarray(given[..., 0] if given.shape[2:] == (1,) else given)
        case np.ndarray():
            raise InputError(
                f"an array of {given.dtype} {list(given.shape)} is no image",
                hint="give uint8 of [height, width] or [height, width, 1, 3 or 4]",
            )
        case _:
            raise InputError(
                f"{type(given).__name__} is no image",
                hint="give an image of pillow or numpy, or a data: URL",
            )
    _check_size(image)
    return _rgb(image)


def _is_image(shape: tuple[int, ...]) -> bool:
    return 0 not in shape and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)))


def _data(url: str) -> bytes:
    """The bytes that a data: URL holds."""
    head, comma, body = url.partition(",")
    if not head.startswith("data:") or not comma:
        raise InputError(
            "an image's url is no data: URL; images are not fetched",
            hint="send the image itself, as data:image/png;base64,…; in Python a file is a Path",
        )
    if not head.endswith(";base64"):
        raise InputError("an image's data: URL is not in base64")
    if len(body) > MAX_BYTES * 4 // 3 + 4:
        raise _too_large()
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"an image's data: URL is damaged: {error}") from error


def _file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _too_large() -> InputError:
    return InputError(f"an image has more than {MAX_BYTES} bytes")


def _checked_size(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise _too_large()
    return data


def decoded(data: bytes) -> Image.Image:
    """The RGB image of a file's bytes. Raises InputError for one that is damaged or too large."""
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            _check_size(image)
            image.load()
            return _rgb(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        raise InputError(f"the data is no image of {', '.join(FORMATS)}") from error
    except InputError:
        raise
    except Exception as error:  # decoders of pillow raise many
        raise InputError(f"an image is damaged: {error}") from error


def _check_size(image: Image.Image) -> None:
    if not 0 < image.width * image.height <= MAX_PIXELS:
        raise InputError(
            f"an image of {image.width}x{image.height} pixels; {MAX_PIXELS} at most are taken",
            hint="make it smaller",
        )


def _rgb(image: Image.Image) -> Image.Image:
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _pixels(image: Image.Image) -> Pixels:
    return np.asarray(image, np.uint8)


def _padded(image: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """In the middle of a square."""
    side = max(image.size)
    if side * side > MAX_PIXELS:
        raise InputError(f"an image of {image.width}x{image.height} is too long and narrow")
    square = Image.new("RGB", (side, side), colour)
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square


def _cropped(image: Image.Image, width: int, height: int) -> Image.Image:
    """The middle; black where the image is smaller."""
    found = Image.new("RGB", (width, height))
    found.paste(image, (-((image.width - width) // 2), -((image.height - height) // 2)))
    return found


def _target(size: tuple[int, int], how: Mapping[str, int]) -> tuple[int, int]:
    """Width and height to resize to."""
    width, height = size
    if "height" in how:
        return how["width"], how["height"]
    if "shortest" in how:
        short, long = sorted(size)
        other = int(how["shortest"] * long / short)
        return (how["shortest"], other) if width <= height else (other, how["shortest"])
    return _within(*_longest(width, height, how["longest"]), LONGEST)


def _longest(width: int, height: int, most: int) -> tuple[int, int]:
    """The longer side so long, the other even."""
    ratio = width / height
    if width >= height:
        width, height = most, int(most / ratio)
        height += height % 2
    else:
        width, height = int(most * ratio), most
        width += width % 2
    return max(width, 1), max(height, 1)


def _within(width: int, height: int, most: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height and width > most:
        width, height = most, int(most / ratio)
    elif height > width and height > most:
        width, height = int(most * ratio), most
    return max(width, 1), max(height, 1)


def _whole_tiles(size: tuple[int, int], side: int) -> tuple[int, int]:
    """As many whole tiles as hold it, of its shape as far as they can be."""
    width, height = size
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        height = math.ceil(int(width / ratio) / side) * side
    else:
        height = math.ceil(height / side) * side
        width = math.ceil(int(height * ratio) / side) * side
    return width, height
