"""ScatterElements and ScatterND: a copy of the data, then the updates.

On the CPU, and where they are few, updates of one place are applied by one thread, in row-major
order: the last one stays and sums are the same on every run. Along an axis, lines are independent;
of slices, their elements are. Many updates are applied on the GPU by an invocation each, in any
order (ir/scatter.py).
"""

from edgerelax.ir.kernel import Kernel
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Load, Scalar, Value, cast, op
from edgerelax.ir.scatter import by_atomics
from edgerelax.schedule.index import numel
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body, axes_over, each
from edgerelax.schedule.target import Target
from edgerelax.sym import Axis, Expr, Opaque, as_expr, ge, select

_ATOMIC = "scatter, an update each"


def emit_elements(
    template: Template, name: str, weights: frozenset[str], target: Target
) -> Emitted:
    """Along the axis serially, all lines at once; or all updates at once."""
    data, indices, updates = template.inputs
    (y,) = template.outputs
    along, reduction = template.params["axis"], template.params["reduction"]
    lines = axes_over(indices.dims, "l")
    outer = (*lines[:along], *lines[along + 1 :])

    def line(body: Body) -> None:
        def step(i: Axis) -> None:
            apply(body, tuple(as_expr(i if k == along else a) for k, a in enumerate(lines)))

        body.loop("i", indices.dims[along], step)

    def apply(body: Body, at: tuple[Expr, ...], *, atomic: bool = False) -> None:
        place = list(at)
        place[along] = _wrapped(indices[at], y.dims[along])
        _update(body, y, tuple(place), updates[at], reduction, atomic=atomic)

    def one(body: Body) -> None:
        apply(body, tuple(map(as_expr, lines)), atomic=True)

    if target.is_gpu and by_atomics(template):
        update = each(f"{name}_update", target, weights, lines, one, _ATOMIC)
    else:
        update = each(f"{name}_update", target, weights, outer, line, "scatter, a line each")
    return Emitted((_copy(name, target, weights, data, y), update))


def emit_slices(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """All updates serially for each element of a slice; or all at once."""
    data, indices, updates = template.inputs
    (y,) = template.outputs
    depth = indices.dims[-1].as_int()
    assert depth is not None, "the depth of the indices is part of the shapes"
    inner = axes_over(y.dims[depth:], "s")
    outer = axes_over(indices.dims[:-1], "u")

    def element(body: Body) -> None:
        def nest(at: tuple[Axis, ...]) -> None:
            if len(at) < indices.rank - 1:
                body.loop("u", indices.dims[len(at)], lambda i: nest((*at, i)))
                return
            apply(body, tuple(map(as_expr, at)))

        nest(())

    def apply(body: Body, at: tuple[Expr, ...], *, atomic: bool = False) -> None:
        place = tuple(_wrapped(indices[(*at, as_expr(k))], y.dims[k]) for k in range(depth))
        own, reduction = tuple(map(as_expr, inner)), template.params["reduction"]
        _update(body, y, (*place, *own), updates[(*at, *own)], reduction, atomic=atomic)

    def one(body: Body) -> None:
        apply(body, tuple(map(as_expr, outer)), atomic=True)

    if target.is_gpu and by_atomics(template):
        update = each(f"{name}_update", target, weights, (*outer, *inner), one, _ATOMIC)
    else:
        comment = "scatter, a slice element each"
        update = each(f"{name}_update", target, weights, inner, element, comment)
    return Emitted((_copy(name, target, weights, data, y), update))


def _copy(name: str, target: Target, weights: frozenset[str], data: Buffer, y: Buffer) -> Kernel:
    source = Buffer(data.name, data.dtype, (numel(data),))
    copied = Buffer(y.name, y.dtype, (numel(y),))
    axes = axes_over(copied.dims, "i")

    def write(body: Body) -> None:
        body.store(copied, axes, cast(source[as_expr(axes[0])], y.dtype))

    return each(f"{name}_copy", target, weights, axes, write, "copy")


def _wrapped(index: Scalar, dim: Expr) -> Expr:
    """An index that counts from the end where it is negative; it may be out of range."""
    raw = as_expr(Opaque(index, None, None))
    return select(ge(raw, 0), raw, raw + dim)


def _update(
    body: Body,
    y: Buffer,
    place: tuple[Expr, ...],
    update: Scalar,
    reduction: str,
    *,
    atomic: bool = False,
) -> None:
    """Apply one update, if its place exists."""
    inside: Scalar | None = None
    for at, dim in zip(place, y.dims, strict=True):
        here = op("and", op("ge", Value(at), 0), op("lt", Value(at), Value(dim)))
        inside = here if inside is None else op("and", inside, here)
    value = cast(update, y.dtype)

    def write() -> None:
        if atomic or reduction == "none":
            body.store(y, place, value, combine=reduction if atomic else "")
        else:
            body.store(y, place, op(reduction, Load(y, place), value))

    if inside is None:
        write()
    else:
        with body.w.when(body.s.value(inside)):
            write()
