"""ScatterElements and ScatterND: a copy of the data, then updates in order.

Updates of one place are applied by one thread, in row-major order: the last one stays and sums
are the same on every run. Along an axis, lines are independent; of slices, their elements are.
"""

from edgerelax.ir.kernel import Kernel
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Load, Scalar, Value, cast, op
from edgerelax.schedule.index import numel
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body, axes_over, each
from edgerelax.schedule.target import Target
from edgerelax.sym import Axis, Expr, Opaque, as_expr, ge, select

_REDUCTIONS = {"add": "add", "mul": "mul", "max": "max", "min": "min"}


def emit_elements(
    template: Template, name: str, weights: frozenset[str], target: Target
) -> Emitted:
    """Along the axis serially, all lines at once."""
    data, indices, updates = template.inputs
    (y,) = template.outputs
    along, reduction = template.params["axis"], template.params["reduction"]
    lines = axes_over(indices.dims, "l")
    outer = (*lines[:along], *lines[along + 1 :])

    def line(body: Body) -> None:
        def step(i: Axis) -> None:
            at = tuple(as_expr(i) if k == along else as_expr(a) for k, a in enumerate(lines))
            place = list(at)
            place[along] = _wrapped(indices[at], y.dims[along])
            _update(body, y, tuple(place), updates[at], reduction)

        body.loop("i", indices.dims[along], step)

    update = each(f"{name}_update", target, weights, outer, line, "scatter, a line each")
    return Emitted((_copy(name, target, weights, data, y), update))


def emit_slices(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """All updates serially for each element of a slice."""
    data, indices, updates = template.inputs
    (y,) = template.outputs
    depth = indices.dims[-1].as_int()
    assert depth is not None, "the depth of the indices is part of the shapes"
    inner = axes_over(y.dims[depth:], "s")

    def element(body: Body) -> None:
        def nest(at: tuple[Axis, ...]) -> None:
            if len(at) < indices.rank - 1:
                body.loop("u", indices.dims[len(at)], lambda i: nest((*at, i)))
                return
            outer = tuple(map(as_expr, at))
            place = tuple(_wrapped(indices[(*outer, as_expr(k))], y.dims[k]) for k in range(depth))
            own = tuple(map(as_expr, inner))
            _update(body, y, (*place, *own), updates[(*outer, *own)], template.params["reduction"])

        nest(())

    update = each(
        f"{name}_update", target, weights, inner, element, "scatter, a slice element each"
    )
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


def _update(body: Body, y: Buffer, place: tuple[Expr, ...], update: Scalar, reduction: str) -> None:
    """Apply one update, if its place exists."""
    inside: Scalar | None = None
    for at, dim in zip(place, y.dims, strict=True):
        here = op("and", op("ge", Value(at), 0), op("lt", Value(at), Value(dim)))
        inside = here if inside is None else op("and", inside, here)
    value = cast(update, y.dtype)

    def write() -> None:
        new = value
        if reduction != "none":
            new = op(_REDUCTIONS[reduction], Load(y, place), value)
        body.store(y, place, new)

    if inside is None:
        write()
    else:
        with body.w.when(body.s.value(inside)):
            write()
