"""Building kernel text: nested blocks of statements, fresh names, parameters, bound axes.

A `Writer` keeps a stack of open blocks. A pure value may be placed in an outer block while an
inner one is open (its `Let` then stands before the inner loop), which is how invariants leave
loops.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from edgerelax.ir.dtypes import I32, DType
from edgerelax.ir.kernel import (
    Array,
    Assign,
    Barrier,
    Featured,
    For,
    If,
    KConst,
    Kernel,
    KernelBuffer,
    KExpr,
    KScalar,
    KStmt,
    KStore,
    KVar,
    Let,
    VarDecl,
    i32,
    kop,
)
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule.target import Target
from edgerelax.sym import Axis, Expr, Symbol


@dataclass(frozen=True, slots=True)
class Lanes:
    """An axis bound to four values at once.

    `consecutive`: they are base, base+1, base+2, base+3; `aligned`: base is a multiple of 4.
    """

    parts: tuple[KExpr, KExpr, KExpr, KExpr]
    clones: tuple[Axis, Axis, Axis, Axis]
    consecutive: bool
    aligned: bool


@dataclass(slots=True)
class Cell:
    """A computed value: its expression, the block it is valid from, and how deep its text is."""

    expr: KExpr
    depth: int
    height: int = 0


@dataclass(slots=True)
class Block:
    """An open list of statements, with what is bound and known inside it."""

    kind: Literal["body", "loop", "branch"]
    stmts: list[KStmt] = field(default_factory=list)
    memo: dict[object, Cell] = field(default_factory=dict)
    axes: dict[Axis, KExpr | Lanes] = field(default_factory=dict)


@dataclass(slots=True)
class ParamSet:
    """The scalar parameters of a kernel: axis-free expressions that the host computes per call."""

    names: dict[Expr, str] = field(default_factory=dict)

    def scalar(self, expr: Expr) -> KExpr:
        """A literal for a constant, else a parameter."""
        known = expr.as_int()
        if known is not None:
            return i32(known)
        name = self.names.get(expr)
        if name is None:
            name = self._name(expr)
            self.names[expr] = name
        return KScalar(I32, 1, name)

    def _name(self, expr: Expr) -> str:
        if isinstance(expr.atom, Symbol):
            plain = "".join(c if c.isalnum() and c.isascii() else "_" for c in expr.atom.name)
            if f"n_{plain}" not in self.names.values():
                return f"n_{plain}"
        return f"p{len(self.names)}"


class Writer:
    """Writes the body of one kernel."""

    def __init__(self, target: Target, weights: frozenset[str] = frozenset()) -> None:
        self.target = target
        self.weights = weights
        self.params = ParamSet()
        self.blocks: list[Block] = [Block("body")]
        self.buffers: dict[str, Buffer] = {}
        self._names: dict[str, int] = {}

    # names and statements

    @property
    def depth(self) -> int:
        return len(self.blocks) - 1

    def fresh(self, stem: str) -> str:
        count = self._names.get(stem, 0)
        self._names[stem] = count + 1
        return f"{stem}_{count}"

    def emit(self, stmt: KStmt, depth: int | None = None) -> None:
        self.blocks[self.depth if depth is None else depth].stmts.append(stmt)

    def let(self, stem: str, value: KExpr, depth: int | None = None) -> KExpr:
        """Name a value, unless it is a name or a literal already."""
        if isinstance(value, KConst | KVar | KScalar):
            return value
        name = self.fresh(stem)
        self.emit(Let(name, value), depth)
        return KVar(value.dtype, value.lanes, name)

    def share(self, stem: str, value: KExpr, depth: int | None = None) -> KExpr:
        """Name a value that only depends on immutable names, or find the name it has."""
        for block in self.blocks[: (self.depth if depth is None else depth) + 1]:
            cell = block.memo.get(("value", value))
            if cell is not None:
                return cell.expr
        named = self.let(stem, value, depth)
        block = self.blocks[self.depth if depth is None else depth]
        block.memo["value", value] = Cell(named, self.depth)
        return named

    def var(self, stem: str, value: KExpr) -> KVar:
        """Declare a mutable register."""
        name = self.fresh(stem)
        self.emit(VarDecl(name, value))
        return KVar(value.dtype, value.lanes, name)

    def assign(self, register: KVar, value: KExpr) -> None:
        self.emit(Assign(register.name, value))

    def array(self, stem: str, dtype: DType, size: int, *, shared: bool, lanes: int = 1) -> str:
        """Declare a fixed array; shared ones stand at the head of the kernel."""
        name = self.fresh(stem)
        self.emit(Array(name, dtype, size, shared, lanes), 0 if shared else None)
        return name

    def barrier(self) -> None:
        self.emit(Barrier())

    def store(
        self,
        buffer: Buffer,
        index: KExpr,
        value: KExpr,
        *,
        aligned: bool = True,
        combine: str = "",
    ) -> None:
        self.use(buffer)
        self.emit(KStore(buffer.name, index, value, aligned, combine))

    def use(self, buffer: Buffer) -> None:
        """Make a buffer a parameter of the kernel."""
        self.buffers.setdefault(buffer.name, buffer)

    # blocks

    @contextmanager
    def loop(
        self, stem: str, start: KExpr, stop: KExpr, *, step: int = 1, unroll: bool = False
    ) -> Iterator[KVar]:
        """A loop; the block inside sees its variable."""
        variable = KVar(I32, 1, self.fresh(stem))
        with self._block("loop") as block:
            yield variable
        self.emit(For(variable.name, start, stop, tuple(block.stmts), step, unroll))

    @contextmanager
    def when(self, cond: KExpr) -> Iterator[None]:
        """A branch without an else."""
        with self._block("branch") as block:
            yield
        self.emit(If(cond, tuple(block.stmts)))

    def branch(
        self, cond: KExpr, then: Callable[[], None], other: Callable[[], None] | None = None
    ) -> None:
        """A branch with both sides written by callbacks."""
        with self._block("branch") as first:
            then()
        with self._block("branch") as second:
            if other is not None:
                other()
        self.emit(If(cond, tuple(first.stmts), tuple(second.stmts)))

    def featured(self, feature: str, then: Callable[[], None], other: Callable[[], None]) -> None:
        """Two ways to one end, for devices with a feature and for those without."""
        with self._block("branch") as first:
            then()
        with self._block("branch") as second:
            other()
        self.emit(Featured(feature, tuple(first.stmts), tuple(second.stmts)))

    @contextmanager
    def _block(self, kind: Literal["loop", "branch"]) -> Iterator[Block]:
        block = Block(kind)
        self.blocks.append(block)
        yield block
        self.blocks.pop()

    # axes

    def bind(self, axis: Axis, value: KExpr) -> None:
        """Give an axis its value from here to the end of the open block."""
        self.blocks[-1].axes[axis] = value

    def bind_lanes(
        self,
        axis: Axis,
        parts: Sequence[KExpr],
        *,
        consecutive: bool = False,
        aligned: bool = False,
    ) -> None:
        """Bind an axis to four values at once."""
        clones = [Axis(f"{axis.name}@{k}", axis.extent) for k in range(4)]
        for clone, part in zip(clones, parts, strict=True):
            self.bind(clone, part)
        a, b, c, d = parts
        e, f, g, h = clones
        self.blocks[-1].axes[axis] = Lanes((a, b, c, d), (e, f, g, h), consecutive, aligned)

    def bind_vector(self, axis: Axis, base: KExpr, *, aligned: bool = True) -> None:
        """Bind an axis to base, base+1, base+2, base+3; `aligned` if base is a multiple of 4."""
        parts = [plus(base, k) for k in range(4)]
        self.bind_lanes(axis, parts, consecutive=True, aligned=aligned)

    def lookup(self, axis: Axis) -> tuple[KExpr | Lanes, int]:
        """The value of an axis and the block that bound it."""
        for depth in range(self.depth, -1, -1):
            value = self.blocks[depth].axes.get(axis)
            if value is not None:
                return value, depth
        raise KeyError(f"axis {axis} is not bound here")

    def lanes(self, axis: Axis) -> Lanes | None:
        """The four values of an axis, if it is bound to four."""
        for block in reversed(self.blocks):
            value = block.axes.get(axis)
            if value is not None:
                return value if isinstance(value, Lanes) else None
        return None

    # placing

    def find(self, key: object) -> Cell | None:
        for block in reversed(self.blocks):
            cell = block.memo.get(key)
            if cell is not None:
                return cell
        return None

    def placement(self, depth: int) -> int:
        """The block for a pure value that needs what is bound at `depth`.

        It leaves loops, but a branch only on the way out of a loop.
        """
        inside = self.blocks[depth + 1 :]
        return depth if any(b.kind == "loop" for b in inside) else self.depth

    # the end

    def kernel(self, name: str, grid: Expr, workgroup: int, comment: str = "") -> Kernel:
        """Close the kernel: its parameters are what the text mentions."""
        buffers = tuple(
            KernelBuffer(b, "read" if n in self.weights else "read_write")
            for n, b in self.buffers.items()
        )
        scalars = tuple((n, e) for e, n in self.params.names.items())
        (body,) = self.blocks
        return Kernel(
            name, self.target.device, buffers, scalars, grid, workgroup, tuple(body.stmts),
            comment=comment,
        )  # fmt: skip


def plus(base: KExpr, offset: int) -> KExpr:
    """An index some places further."""
    return kop("add", base, i32(offset)) if offset else base
