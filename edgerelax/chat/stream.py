"""Text as it comes, token by token: whole characters only, and nothing of what ends it."""

import codecs
from collections.abc import Collection, Sequence

from edgerelax.chat.tokenizer import Tokenizer


def held_back(text: str, marks: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `marks`."""
    longest = max(map(len, marks), default=0) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-length:]) for mark in marks):
            return length
    return 0


class Detokenizer:
    """Tokens → characters. A character cut in two waits for its other half.

    `fresh` says that the text begins here: a space that stands for that is left out. `shown` are
    special tokens that belong to the text.
    """

    def __init__(
        self, tokenizer: Tokenizer, fresh: bool, shown: Collection[int] = frozenset()
    ) -> None:
        self._tokenizer, self._shown = tokenizer, shown
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = fresh and tokenizer.first_space

    def push(self, token: int) -> str:
        """The characters that are whole with this token. Of special tokens shown ones have some."""
        if self._tokenizer.is_special(token) and token not in self._shown:
            return ""
        return self._begin(self._bytes.decode(self._tokenizer.bytes_of(token)))

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never became whole."""
        return self._begin(self._bytes.decode(b"", final=True))

    def _begin(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class StopStrings:
    """Cuts a text at the first of several strings to be complete.

    What may be the beginning of one is held back until it can't be. `found` is the string, once
    there was one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """What is certain to be text before any stop string."""
        if self.found is not None:
            return ""
        whole = self._held + text
        hits = [(at, stop) for stop in self._stops if (at := whole.find(stop)) >= 0]
        if hits:
            at, self.found = min(hits)
            self._held = ""
            return whole[:at]
        cut = len(whole) - held_back(whole, self._stops)
        self._held = whole[cut:]
        return whole[:cut]

    def finish(self) -> str:
        """What was held back and turned out to be text."""
        held, self._held = self._held, ""
        return held
