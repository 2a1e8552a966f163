"""Running sums along the last axis: a thread or iteration per row."""

from edgerelax.ir.kernel import kop
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import cast
from edgerelax.schedule.reduce import begin, state_dtype
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body, axes_over, each
from edgerelax.schedule.target import Target
from edgerelax.sym import Axis, as_expr


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """One serial pass over each row."""
    (x,), (y,) = template.inputs, template.outputs
    exclusive, reverse = template.params["exclusive"], template.params["reverse"]
    rows, length = axes_over(x.dims[:-1], "r"), x.dims[-1]
    held = state_dtype("sum", x.dtype)

    def row(body: Body) -> None:
        state = begin(body.w, "sum", x.dtype)
        (total,) = state.registers

        def step(i: Axis) -> None:
            at = (*map(as_expr, rows), length - 1 - i if reverse else as_expr(i))
            value = body.w.let("x", body.s.value(cast(x[at], held)))
            if exclusive:
                body.store(y, at, body.held(total))
            body.w.assign(total, kop("add", total, value))
            if not exclusive:
                body.store(y, at, body.held(total))

        body.loop("i", length, step)

    return Emitted((each(name, target, weights, rows, row, "cumsum, a row each"),))
