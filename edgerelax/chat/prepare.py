"""From a request to what an engine is asked: prompt, sampling, grammar, ending."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace as changed

from edgerelax.chat.engine import Picture, Sampling
from edgerelax.chat.grammar import Grammar, Grammars
from edgerelax.chat.openai import (
    ChatRequest,
    Common,
    CompletionRequest,
    Message,
    Part,
    RequestError,
    TextPart,
    Tool,
    ToolChoice,
    blaming,
)
from edgerelax.chat.reply import Ending
from edgerelax.chat.tools import CallFormat, schema_of

COMPLETION_TOKENS = 16
"""How many tokens a completion has unless the request says (as OpenAI's API has it)."""
DIGITS = 10
"""No token's number has more."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model can take: tokens in all, and how many tokens it knows.

    `answer` is how long answers may be whose requests say nothing; None: as there is room.
    """

    context: int
    vocabulary: int
    ends: tuple[int, ...]
    answer: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One text to be written. `pictures` are what tokens of the prompt stand for."""

    prompt: Sequence[int]
    sampling: Sampling
    ending: Ending
    pictures: Sequence[Picture] = ()


def job(
    request: Common, prompt: Sequence[int], field: str, wanted: int | None, limits: Limits
) -> Job:
    """What a prompt and a request ask for. Raises RequestError for a prompt that doesn't fit."""
    if not prompt:
        raise RequestError(f"{field}: it has no tokens", node=field)
    outside = [token for token in prompt if token >= limits.vocabulary]
    if outside:
        raise RequestError(
            f"{field}: token {outside[0]}, of {limits.vocabulary} tokens", node=field
        )
    room = limits.context - len(prompt)
    if room < 1:
        raise RequestError(
            f"{field}: {len(prompt)} tokens, and the model takes {limits.context} in all, the "
            "answer included",
            node=field,
            code="context_length_exceeded",
            hint="shorten it, or leave earlier messages out",
        )
    wanted = limits.answer if wanted is None else wanted
    length = room if wanted is None else min(wanted, room)
    ends = () if request.ignore_eos else limits.ends
    after_call = isinstance(request, ChatRequest) and request.parallel_tool_calls is False
    return Job(
        prompt=prompt,
        sampling=_sampling(request, length, limits),
        ending=Ending(ends, request.stops, length, after_call),
    )


def _sampling(request: Common, length: int, limits: Limits) -> Sampling:
    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    return Sampling(
        max_tokens=length,
        temperature=given(request.temperature, 1.0),
        top_k=request.top_k or 0,
        top_p=given(request.top_p, 1.0),
        min_p=given(request.min_p, 0.0),
        repetition_penalty=given(request.repetition_penalty, 1.0),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        logit_bias=_biases(request, limits),
        seed=request.seed,
        logprobs=_logprobs(request),
    )


def _biases(request: Common, limits: Limits) -> dict[int, float]:
    found: dict[int, float] = {}
    for name, bias in (request.logit_bias or {}).items():
        known = name.isdecimal() and len(name) <= DIGITS and int(name) < limits.vocabulary
        if not known:
            raise RequestError(
                f"logit_bias: {name[:DIGITS]!r} is no token; there are {limits.vocabulary}",
                node="logit_bias",
            )
        found[int(name)] = bias
    return found


def _logprobs(request: Common) -> int | None:
    match request:
        case ChatRequest():
            if request.top_logprobs is not None and not request.logprobs:
                raise RequestError("top_logprobs: it needs logprobs", node="top_logprobs")
            return (request.top_logprobs or 0) if request.logprobs else None
        case CompletionRequest():
            return request.logprobs
    return None


WriteParts = Callable[[list[Part], str], str | list[dict[str, str]]]
"""What a template takes of a message's parts, at the place that errors name."""


def messages_of(request: ChatRequest, written: WriteParts) -> list[dict[str, Any]]:
    """Messages as templates take them: contents as `written`, arguments of calls as objects."""
    return [
        _message(message, f"messages[{k}]", written) for k, message in enumerate(request.messages)
    ]


def _message(message: Message, at: str, written: WriteParts) -> dict[str, Any]:
    content = message.content
    fields: dict[str, Any] = msgspec.to_builtins(changed(message, content=None))
    if fields["role"] == "developer":  # OpenAI's newer name of the same
        fields["role"] = "system"
    if content is not None:
        parts: list[Part] = [TextPart(text=content)] if isinstance(content, str) else content
        fields["content"] = written(parts, f"{at}.content")
    for k, call in enumerate(fields["tool_calls"] or ()):
        place = f"{at}.tool_calls[{k}].function.arguments"
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{place}: not JSON: {error}", node=place) from error
    return fields


def tools_of(request: ChatRequest) -> list[Tool]:
    """The tools that may be called: none where the choice is none. Raises RequestError."""
    choice, tools = request.tool_choice, request.tools or []
    if choice in (None, "auto", "none"):
        return [] if choice == "none" else tools
    if not tools:
        raise RequestError("tool_choice: there are no tools", node="tool_choice")
    if isinstance(choice, ToolChoice):
        named = [tool for tool in tools if tool.function.name == choice.function.name]
        if not named:
            name = choice.function.name
            raise RequestError(f"tool_choice: no tool is called {name!r}", node="tool_choice")
    return tools


def fields_of(tool: Tool) -> dict[str, Any]:
    """A tool as templates take it: what the request says of it and no more."""
    function = msgspec.to_builtins(tool.function)
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": tool.type, "function": given}


MakeGrammar = Callable[[], Grammar]
MakeGrammars = Callable[[], Grammars]
Given = TypeVar("Given")


def calls_grammar(
    request: ChatRequest, form: CallFormat, grammars: MakeGrammars
) -> MakeGrammar | None:
    """What makes a mask for each answer, if the request asks for calls of tools."""
    choice, tools = request.tool_choice, tools_of(request)
    if tools and _constrained(request):
        raise RequestError(
            "response_format: it leaves no room for tools",
            node="response_format",
            hint="leave tools out, or set tool_choice to none",
        )
    if isinstance(choice, ToolChoice):
        tools = [tool for tool in tools if tool.function.name == choice.function.name]
    elif choice != "required":
        return None
    functions = [(tool.function.name, tool.function.parameters or {}) for tool in tools]
    call = schema_of(functions, form)
    begin, end, space = form.begin, form.end or "", "\n" if form.on_lines else ""
    if begin is not None:
        return _checked("tools", lambda: grammars().between(begin, call, end, space))
    return _checked("tools", lambda: grammars().schema(call))


def format_grammar(request: Common, grammars: MakeGrammars) -> MakeGrammar | None:
    """What makes a mask for each answer, if the request says what it shall be."""
    wanted = request.response_format
    if wanted is None or not _constrained(request):
        return None
    place = "response_format"
    if wanted.type == "grammar":
        rules = _given(wanted.grammar, f"{place}.grammar")
        return _checked(place, lambda: grammars().rules(rules))
    schema: dict[str, Any] = {"type": "object"}
    if wanted.type == "json_schema":
        described = _given(wanted.json_schema, f"{place}.json_schema")
        schema = _given(described.schema, f"{place}.json_schema.schema")
    return _checked(place, lambda: grammars().schema(schema))


def _constrained(request: Common) -> bool:
    return request.response_format is not None and request.response_format.type != "text"


def _given(value: Given | None, field: str) -> Given:
    if value is None:
        raise RequestError(f"{field}: it is missing", node=field)
    return value


def _checked(field: str, make: MakeGrammar) -> MakeGrammar:
    """The same, once it is known that it can be made."""
    with blaming(field):
        make()
    return make
