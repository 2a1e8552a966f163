"""The next token of each sequence, drawn from its logits as part of the compiled program.

`sample` changes logits f32[b, v] by, in this order: bias, penalties, mask, temperature, top-k,
top-p, min-p, and draws from what is left. It compiles to one kernel with a workgroup for each
sequence, one before it for penalties and mask, and two for a bias. `greedy` is for batches that are
all greedy; a sequence of temperature 0 in `sample` gives the same token.

What a sequence wants stands in two tables, so that hosts upload little: f32[b, 6] with the columns
NUMBERS and i32[b, 2] with the columns INTEGERS.

* temperature: logits are divided by it; 0 is greedy, of equals the smallest id
* top_k: what is less likely than the k-th goes; 0 keeps all
* top_p: the most likely tokens that together reach it stay, of what top_k kept; 1 keeps all
* min_p: what is less likely than min_p times the most likely goes; 0 keeps all
* repetition: logits of tokens in the text are divided by it, or multiplied if negative; 1 is off
* presence, frequency: taken off logits of tokens that were generated, once, and as often; 0 is off
* seed: with the step, all that the draw depends on, not the place in the batch: choices of one
  prompt need seeds of their own

Tokens that are equally likely stay or go together. NaN counts as -inf; a sequence all of whose
logits are -inf gets token 0.
"""

from dataclasses import dataclass

import numpy as np

from edgerelax.frontends.nn import Input, Tensor
from edgerelax.frontends.nn.functional import topk
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32, I32
from edgerelax.ops import OPS
from edgerelax.sym import ExprLike, ceildiv, prove_eq

NUMBERS = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")
INTEGERS = ("top_k", "seed")

PROMPT = 1 << 30
"""Marks, in counts, a token of the prompt: only repetition looks at those."""

Bias = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Settings:
    """How sequences are sampled: numbers f32[b, 6], integers i32[b, 2], steps i32[b].

    A step is the number of a draw: any counter that differs from one token to the next.
    """

    numbers: Tensor
    integers: Tensor
    steps: Tensor

    @staticmethod
    def inputs(batch: ExprLike) -> dict[str, Input]:
        """The inputs of a function that makes settings of them, by name."""
        return {
            "numbers": Input((batch, len(NUMBERS)), F32),
            "integers": Input((batch, len(INTEGERS)), I32),
            "steps": Input((batch,), I32),
        }


def greedy(logits: Tensor) -> Tensor:
    """The most likely token of each row: f32[b, v] → i32[b]; of equals the smallest."""
    return apply("greedy_tokens", logits)


def sample(
    logits: Tensor,
    settings: Settings,
    *,
    counts: Tensor | None = None,
    bias: Bias | None = None,
    allowed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """A token of each row, i32[b], and the logarithm of its probability, f32[b].

    The latter is the model's: a softmax of the logits as they are given, at temperature 1; -inf
    where that is 0. `counts`, `bias` and `allowed` are as for `adjusted`.
    """
    changed = adjusted(logits, settings, counts=counts, bias=bias, allowed=allowed)
    raw = None if changed is logits else logits.value
    given = (t.value for t in (changed, settings.numbers, settings.integers, settings.steps))
    token, logprob = logits.builder.call_all(OPS["sample_tokens"], *given, raw)
    return Tensor(logits.builder, token), Tensor(logits.builder, logprob)


def adjusted(
    logits: Tensor,
    settings: Settings,
    *,
    counts: Tensor | None = None,
    bias: Bias | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """Logits f32[b, v] after bias, penalties and mask; without those the very same tensor.

    `counts` i32[b, v]: how often each token was generated, plus PROMPT if the prompt has it.
    `bias`: ids i32[b, m] and what is added there, f32[b, m]; ids of v or more are padding.
    `allowed` i32 or u32[b, ceil(v / 32)]: bit i % 32 of word i // 32 says whether token i may come.
    """
    x = logits
    if bias is not None:
        ids, values = bias
        x = apply("scatter_elements", x, ids, values, axis=1, reduction="add")
    if counts is not None:
        x = _penalized(x, counts, settings.numbers)
    if allowed is not None:
        x = apply("where", _bits(allowed, logits.dims[1]), x, float("-inf"))
    return x


def top_logprobs(logits: Tensor, count: int = 20) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of each row, likeliest first: i32[b, count], log-probabilities f32."""
    x = _numbers(logits)
    values, ids = topk(x, count)
    total = apply("reduce_log_sum_exp", x, axes=(1,), keepdims=True)
    return ids.cast(I32), values - total


def _numbers(logits: Tensor) -> Tensor:
    """NaN as -inf: one broken logit does not win."""
    return apply("where", apply("isnan", logits), float("-inf"), logits)


def _penalized(x: Tensor, counts: Tensor, numbers: Tensor) -> Tensor:
    _, repetition, presence, frequency = numbers.split((3, 1, 1, 1))
    scaled = apply("where", apply("lt", x, 0.0), x * repetition, x / repetition)
    x = apply("where", apply("ne", counts, 0), scaled, x)
    generated = apply("bitwise_and", counts, PROMPT - 1)
    once = apply("gt", generated, 0).cast(F32)
    return x - once * presence - generated.cast(F32) * frequency


def _bits(words: Tensor, count: ExprLike) -> Tensor:
    """bool[b, count] of words of 32 bits, the lowest first."""
    batch, length = words.dims
    if prove_eq(length, ceildiv(count, 32)) is not True:
        raise InputError(f"{length} words of allowed tokens for {count} tokens")
    ones = (np.uint32(1) << np.arange(32, dtype=np.uint32)).astype(words.dtype.numpy)
    table = Tensor(words.builder, words.builder.constant("bits", ones))
    bits = apply("ne", apply("bitwise_and", words.reshape(batch, length, 1), table), 0)
    return apply("slice", bits.reshape(batch, length * 32), starts=(0,), ends=(count,), axes=(1,))
