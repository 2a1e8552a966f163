"""Pages moved to other positions, so that a text may drop what stands before them.

Rotary positions are turns: a key that was turned for one position is turned on by the difference to
another. That needs no other state than the key; what keys and values hold of tokens before them
stays in them (StreamingLLM, arXiv 2309.17453).
"""

from collections.abc import Mapping, Sequence

from edgerelax.frontends.language.cache import PAGE, cache_states, slots_of
from edgerelax.frontends.language.context import CacheShape
from edgerelax.frontends.language.rope import Rope
from edgerelax.frontends.language.storage import Kind, get, put
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.frontends.nn.functional import rotary
from edgerelax.ir.dtypes import I32
from edgerelax.ir.graph import Module
from edgerelax.sym import Expr, symbol


def add_shift(
    module: Module,
    shapes: Sequence[CacheShape],
    ropes: Sequence[Rope | None],
    slots: Expr,
    kind: Kind,
) -> Module:
    """The module with `shift`: pages `source` i32[m] of the cache, moved by `by` i32[m] positions.

    They become the pages `target` i32[m], which may be the same ones: all are read before any is
    written. `ropes` are how each layer's keys are turned, None
    where they are not.
    """
    states = cache_states(list(shapes), slots, kind)
    count = symbol("m")

    def shift(
        source: Tensor, target: Tensor, by: Tensor, states: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        updated, rows = dict(states), count * PAGE
        before, after = (slots_of(x.reshape(1, count)).reshape(rows) for x in (source, target))
        turn = by.reshape(count, 1).expand(count, PAGE).reshape(1, rows)
        for k, rope in enumerate(ropes):
            keys, values = f"keys.{k}", f"values.{k}"
            put(updated, keys, after, _turned(get(states, keys, before), turn, rope))
            put(updated, values, after, get(states, values, before))
        return updated

    given = {name: Input((count,), I32) for name in ("source", "target", "by")}
    return trace(shift, given, "shift", module, states)


def _turned(rows: Tensor, by: Tensor, rope: Rope | None) -> Tensor:
    """Keys [count, groups, width] turned on by positions i32[1, count]."""
    if rope is None:
        return rows
    count, groups, width = rows.dims
    heads = rows.permute(1, 0, 2).reshape(1, groups, count, width)
    turned = rotary(heads, by, rope.frequencies, rope.interleaved)
    return turned.reshape(groups, count, width).permute(1, 0, 2)
