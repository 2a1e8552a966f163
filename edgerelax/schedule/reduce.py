"""Combiners in registers: how a reduction starts, takes a step, merges partial results and ends."""

from dataclasses import dataclass, replace

from edgerelax.ir.dtypes import BOOL, F32, I64, DType
from edgerelax.ir.kernel import KCast, KConst, KExpr, KLane, KVar, KVec, i32, kop
from edgerelax.ir.loop import Combiner
from edgerelax.schedule.writer import Writer

Quad = tuple[KExpr, KExpr, KExpr, KExpr]

VECTOR_COMBINERS = frozenset(("sum", "prod", "max", "min", "any", "all"))
_FUNCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
_BETTER = {"argmax": "gt", "argmin": "lt", "argmax_last": "ge", "argmin_last": "le"}


def function_of(combiner: Combiner) -> str | None:
    """The scalar function that combines two values, where one register is the whole state."""
    return _FUNCTIONS.get(combiner)


def state_dtype(combiner: Combiner, dtype: DType) -> DType:
    """Sums and products of short floats are kept in f32."""
    short = dtype.is_float and dtype.bits < 32
    return F32 if short and combiner in ("sum", "prod", "welford") else dtype


def identity(combiner: Combiner, dtype: DType) -> KConst:
    """What a reduction of nothing gives."""
    match combiner:
        case "sum" | "welford":
            value: int | float | bool = 0.0 if dtype.is_float else 0
        case "prod":
            value = 1.0 if dtype.is_float else 1
        case "any":
            value = False
        case "all":
            value = True
        case "max" | "argmax" | "argmax_last":
            value = float("-inf") if dtype.is_float else dtype.int_range[0]
        case "min" | "argmin" | "argmin_last":
            value = float("inf") if dtype.is_float else dtype.int_range[1]
    if dtype == BOOL:
        value = bool(value)
    return KConst(dtype, 1, value)


def splat(value: KExpr, lanes: int) -> KExpr:
    """The value in as many lanes."""
    return value if value.lanes == lanes else KVec(value.dtype, lanes, (value,))


def convert(value: KExpr, dtype: DType) -> KExpr:
    """A cast, left out where it changes nothing."""
    return value if value.dtype == dtype else KCast(dtype, value.lanes, value)


def lanes_of(vector: KExpr) -> Quad:
    """The four lanes of a named vector."""
    a, b, c, d = (KLane(vector.dtype, 1, vector, k) for k in range(4))
    return a, b, c, d


@dataclass(frozen=True, slots=True)
class Reduction:
    """The registers of one running reduction of values of `dtype`."""

    combiner: Combiner
    dtype: DType
    registers: tuple[KVar, ...]

    def over(self, registers: tuple[KVar, ...]) -> "Reduction":
        """The same reduction with its state in other registers."""
        return replace(self, registers=registers)

    def step(self, w: Writer, value: KExpr, index: KExpr | None = None) -> None:
        """Take one more value; `index` is its place, for arg reductions."""
        fn = function_of(self.combiner)
        if fn is not None:
            (total,) = self.registers
            value = splat(convert(value, total.dtype), total.lanes)
            w.assign(total, kop(fn, total, value))
        elif self.combiner == "welford":
            self._step_welford(w, value)
        else:
            assert index is not None
            self._step_arg(w, w.let("x", value), index)

    def _step_welford(self, w: Writer, value: KExpr) -> None:
        mean, squares, count = self.registers
        x = w.let("x", convert(value, mean.dtype))
        w.assign(count, kop("add", count, KConst(count.dtype, count.lanes, 1.0)))
        delta = w.let("d", kop("sub", x, mean))
        w.assign(mean, kop("add", mean, kop("div", delta, count)))
        w.assign(squares, kop("add", squares, kop("mul", delta, kop("sub", x, mean))))

    def _step_arg(self, w: Writer, value: KExpr, index: KExpr) -> None:
        best, at = self.registers
        better: KExpr = kop(_BETTER[self.combiner], value, best)
        if value.dtype.is_float:
            wins: KExpr = kop("isnan", value)
            if not self.combiner.endswith("_last"):
                wins = kop("and", wins, kop("not", kop("isnan", best)))
            better = kop("or", better, wins)
        better = kop("or", better, kop("lt", at, i32(0)))
        with w.when(better):
            w.assign(best, value)
            w.assign(at, index)

    def merge(self, w: Writer, other: tuple[KExpr, ...]) -> None:
        """Take the state of another part of the same reduction."""
        if function_of(self.combiner) is not None:
            self.step(w, other[0])
        elif self.combiner == "welford":
            self._merge_welford(w, other)
        else:
            self._merge_arg(w, other)

    def _merge_welford(self, w: Writer, other: tuple[KExpr, ...]) -> None:
        mean, squares, count = self.registers
        mean2, squares2, count2 = (w.let("o", o) for o in other)
        total = w.let("n", kop("add", count, count2))
        one = KConst(total.dtype, total.lanes, 1.0)
        share = w.let("f", kop("div", count2, kop("max", total, one)))
        delta = w.let("d", kop("sub", mean2, mean))
        w.assign(mean, kop("add", mean, kop("mul", delta, share)))
        correction = kop("mul", kop("mul", delta, delta), kop("mul", count, share))
        w.assign(squares, kop("add", kop("add", squares, squares2), correction))
        w.assign(count, total)

    def _merge_arg(self, w: Writer, other: tuple[KExpr, ...]) -> None:
        best, at = self.registers
        value, index = (w.let("o", o) for o in other)
        strict = "gt" if self.combiner.startswith("argmax") else "lt"
        better: KExpr = kop(strict, value, best)
        same: KExpr = kop("eq", value, best)
        if value.dtype.is_float:
            nan, was = kop("isnan", value), kop("isnan", best)
            better = kop("or", better, kop("and", nan, kop("not", was)))
            same = kop("or", same, kop("and", nan, was))
        earlier = kop("gt" if self.combiner.endswith("_last") else "lt", index, at)
        wins = kop("or", kop("lt", at, i32(0)), kop("or", better, kop("and", same, earlier)))
        with w.when(kop("and", kop("ge", index, i32(0)), wins)):
            w.assign(best, value)
            w.assign(at, index)

    def component(self, k: int, dtype: DType) -> KExpr:
        """What `Acc(dtype, k)` stands for, once the reduction is over."""
        if k == 1 and self.combiner in _BETTER:
            return KCast(I64, 1, kop("max", self.registers[1], i32(0)))
        return convert(self.registers[k], dtype)


def begin(
    w: Writer, combiner: Combiner, dtype: DType, *, lanes: int = 1, init: KExpr | None = None
) -> Reduction:
    """Declare the registers of a reduction."""
    held = state_dtype(combiner, dtype)
    start = identity(combiner, held) if init is None else convert(init, held)
    first = w.var("acc", splat(start, lanes))
    rest: tuple[KVar, ...] = ()
    if combiner == "welford":
        zero = splat(KConst(held, 1, 0.0), lanes)
        rest = (w.var("m", zero), w.var("n", zero))
    elif combiner in _BETTER:
        rest = (w.var("at", i32(-1)),)
    return Reduction(combiner, dtype, (first, *rest))


def fold_lanes(w: Writer, reduction: Reduction) -> Reduction:
    """One value out of a reduction that ran in four lanes."""
    (register,) = reduction.registers
    fn = function_of(reduction.combiner)
    if register.lanes == 1 or fn is None:
        return reduction
    a, b, c, d = lanes_of(register)
    total = w.var("acc", kop(fn, kop(fn, a, b), kop(fn, c, d)))
    return Reduction(reduction.combiner, reduction.dtype, (total,))
