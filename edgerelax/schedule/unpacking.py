"""Packed weights that take computing, as codes of few bits do, computed once for many rows.

What a panel of columns holds goes to a workspace, as floats that stay in a cache; tiles of rows
read it there. An iteration does a run of panels one after the other in one place: the workspace is
as large as a few panels, however many columns there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.kernel import Kernel, i32, kop
from edgerelax.ir.scalar import Buffer, Load, Scalar
from edgerelax.schedule.contraction import Contraction, describe
from edgerelax.schedule.index import flat_index
from edgerelax.schedule.packing import PANEL, Laid
from edgerelax.schedule.points import count, decompose, substitute_stage
from edgerelax.schedule.reduce import splat
from edgerelax.schedule.runs import Runs
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.tile import Group, Tile
from edgerelax.schedule.writer import Writer, plus
from edgerelax.sym import Atom, Axis, Expr, ExprLike, as_expr

_ROWS = 64  # for which a panel is computed once, at least
_LEFT = 1 << 17  # elements of the left factor that stay in an L2 while panels go by


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What a panel is computed from, and the contraction that reads it.

    `factor` varies over `steps` and the columns of a panel, and is stored to `copy` at `place`;
    with `in_words` the last of the steps are those of one word. `found` has the columns of one
    panel, of which iterations do `runs`.
    """

    factor: Scalar
    steps: tuple[Axis, ...]
    in_words: bool
    copy: Buffer
    place: tuple[Expr, ...]
    found: Contraction
    runs: Runs


def unpack(found: Contraction, laid: Laid, name: str) -> Unpacked | None:
    """A contraction, whose columns are `laid` in panels, over panels that are computed first.

    `name` becomes that of the workspace. None where panels hold what tiles multiply as it is.
    """
    factor, lane = laid.found.right, laid.found.column
    if found.column not in laid.swaps or isinstance(factor, Load):
        return None
    if found.product != "mul" or not factor.dtype.is_float:
        return None
    used = factor.axes()
    summed = [a for a in found.stage.reduce if used & as_expr(a).subs(laid.swaps).axes()]
    outer = (*found.outer, laid.panel)
    runs = Runs.of(count(outer))
    sizes = (runs.slot.extent, *(a.extent for a in summed), as_expr(PANEL))
    copy = Buffer(name, factor.dtype, sizes)
    read = Load(copy, (runs.slot.expr, *(a.expr for a in summed), lane.expr))
    swaps: dict[Atom, ExprLike] = {found.column: laid.swaps[found.column]}
    left = found.left.subs(swaps)
    stage = substitute_stage(replace(found.stage, body=found.times(left, read)), swaps)
    axes = (*(a for a in stage.axes if a is not found.column), laid.panel, lane)
    over = replace(
        found,
        stage=replace(stage, axes=axes),
        left=left,
        right=read,
        guards=tuple(g.subs(swaps) for g in found.guards),
        column=lane,
        outer=outer,
        word=None,
    )
    return Unpacked(
        factor,
        tuple(a for a in laid.found.stage.reduce if a in used),
        laid.found.word is not None,
        copy,
        tuple(e.subs(laid.swaps) for e in read.index),
        over,
        runs,
    )


class Panels:
    """Writes the kernel: a panel computed, then tiles of `height` rows over it."""

    def __init__(self, w: Writer, made: Unpacked, height: int) -> None:
        self.w, self.made, self.height = w, made, height
        self.s = Scalars(w)

    def kernel(self, name: str, config: str) -> Kernel:
        """The kernel; `config` is for its comment."""
        w, made = self.w, self.made
        outer = made.found.outer
        rows = w.params.scalar(made.found.height)
        start, stop = made.runs.bind(w)
        block = self._rows_of_block()
        with w.loop("rows", i32(0), rows, step=block) as first:
            end = w.let("end", kop("min", plus(first, block), rows))
            with w.loop("panel", start, stop) as panel:
                places = decompose(w, panel, [a.extent for a in outer])
                for axis, place in zip(outer, places, strict=True):
                    w.bind(axis, place)
                self._compute(made.steps, self._columns())
                with w.loop("row", first, end, step=self.height) as row:
                    groups = [Group(i32(k), 4, whole=True, aligned=True) for k in (0, 4)]
                    Tile(w, self.s, made.found).write(row, self.height, groups)
        comment = f"{describe(made.found)} over computed panels, {config}"
        return w.kernel(name, made.runs.slot.extent, 1, comment)

    def _rows_of_block(self) -> int:
        """Rows that a run of panels goes by before the next ones."""
        steps = count(self.made.found.stage.reduce).as_int()
        rows = _ROWS if steps is None else max(_ROWS, _LEFT // steps)
        return rows // self.height * self.height

    def _columns(self) -> list[Axis]:
        """The columns of a panel by fours, bound here: what steps share is computed before them."""
        lane = self.made.found.column
        fours = []
        for k in range(0, PANEL, 4):
            fours.append(Axis(f"{lane.name}^{k}", lane.extent))
            self.w.bind_vector(fours[-1], i32(k))
        return fours

    def _compute(self, steps: Sequence[Axis], columns: Sequence[Axis]) -> None:
        """Loops over the steps, those of a word in text."""
        w, made = self.w, self.made
        if steps:
            axis, *rest = steps
            in_text = made.in_words and not rest
            with w.loop("k", i32(0), w.params.scalar(axis.extent), unroll=in_text) as k:
                w.bind(axis, k)
                self._compute(rest, columns)
            return
        for four in columns:
            swaps: dict[Atom, ExprLike] = {made.found.column: four}
            flat = flat_index(made.copy, tuple(e.subs(swaps) for e in made.place))
            value = splat(self.s.value(made.factor.subs(swaps)), 4)
            w.store(made.copy, self.s.index.value(self.s.index.in_lane(flat, 0)), value)
