"""Register tiles of contractions: rows by columns of accumulators that no other thread sees.

A tile holds one accumulator per row and column group; a group is four columns (a vector) or one.
Each step of the reduction loads one value per row and one per group and multiplies them all.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgerelax.ir.kernel import KExpr, KVar, KVec, i32, kop
from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import Scalar
from edgerelax.schedule.contraction import Contraction, guarded, is_contiguous
from edgerelax.schedule.cost import LONGEST_ALONE
from edgerelax.schedule.index import is_one
from edgerelax.schedule.points import count, decompose, result_of, store_flat, substitute_stage
from edgerelax.schedule.reduce import Reduction, begin, convert, fold_lanes, lanes_of, splat
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.writer import Writer, plus
from edgerelax.sym import Atom, Axis, ExprLike, as_expr, divisible, proves_le, proves_lt


@dataclass(frozen=True, slots=True)
class Group:
    """One or four neighbouring columns from `first`.

    `whole`: all of them exist. Else (only for four) those past the end are loaded from the last
    column and not stored.
    """

    first: KExpr
    lanes: int
    whole: bool
    aligned: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """The steps of a reduced axis that a tile takes, from a multiple of 4."""

    axis: Axis
    start: KExpr
    stop: KExpr


@dataclass(frozen=True, slots=True)
class _Column:
    axis: Axis
    group: Group


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the tile: what its axes are called, its number."""

    axes: dict[Axis, Axis]
    number: KExpr


Sums = list[list[Reduction]]


class Tile:
    """Writes one tile into the open block, the outer axes being bound."""

    def __init__(
        self,
        w: Writer,
        s: Scalars,
        found: Contraction,
        *,
        dot: bool = False,
        span: Span | None = None,
    ) -> None:
        """`dot` runs the vectors along the innermost reduced axis, not along columns.

        Columns then come one by one. The sum is of the steps of `span` alone, if there is one.
        """
        self.w, self.s, self.found, self.dot, self.span = w, s, found, dot, span
        self.guards = list(found.guards)
        self.row_guards: list[Scalar] = []
        self.column_guards: list[Scalar] = []
        self.rows: list[Row] = []
        self.columns: list[_Column] = []

    def write(self, first_row: KExpr, height: int, groups: Sequence[Group]) -> None:
        """Compute and store `height` rows from `first_row`; those past the end are not stored."""
        self.store(self.sum(first_row, height, groups))

    def sum(self, first_row: KExpr, height: int, groups: Sequence[Group]) -> Sums:
        """The sums of a tile by row and column group."""
        self._bind_rows(first_row, height)
        self._bind_columns(groups)
        sums = [[self._begin(r, c) for c in self.columns] for r in self.rows]
        guards = self._sort_guards()
        steps = self.found.stage.reduce
        guarded_first = sorted(steps, key=lambda a: not any(a in g.axes() for g in guards))
        self._nest(guarded_first, guards, sums)
        return sums

    def store(self, sums: Sums) -> None:
        """Finish and store them."""
        if len(sums) > 1 and not self.w.target.compiles_fast:
            self._store_in_turn(sums)
            return
        for row, line in zip(self.rows, sums, strict=True):
            self._store_row(row, line)

    def _store_in_turn(self, sums: Sums) -> None:
        """A loop in which the sums of the next row move up to the first one's registers."""
        w, first = self.w, self.rows[0].number
        with w.loop("r", i32(0), i32(len(sums))) as k:
            number = w.let("row", kop("add", first, k))
            row = self._bind_row(number, k, whole=divisible(self.found.height, len(sums)))
            self._store_row(row, sums[0])
            for line, following in itertools.pairwise(sums):
                for total, other in zip(line, following, strict=True):
                    for register, value in zip(total.registers, other.registers, strict=True):
                        w.assign(register, value)

    # binding

    def _bind_rows(self, first: KExpr, height: int) -> None:
        w, found = self.w, self.found
        for k in range(height):
            number = w.let("row", plus(first, k))
            whole = k == 0 or divisible(found.height, height)
            self.rows.append(self._bind_row(number, i32(k), whole=whole))

    def _bind_row(self, number: KExpr, lane: KExpr, *, whole: bool) -> Row:
        """A row of a number, or the last one if it is past the end; `whole`: it never is."""
        w, found = self.w, self.found
        inside = number
        if not whole and found.height.as_int() != 1:
            inside = w.let("row", kop("min", number, w.params.scalar(found.height - 1)))
        clones = {a: Axis(f"{a.name}^{w.fresh('r')}", a.extent) for a in found.rows}
        places = decompose(w, inside, [a.extent for a in found.rows])
        for axis, place in zip(found.rows, places, strict=True):
            w.bind(clones[axis], place)
        if found.lane is not None:
            clones[found.lane] = Axis(f"{found.lane.name}^{w.fresh('r')}", found.lane.extent)
            w.bind(clones[found.lane], lane)
        return Row(clones, number)

    def _bind_columns(self, groups: Sequence[Group]) -> None:
        w, column = self.w, self.found.column
        for group in groups:
            clone = Axis(f"{column.name}^{w.fresh('c')}", column.extent)
            if group.lanes == 1:
                w.bind(clone, group.first)
            elif group.whole:
                w.bind_vector(clone, group.first, aligned=group.aligned)
            else:
                last = w.params.scalar(column.extent - 1)
                steps = [plus(group.first, k) for k in range(4)]
                w.bind_lanes(clone, [w.let("col", kop("min", s, last)) for s in steps])
            self.columns.append(_Column(clone, group))

    def _swaps(self, row: Row | None, column: _Column | None) -> dict[Atom, ExprLike]:
        swaps: dict[Atom, ExprLike] = {}
        if row is not None:
            swaps |= {a: as_expr(c) for a, c in row.axes.items()}
        if column is not None:
            swaps[self.found.column] = column.axis
        return swaps

    def _begin(self, row: Row, column: _Column) -> Reduction:
        return begin(self.w, "sum", self.found.stage.body.dtype, lanes=column.group.lanes)

    # the sum

    def _sort_guards(self) -> list[Scalar]:
        """Guards to test in the loops; those that differ in the tile are folded into factors."""
        found, tested = self.found, []
        one_row = self.rows[0] if len(self.rows) == 1 else None
        one_column = self.columns[0] if len(self.columns) == 1 else None
        if one_column is not None and one_column.group.lanes > 1:
            one_column = None
        for guard in self.guards:
            of_column = found.column in guard.axes()
            of_row = bool(guard.axes() & set(found.rows))
            if of_column and one_column is None:
                self.column_guards.append(guard)
            elif of_row and one_row is None:
                self.row_guards.append(guard)
            else:
                tested.append(guard.subs(self._swaps(one_row, one_column)))
        return tested

    def _factors(self) -> tuple[list[Scalar], list[Scalar]]:
        """The left factor of each row and the right one of each column."""
        left = guarded(self.found.left, self.row_guards)
        right = guarded(self.found.right, self.column_guards)
        return (
            [left.subs(self._swaps(r, None)) for r in self.rows],
            [right.subs(self._swaps(None, c)) for c in self.columns],
        )

    def _step(self, sums: Sums) -> None:
        """One step, all reduced axes being bound."""
        if not self.found.shares_left:
            left, right = self._factors()
            values = self._values(right)
            for factor, line in zip(left, sums, strict=True):  # few registers at a time
                self._multiply(self._values([factor]), values, [line])
            return
        shared = self._values([self.found.left])
        right_factor = guarded(self.found.right, [*self.row_guards, *self.column_guards])
        for row, line in zip(self.rows, sums, strict=True):
            own = [right_factor.subs(self._swaps(row, c)) for c in self.columns]
            self._multiply(shared, self._values(own), [line])

    def _nest(self, axes: list[Axis], pending: list[Scalar], sums: Sums) -> None:
        """One loop per reduce axis, each guard as far out as it can stand."""
        unbound = set(axes)
        ready = [g for g in pending if not g.axes() & unbound]
        if ready:
            cond = self.s.value(ready[0])
            for guard in ready[1:]:
                cond = kop("and", cond, self.s.value(guard))
            with self.w.when(cond):
                self._nest(axes, [g for g in pending if g not in ready], sums)
            return
        if not axes:
            self._step(sums)
            return
        innermost = len(axes) == 1 and not pending
        if innermost and self._is_worth_text(axes[0]):
            self._unrolled(axes[0], sums)
            return
        if innermost and self.dot:
            self._dot(axes[0], sums)
            return
        start, stop = self._steps_of(axes[0])
        with self.w.loop("k", start, stop) as k:
            self.w.bind(axes[0], k)
            self._nest(axes[1:], pending, sums)

    def _is_worth_text(self, axis: Axis) -> bool:
        """Whether to write out four steps of an axis: for speed, or to have fewer turns."""
        target = self.w.target
        if not target.is_gpu or proves_lt(axis.extent, 8):
            return False
        few = proves_le(count(self.found.stage.reduce), LONGEST_ALONE)
        return target.compiles_fast or not few

    def _steps_of(self, axis: Axis) -> tuple[KExpr, KExpr]:
        if self.span is not None and axis is self.span.axis:
            return self.span.start, self.span.stop
        return i32(0), self.w.params.scalar(axis.extent)

    def _dot(self, axis: Axis, sums: Sums) -> None:
        """Vectors along the axis, whose lanes are added up at the end, then the rest of it."""
        w = self.w
        left, right = self._factors()
        dtype = self.found.stage.body.dtype
        fours = [[begin(w, "sum", dtype, lanes=4) for _ in line] for line in sums]
        end, stop = w.params.scalar(axis.extent // 4 * 4), w.params.scalar(axis.extent)
        with w.loop("k", i32(0), end, step=4) as k:
            w.bind_vector(axis, k)
            self._multiply(self._values(left), self._values(right), fours)
        for line, four in zip(sums, fours, strict=True):
            for total, part in zip(line, four, strict=True):
                total.merge(w, fold_lanes(w, part).registers)
        if not divisible(axis.extent, 4):
            with w.loop("k", end, stop) as k:
                w.bind(axis, k)
                self._multiply(self._values(left), self._values(right), sums)

    def _unrolled(self, axis: Axis, sums: Sums) -> None:
        """Steps of four in text, with vector loads along the axis where they are aligned."""
        w = self.w
        start, stop = self._steps_of(axis)
        end = w.params.scalar(axis.extent // 4 * 4)
        rest = w.let("k", kop("max", start, end)) if self.span else end
        if self.span:
            end = w.let("k", kop("min", stop, end))
        left, right = self._factors()
        with w.loop("k", start, end, step=4) as k:
            w.bind_vector(axis, k)
            lanes = w.lanes(axis)
            assert lanes is not None
            steps = [[self._at(f, axis, lanes.clones[j]) for f in left] for j in range(4)]
            rights = self._steps_right(right, axis, lanes.clones)
            if divisible(axis.extent, 4) and is_contiguous(self.found.left, axis):
                vectors = [lanes_of(w.let("a", splat(self.s.value(f), 4))) for f in left]
                values = [[v[j] for v in vectors] for j in range(4)]
            else:
                values = [self._values(step) for step in steps]
            for j in range(4):
                self._multiply(values[j], rights(j), sums)
        if not divisible(axis.extent, 4):
            with w.loop("k", rest, stop) as k:
                w.bind(axis, k)
                self._multiply(self._values(left), self._values(right), sums)

    def _at(self, factor: Scalar, axis: Axis, clone: Axis) -> Scalar:
        swaps: dict[Atom, ExprLike] = {axis: clone}
        return factor.subs(swaps)

    def _steps_right(
        self, right: list[Scalar], axis: Axis, clones: Sequence[Axis]
    ) -> Callable[[int], list[KExpr]]:
        """The right factors of each of four steps.

        Where they adjoin along the reduced axis alone, the four steps of a column are one load.
        """
        column = self.found.column
        transposed = (
            divisible(axis.extent, 4)
            and is_contiguous(self.found.right, axis)
            and not is_contiguous(self.found.right, column)
            and all(c.group.lanes == 4 for c in self.columns)
        )
        if not transposed:
            return lambda j: self._values([self._at(f, axis, clones[j]) for f in right])
        lines = []
        for c, factor in zip(self.columns, right, strict=True):
            own = self.w.lanes(c.axis)
            assert own is not None
            single = [self._at(factor, c.axis, clone) for clone in own.clones]
            lines.append([lanes_of(self.w.let("b", self.s.value(f))) for f in single])
        return lambda j: [KVec(q[0][j].dtype, 4, tuple(v[j] for v in q)) for q in lines]

    def _values(self, factors: list[Scalar]) -> list[KExpr]:
        return [self.w.let("f", self.s.value(f)) for f in factors]

    def _multiply(self, left: Sequence[KExpr], right: Sequence[KExpr], sums: Sums) -> None:
        """Add the products of one step."""
        for a, line in zip(left, sums, strict=True):
            for b, total in zip(right, line, strict=True):
                (register,) = total.registers
                self.w.assign(register, multiply_add(a, b, register, self.found.product))

    # storing

    def _store_row(self, row: Row, line: list[Reduction]) -> None:
        w, found = self.w, self.found
        if len(self.rows) == 1 or divisible(found.height, len(self.rows)):
            for column, total in zip(self.columns, line, strict=True):
                self._store(row, column, total)
            return
        with w.when(kop("lt", row.number, w.params.scalar(found.height))):
            for column, total in zip(self.columns, line, strict=True):
                self._store(row, column, total)

    def _store(self, row: Row, column: _Column, total: Reduction) -> None:
        stage = substitute_stage(self.found.stage, self._swaps(row, column))
        group = column.group
        limit = None if group.whole else self.w.params.scalar(self.found.width)
        store_sum(self.w, self.s, stage, total, group.first, limit)


def store_sum(
    w: Writer, s: Scalars, stage: Stage, total: Reduction, first: KExpr, limit: KExpr | None
) -> None:
    """Finish the sum of columns from number `first`; those from `limit` on are left out."""
    if stage.init is not None:
        total.step(w, s.value(stage.init))
    lanes = total.registers[0].lanes
    result = result_of(w, s, stage, total)
    value = splat(convert(s.value(result), stage.out.dtype), lanes)
    flat = store_flat(stage)
    if lanes == 1:
        w.store(stage.out, s.index.value(flat), value)
        return
    if limit is None and is_one(s.index.lane_stride(flat)):
        place = s.index.value(s.index.in_lane(flat, 0))
        w.store(stage.out, place, value, aligned=s.index.is_aligned(flat))
        return
    vector = w.let("y", value)
    for k, lane in enumerate(lanes_of(vector)):
        at = s.index.in_lane(flat, k)
        if limit is None:
            w.store(stage.out, s.index.value(at), lane)
            continue
        with w.when(kop("lt", plus(first, k), limit)):
            w.store(stage.out, s.index.value(at), lane)


def multiply_add(a: KExpr, b: KExpr, total: KVar, product: str = "mul") -> KExpr:
    """total + a * b in the type of the total, fused where the device can."""
    a, b = (splat(convert(v, total.dtype), total.lanes) for v in (a, b))
    if total.dtype.is_float:
        return kop("fma", a, b, total)
    return kop("add", total, kop(product, a, b))
