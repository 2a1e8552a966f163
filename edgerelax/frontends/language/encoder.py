"""Vectors of texts: models that see a sequence in both directions, and pooling of hidden states.

Models that read from left to right make such vectors too, of their last token.
"""

from collections.abc import Mapping
from typing import Literal

from edgerelax.frontends.dims import Dims, DimSpec
from edgerelax.frontends.language.context import Attend, Context, Decoder, Whole
from edgerelax.frontends.language.functions import Sizes
from edgerelax.frontends.language.text import Text
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.frontends.nn.functional import attention, positions, total
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.dtypes import I64
from edgerelax.ir.graph import Module

Pooling = Literal["first", "mean", "last"]
"""Whose hidden state is a text's: its first token's, all tokens' mean, its last token's."""


class Both(Context):
    """Sequences whose tokens see what precedes and what follows, within `lengths` i64[batch].

    `shown` [batch, 1, 1, length] says which are not padding. A window is of so many tokens to
    either side. A token of the padding sees itself too: else it might see none, and NaN would
    spread from there.
    """

    def __init__(self, tokens: Tensor, lengths: Tensor) -> None:
        batch, length = tokens.dims
        at = positions(tokens, length)
        self.positions = at.reshape(1, length)
        self._queries, self._keys = at.reshape(1, 1, length, 1), at.reshape(1, 1, 1, length)
        self.shown = apply("lt", self._keys, lengths.reshape(batch, 1, 1, 1))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attend) -> Tensor:
        shown, distance = self.shown, self._queries - self._keys
        if how.window is not None:
            near = apply("le", apply("abs", distance), how.window)
            shown = apply("and", shown, near)
        itself = apply("eq", distance, 0)
        return attention(q, k, v, apply("or", shown, itself), how.scale, how.cap)


def pooled(hidden: Tensor, lengths: Tensor, how: Pooling) -> Tensor:
    """One vector of length 1 for each text: [batch, length, width] → [batch, width]."""
    batch, length, _ = hidden.dims
    at, ends = positions(lengths, length).reshape(1, length), lengths.reshape(batch, 1)
    match how:
        case "first":
            taken = apply("and", apply("lt", at, ends), apply("eq", at, 0))
        case "last":
            taken = apply("eq", at, ends - 1)
        case "mean":
            taken = apply("lt", at, ends)
    kept = apply("where", taken.reshape(batch, length, 1), hidden, 0.0)
    # the mean's divisor goes with the length that is made 1
    summed = apply("reduce_sum", kept, axes=(1,), keepdims=False)
    norm = apply("sqrt", total(summed * summed))
    return summed / apply("max", norm, 1e-12)


def embedding_module(
    model: Decoder,
    config: Sizes,
    pooling: Pooling,
    encoder: bool,
    dims: Mapping[str, DimSpec] | None = None,
    architecture: str = "",
    text: Text | None = None,
) -> Module:
    """A module with `embed`: texts to vectors of length 1.

    tokens i64[batch, length], each text's padded at the end, and lengths i64[batch], 1 at least →
    embeddings f32[batch, width]. `dims` may give sizes or bounds of `batch` and `length`.
    """
    wanted = Dims(dims)
    batch = wanted.make("batch", "batch")
    length = wanted.make("length", "length", config.context)
    wanted.finish(("batch", "length"))

    def embed(tokens: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        context = Both(tokens, lengths) if encoder else Whole(tokens)
        return {"embeddings": pooled(model.hidden(tokens, context), lengths, pooling)}

    inputs = {"tokens": Input((batch, length), I64), "lengths": Input((batch,), I64)}
    module = trace(embed, inputs, "embed")
    module.attrs["language"] = {
        "architecture": architecture,
        "vocabulary": config.vocabulary,
        "context": config.context,
        "functions": {"embed": "embed"},
        **(text.language() if text is not None else {}),
    }
    if text is not None:
        module.attrs["assets"] = text.assets()
    return module
