"""Places that are not zero, in order.

Counts per chunk, their running sum, then each chunk writes its own places; a last kernel fills up
with zeros.
"""

from collections.abc import Callable

from edgerelax.ir.dtypes import I32, I64
from edgerelax.ir.kernel import i32, kop
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Value, compare, constant, op
from edgerelax.schedule.index import numel
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body, axes_over, each
from edgerelax.schedule.target import Target
from edgerelax.sym import Axis, Expr, Opaque, as_expr, ceildiv

_CHUNK = 256


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """Four kernels and two workspaces."""
    (x,), (places, number) = template.inputs, template.outputs
    total = numel(x)
    chunks = ceildiv(total, _CHUNK)
    flat = Buffer(x.name, x.dtype, (total,))
    counts = Buffer(f"{places.name}_counts", I32, (chunks,))
    starts = Buffer(f"{places.name}_starts", I32, (chunks + 1,))
    (chunk,) = axes_over((chunks,), "c")
    capacity = places.dims[1]

    def each_found(body: Body, act: Callable[[Expr], None]) -> None:
        def step(i: Axis) -> None:
            at = chunk.expr * _CHUNK + i
            with (
                body.w.when(body.s.value(compare("lt", at, total))),
                body.w.when(body.s.value(op("ne", flat[at], 0))),
            ):
                act(at)

        body.loop("i", _CHUNK, step)

    def count(body: Body) -> None:
        here = body.w.var("n", i32(0))
        each_found(body, lambda at: body.w.assign(here, kop("add", here, i32(1))))
        body.store(counts, (chunk,), body.held(here))

    def scan(body: Body) -> None:
        running = body.w.var("n", i32(0))

        def step(c: Axis) -> None:
            body.store(starts, (c,), body.held(running))
            more = body.s.value(counts[as_expr(c)])
            body.w.assign(running, kop("add", running, more))

        body.loop("c", chunks, step)
        body.store(starts, (chunks,), body.held(running))
        body.store(number, (0,), body.held(running))

    def write(body: Body) -> None:
        next_one = body.w.var("n", body.s.value(starts[as_expr(chunk)]))

        def act(at: Expr) -> None:
            slot = as_expr(Opaque(body.held(next_one), 0, None))
            with body.w.when(body.s.value(compare("lt", slot, capacity))):
                rest = at
                for k in range(x.rank - 1, -1, -1):
                    dim = x.dims[k] if x.dims[k].as_int() != 0 else as_expr(1)
                    body.store(places, (k, slot), Value(rest % dim, I64))
                    rest = rest // dim
            body.w.assign(next_one, kop("add", next_one, i32(1)))

        each_found(body, act)

    slots = axes_over(places.dims, "p")

    def fill(body: Body) -> None:
        past = op("ge", Value(as_expr(slots[1]), I32), starts[chunks])
        with body.w.when(body.s.value(past)):
            body.store(places, slots, constant(0, I64))

    kernels = (
        each(f"{name}_count", target, weights, (chunk,), count, "nonzero: counts per chunk"),
        each(f"{name}_scan", target, weights, (), scan, "nonzero: running sum of the counts"),
        each(f"{name}_places", target, weights, (chunk,), write, "nonzero: places"),
        each(f"{name}_fill", target, weights, slots, fill, "nonzero: zeros past the end"),
    )
    return Emitted(kernels, (counts, starts))
