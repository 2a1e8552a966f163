"""What the kernels of templates share: grids of independent serial pieces of work."""

from collections.abc import Callable

from edgerelax.ir.kernel import LOCAL, WORKGROUP, Kernel, KExpr, KVar, Let, i32, kop
from edgerelax.ir.scalar import Buffer, Scalar
from edgerelax.schedule.index import flat_index, is_one
from edgerelax.schedule.points import count, decompose
from edgerelax.schedule.reduce import convert, splat
from edgerelax.schedule.scalars import Held, Scalars
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Axis, Expr, ExprLike, as_expr, ceildiv

GROUP = 64


class Body:
    """A writer with the scalar translation, and stores of scalars by multi-dimensional index."""

    def __init__(self, target: Target, weights: frozenset[str]) -> None:
        self.w = Writer(target, weights)
        self.s = Scalars(self.w)

    def store(
        self, buffer: Buffer, index: tuple[ExprLike, ...], value: Scalar, *, combine: str = ""
    ) -> None:
        """Store a scalar at an index, in the buffer's type; or combine it with what is there.

        Where an axis of the index stands for four values, four are stored, side by side.
        """
        at = flat_index(buffer, tuple(as_expr(i) for i in index))
        element = convert(self.s.value(value), buffer.dtype)
        if not self.s.index.lane_axes(at):
            self.w.store(buffer, self.s.index.value(at), element, combine=combine)
            return
        assert is_one(self.s.index.lane_stride(at)), "the values adjoin in the buffer"
        assert not combine, "vectors are not combined"
        first = self.s.index.value(self.s.index.in_lane(at, 0))
        self.w.store(buffer, first, splat(element, 4), aligned=self.s.index.is_aligned(at))

    def held(self, value: KExpr) -> Scalar:
        """What a register (or a computed value) is now, as a scalar."""
        name = self.w.fresh("now")
        self.w.emit(Let(name, value))
        held = Held(name, value.dtype)
        self.s.hold(held, KVar(value.dtype, value.lanes, name))
        return held

    def bind(self, name: str, extent: ExprLike, value: KExpr) -> Axis:
        """A fresh axis with a value."""
        axis = Axis(self.w.fresh(name), as_expr(extent))
        self.w.bind(axis, value)
        return axis

    def loop(self, name: str, extent: ExprLike, body: Callable[[Axis], None]) -> None:
        """A serial loop over a fresh axis."""
        size = as_expr(extent)
        with self.w.loop(name, i32(0), self.w.params.scalar(size)) as i:
            body(self.bind(name, size, i))


def each(
    name: str,
    target: Target,
    weights: frozenset[str],
    axes: tuple[Axis, ...],
    write: Callable[[Body], None],
    comment: str,
) -> Kernel:
    """A kernel that runs `write` once per point of the axes, by a thread or a CPU iteration."""
    body = Body(target, weights)
    w, total = body.w, count(axes)

    def point(number: KExpr) -> None:
        places = decompose(w, number, [a.extent for a in axes])
        for axis, place in zip(axes, places, strict=True):
            w.bind(axis, place)
        write(body)

    if not target.is_gpu:
        point(WORKGROUP)
        return w.kernel(name, total, 1, comment)
    number = w.let("t", kop("add", kop("mul", WORKGROUP, i32(GROUP)), LOCAL))
    with w.when(kop("lt", number, w.params.scalar(total))):
        point(number)
    return w.kernel(name, ceildiv(total, GROUP), GROUP, comment)


def axes_over(dims: tuple[Expr, ...], stem: str) -> tuple[Axis, ...]:
    """One axis per dim."""
    return tuple(Axis(f"{stem}{k}", d) for k, d in enumerate(dims))
