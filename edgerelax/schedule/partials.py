"""Reductions in parts: where the states of the parts lie, and how they meet.

In workgroup memory between the invocations of a group, or in workspaces between kernels.
"""

import math
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from edgerelax.ir.dtypes import DType
from edgerelax.ir.kernel import (
    LANE,
    LOCAL,
    SUBGROUPS,
    KConst,
    KExpr,
    KLoad,
    KSelect,
    KStore,
    KSubgroup,
    KVar,
    i32,
    kop,
)
from edgerelax.ir.loop import Combiner
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule.reduce import Reduction, convert, function_of, identity
from edgerelax.schedule.widen import wide_dtype
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Expr, as_expr

GROUP = 64  # invocations that share a reduction, where nothing else is said
_COMBINERS: dict[str, Combiner] = {"add": "sum", "max": "max", "min": "min"}  # of subgroups


class State(Protocol):
    """What a running reduction, or several in one pass, has in registers."""

    @property
    def registers(self) -> tuple[KVar, ...]: ...

    def over(self, registers: tuple[KVar, ...]) -> Self:
        """The same with its state in other registers."""

    def merge(self, w: Writer, other: tuple[KExpr, ...]) -> None:
        """Take the state of another part."""


S = TypeVar("S", bound=State)


class SharedStates:
    """The states of `size` parts in workgroup memory."""

    def __init__(self, w: Writer, like: State, size: int) -> None:
        self.w, self.like = w, like
        self.arrays = [
            w.array("part", r.dtype, size, shared=True, lanes=r.lanes) for r in like.registers
        ]

    def put(self, at: KExpr, state: State) -> None:
        """Store a part's state."""
        for name, register in zip(self.arrays, state.registers, strict=True):
            self.w.emit(KStore(name, at, register))

    def get(self, at: KExpr) -> tuple[KExpr, ...]:
        """The registers of a part."""
        pairs = zip(self.arrays, self.like.registers, strict=True)
        return tuple(KLoad(r.dtype, r.lanes, name, at) for name, r in pairs)

    def merge_column(self, total: State, across: int, slices: int) -> None:
        """Merge into the first slice's state, by its invocation, those of the other slices."""
        w = self.w
        with w.loop("j", i32(1), i32(slices)) as j:
            at = w.let("at", kop("add", LOCAL, kop("mul", j, i32(across))))
            total.merge(w, self.get(at))


def combine(w: Writer, part: S, group: int = GROUP) -> S:
    """The whole of a group's parts, for every invocation: by subgroups where a device has them.

    Else, the group being n² invocations, n merge n parts each, and all merge those.
    """
    fn = _subgroup_function(part)
    if fn is None:
        return _combine_tree(w, part, group)
    (register,) = part.registers

    def tree() -> None:
        (whole,) = _combine_tree(w, part, group).registers
        w.assign(register, whole)

    w.featured(SUBGROUPS, lambda: _combine_subgroups(w, register, fn, group), tree)
    return part


def _combine_tree(w: Writer, part: S, group: int) -> S:
    few = math.isqrt(group)
    first, second = SharedStates(w, part, group), SharedStates(w, part, few)
    first.put(LOCAL, part)
    w.barrier()
    with w.when(kop("lt", LOCAL, i32(few))):
        base = w.let("b", kop("mul", LOCAL, i32(few)))
        second.put(LOCAL, _merged(w, part, first, base, few))
    w.barrier()
    return _merged(w, part, second, i32(0), few)


def _subgroup_function(part: State) -> str | None:
    """How subgroups reduce it, if its state is one number that they can add up or compare."""
    if not isinstance(part, Reduction) or len(part.registers) != 1:
        return None
    dtype = part.registers[0].dtype
    fn = function_of(part.combiner)
    return fn if fn in _COMBINERS and dtype.bits == 32 else None


def _combine_subgroups(w: Writer, register: KVar, fn: str, group: int) -> None:
    """Each subgroup reduces, its first invocation stores that, then each reduces what is stored.

    Neither the size of subgroups nor which invocations are one matters.
    """
    nothing = identity(_COMBINERS[fn], register.dtype)
    states = w.array("part", register.dtype, group, shared=True)
    own = _over_subgroup(w, register, fn)
    is_first = kop("eq", LOCAL, w.let("first", KSubgroup(LOCAL.dtype, 1, "min", LOCAL)))
    w.emit(KStore(states, LOCAL, KSelect(own.dtype, 1, is_first, own, nothing)))
    w.barrier()
    size = w.let("size", KSubgroup(LOCAL.dtype, 1, "add", i32(1)))
    rounds = kop("index_div", kop("add", size, i32(group - 1)), size)
    w.assign(register, nothing)
    with w.loop("j", i32(0), w.let("rounds", rounds)) as j:
        at = w.let("at", kop("add", LANE, kop("mul", j, size)))
        with w.when(kop("lt", at, i32(group))):
            w.assign(register, kop(fn, register, KLoad(register.dtype, 1, states, at)))
    w.assign(register, _over_subgroup(w, register, fn))


def _over_subgroup(w: Writer, value: KExpr, fn: str) -> KExpr:
    """A value reduced over the subgroup. Devices may lose NaN in max and min: it goes apart."""
    dtype = value.dtype
    if fn == "add" or not dtype.is_float:
        return w.let("sub", KSubgroup(dtype, 1, fn, value))
    nan = w.let("nan", kop("isnan", value))
    zero = KConst(dtype, 1, 0.0)
    some = w.let("nan", KSubgroup(dtype, 1, "add", KSelect(dtype, 1, nan, value, zero)))
    rest = KSelect(dtype, 1, nan, identity(_COMBINERS[fn], dtype), value)
    most = w.let("sub", KSubgroup(dtype, 1, fn, rest))
    return w.let("sub", KSelect(dtype, 1, kop("isnan", some), some, most))


def _merged(w: Writer, like: S, states: SharedStates, base: KExpr, count: int) -> S:
    """Neighbouring parts as one."""
    start = states.get(kop("add", base, i32(0)))
    total = like.over(tuple(w.var("all", v) for v in start))
    with w.loop("j", i32(1), i32(count)) as j:
        total.merge(w, states.get(kop("add", base, j)))
    return total


@dataclass(frozen=True, slots=True)
class StoredStates:
    """The states of so many parts of each point in workspaces, one for each register.

    Types of less than a word are widened: an invocation owns whole words.
    """

    buffers: tuple[Buffer, ...]
    dtypes: tuple[DType, ...]

    @staticmethod
    def of(name: str, like: Reduction, parts: int, points: Expr) -> "StoredStates":
        """Workspaces of `parts` by `points` elements."""
        dtypes = tuple(r.dtype for r in like.registers)
        dims = as_expr(parts), points
        buffers = (Buffer(f"{name}_part{k}", wide_dtype(d), dims) for k, d in enumerate(dtypes))
        return StoredStates(tuple(buffers), dtypes)

    def put(self, w: Writer, at: KExpr, state: Reduction) -> None:
        """Store a state from a flat element, which is a multiple of the state's lanes."""
        for buffer, register in zip(self.buffers, state.registers, strict=True):
            w.store(buffer, at, convert(register, buffer.dtype))

    def get(self, w: Writer, at: KExpr, lanes: int) -> tuple[KExpr, ...]:
        """The registers of the state from a flat element."""
        for buffer in self.buffers:
            w.use(buffer)
        pairs = zip(self.buffers, self.dtypes, strict=True)
        return tuple(convert(KLoad(b.dtype, lanes, b.name, at), d) for b, d in pairs)
