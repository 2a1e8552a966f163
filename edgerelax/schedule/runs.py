"""Runs of pieces of work: few iterations, each with a place of its own in a workspace."""

from dataclasses import dataclass

from edgerelax.ir.kernel import WORKGROUP, KExpr, kop
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Axis, Expr, as_expr, ceildiv, minimum

_MOST = 32  # four for each of eight threads


@dataclass(frozen=True, slots=True)
class Runs:
    """`total` pieces in runs of `length`; `slot` counts the runs."""

    total: Expr
    length: Expr
    slot: Axis

    @classmethod
    def of(cls, total: Expr) -> "Runs":
        """As few pieces in a run as leave no more runs than there are slots."""
        length = ceildiv(total, _MOST)
        slots = minimum(total, _MOST)
        if known := total.as_int():
            slots = as_expr(-(-known // -(-known // _MOST)))
        return cls(total, length, Axis("slot", slots))

    def bind(self, w: Writer) -> tuple[KExpr, KExpr]:
        """An iteration's slot is bound; the first of its pieces, and where they end."""
        w.bind(self.slot, WORKGROUP)
        length = w.params.scalar(self.length)
        start = w.let("run", kop("mul", WORKGROUP, length))
        stop = kop("min", kop("add", start, length), w.params.scalar(self.total))
        return start, w.let("end", stop)
