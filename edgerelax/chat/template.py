"""Messages as the text that a model was trained on, by the template that came with it.

Templates are Jinja as transformers runs it: in a sandbox, with `raise_exception`, `strftime_now`,
`tojson` without HTML's escapes, `break` and `continue`, and blocks marked as generated.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec
from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgerelax.chat.images import Images
from edgerelax.ir.diagnostics import FormatError, InputError

DEFAULT = "default"
_PROBE = "a text to look for"
TOOL_USE = "tool_use"


class ChatFile(msgspec.Struct, frozen=True):
    """chat.json: templates by name; special tokens by the names that templates call them.

    `images` says how images become tokens, of a model that sees any.
    """

    templates: dict[str, str] = {}
    special_tokens: dict[str, str] = {}
    images: Images | None = None


class _Generated(Extension):
    """`{% generation %}` marks what the model wrote, for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  (what the base class declares)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generated, loopcontrols]
    )
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = _strftime_now
    return made


class ChatTemplate:
    """The templates of a chat.json. Raises FormatError for one that is no template."""

    def __init__(self, data: bytes, where: str = "chat.json") -> None:
        try:
            self.file = msgspec.json.decode(data, type=ChatFile)
        except msgspec.DecodeError as error:
            raise FormatError(f"{where}: {error}") from error
        environment = _environment()
        self._templates: dict[str, Template] = {}
        for name, text in self.file.templates.items():
            try:
                self._templates[name] = environment.from_string(text)
            except TemplateSyntaxError as error:
                raise FormatError(
                    f"{where}: the template {name} is wrong in line {error.lineno}: {error.message}"
                ) from error

    @property
    def source(self) -> str:
        """All templates' texts: what forms of tool calls the model knows is read from them."""
        return "\n".join(self.file.templates.values())

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the template writes contents that are lists of parts, and knows their types."""
        said = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
        try:
            text = self.render(said)
        except InputError:
            return False
        return _PROBE in text and "'type'" not in text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        reply: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a chat; `reply` ends it where the model's answer begins.

        `settings` are variables of the model's own, such as `enable_thinking`. Raises InputError
        where the template refuses the messages or fails.
        """
        wanted = TOOL_USE if tools and TOOL_USE in self._templates else DEFAULT
        if wanted not in self._templates:
            raise InputError(
                "this model has no chat template",
                hint="ask for a completion of a text, or give the model a template when exporting",
            )
        values = {**self.file.special_tokens, **(settings or {})}
        values |= {"add_generation_prompt": reply, "documents": None}
        values |= {"tools": list(tools) if tools else None}
        template, failures = self._templates[wanted], list[Exception]()
        for said in _ways(list(map(_given, messages))):
            try:
                return template.render({**values, "messages": said})
            except Exception as error:  # a template may raise whatever Python can
                failures.append(error)
        raise InputError(
            f"the chat template failed: {failures[0]}",
            hint="it may not know these roles, or not in this order",
        ) from failures[0]


def _ways(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Messages with the ways to say that an answer has no text, but calls: templates take one."""
    yield messages
    silent = [message["role"] == "assistant" and "content" not in message for message in messages]
    for nothing in (None, "") if any(silent) else ():
        yield [
            {**message, "content": nothing} if is_silent else message
            for message, is_silent in zip(messages, silent, strict=True)
        ]


def _given(message: Mapping[str, Any]) -> dict[str, Any]:
    """Without fields that are null: templates take those for given."""
    return {name: value for name, value in message.items() if value is not None}
