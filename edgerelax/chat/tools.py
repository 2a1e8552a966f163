"""Calls of tools in what a model writes. Each family has its own way, which its template shows.

`<tool_call>{"name": …, "arguments": {…}}</tool_call>` (Hermes, Qwen, SmolLM3), `<|tool_call|>[…]`
(Phi 4, Granite) and `[TOOL_CALLS]` (Mistral) stand among text, several of them too. Where a
template has no such mark a call is the whole answer, one object or several, with `parameters` for
`arguments` (Llama 3 and others). What turns out to be no call is text.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgerelax.chat.stream import held_back


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How calls are written.

    `begin` begins calls; without it they are the whole answer, behind `lead` at most. `end` ends
    them; without it they go on to the next `begin` or the answer's end. `key` is what arguments
    are called.
    """

    begin: str | None = None
    end: str | None = None
    lead: str = ""
    key: Literal["arguments", "parameters"] = "arguments"
    is_list: bool = False
    on_lines: bool = False
    """Whether a call has a line of its own between the marks."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks; where they are special tokens they must be shown to be found."""
        return tuple(mark for mark in (self.begin, self.end, self.lead) if mark)


MARKED = (
    CallFormat("<tool_call>", "</tool_call>", on_lines=True),
    CallFormat("<|tool_call|>", "<|/tool_call|>", is_list=True),
    CallFormat("[TOOL_CALLS]", is_list=True),
)
"""Those that are known by what begins them, the first that a template speaks of."""
BARE = CallFormat(lead="<|python_tag|>", key="parameters")
"""Llama 3's, and what models write who were told of tools but of no marks."""
_NAMED = re.compile(r"([A-Za-z0-9_.-]+)(?:\[ARGS\])?\s*(\{.*\})\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Called:
    """A call: the tool's name, and its arguments as JSON text."""

    name: str
    arguments: str


Part = str | Called


def format_of(template: str) -> CallFormat:
    """The format that a model's templates speak of."""
    return next((form for form in MARKED if (form.begin or "") in template), BARE)


def schema_of(tools: Sequence[tuple[str, dict[str, Any]]], form: CallFormat) -> dict[str, Any]:
    """What calls of these tools look like: names and the schemas of their arguments."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, form.key: arguments or {"type": "object"}},
            "required": ["name", form.key],
            "additionalProperties": False,
        }
        for name, arguments in tools
    ]
    one = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return {"type": "array", "items": one, "minItems": 1} if form.is_list else one


class MarkedCalls:
    """Takes the calls out of a text as it comes. Text that may begin one is held back."""

    def __init__(self, form: CallFormat) -> None:
        self._begin, self._end = form.begin or "", form.end or ""
        self._held = ""
        self._after_call = False

    def push(self, text: str) -> Iterator[Part]:
        """Text and calls that are whole now."""
        self._held += text
        return self._parts(False)

    def finish(self) -> Iterator[Part]:
        """The rest. Models may end a text without closing the last call."""
        return self._parts(True)

    def _parts(self, is_last: bool) -> Iterator[Part]:
        inside = len(self._begin)
        while True:
            start = self._held.find(self._begin)
            if start < 0:
                kept = 0 if is_last else held_back(self._held, (self._begin,))
                yield from self._text(len(self._held) - kept)
                return
            yield from self._text(start)
            stop = self._held.find(self._end or self._begin, inside)
            if stop < 0 and not is_last:
                return
            after = len(self._held) if stop < 0 else stop + len(self._end)
            calls = _calls(self._held[inside:] if stop < 0 else self._held[inside:stop])
            if calls:
                self._held = self._held[after:]
                self._after_call = True
                yield from calls
            else:
                yield from self._text(after)

    def _text(self, length: int) -> Iterator[Part]:
        """What is no call, without the space behind a call."""
        text, self._held = self._held[:length], self._held[length:]
        if self._after_call:
            text = text.lstrip()
            self._after_call = not text
        if text:
            yield text


class BareCalls:
    """Takes an answer that begins as calls do, if it turns out to be some."""

    def __init__(self, form: CallFormat, names: Collection[str]) -> None:
        self._lead, self._names = form.lead, names
        self._held = ""
        self._is_text = False

    def push(self, text: str) -> Iterator[Part]:
        """Text, once it is certain that it is."""
        self._held += text
        begun = self._held.lstrip()
        may_be = begun[:1] in ("{", "[") or begun.startswith(self._lead)
        self._is_text = self._is_text or not (may_be or self._lead.startswith(begun))
        if self._is_text and self._held:
            yield self._held
            self._held = ""

    def finish(self) -> Iterator[Part]:
        """Calls, if all of what was held back is calls of known tools."""
        calls = _calls(self._held.lstrip().removeprefix(self._lead))
        if calls and all(call.name in self._names for call in calls):
            yield from calls
        elif self._held:
            yield self._held


Reader = MarkedCalls | BareCalls


def reader(form: CallFormat, names: Collection[str]) -> Reader:
    """What takes calls of tools with these names out of a text."""
    return MarkedCalls(form) if form.begin else BareCalls(form, names)


def _calls(text: str) -> list[Called]:
    """The calls that a text is; none where any of it is something else."""
    found: list[Called] = []
    read: Callable[[str], tuple[Any, int]] = json.JSONDecoder().raw_decode
    rest = text.strip()
    while rest:
        named = _NAMED.fullmatch(rest)
        try:
            value, end = _named(named) if named else read(rest)
        except (ValueError, RecursionError):
            return []
        for item in value if isinstance(value, list) else [value]:
            call = _call(item)
            if call is None:
                return []
            found.append(call)
        rest = rest[end:].lstrip(" \t\r\n;,")
    return found


def _named(match: re.Match[str]) -> tuple[Any, int]:
    """`name[ARGS]{…}` or `name{…}`, as newer Mistrals have it, and where it ends."""
    return {"name": match[1], "arguments": json.loads(match[2])}, match.end()


def _call(value: Any) -> Called | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments: Any = value.get("arguments")
    if arguments is None:
        arguments = value.get("parameters")
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        return Called(value["name"], arguments)
    if not isinstance(arguments, dict):
        return None
    return Called(value["name"], json.dumps(arguments, ensure_ascii=False))
