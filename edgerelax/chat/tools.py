"""Calls of tools in what a model writes, in the two forms that models are trained on.

`tagged` (Hermes, Qwen): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, several of them,
with text around. `bare` (Llama 3 and others): the whole answer is one such object or several,
with `parameters` for `arguments`.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgerelax.chat.stream import held_back

Form = Literal["tagged", "bare"]
OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Called:
    """A call: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


Part = str | Called


def form_of(template: str) -> Form:
    """The form that a model's templates speak of."""
    return "tagged" if OPEN in template else "bare"


def schema_of(tools: Sequence[tuple[str, dict[str, Any]]], form: Form) -> dict[str, Any]:
    """What a call of one of these tools looks like: names and the schemas of their arguments."""
    key = "arguments" if form == "tagged" else "parameters"
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: arguments or {"type": "object"}},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for name, arguments in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


class TaggedCalls:
    """Takes the calls out of a text as it comes. Text that may begin one is held back."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._after_call = False
        self._space = ""

    def push(self, text: str) -> Iterator[Part]:
        """Text and calls that are whole now."""
        self._held += text
        while True:
            mark = CLOSE if self._inside else OPEN
            before, found, after = self._held.partition(mark)
            if not found:
                break
            self._held = after
            self._inside = not self._inside
            yield from self._text(before) if self._inside else self._call(before, CLOSE)
        if not self._inside:
            cut = len(self._held) - held_back(self._held, (OPEN,))
            text, self._held = self._held[:cut], self._held[cut:]
            yield from self._text(text)

    def finish(self) -> Iterator[Part]:
        """The rest. Models may end a text without closing the last call."""
        rest, self._held = self._held, ""
        yield from self._call(rest, "") if self._inside else self._text(rest)

    def _text(self, text: str) -> Iterator[Part]:
        """White space behind a call is text only where other text follows it."""
        text, self._space = self._space + text, ""
        if self._after_call and not text.strip():
            self._space = text
        elif text:
            self._after_call = False
            yield text

    def _call(self, text: str, close: str) -> Iterator[Part]:
        calls = _calls(text)
        yield from calls
        self._after_call, space = bool(calls), self._space
        self._space = ""
        if not calls:
            yield space + OPEN + text + close


class BareCalls:
    """Takes an answer that begins as JSON does for calls, if it turns out to be some."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._is_text = False

    def push(self, text: str) -> Iterator[Part]:
        """Text, once it is certain that it is."""
        self._held += text
        begun = self._held.lstrip()
        self._is_text = self._is_text or begun[:1] not in ("", "{", "[")
        if self._is_text and self._held:
            yield self._held
            self._held = ""

    def finish(self) -> Iterator[Part]:
        """Calls, if all of what was held back is calls of known tools."""
        calls = _calls(self._held)
        if calls and all(call.name in self._names for call in calls):
            yield from calls
        elif self._held:
            yield self._held


def reader(form: Form, names: Collection[str]) -> TaggedCalls | BareCalls:
    """What takes calls of tools with these names out of a text."""
    return TaggedCalls() if form == "tagged" else BareCalls(names)


def _calls(text: str) -> list[Called]:
    """The calls that a text is; none where any of it is something else."""
    found: list[Called] = []
    read: Callable[[str], tuple[Any, int]] = json.JSONDecoder().raw_decode
    rest = text.strip()
    while rest:
        try:
            value, end = read(rest)
        except (ValueError, RecursionError):
            return []
        for item in value if isinstance(value, list) else [value]:
            call = _call(item)
            if call is None:
                return []
            found.append(call)
        rest = rest[end:].lstrip(" \t\r\n;,")
    return found


def _call(value: Any) -> Called | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    return Called(value["name"], json.dumps(arguments, ensure_ascii=False))
