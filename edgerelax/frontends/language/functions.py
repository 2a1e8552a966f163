"""The functions of a language model's module, whatever file the model came from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from edgerelax.frontends.dims import Dims, DimSpec
from edgerelax.frontends.language.cache import PAGE, Paged, cache_states, step
from edgerelax.frontends.language.context import Context, Decoder, Whole
from edgerelax.frontends.language.drawing import (
    NAMES,
    add_drawing,
    drawing_states,
    drawn_tokens,
)
from edgerelax.frontends.language.shifting import add_shift
from edgerelax.frontends.language.storage import Kind
from edgerelax.frontends.language.text import Text
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.dtypes import I32, I64
from edgerelax.ir.graph import Module
from edgerelax.sym import Expr, symbol


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
    cache: Kind = "f32",
) -> Module:
    """A module with the functions of a language model.

    `main`: tokens i64[batch, length] → logits f32[batch, length, vocabulary], of whole sequences.
    `step`: new tokens i32[batch, length] of sequences whose earlier ones are in a cache. The logits
    after the token number `last` of each go to the row of the state `last_logits` that `rows`
    names. A token -1 - r is the one that was drawn in row r. What else it takes: cache.Paged.
    And what draws tokens from logits: drawing.add_drawing. `shift`, where keys' positions can be
    changed: shifting.add_shift.

    `dims` may give sizes or bounds of `batch`, `length` and `pages`; the latter two end at what
    the model serves. `text` becomes assets; `cache` says how keys and values are stored. Raises
    InputError for a dim that the model does not have.
    """
    wanted = Dims(dims)
    sizes = StepSizes.of(wanted, config.context)
    wanted.finish(("batch", "length", "pages"))

    def main(tokens: Tensor) -> dict[str, Tensor]:
        return {"logits": model.logits(model.hidden(tokens, Whole(tokens)))}

    module = trace(main, {"tokens": Input((sizes.batch, sizes.length), I64)})
    module = add_steps(module, model, config.vocabulary, sizes, cache=cache)
    functions = {"whole": "main", **STEPS}
    if (ropes := model.ropes) is not None:
        module = add_shift(module, model.caches, ropes, sizes.slots, cache)
        functions["shift"] = "shift"
    return described(module, config, functions, architecture, text, model.window)


STEPS = {name: name for name in ("step", *NAMES)}
"""What `add_steps` adds, each function an entry point of the same role."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Dims of a step: texts, new tokens and pages of each; the cache's slots, rows of logits."""

    batch: Expr
    length: Expr
    pages: Expr
    slots: Expr
    rows: Expr

    @staticmethod
    def of(wanted: Dims, context: int) -> "StepSizes":
        """Symbols, or what is wanted of `batch`, `length` and `pages` within a context."""
        return StepSizes(
            wanted.make("batch", "batch"),
            wanted.make("length", "length", context),
            wanted.make("pages", "pages", -(-context // PAGE)),
            symbol("slots", PAGE, None, PAGE),  # the host chooses how many, and how many rows
            symbol("rows", 1),
        )


def add_steps(
    module: Module,
    model: Decoder,
    vocabulary: int,
    sizes: StepSizes,
    memory: Mapping[str, Input] | None = None,
    around: Callable[[Context, Tensor, Mapping[str, Tensor]], Context] | None = None,
    cache: Kind = "f32",
) -> Module:
    """The module with `step` and what draws from its logits: see `language_module`.

    `memory` are further states that a step reads; `around` makes the model's context of that of the
    text, the rows and all states.
    """
    cached = cache_states(model.caches, sizes.slots, cache)
    drawing = drawing_states(sizes.rows, vocabulary)
    of_rows = {name: drawing[name] for name in ("last_logits", "drawn")}

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
        paged = Paged(positions, slots, pages, kept)
        context = paged if around is None else around(paged, rows, states)
        logits = step(model, known, context, last)
        at = rows.reshape(sizes.batch, 1)
        changed = apply("scatter_nd", states["last_logits"], at, logits)
        return {"last_logits": changed, **paged.updated}

    each = Input((sizes.batch, sizes.length), I32)
    paged = {"pages": Input((sizes.batch, sizes.pages), I32)}
    paged |= {name: Input((sizes.batch,), I32) for name in ("last", "rows")}
    given = {"tokens": each, "positions": each, "slots": each, **paged}
    states = cached | of_rows | dict(memory or {})
    module = trace(next_logits, given, "step", module, states)
    return add_drawing(module, sizes.batch, sizes.rows, vocabulary)


def described(
    module: Module,
    config: Sizes,
    functions: Mapping[str, str],
    architecture: str,
    text: Text | None,
    window: int | None = None,
) -> Module:
    """The module with what it says of itself as a language model whose texts are in pages."""
    module.attrs["language"] = {
        "architecture": architecture,
        "vocabulary": config.vocabulary,
        "context": config.context,
        "functions": dict(functions),
        "page_size": PAGE,
        "window": window,
        **(text.language() if text is not None else {}),
    }
    if text is not None:
        module.attrs["assets"] = text.assets()
    return module


def longest(dims: Mapping[str, DimSpec] | None) -> int | None:
    """The greatest length that is wanted, where one is."""
    wanted = (dims or {}).get("length")
    return wanted[1] if isinstance(wanted, tuple) else wanted
