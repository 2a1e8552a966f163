"""Pages of a cache of keys and values: who holds them, and which text whole ones keep.

A page that nobody holds keeps what it has until it is needed: a text that begins as an earlier one
did finds its whole pages again (prefix reuse over turns and over requests).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from edgerelax.ir.diagnostics import EdgeRelaxError

Digest = bytes
START: Digest = b""
Marks = Callable[[int, int], bytes]
"""What the tokens in a range of a text stand for beside themselves."""


def unmarked(start: int, stop: int) -> bytes:
    """They stand for themselves."""
    return b""


class CacheFullError(EdgeRelaxError):
    """Every page is held."""

    default_code = "cache-full"


class PagePool:
    """`count` pages of `size` tokens each."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._free = list(reversed(range(count)))
        self._holders = [0] * count
        self._by_text: dict[Digest, int] = {}
        self._text: dict[int, Digest] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept and held by nobody, oldest first

    @property
    def available(self) -> int:
        """Pages that can be taken."""
        return len(self._free) + len(self._idle)

    def pages_for(self, tokens: int) -> int:
        """Pages that so many tokens fill."""
        return -(-tokens // self.size)

    def take(self) -> int:
        """A page for whoever asks, its contents lost. Raises CacheFullError."""
        if self._free:
            page = self._free.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            del self._by_text[self._text.pop(page)]
        else:
            raise CacheFullError(f"all {self.count} pages of {self.size} tokens are in use")
        self._holders[page] = 1
        return page

    def find(self, tokens: Sequence[int], marks: Marks = unmarked) -> tuple[list[int], Digest]:
        """The whole pages that keep the beginning of a text, now held, and the text they keep."""
        found: list[int] = []
        digest = START
        for start in range(0, len(tokens) - self.size + 1, self.size):
            stop = start + self.size
            longer = text_digest(digest, tokens[start:stop], marks(start, stop))
            page = self._by_text.get(longer)
            if page is None:
                break
            found.append(page)
            digest = longer
        for page in found:
            self._holders[page] += 1
            self._idle.pop(page, None)
        return found, digest

    def keep(self, page: int, text: Digest) -> None:
        """Say which text ends with a whole page that is held; of two pages of one the first."""
        if page not in self._text and text not in self._by_text:
            self._by_text[text], self._text[page] = page, text

    def is_shared(self, page: int) -> bool:
        """Whether a held page is another's too."""
        return self._holders[page] > 1

    def is_kept(self, page: int) -> bool:
        """Whether a held page can be found by its text."""
        return page in self._text

    def forget(self, page: int) -> None:
        """A held page is to be written anew: it keeps no text any more."""
        if page in self._text:
            del self._by_text[self._text.pop(page)]

    def release(self, pages: Sequence[int]) -> None:
        """Give up pages. The last ones of a text are needed again before the first."""
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._text:
                self._idle[page] = None
            else:
                self._free.append(page)


def text_digest(before: Digest, tokens: Sequence[int], marks: bytes = b"") -> Digest:
    """What stands for a text that goes on with these tokens, and what they are marked with."""
    return hashlib.sha256(before + np.asarray(tokens, "<i4").tobytes() + marks).digest()
