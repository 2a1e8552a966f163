"""Images as a model sees them, kept for when they come again: chats are sent whole each turn."""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Any

from PIL import Image

from edgerelax.chat.images import Images, Seen, decoded, opened

MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept, and the number of the request that had it last."""

    seen: Seen
    request: int


class Album:
    """Images by a digest of their bytes, up to `most` bytes of pixels. Threads may share it.

    Room for one image of a request is not taken from others of it: of a conversation with more
    images than there is room for, the same ones stay turn after turn.
    """

    def __init__(self, images: Images, most: int = MOST_BYTES) -> None:
        self.images, self._most = images, most
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # the least recently used first
        self._bytes, self._requests, self._lock = 0, 0, Lock()

    def request(self) -> int:
        """The number of a new request."""
        with self._lock:
            self._requests += 1
            return self._requests

    def seen(self, given: Any, request: int) -> Seen:
        """What the model sees of an image: see `opened`. Raises InputError as that does."""
        image = opened(given)
        key = _key(image)
        with self._lock:
            known = self._kept.get(key)
        if known is not None:
            seen = known.seen
        else:
            seen = self.images.seen(decoded(image) if isinstance(image, bytes) else image)
        with self._lock:
            self._keep(key, seen, request)
        return seen

    def clear(self) -> None:
        """Keep nothing of what there was."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _keep(self, key: bytes, seen: Seen, request: int) -> None:
        self._drop(key)
        size = seen.tiles.nbytes
        if size > self._most:
            return
        older = [other for other, kept in self._kept.items() if kept.request < request]
        for other in older:
            if self._bytes + size <= self._most:
                break
            self._drop(other)
        if self._bytes + size <= self._most:
            self._kept[key] = _Kept(seen, request)
            self._bytes += size

    def _drop(self, key: bytes) -> None:
        kept = self._kept.pop(key, None)
        self._bytes -= 0 if kept is None else kept.seen.tiles.nbytes


def _key(image: bytes | Image.Image) -> bytes:
    """What tells an image from others."""
    if isinstance(image, bytes):
        return hashlib.sha256(image).digest()
    return b"%dx%d" % image.size + hashlib.sha256(image.tobytes()).digest()
