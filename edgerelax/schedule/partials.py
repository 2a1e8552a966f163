"""Reductions in parts: where the states of the parts lie, and how they meet.

In workgroup memory between the invocations of a group, or in workspaces between kernels.
"""

from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

from edgerelax.ir.dtypes import DType
from edgerelax.ir.kernel import LOCAL, KExpr, KLoad, KStore, KVar, i32, kop
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule.reduce import Reduction, convert
from edgerelax.schedule.widen import wide_dtype
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Expr, as_expr

GROUP = 64  # invocations that share a reduction
_ROUND = 8  # parts that one of them merges in each of the two rounds


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


def combine(w: Writer, part: S) -> S:
    """The whole of a group's 64 parts, for every invocation: eight merge eight, all merge those."""
    first, second = SharedStates(w, part, GROUP), SharedStates(w, part, _ROUND)
    first.put(LOCAL, part)
    w.barrier()
    with w.when(kop("lt", LOCAL, i32(_ROUND))):
        second.put(LOCAL, _merged(w, part, first, w.let("b", kop("mul", LOCAL, i32(_ROUND)))))
    w.barrier()
    return _merged(w, part, second, i32(0))


def _merged(w: Writer, like: S, states: SharedStates, base: KExpr) -> S:
    """Eight neighbouring parts as one."""
    start = states.get(kop("add", base, i32(0)))
    total = like.over(tuple(w.var("all", v) for v in start))
    with w.loop("j", i32(1), i32(_ROUND)) as j:
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
