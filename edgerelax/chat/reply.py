"""One answer as it is written: tokens in, text and calls of tools out, and why it ended."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from edgerelax.chat.engine import Token
from edgerelax.chat.openai import Reason
from edgerelax.chat.stream import Detokenizer, StopStrings
from edgerelax.chat.tokenizer import Tokenizer
from edgerelax.chat.tools import Called, Part, Reader


@dataclass(frozen=True, slots=True)
class Written:
    """A generated token, and how many characters were generated before it."""

    token: Token
    offset: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What an answer grows by. `reason` stands in the last.

    `tokens` are those behind the text, in the last all that are left: special ones have none.
    """

    text: str
    calls: tuple[Called, ...] = ()
    tokens: tuple[Written, ...] = ()
    reason: Reason | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.calls or self.reason)


@dataclass(frozen=True, slots=True)
class Ending:
    """What ends an answer: tokens, strings, a number of tokens, the first call of a tool."""

    tokens: Collection[int]
    strings: Sequence[str]
    length: int
    after_call: bool = False


class Writer:
    """Writes one answer.

    `fresh`: it is a text on its own, not the continuation of one. `shown`: special tokens that are
    part of it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        ending: Ending,
        fresh: bool,
        calls: Reader | None = None,
        shown: Collection[int] = frozenset(),
    ) -> None:
        self._ending = ending
        self._characters = Detokenizer(tokenizer, fresh, shown)
        self._stops = StopStrings(ending.strings)
        self._reader = calls
        self._waiting: list[Written] = []
        self._offset = 0
        self._certain = 0
        self._called = False
        self.count = 0
        """How many tokens came, the one that ended the text included."""

    def push(self, token: Token) -> Piece:
        """What this token adds; nothing must come after a piece with a reason."""
        self.count += 1
        if token.id in self._ending.tokens:
            return self._end([], "stop")
        characters = self._characters.push(token.id)
        self._waiting.append(Written(token, self._offset))
        self._offset += len(characters)
        certain = self._stops.push(characters)
        self._certain += len(certain)
        parts = self._read(certain)
        if self._stops.found is not None or (self._called and self._ending.after_call):
            return self._end(parts, "stop")
        if self.count >= self._ending.length:
            return self._end(parts, "length")
        return self._piece(parts, None)

    def finish(self) -> Piece:
        """The end where the model has no room for more."""
        return self._end([], "length")

    def _end(self, parts: list[Part], reason: Reason) -> Piece:
        if self._stops.found is None:
            rest = self._stops.push(self._characters.finish())
            parts += self._read(rest + self._stops.finish())
        else:  # what it cut off is no part of the answer
            self._waiting = [one for one in self._waiting if one.offset < self._certain]
        if self._reader is not None:
            parts += self._noted(self._reader.finish())
        return self._piece(parts, "tool_calls" if self._called else reason)

    def _read(self, text: str) -> list[Part]:
        if self._reader is None:
            return [text]
        return self._noted(self._reader.push(text))

    def _noted(self, parts: Iterable[Part]) -> list[Part]:
        found = list(parts)
        self._called = self._called or any(isinstance(part, Called) for part in found)
        return found

    def _piece(self, parts: list[Part], reason: Reason | None) -> Piece:
        text = "".join(part for part in parts if isinstance(part, str))
        calls = tuple(part for part in parts if isinstance(part, Called))
        if not (text or calls or reason):
            return Piece("")
        tokens, self._waiting = tuple(self._waiting), []
        return Piece(text, calls, tokens, reason)
