"""Kernel level: what a strategy emits and a printer prints (design 4).

One set of nodes serves GPU grids and CPU loops. Index arithmetic is i32. A GPU kernel runs `grid`
workgroups of `workgroup` invocations; `WORKGROUP` is the linear workgroup id, `LOCAL` the linear id
inside the workgroup. A CPU kernel is called with a range of `grid` iterations; its body sees one
iteration as `WORKGROUP`. Vectors have 4 lanes; on the GPU also 2, to store pairs of 16-bit values.

Operations on 16-bit and 8-bit floats are computed in f32 and rounded where stored or cast.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from edgerelax.ir.dtypes import BOOL, F32, I32, DType
from edgerelax.ir.functions import FUNCTIONS, Function
from edgerelax.ir.scalar import PREDICATES, Buffer
from edgerelax.sym import Expr

Access = Literal["read", "read_write"]


@dataclass(frozen=True, slots=True)
class KExpr:
    """A kernel expression; `lanes` is 1 or 4 (or 2, see above)."""

    dtype: DType
    lanes: int


@dataclass(frozen=True, slots=True)
class KConst(KExpr):
    """A literal, splat over the lanes."""

    value: int | float | bool


@dataclass(frozen=True, slots=True)
class KVar(KExpr):
    """A let, a var, a loop variable, or WORKGROUP or LOCAL."""

    name: str


@dataclass(frozen=True, slots=True)
class KScalar(KExpr):
    """A scalar parameter of the kernel (i32), computed by the host per call."""

    name: str


@dataclass(frozen=True, slots=True)
class KLoad(KExpr):
    """`lanes` consecutive elements from flat element `index` of a storage buffer or an array.

    A 4-lane load of a storage buffer needs `index % 4 == 0` where `aligned`. An index into an
    `Array` counts its entries: entry 2 of an array of 4-lane entries is lanes 8 to 11.
    """

    buffer: str
    index: KExpr
    aligned: bool = True


@dataclass(frozen=True, slots=True)
class KOp(KExpr):
    """A function of KERNEL_FUNCTIONS lane by lane."""

    fn: str
    args: tuple[KExpr, ...]


@dataclass(frozen=True, slots=True)
class KCast(KExpr):
    """A conversion with the meaning of scalar.Cast."""

    arg: KExpr


@dataclass(frozen=True, slots=True)
class KBits(KExpr):
    """The same bits as a value of another type of 32 bits."""

    arg: KExpr


@dataclass(frozen=True, slots=True)
class KSelect(KExpr):
    """Both arms are computed; `cond` is bool with 1 or as many lanes."""

    cond: KExpr
    then: KExpr
    other: KExpr


@dataclass(frozen=True, slots=True)
class KVec(KExpr):
    """As many scalars as lanes as a vector; one operand is a splat."""

    parts: tuple[KExpr, ...]


@dataclass(frozen=True, slots=True)
class KLane(KExpr):
    """One lane of a vector."""

    vector: KExpr
    lane: int


@dataclass(frozen=True, slots=True)
class KSubgroup(KExpr):
    """A reduction over the subgroup: fn is add, max or min. Only in kernels with that feature."""

    fn: str
    arg: KExpr


@dataclass(frozen=True, slots=True)
class Let:
    """An immutable name."""

    name: str
    value: KExpr


@dataclass(frozen=True, slots=True)
class VarDecl:
    """A mutable register."""

    name: str
    value: KExpr


@dataclass(frozen=True, slots=True)
class Assign:
    """Set a mutable register."""

    name: str
    value: KExpr


@dataclass(frozen=True, slots=True)
class Array:
    """A fixed array of `size` entries: `shared` by the workgroup, or private to the invocation.

    Entries have `lanes` lanes. Private arrays start as zeros, wherever the statement is reached;
    shared ones hold nothing that may be read before it is stored. In CPU kernels an array is a set
    of registers: its indices must be constant once loops are unrolled.
    """

    name: str
    dtype: DType
    size: int
    shared: bool
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class KStore:
    """Store a scalar, or 4 elements from an index that is a multiple of 4 if `aligned`.

    On GPU targets storage elements of a byte are stored only 4 at a time, those of two 2 or 4 at a
    time, from an index that is a multiple of that many: an invocation owns whole words.

    With `combine`, a function, the scalar is combined with the element that is there, as one step
    among all invocations, in any order (see `has_atomic`). Such a kernel has no other access to
    the buffer.
    """

    buffer: str
    index: KExpr
    value: KExpr
    aligned: bool = True
    combine: str = ""


@dataclass(frozen=True, slots=True)
class For:
    """`name` from `start` while below `stop` in steps of `step` (> 0, constant).

    Unrolled loops have constant bounds and are expanded in text.
    """

    name: str
    start: KExpr
    stop: KExpr
    body: tuple["KStmt", ...]
    step: int = 1
    unroll: bool = False


@dataclass(frozen=True, slots=True)
class If:
    """A branch. Barriers inside need a condition that is uniform over the workgroup."""

    cond: KExpr
    then: tuple["KStmt", ...]
    other: tuple["KStmt", ...] = ()


@dataclass(frozen=True, slots=True)
class Barrier:
    """Workgroup barrier, with shared and storage memory made visible."""


@dataclass(frozen=True, slots=True)
class Featured:
    """Two ways to one end: `then` for devices with a feature, `other` for those without.

    A kernel is printed or run once `for_features` has chosen.
    """

    feature: str
    then: tuple["KStmt", ...]
    other: tuple["KStmt", ...]


# Functions of the kernel level alone. The two for indices leave out what div and mod must guard.
_KERNEL_ONLY = (
    Function("fma", 3, lambda a, b, c: a * b + c),  # fused or not, as the device likes
    Function("index_div", 2, np.floor_divide),  # i32, only for a >= 0 and b > 0
    Function("index_mod", 2, np.remainder),  # i32, only for a >= 0 and b > 0
)
KERNEL_FUNCTIONS = FUNCTIONS | {f.name: f for f in _KERNEL_ONLY}

KStmt = Let | VarDecl | Assign | Array | KStore | For | If | Barrier | Featured

WORKGROUP = KVar(I32, 1, "workgroup")
LOCAL = KVar(I32, 1, "local")
LANE = KVar(I32, 1, "lane")  # the place in the subgroup, only in kernels with that feature
SUBGROUPS = "subgroups"


@dataclass(frozen=True, slots=True)
class KernelBuffer:
    """A storage parameter, in binding order."""

    buffer: Buffer
    access: Access


@dataclass(frozen=True, slots=True)
class Kernel:
    """A device program. Its parameters are the buffers in binding order, then the scalars."""

    name: str
    device: Literal["gpu", "cpu"]
    buffers: tuple[KernelBuffer, ...]
    scalars: tuple[tuple[str, Expr], ...]
    grid: Expr
    workgroup: int
    body: tuple[KStmt, ...]
    features: frozenset[str] = frozenset()
    comment: str = ""


def has_atomic(dtype: DType, fn: str) -> bool:
    """Whether GPU kernels can combine elements of a storage buffer by a function in one step."""
    if dtype.bits == 64:
        return dtype.is_integer and fn == "add"
    return dtype.bits == 32 and fn in ("add", "mul", "max", "min")


def i32(value: int) -> KConst:
    """An index literal."""
    return KConst(I32, 1, value)


def f32(value: float) -> KConst:
    """A float literal."""
    return KConst(F32, 1, value)


def var(name: str, dtype: DType = I32, lanes: int = 1) -> KVar:
    """A reference to a let, var or loop variable."""
    return KVar(dtype, lanes, name)


def kop(fn: str, *args: KExpr) -> KExpr:
    """An operation; predicates give bool. Scalars are splat to the widest operand."""
    lanes = max(a.lanes for a in args)
    wide = tuple(a if a.lanes == lanes else KVec(a.dtype, lanes, (a,)) for a in args)
    return KOp(BOOL if fn in PREDICATES else args[0].dtype, lanes, fn, wide)


def operands(expr: KExpr) -> tuple[KExpr, ...]:
    """The expressions directly inside one."""
    inside = _OPERANDS.get(type(expr))
    return () if inside is None else inside(expr)


_OPERANDS: dict[type[KExpr], Callable[[Any], tuple[KExpr, ...]]] = {
    KLoad: lambda e: (e.index,),
    KOp: lambda e: e.args,
    **dict.fromkeys((KCast, KBits, KSubgroup), lambda e: (e.arg,)),
    KSelect: lambda e: (e.cond, e.then, e.other),
    KVec: lambda e: e.parts,
    KLane: lambda e: (e.vector,),
}
"""By kind of expression; walks ask for them all the time, of leaves most of all."""


def with_operands(expr: KExpr, new: tuple[KExpr, ...]) -> KExpr:
    """The same expression over other operands, in the order of `operands`."""
    match expr:
        case KLoad():
            return replace(expr, index=new[0])
        case KOp():
            return replace(expr, args=new)
        case KCast() | KBits() | KSubgroup():
            return replace(expr, arg=new[0])
        case KSelect():
            return replace(expr, cond=new[0], then=new[1], other=new[2])
        case KVec():
            return replace(expr, parts=new)
        case KLane():
            return replace(expr, vector=new[0])
    return expr


def stmt_exprs(stmt: KStmt) -> tuple[KExpr, ...]:
    """The expressions of a statement itself, not of the statements inside it."""
    match stmt:
        case Let() | VarDecl() | Assign():
            return (stmt.value,)
        case KStore():
            return (stmt.index, stmt.value)
        case For():
            return (stmt.start, stmt.stop)
        case If():
            return (stmt.cond,)
    return ()


def walk_stmts(body: tuple[KStmt, ...]) -> Iterator[KStmt]:
    """Every statement, nested ones after the one that holds them."""
    for stmt in body:
        yield stmt
        match stmt:
            case For():
                yield from walk_stmts(stmt.body)
            case If():
                yield from walk_stmts(stmt.then)
                yield from walk_stmts(stmt.other)
            case Featured():
                yield from walk_stmts(stmt.then)
                yield from walk_stmts(stmt.other)


def walk_expr(expr: KExpr) -> Iterator[KExpr]:
    """An expression and all inside it."""
    todo = [expr]
    while todo:
        node = todo.pop()
        yield node
        inside = operands(node)
        if inside:
            todo.extend(reversed(inside))


def walk_exprs(body: tuple[KStmt, ...]) -> Iterator[KExpr]:
    """Every expression of every statement."""
    for stmt in walk_stmts(body):
        for expr in stmt_exprs(stmt):
            yield from walk_expr(expr)


def rewrite_body(
    body: tuple[KStmt, ...],
    change: Callable[[KExpr], KExpr],
    rename: Callable[[str], str] = lambda name: name,
) -> tuple[KStmt, ...]:
    """The same statements, every expression changed from inside out, every declared name renamed.

    `change` sees uses of names, `rename` what statements declare, assign, or store to of the body's
    own arrays.
    """
    arrays = {s.name for s in walk_stmts(body) if isinstance(s, Array)}

    def expr(e: KExpr) -> KExpr:
        inside = operands(e)
        return change(with_operands(e, tuple(expr(i) for i in inside)) if inside else e)

    def block(inside: tuple[KStmt, ...]) -> tuple[KStmt, ...]:
        return tuple(map(stmt, inside))

    def stmt(s: KStmt) -> KStmt:
        match s:
            case Let() | VarDecl() | Assign():
                return replace(s, name=rename(s.name), value=expr(s.value))
            case Array():
                return replace(s, name=rename(s.name))
            case KStore():
                buffer = rename(s.buffer) if s.buffer in arrays else s.buffer
                return replace(s, buffer=buffer, index=expr(s.index), value=expr(s.value))
            case For():
                start, stop = expr(s.start), expr(s.stop)
                return replace(s, name=rename(s.name), start=start, stop=stop, body=block(s.body))
            case If(cond, then, other):
                return If(expr(cond), block(then), block(other))
            case Featured(feature, then, other):
                return Featured(feature, block(then), block(other))
        return s

    return block(body)


def for_features(kernel: Kernel, features: frozenset[str]) -> Kernel:
    """The kernel as a device with these features runs it; itself if that makes no difference."""
    used = {s.feature for s in walk_stmts(kernel.body) if isinstance(s, Featured)}
    if not used:
        return kernel
    body = tuple(_chosen(kernel.body, features))
    named = {s.buffer for s in walk_stmts(body) if isinstance(s, KStore)}
    named |= {e.buffer for e in walk_exprs(body) if isinstance(e, KLoad)}
    kept = tuple(s for s in body if not isinstance(s, Array) or s.name in named)
    return replace(kernel, body=kept, features=kernel.features | (used & features))


def _chosen(body: tuple[KStmt, ...], features: frozenset[str]) -> Iterator[KStmt]:
    for stmt in body:
        match stmt:
            case Featured():
                yield from _chosen(stmt.then if stmt.feature in features else stmt.other, features)
            case For():
                yield replace(stmt, body=tuple(_chosen(stmt.body, features)))
            case If():
                then, other = (tuple(_chosen(b, features)) for b in (stmt.then, stmt.other))
                yield replace(stmt, then=then, other=other)
            case _:
                yield stmt
