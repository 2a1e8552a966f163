"""Keys and values of earlier tokens, kept in pages of a cache that lives on between calls.

Each layer that attends has states of keys and of values, [slots, groups, width], as storage.py has
them: a token's take one slot. Pages are runs of PAGE slots. Which pages a sequence has, in order,
is its row of `pages`; the host deals them out, so that sequences grow, fork and go back without a
copy. The token at position t of a sequence is in slot t % PAGE of its page t // PAGE.

Layers that see a window read the pages that may have keys of it, and no others: what the table says
of pages that end before the window of the first new token counts for nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from edgerelax.frontends.language.context import Attend, CacheShape, Context, Decoder
from edgerelax.frontends.language.storage import Kind, get, put, stored
from edgerelax.frontends.nn import Input, Tensor
from edgerelax.frontends.nn.functional import attention, concat, positions
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.dtypes import I32
from edgerelax.sym import ExprLike, minimum

PAGE = 16
"""Tokens in a page."""


def cache_states(shapes: list[CacheShape], slots: ExprLike, kind: Kind = "f32") -> dict[str, Input]:
    """The states of a cache by name, for layers that keep these shapes."""
    found: dict[str, Input] = {}
    for k, shape in enumerate(shapes):
        found |= stored(f"keys.{k}", slots, shape.groups, shape.key_width, kind)
        found |= stored(f"values.{k}", slots, shape.groups, shape.value_width, kind)
    return found


@dataclass(frozen=True, slots=True)
class _Near:
    """The slots that layers read, i32[batch, keys], and their positions i32[batch or 1, keys]."""

    slots: Tensor
    positions: Tensor


class Paged(Context):
    """Sequences whose earlier tokens are in a cache.

    `at` are the positions of the new tokens, i32[batch, length], those of a sequence in order, and
    `slots` where they go, as many: those outside of the cache go nowhere, as padding should.
    `pages` i32[batch, pages] are numbers of pages; there are enough for the new tokens. `states`
    are those of the cache; when all layers have attended, `updated` is what they become.
    """

    def __init__(self, at: Tensor, slots: Tensor, pages: Tensor, states: Mapping[str, Tensor]):
        self.positions, self.slots, self.pages = at, slots, pages
        self.updated = dict(states)
        self._by_window: dict[int | None, _Near] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attend) -> Tensor:
        near = self._near(how.window)
        keys, values = (
            self._through(f"{name}.{layer}", x, near) for name, x in (("keys", k), ("values", v))
        )
        return attention(q, keys, values, self._mask(near, how.window), how.scale, how.cap)

    def extended(self, layer: int, name: str, x: Tensor) -> Tensor:
        return self._through(f"{name}.{layer}", x, self._near(None))

    def mask(self, window: int | None) -> Tensor:
        return self._mask(self._near(None), window)

    def _through(self, name: str, x: Tensor, near: _Near) -> Tensor:
        """Store what is new, and give what is there: [batch, groups, keys, width]."""
        batch, groups, length, width = x.dims
        rows = x.permute(0, 2, 1, 3).reshape(batch * length, groups, width)
        put(self.updated, name, self.slots.reshape(batch * length), rows)
        return get(self.updated, name, near.slots).permute(0, 2, 1, 3)

    def _near(self, window: int | None) -> _Near:
        """What layers of a window read; all that a text has without one."""
        if window not in self._by_window:
            self._by_window[window] = self._pages_of(window)
        return self._by_window[window]

    def _pages_of(self, window: int | None) -> _Near:
        length, count = self.positions.dims[1], self.pages.dims[1]
        pages, numbers = self.pages, _numbers(self.pages, count)
        if window is not None:
            count = minimum(count, (length + window + PAGE - 3) // PAGE + 1)
            first = apply("gather", self.positions, positions(pages, 1), axis=1)
            first = apply("div", apply("max", first - (window - 1), 0), PAGE)
            numbers = first + _numbers(pages, count)
            last = positions(pages, 1, pages.dims[1] - 1).cast(I32)
            pages = apply("gather_elements", pages, apply("min", numbers, last), axis=1)
        return _Near(slots_of(pages), slots_of(numbers))

    def _mask(self, near: _Near, window: int | None) -> Tensor:
        batch, length = self.positions.dims
        queries = self.positions.reshape(batch, 1, length, 1)
        several, count = near.positions.dims
        keys = near.positions.reshape(several, 1, 1, count)
        shown = apply("le", keys, queries)
        if window is None:
            return shown
        return apply("and", shown, apply("lt", queries - keys, window))


def slots_of(pages: Tensor) -> Tensor:
    """Those of pages, i32[batch, pages], in order: [batch, pages · PAGE]. So positions as well."""
    batch, count = pages.dims
    within = _numbers(pages, PAGE).reshape(1, 1, PAGE)
    return (pages.reshape(batch, count, 1) * PAGE + within).reshape(batch, count * PAGE)


def _numbers(like: Tensor, count: ExprLike) -> Tensor:
    """0, 1, …: i32[1, count]."""
    return positions(like, count).cast(I32).reshape(1, count)


def step(model: Decoder, tokens: Tensor, context: Context, last: Tensor) -> Tensor:
    """Logits f32[batch, vocabulary] after the token number `last` i32[batch] of each sequence.

    tokens i32[batch, length] are those that are new in the context.
    """
    hidden = model.hidden(tokens, context)
    batch, _, _ = hidden.dims
    sequences = positions(last, batch).cast(I32).reshape(batch, 1)
    ends = apply("gather_nd", hidden, concat((sequences, last.reshape(batch, 1))))
    return model.logits(ends)
