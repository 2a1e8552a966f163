"""Contractions in workgroup tiles, for GPUs with fast barriers.

64 threads own 32 rows by 32 columns of the output, each 4 by 4 in registers. Eight steps at a
time, they load a 32 by 8 tile of the left factor and an 8 by 32 tile of the right one into
workgroup memory, a vector each. What lies outside the factors, or behind a guard, is loaded as 0,
so a padded convolution is just that: its columns are all positions of the output, its steps all
channels and taps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    KConst,
    KExpr,
    KLoad,
    KSelect,
    KStore,
    KVec,
    i32,
    kop,
)
from edgerelax.ir.scalar import Scalar
from edgerelax.schedule.contraction import Contraction, contraction, guarded
from edgerelax.schedule.cost import Work, roofline, typical, work
from edgerelax.schedule.in_place import at_own_place
from edgerelax.schedule.points import count, decompose, substitute_stage
from edgerelax.schedule.reduce import Reduction, begin, convert, lanes_of, splat, state_dtype
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.pointwise import is_sub_word
from edgerelax.schedule.target import Target
from edgerelax.schedule.tile import multiply_add, store_sum
from edgerelax.schedule.writer import Writer, plus
from edgerelax.sym import Atom, Axis, ExprLike, as_expr, ceildiv, divisible, upper_bound

GROUP = 64
_SIDE = 32  # rows and columns of a workgroup's tile
_DEPTH = 8  # steps between barriers
_OWN = 4  # rows and columns of a thread
_QUADS = _SIDE // 4
_FEWEST = 16  # rows or columns for which a tile is worth filling


@dataclass(frozen=True, slots=True)
class SharedGemm:
    """A contraction with all axes of its right factor as columns."""

    unit: Unit
    found: Contraction
    columns: tuple[Axis, ...]
    outer: tuple[Axis, ...]


def match(unit: Unit, target: Target) -> SharedGemm | Reject:
    """A contraction with more than a few rows and columns."""
    if not target.has_fast_barriers:
        return Reject("barriers are slow or absent")
    if unit.stage is None:
        return Reject("not a single stage")
    found = contraction(unit.stage)
    if isinstance(found, Reject):
        return found
    if is_sub_word(found.stage.out.dtype) and not found.stores_vectors:
        return Reject("its outputs share words with others")
    others = [a for a in found.outer if a in found.right.axes() and a not in found.left.axes()]
    columns = (*others, found.column)
    for size in (found.height, count(columns)):
        most = upper_bound(size)
        if most is not None and most < _FEWEST:
            return Reject("too few rows or columns")
    outer = tuple(a for a in found.outer if a not in others)
    return SharedGemm(unit, found, columns, outer)


def configs(gemm: SharedGemm, target: Target) -> tuple[str, ...]:
    """One tile, the best on average over many GPUs."""
    return (f"{_SIDE}x{_SIDE}x{_DEPTH}",)


def cost(gemm: SharedGemm, config: str, target: Target) -> float:
    """Loads from memory serve 32 rows or columns; a barrier costs a few steps."""
    total = work(gemm.found.stage)
    idle = 1.1
    for size in (typical(gemm.found.height), typical(count(gemm.columns))):
        idle *= _SIDE * -(-size // _SIDE) / max(size, 1.0)
    scaled = Work(total.points, total.steps, total.bytes, total.flops * idle)
    return roofline(scaled, target, threads=total.points / _OWN**2, reuse=float(_SIDE))


def emit(gemm: SharedGemm, config: str, target: Target) -> Emitted:
    """One kernel."""
    w = Writer(target, gemm.unit.weights)
    down, across = ceildiv(gemm.found.height, _SIDE), ceildiv(count(gemm.columns), _SIDE)
    places = decompose(w, WORKGROUP, [*(a.extent for a in gemm.outer), down, across])
    for axis, place in zip(gemm.outer, places, strict=False):
        w.bind(axis, place)
    first_row = w.let("row", kop("mul", places[-2], i32(_SIDE)))
    first_column = w.let("col", kop("mul", places[-1], i32(_SIDE)))
    _Block(w, gemm).write(first_row, first_column)
    grid = count(gemm.outer) * down * across
    kernel = w.kernel(gemm.unit.name, grid, GROUP, f"contraction, {config} per workgroup")
    return Emitted((kernel,), in_place=at_own_place(gemm.found.stage))


class _Block:
    """Writes the tile of one workgroup."""

    def __init__(self, w: Writer, gemm: SharedGemm) -> None:
        self.w, self.s = w, Scalars(w)
        self.gemm, self.found = gemm, gemm.found
        self.steps = gemm.found.stage.reduce
        self.total_steps = count(self.steps)
        self.dtype = state_dtype("sum", gemm.found.stage.body.dtype)

    def write(self, first_row: KExpr, first_column: KExpr) -> None:
        w = self.w
        left = w.array("left", self.dtype, _SIDE * _DEPTH // 4, shared=True, lanes=4)
        right = w.array("right", self.dtype, _QUADS * _DEPTH, shared=True, lanes=4)
        self._bind_loads(first_row, first_column)
        sums = [begin(w, "sum", self.dtype, lanes=4) for _ in range(_OWN)]
        down = w.let("y", kop("index_div", LOCAL, i32(_QUADS)))
        across = w.let("x", kop("index_mod", LOCAL, i32(_QUADS)))
        with w.loop("k", i32(0), w.params.scalar(self.total_steps), step=_DEPTH) as k:
            w.emit(KStore(left, LOCAL, self._left_vector(k)))
            w.emit(KStore(right, LOCAL, self._right_vector(k)))
            w.barrier()
            self._multiply(left, right, sums, down, across)
            w.barrier()
        row = w.let("row", kop("add", first_row, kop("mul", down, i32(_OWN))))
        column = w.let("col", kop("add", first_column, kop("mul", across, i32(4))))
        self._store(sums, row, column)

    # loading

    def _bind_loads(self, first_row: KExpr, first_column: KExpr) -> None:
        """Which row and columns this thread loads, and which step of each eight."""
        w = self.w
        row = w.let("row", kop("add", first_row, kop("index_div", LOCAL, i32(2))))
        self.left_step = w.let("s", kop("mul", kop("index_mod", LOCAL, i32(2)), i32(4)))
        quad = kop("mul", kop("index_mod", LOCAL, i32(_QUADS)), i32(4))
        column = w.let("col", kop("add", first_column, quad))
        self.right_step = w.let("s", kop("index_div", LOCAL, i32(_QUADS)))
        self.load_row = self._clones(self.found.rows, "a")
        self._bind_one(self.load_row, self.found.rows, row)
        self.load_columns = self._clones(self.gemm.columns, "b")
        self._bind_four(self.load_columns, self.gemm.columns, column)
        of_row = [g for g in self.found.guards if g.axes() & set(self.found.rows)]
        of_column = [g for g in self.found.guards if g not in of_row]
        self.left = guarded(self.found.left, of_row).subs(_swaps(self.load_row))
        self.right = guarded(self.found.right, of_column).subs(_swaps(self.load_columns))

    def _clones(self, axes: Sequence[Axis], stem: str) -> dict[Axis, Axis]:
        mark = self.w.fresh(stem)
        return {a: Axis(f"{a.name}^{mark}", a.extent) for a in axes}

    def _bind_one(self, clones: dict[Axis, Axis], axes: Sequence[Axis], number: KExpr) -> None:
        """Bind axes to the place of a number, or of the last one if it is past the end."""
        w = self.w
        inside = w.let("n", kop("min", number, w.params.scalar(count(axes) - 1)))
        places = decompose(w, inside, [a.extent for a in axes])
        for axis, place in zip(axes, places, strict=True):
            w.bind(clones[axis], place)

    def _bind_four(self, clones: dict[Axis, Axis], axes: Sequence[Axis], number: KExpr) -> None:
        """The same for a number (a multiple of 4) and the three after it."""
        w, total = self.w, count(axes)
        extents = [a.extent for a in axes]
        if divisible(extents[-1], 4):
            inside = w.let("n", kop("min", number, w.params.scalar(total - 4)))
            *outer, inner = decompose(w, inside, extents)
            for axis, place in zip(axes, outer, strict=False):
                w.bind(clones[axis], place)
            w.bind_vector(clones[axes[-1]], w.let("v", inner))
            return
        last = w.params.scalar(total - 1)
        places = [
            decompose(w, w.let("n", kop("min", plus(number, k), last)), extents) for k in range(4)
        ]
        for position, axis in enumerate(axes):
            w.bind_lanes(clones[axis], [p[position] for p in places])

    def _left_vector(self, k: KExpr) -> KExpr:
        """Four steps of one row; 0 past the last step."""
        w = self.w
        first = w.let("k", kop("add", k, self.left_step))
        clones = self._clones(self.steps, "k")
        self._bind_four(clones, self.steps, first)
        value = splat(self._value(self.left.subs(_swaps(clones))), 4)
        if divisible(self.total_steps, _DEPTH):
            return value
        stop = w.params.scalar(self.total_steps)
        if divisible(self.steps[-1].extent, 4):
            return self._or_zero(kop("lt", first, stop), value)
        numbers = kop("add", splat(first, 4), KVec(I32, 4, tuple(i32(j) for j in range(4))))
        return self._or_zero(kop("lt", numbers, stop), value)

    def _right_vector(self, k: KExpr) -> KExpr:
        """One step of four columns; 0 past the last step."""
        w = self.w
        step = w.let("k", kop("add", k, self.right_step))
        clones = self._clones(self.steps, "k")
        self._bind_one(clones, self.steps, step)
        value = splat(self._value(self.right.subs(_swaps(clones))), 4)
        if divisible(self.total_steps, _DEPTH):
            return value
        return self._or_zero(kop("lt", step, w.params.scalar(self.total_steps)), value)

    def _value(self, factor: Scalar) -> KExpr:
        return convert(self.s.value(factor), self.dtype)

    def _or_zero(self, cond: KExpr, value: KExpr) -> KExpr:
        zero = KConst(self.dtype, 1, 0.0 if self.dtype.is_float else 0)
        return KSelect(self.dtype, 4, cond, value, splat(zero, 4))

    # computing

    def _multiply(
        self, left: str, right: str, sums: list[Reduction], down: KExpr, across: KExpr
    ) -> None:
        w = self.w
        base = w.let("a", kop("mul", down, i32(_OWN * _DEPTH // 4)))
        for half in range(_DEPTH // 4):
            rows = [
                lanes_of(w.let("a", self._entry(left, plus(base, r * _DEPTH // 4 + half))))
                for r in range(_OWN)
            ]
            for j in range(4):
                b = w.let("b", self._entry(right, plus(across, (half * 4 + j) * _QUADS)))
                for total, row in zip(sums, rows, strict=True):
                    (register,) = total.registers
                    w.assign(register, multiply_add(row[j], b, register, self.found.product))

    def _entry(self, array: str, at: KExpr) -> KExpr:
        return KLoad(self.dtype, 4, array, at)

    # storing

    def _store(self, sums: list[Reduction], row: KExpr, column: KExpr) -> None:
        w, found = self.w, self.found
        columns = self._clones(self.gemm.columns, "c")
        width = w.params.scalar(count(self.gemm.columns))
        whole = divisible(self.gemm.columns[-1].extent, 4)
        height = w.params.scalar(found.height)
        self._bind_four(columns, self.gemm.columns, column)
        for r, total in enumerate(sums):
            number = w.let("row", plus(row, r))
            rows = self._clones(found.rows, "r")
            self._bind_one(rows, found.rows, number)
            stage = substitute_stage(found.stage, _swaps(rows) | _swaps(columns))
            inside = kop("and", kop("lt", number, height), kop("lt", column, width))
            with w.when(inside):
                store_sum(w, self.s, stage, total, column, None if whole else width)


def _swaps(clones: dict[Axis, Axis]) -> dict[Atom, ExprLike]:
    return {a: as_expr(c) for a, c in clones.items()}


GEMM_SHARED = Strategy("gemm_shared", match, configs, cost, emit)
