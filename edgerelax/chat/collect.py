"""Whole answers from their streams."""

from collections.abc import Iterable

import msgspec

from edgerelax.chat.openai import (
    ChatChunk,
    ChatCompletion,
    Choice,
    ChunkChoice,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Logprobs,
    Reply,
    Timings,
    ToolCall,
    Usage,
)


def chat_answer(chunks: Iterable[ChatChunk]) -> ChatCompletion:
    """The answer that chunks add up to; the last of them has the usage."""
    every = list(chunks)
    parts: dict[int, list[ChunkChoice]] = {}
    for choice in (choice for chunk in every for choice in chunk.choices):
        parts.setdefault(choice.index, []).append(choice)
    usage, timings = _figures(every[-1])
    return ChatCompletion(
        id=every[-1].id,
        created=every[-1].created,
        model=every[-1].model,
        choices=[_choice(index, added) for index, added in sorted(parts.items())],
        usage=usage,
        timings=timings,
    )


def _choice(index: int, parts: list[ChunkChoice]) -> Choice:
    texts = [p.delta.content for p in parts if isinstance(p.delta.content, str)]
    calls: list[ToolCall] = []
    for part in parts:
        if isinstance(part.delta.tool_calls, list):
            calls += part.delta.tool_calls
    whole = [msgspec.structs.replace(call, index=msgspec.UNSET) for call in calls]
    logged = [part.logprobs.content for part in parts if part.logprobs is not None]
    reason = parts[-1].finish_reason
    assert reason is not None
    return Choice(
        index=index,
        message=Reply(
            "".join(texts) or ("" if not calls else None), tool_calls=whole or msgspec.UNSET
        ),
        finish_reason=reason,
        logprobs=Logprobs([one for some in logged for one in some]) if logged else None,
    )


def completion_answer(chunks: Iterable[Completion]) -> Completion:
    """The completion that chunks add up to; the last of them has the usage."""
    every = list(chunks)
    parts: dict[int, list[CompletionChoice]] = {}
    for choice in (choice for chunk in every for choice in chunk.choices):
        parts.setdefault(choice.index, []).append(choice)
    choices = [_completed(index, added) for index, added in sorted(parts.items())]
    return msgspec.structs.replace(every[-1], choices=choices)


def _completed(index: int, parts: list[CompletionChoice]) -> CompletionChoice:
    logged = [part.logprobs for part in parts if part.logprobs is not None]
    return CompletionChoice(
        index=index,
        text="".join(part.text for part in parts),
        finish_reason=parts[-1].finish_reason,
        logprobs=_joined(logged) if logged else None,
    )


def _joined(every: list[CompletionLogprobs]) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[x for one in every for x in one.tokens],
        token_logprobs=[x for one in every for x in one.token_logprobs],
        top_logprobs=[x for one in every for x in one.top_logprobs],
        text_offset=[x for one in every for x in one.text_offset],
    )


def _figures(last: ChatChunk) -> tuple[Usage, Timings]:
    assert isinstance(last.usage, Usage) and isinstance(last.timings, Timings)
    return last.usage, last.timings
