"""Functions that turn the logits of a step into tokens, on the device.

`step` leaves logits in the state `last_logits` [rows, vocabulary], in a row of each sequence's own,
and reads from the state `drawn` [rows] tokens that were drawn there: what is drawn feeds the next
step without the host. `counts` [rows, vocabulary] says what the text has so far, for penalties.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from edgerelax.frontends.language.sampling import Settings, greedy, sample, top_logprobs
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.frontends.nn.functional import concat
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.dtypes import F32, I32, U32
from edgerelax.ir.graph import Module
from edgerelax.sym import Expr, ceildiv, symbol

TOP = 20
"""Likeliest tokens that `top` gives, at most."""

States = Mapping[str, Tensor]
Results = dict[str, Tensor]


def drawing_states(rows: Expr, vocabulary: int) -> dict[str, Input]:
    """The states that steps and draws share."""
    return {
        "last_logits": Input((rows, vocabulary), F32),
        "drawn": Input((rows,), I32),
        "counts": Input((rows, vocabulary), I32),
    }


def add_drawing(module: Module, batch: Expr, rows: Expr, vocabulary: int) -> Module:
    """The module with the functions of this file, for sequences in these rows, i32[batch].

    read: logits f32[batch, vocabulary].
    greedy: the most likely tokens i32[batch], which are drawn with that.
    sample: tokens, and logarithms of their probabilities f32[batch] (sampling.Settings).
    adjusted: the same under penalties by counts, a bias, and a mask of allowed tokens; it counts
    what it draws.
    top: the likeliest tokens i32[batch, n] and the logarithms of their probabilities.
    count: adds amounts to the counts of tokens, each pair of a row and a token once.
    clear: makes the counts of rows 0.
    """
    every = drawing_states(rows, vocabulary)
    given = {"rows": Input((batch,), I32)}
    settings = Settings.inputs(batch)
    m, words = symbol("m"), ceildiv(vocabulary, 32)
    bias = {"bias_ids": Input((batch, m), I32), "bias": Input((batch, m), F32)}
    adjusting = {**settings, **bias, "allowed": Input((batch, words), U32)}
    pairs = {name: Input((m,), I32) for name in ("rows", "tokens", "amounts")}
    plans: Sequence[tuple[Callable[..., Results], dict[str, Input], tuple[str, ...]]] = (
        (_read, given, ("last_logits",)),
        (_greedy, given, ("last_logits", "drawn")),
        (_sample, given | settings, ("last_logits", "drawn")),
        (_adjusted, given | adjusting, ("last_logits", "drawn", "counts")),
        (_top(min(TOP, vocabulary)), given, ("last_logits",)),
        (_count, pairs, ("counts",)),
        (_clear, given, ("counts",)),
    )
    for (forward, inputs, used), name in zip(plans, NAMES, strict=True):
        module = trace(forward, inputs, name, module, {key: every[key] for key in used})
    return module


NAMES = ("read", "greedy", "sample", "adjusted", "top", "count", "clear")
"""The functions, each an entry point of the same role."""


def drawn_tokens(tokens: Tensor, drawn: Tensor) -> Tensor:
    """Tokens i32[batch, length], of which -1 - r stands for what was drawn in row r."""
    rows = apply("max", -tokens - 1, 0)
    return apply("where", apply("lt", tokens, 0), apply("gather", drawn, rows, axis=0), tokens)


def _read(rows: Tensor, states: States) -> Results:
    return {"logits": _rows(states["last_logits"], rows)}


def _greedy(rows: Tensor, states: States) -> Results:
    token = greedy(_rows(states["last_logits"], rows))
    return {"token": token, "drawn": _put(states["drawn"], rows, token)}


def _sample(
    rows: Tensor, numbers: Tensor, integers: Tensor, steps: Tensor, states: States
) -> Results:
    settings = Settings(numbers, integers, steps)
    token, logprob = sample(_rows(states["last_logits"], rows), settings)
    return {"token": token, "logprob": logprob, "drawn": _put(states["drawn"], rows, token)}


def _adjusted(
    rows: Tensor,
    numbers: Tensor,
    integers: Tensor,
    steps: Tensor,
    bias_ids: Tensor,
    bias: Tensor,
    allowed: Tensor,
    states: States,
) -> Results:
    token, logprob = sample(
        _rows(states["last_logits"], rows),
        Settings(numbers, integers, steps),
        counts=_rows(states["counts"], rows),
        bias=(bias_ids, bias),
        allowed=allowed,
    )
    ones = apply("sub", token, token) + 1
    counts = _added(states["counts"], rows, token, ones)
    drawn = _put(states["drawn"], rows, token)
    return {"token": token, "logprob": logprob, "drawn": drawn, "counts": counts}


def _top(count: int) -> Callable[..., Results]:
    def top(rows: Tensor, states: States) -> Results:
        ids, logprobs = top_logprobs(_rows(states["last_logits"], rows), count)
        return {"ids": ids, "logprobs": logprobs}

    return top


def _count(rows: Tensor, tokens: Tensor, amounts: Tensor, states: States) -> Results:
    return {"counts": _added(states["counts"], rows, tokens, amounts)}


def _clear(rows: Tensor, states: States) -> Results:
    counts = states["counts"]
    zero = Tensor(rows.builder, rows.builder.constant("zero", np.zeros((1, 1), np.int32)))
    return {"counts": _put(counts, rows, zero.expand(rows.dims[0], counts.dims[1]))}


def _rows(state: Tensor, rows: Tensor) -> Tensor:
    return apply("gather", state, rows, axis=0)


def _put(state: Tensor, rows: Tensor, values: Tensor) -> Tensor:
    return apply("scatter_nd", state, rows.reshape(*rows.dims, 1), values)


def _added(counts: Tensor, rows: Tensor, tokens: Tensor, amounts: Tensor) -> Tensor:
    """Counts with amounts added at places [row, token], each of which comes once."""
    (number,) = rows.dims
    places = concat((rows.reshape(number, 1), tokens.reshape(number, 1)))
    before = apply("gather_nd", counts, places)
    return apply("scatter_nd", counts, places, before + amounts)
