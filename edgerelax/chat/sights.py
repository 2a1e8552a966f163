"""What tokens of a prompt stand for where it has images, and which of it the device has.

A tile's vectors are made when the prompt gets to it and may go when others need their place: keys
and values of its tokens are in the cache then. So few places are enough, however many tiles there
are.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from edgerelax.artifact.manifest import LanguageInfo
from edgerelax.chat.engine import Picture
from edgerelax.hosts.session import Session

STATE = "images"


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """Pixels u8[side, side, 3] and what tells them from others."""

    pixels: NDArray[np.uint8]
    digest: bytes

    @staticmethod
    def of(pixels: NDArray[np.uint8]) -> "Tile":
        """The tile of these pixels."""
        return Tile(pixels, hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).digest())


class Sights:
    """The tiles of a prompt by the places of their tokens."""

    def __init__(self, pictures: Sequence[Picture] = ()) -> None:
        self._tiles = [Tile.of(pixels) for picture in pictures for pixels in picture.tiles]
        every = [places for picture in pictures for places in picture.places]
        each = every[0].size if every else 0
        places = np.array(every, np.int64).reshape(-1)
        order = np.argsort(places)
        self._places = places[order]
        self._tile, self._number = (order // max(each, 1)), (order % max(each, 1))

    def of(self, start: int, stop: int) -> list[Tile]:
        """The tiles that tokens in a range stand for."""
        first, last = np.searchsorted(self._places, (start, stop))
        return [self._tiles[k] for k in dict.fromkeys(self._tile[first:last].tolist())]

    def marks(self, start: int, stop: int) -> bytes:
        """What tells the images in a range from others."""
        return b"".join(tile.digest for tile in self.of(start, stop))

    def put(self, tokens: NDArray[np.int32], start: int, eyes: "Eyes") -> None:
        """Name the rows of vectors that tokens, from the place `start` on, stand for."""
        first, last = np.searchsorted(self._places, (start, start + len(tokens)))
        for k in range(first, last):
            tile = self._tiles[self._tile[k]]
            tokens[self._places[k] - start] = eyes.token(tile, int(self._number[k]))


class Eyes:
    """Vectors of tiles in a state of the device, `tokens` of a tile, with room for `count` tiles.

    The least recently used go first.
    """

    def __init__(
        self, session: Session, function: str, size: str, tokens: int, count: int, vocabulary: int
    ) -> None:
        self._session, self._function, self._size = session, function, size
        self._tokens, self._count, self._vocabulary = tokens, count, vocabulary
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(reversed(range(count)))

    @staticmethod
    def of(session: Session, language: LanguageInfo, chunk: int, texts: int) -> Optional["Eyes"]:
        """Room for all tiles that a step of so many tokens, or of so many texts, may need.

        None for a model that sees nothing.
        """
        manifest = session.artifact.manifest
        function = language.functions.get("see")
        if function is None:
            return None
        (state,) = (s for s in manifest.states if s.name == STATE)
        size = str((state.shape or [""])[0])
        tokens = manifest.symbols[size].multiple_of
        count = max(chunk // tokens + 2, texts)
        return Eyes(session, function, size, tokens, count, language.vocabulary)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of the state."""
        return {self._size: self._count * self._tokens}

    def see(self, tiles: Sequence[Tile]) -> None:
        """Have the vectors of these."""
        wanted = {tile.digest: tile for tile in tiles}
        for digest in wanted:
            if digest in self._places:
                self._places.move_to_end(digest)
        missing = [tile for digest, tile in wanted.items() if digest not in self._places]
        if not missing:
            return
        while len(self._free) < len(missing):
            self._free.append(self._places.popitem(last=False)[1])
        places = self._free[-len(missing) :]
        pixels = np.stack([tile.pixels for tile in missing])
        given = {"pixels": pixels, "places": np.array(places, np.int32)}
        self._session.run(given, self._function)
        del self._free[-len(missing) :]
        self._places.update(zip((tile.digest for tile in missing), places, strict=True))

    def token(self, tile: Tile, number: int) -> int:
        """The token that stands for a vector of a tile that was seen."""
        return self._vocabulary + self._places[tile.digest] * self._tokens + number
