"""Probabilities of tokens as OpenAI's API has them, in chats and in completions."""

from collections.abc import Sequence

from edgerelax.chat.openai import CompletionLogprobs, Logprobs, TokenLogprob, TopLogprob
from edgerelax.chat.reply import Written
from edgerelax.chat.tokenizer import Tokenizer


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Written]) -> Logprobs:
    """Of the tokens behind a piece of a message."""
    return Logprobs([_one(tokenizer, written) for written in tokens])


def _one(tokenizer: Tokenizer, written: Written) -> TokenLogprob:
    token = written.token
    top = [TopLogprob(*_spelled(tokenizer, other, value)) for other, value in token.top]
    name, value, raw = _spelled(tokenizer, token.id, token.logprob)
    return TokenLogprob(name, value, raw, top)


def _spelled(tokenizer: Tokenizer, token: int, value: float | None) -> tuple[str, float, list[int]]:
    assert value is not None, "the engine was asked for logprobs"
    raw = tokenizer.bytes_of(token)
    return raw.decode(errors="replace"), value, list(raw)


def completion_logprobs(tokenizer: Tokenizer, tokens: Sequence[Written]) -> CompletionLogprobs:
    """Of the tokens behind a piece of a completion."""
    every = [_one(tokenizer, written) for written in tokens]
    return CompletionLogprobs(
        tokens=[one.token for one in every],
        token_logprobs=[one.logprob for one in every],
        top_logprobs=[{other.token: other.logprob for other in one.top_logprobs} for one in every],
        text_offset=[written.offset for written in tokens],
    )
