"""Running sums along the last axis: a thread or iteration per row.

On a GPU rows that may be long are cut into chunks, a thread each: one kernel sums them, one adds up
those sums row by row, one runs through the chunks again from there. No thread's loop is longer than
a chunk or their number.
"""

from dataclasses import dataclass

from edgerelax.ir.kernel import KExpr, KVar, i32, kop
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule.reduce import begin, convert, state_dtype
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body, axes_over, each
from edgerelax.schedule.target import Target
from edgerelax.schedule.widen import wide_dtype
from edgerelax.sym import Axis, Expr, as_expr, ceildiv, proves_le

_CHUNK = 256


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """One serial pass over each row, or three kernels for chunks."""
    scan = _Scan.of(template)
    if target.is_gpu and not proves_le(scan.length, _CHUNK):
        return scan.in_chunks(name, weights, target)

    def row(body: Body) -> None:
        (total,) = begin(body.w, "sum", scan.x.dtype).registers
        scan.walk(body, total, i32(0), body.w.params.scalar(scan.length), stores=True)

    return Emitted((each(name, target, weights, scan.rows, row, "cumsum, a row each"),))


@dataclass(frozen=True, slots=True)
class _Scan:
    """A template's operands, with an axis for each dim of its rows."""

    x: Buffer
    y: Buffer
    exclusive: bool
    reverse: bool
    rows: tuple[Axis, ...]

    @classmethod
    def of(cls, template: Template) -> "_Scan":
        (x,), (y,) = template.inputs, template.outputs
        params = template.params
        rows = axes_over(x.dims[:-1], "r")
        return cls(x, y, bool(params["exclusive"]), bool(params["reverse"]), rows)

    @property
    def length(self) -> Expr:
        return self.x.dims[-1]

    def walk(self, body: Body, total: KVar, start: KExpr, stop: KExpr, *, stores: bool) -> None:
        """Add the elements of a row from `start` to `stop`, counted from where the sums begin."""
        w = body.w
        with w.loop("i", start, stop) as number:
            i = body.bind("i", self.length, number)
            at = (*map(as_expr, self.rows), self.length - 1 - i if self.reverse else as_expr(i))
            value = w.let("x", convert(body.s.value(self.x[at]), total.dtype))
            if stores and self.exclusive:
                body.store(self.y, at, body.held(total))
            w.assign(total, kop("add", total, value))
            if stores and not self.exclusive:
                body.store(self.y, at, body.held(total))

    def in_chunks(self, name: str, weights: frozenset[str], target: Target) -> Emitted:
        """Three kernels and a workspace: the chunks' sums, then what comes before each."""
        chunks = ceildiv(self.length, _CHUNK)
        held = wide_dtype(state_dtype("sum", self.x.dtype))
        sums = Buffer(f"{self.y.name}_sums", held, (*self.x.dims[:-1], chunks))
        (chunk,) = axes_over((chunks,), "c")
        where = (*self.rows, chunk)

        def limits(body: Body) -> tuple[KExpr, KExpr]:
            w = body.w
            start = w.let("b", body.s.index.value(chunk.expr * _CHUNK))
            stop = kop("min", kop("add", start, i32(_CHUNK)), w.params.scalar(self.length))
            return start, w.let("b", stop)

        def add_up(body: Body) -> None:
            (total,) = begin(body.w, "sum", held).registers
            self.walk(body, total, *limits(body), stores=False)
            body.store(sums, where, body.held(total))

        def join(body: Body) -> None:
            (total,) = begin(body.w, "sum", held).registers

            def step(c: Axis) -> None:
                own = body.w.let("x", body.s.value(sums[(*self.rows, c)]))
                body.store(sums, (*self.rows, c), body.held(total))
                body.w.assign(total, kop("add", total, own))

            body.loop("c", chunks, step)

        def run_through(body: Body) -> None:
            total = body.w.var("acc", body.s.value(sums[where]))
            self.walk(body, total, *limits(body), stores=True)

        kernels = (
            each(f"{name}_chunks", target, weights, where, add_up, "cumsum: sums of chunks"),
            each(f"{name}_join", target, weights, self.rows, join, "cumsum: what comes before"),
            each(name, target, weights, where, run_through, "cumsum, a chunk each"),
        )
        return Emitted(kernels, (sums,))
