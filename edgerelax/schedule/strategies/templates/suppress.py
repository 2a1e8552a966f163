"""Boxes without those that overlap better ones: a thread or iteration per image and class."""

from dataclasses import dataclass

from edgerelax.ir.dtypes import I64
from edgerelax.ir.kernel import KExpr, i32, kop
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Scalar, constant, op
from edgerelax.schedule.reduce import convert
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body, axes_over, each
from edgerelax.schedule.target import Target
from edgerelax.sym import Axis, Expr, Opaque, as_expr


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """One kernel: down the scores, each box against those chosen before it."""
    choice = _Choice(*template.inputs, *template.outputs)
    comment = "suppress, a class of an image each"
    rows = axes_over(choice.chosen.dims[:2], "r")
    return Emitted(
        (each(name, target, weights, rows, lambda body: choice.run(body, *rows), comment),)
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    """A template's operands."""

    corners: Buffer
    scores: Buffer
    places: Buffer
    overlap: Buffer
    least: Buffer
    chosen: Buffer

    def run(self, body: Body, image: Axis, group: Axis) -> None:
        """One class of one image."""
        w, s = body.w, body.s
        count = w.var("n", i32(0))
        limit = w.params.scalar(self.chosen.dims[2])

        def consider(i: Axis) -> None:
            at = (as_expr(image), as_expr(group), as_expr(i))
            wanted = s.value(op("gt", self.scores[at], self.least[0]))
            with w.when(kop("lt", count, limit)), w.when(wanted):
                place = _index(self.places[at], self.scores.dims[2])
                box = self._corners(body, image, place)
                hidden = w.var("h", i32(0))
                with w.loop("j", i32(0), count) as number:
                    j = as_expr(body.bind("j", self.chosen.dims[2], number))
                    with w.when(kop("eq", hidden, i32(0))):
                        other = _index(self.chosen[at[0], at[1], j], self.scores.dims[2])
                        shared = self._overlaps(body, box, self._corners(body, image, other))
                        with w.when(s.value(shared)):
                            w.assign(hidden, i32(1))
                with w.when(kop("eq", hidden, i32(0))):
                    slot = as_expr(Opaque(body.held(count), 0, self.chosen.dims[2] - 1))
                    body.store(self.chosen, (*at[:2], slot), self.places[at])
                    w.assign(count, kop("add", count, i32(1)))

        body.loop("i", self.scores.dims[2], consider)
        with w.loop("p", count, limit) as number:
            past = body.bind("p", self.chosen.dims[2], number)
            body.store(self.chosen, (image, group, past), constant(-1, I64))

    def _corners(self, body: Body, image: Axis, place: Expr) -> tuple[Scalar, ...]:
        """A box's coordinates, held."""
        loads = (self.corners[as_expr(image), place, k] for k in range(4))
        return tuple(body.held(convert(body.s.value(x), self.corners.dtype)) for x in loads)

    def _overlaps(self, body: Body, a: tuple[Scalar, ...], b: tuple[Scalar, ...]) -> Scalar:
        """Whether two boxes share more of the area that they cover than `overlap`."""
        high, wide = (
            body.held(body.s.value(op("sub", op("min", a[k + 2], b[k + 2]), op("max", a[k], b[k]))))
            for k in (0, 1)
        )
        own, theirs = (body.held(_area(body, x)) for x in (a, b))
        inner = op("mul", high, wide)
        outer = body.held(body.s.value(op("sub", op("add", own, theirs), inner)))
        meets = op("gt", op("div", inner, outer), self.overlap[0])
        for size in (high, wide, own, theirs, outer):
            meets = op("and", op("gt", size, 0), meets)
        return meets


def _area(body: Body, box: tuple[Scalar, ...]) -> KExpr:
    return body.s.value(op("mul", op("sub", box[2], box[0]), op("sub", box[3], box[1])))


def _index(loaded: Scalar, boxes: Expr) -> Expr:
    """A box's number that the program made itself, as an index."""
    return as_expr(Opaque(loaded, 0, boxes - 1))
