"""Keys and values of earlier tokens, kept in pages of a cache that lives on between calls.

Each layer that attends has two states, [slots, groups, width]: a token's keys and values take one
slot. Pages are runs of PAGE slots. Which pages a sequence has, in order, is its row of `pages`; the
host deals them out, so that sequences grow, fork and go back without a copy. The token at position
t of a sequence is in slot t % PAGE of its page t // PAGE.
"""

from collections.abc import Mapping

from edgerelax.frontends.language.context import Attend, CacheShape, Context, Decoder
from edgerelax.frontends.nn import Input, Tensor
from edgerelax.frontends.nn.functional import attention, concat, positions
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.dtypes import F32, I32
from edgerelax.sym import ExprLike

PAGE = 16
"""Tokens in a page."""


def cache_states(shapes: list[CacheShape], slots: ExprLike) -> dict[str, Input]:
    """The states of a cache by name, for layers that keep these shapes."""
    found: dict[str, Input] = {}
    for k, shape in enumerate(shapes):
        found[f"keys.{k}"] = Input((slots, shape.groups, shape.key_width), F32)
        found[f"values.{k}"] = Input((slots, shape.groups, shape.value_width), F32)
    return found


class Paged(Context):
    """Sequences whose earlier tokens are in a cache.

    `at` are the positions of the new tokens, i32[batch, length], and `slots` where they go, as
    many: those outside of the cache go nowhere, as padding should. `pages` i32[batch, pages] are
    numbers of pages; there are enough for the new tokens. `states` are those of the cache; when all
    layers have attended, `updated` is what they become.
    """

    def __init__(self, at: Tensor, slots: Tensor, pages: Tensor, states: Mapping[str, Tensor]):
        batch, count = pages.dims
        self.positions, self.slots = at, slots
        within = positions(pages, PAGE).cast(I32).reshape(1, 1, PAGE)
        rows = pages.reshape(batch, count, 1) * PAGE + within
        self.rows = rows.reshape(batch, count * PAGE)
        self.key_positions = positions(pages, count * PAGE).cast(I32)
        self.updated = dict(states)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attend) -> Tensor:
        keys, values = self.extended(layer, "keys", k), self.extended(layer, "values", v)
        return attention(q, keys, values, self.mask(how.window), how.scale, how.cap)

    def extended(self, layer: int, name: str, x: Tensor) -> Tensor:
        batch, groups, length, width = x.dims
        name = f"{name}.{layer}"
        rows = x.permute(0, 2, 1, 3).reshape(batch * length, groups, width)
        at = self.slots.reshape(batch * length, 1)
        self.updated[name] = apply("scatter_nd", self.updated[name], at, rows)
        return apply("gather", self.updated[name], self.rows, axis=0).permute(0, 2, 1, 3)

    def mask(self, window: int | None) -> Tensor:
        batch, length = self.positions.dims
        queries = self.positions.reshape(batch, 1, length, 1)
        keys = self.key_positions.reshape(1, 1, 1, *self.key_positions.dims)
        shown = apply("le", keys, queries)
        if window is None:
            return shown
        return apply("and", shown, apply("lt", queries - keys, window))


def step(model: Decoder, tokens: Tensor, context: Context, last: Tensor) -> Tensor:
    """Logits f32[batch, vocabulary] after the token number `last` i32[batch] of each sequence.

    tokens i32[batch, length] are those that are new in the context.
    """
    hidden = model.hidden(tokens, context)
    batch, _, _ = hidden.dims
    sequences = positions(last, batch).cast(I32).reshape(batch, 1)
    ends = apply("gather_nd", hidden, concat((sequences, last.reshape(batch, 1))))
    return model.logits(ends)
