"""The functions of a language model's module, whatever file the model came from."""

from collections.abc import Mapping
from typing import Protocol

from edgerelax.frontends.dims import Dims, DimSpec
from edgerelax.frontends.language.cache import PAGE, cache_states, step
from edgerelax.frontends.language.context import Decoder, Whole
from edgerelax.frontends.language.drawing import (
    NAMES,
    add_drawing,
    drawing_states,
    drawn_tokens,
)
from edgerelax.frontends.language.text import Text
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.dtypes import I32, I64
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol


class Sizes(Protocol):
    """The greatest length that a language model serves, and how many tokens it knows."""

    @property
    def context(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...


def language_module(
    model: Decoder,
    config: Sizes,
    dims: Mapping[str, DimSpec] | None = None,
    architecture: str = "",
    text: Text | None = None,
) -> Module:
    """A module with the functions of a language model.

    `main`: tokens i64[batch, length] → logits f32[batch, length, vocabulary], of whole sequences.
    `step`: new tokens i32[batch, length] of sequences whose earlier ones are in a cache. The logits
    after the token number `last` of each go to the row of the state `last_logits` that `rows`
    names. A token -1 - r is the one that was drawn in row r. What else it takes: cache.Paged.
    And what draws tokens from logits: drawing.add_drawing.

    `dims` may give sizes or bounds of `batch`, `length` and `pages`; the latter two end at what
    the model serves. `text` becomes assets. Raises InputError for a dim that the model does not
    have.
    """
    wanted = Dims(dims)
    batch = wanted.make("batch", "batch")
    length = wanted.make("length", "length", config.context)
    count = wanted.make("pages", "pages", -(-config.context // PAGE))
    slots, own = symbol("slots", PAGE, None, PAGE), symbol("rows", 1)  # the host chooses how many
    wanted.finish(("batch", "length", "pages"))

    cached = cache_states(model.caches, slots)
    drawing = drawing_states(own, config.vocabulary)
    of_rows = {name: drawing[name] for name in ("last_logits", "drawn")}

    def main(tokens: Tensor) -> dict[str, Tensor]:
        return {"logits": model.logits(model.hidden(tokens, Whole(tokens)))}

    def next_logits(
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        pages: Tensor,
        last: Tensor,
        rows: Tensor,
        states: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        kept = {name: states[name] for name in cached}
        known = drawn_tokens(tokens, states["drawn"])
        logits, updated = step(model, known, positions, slots, pages, last, kept)
        at = rows.reshape(batch, 1)
        return {"last_logits": apply("scatter_nd", states["last_logits"], at, logits), **updated}

    module = trace(main, {"tokens": Input((batch, length), I64)})
    each = Input((batch, length), I32)
    paged = {"pages": Input((batch, count), I32)}
    paged |= {name: Input((batch,), I32) for name in ("last", "rows")}
    given = {"tokens": each, "positions": each, "slots": each, **paged}
    module = trace(next_logits, given, "step", module, cached | of_rows)
    module = add_drawing(module, batch, own, config.vocabulary)
    module.attrs["language"] = {
        "architecture": architecture,
        "vocabulary": config.vocabulary,
        "context": config.context,
        "functions": {"whole": "main", **{name: name for name in ("step", *NAMES)}},
        "page_size": PAGE,
        **(text.language() if text is not None else {}),
    }
    if text is not None:
        module.attrs["assets"] = text.assets()
    return module


def longest(dims: Mapping[str, DimSpec] | None) -> int | None:
    """The greatest length that is wanted, where one is."""
    wanted = (dims or {}).get("length")
    return wanted[1] if isinstance(wanted, tuple) else wanted
