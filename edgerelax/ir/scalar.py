"""Scalar expressions: what a loop stage computes for one element.

Nodes are interned: equal expressions are one object, so that `is`, hashing and memo tables by node
are exact and cheap however often fusion shares a subexpression. Walk them with a memo, never
naively.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from edgerelax.ir.dtypes import BOOL, I64, DType
from edgerelax.sym import (
    Atom,
    Axis,
    Expr,
    ExprLike,
    Opaque,
    Symbol,
    as_expr,
    ge,
    maximum,
    minimum,
    prove_eq,
    prove_le,
    prove_lt,
)
from edgerelax.sym import select as choose


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor as a loop program sees it: row-major, indexed by one expression per dim."""

    name: str
    dtype: DType
    dims: tuple[Expr, ...]

    @classmethod
    def of(cls, name: str, dtype: DType, *dims: ExprLike) -> "Buffer":
        """A buffer of those dims, numbers or expressions."""
        return cls(name, dtype, tuple(map(as_expr, dims)))

    @property
    def rank(self) -> int:
        return len(self.dims)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.dims))}]"

    def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> "Load":
        """Load one element, bounds being the author's duty."""
        at = index if isinstance(index, tuple) else (index,)
        return Load(self, tuple(as_expr(i) for i in at))


class _Interned(type):
    """Makes equal nodes identical. Children are interned already, so a key is shallow."""

    _nodes: ClassVar[weakref.WeakValueDictionary[Any, Any]] = weakref.WeakValueDictionary()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        node = super().__call__(*args, **kwargs)
        values = (getattr(node, f.name) for f in fields(node))
        key = (cls, *((type(v), repr(v)) if isinstance(v, float) else (type(v), v) for v in values))
        return cls._nodes.setdefault(key, node)


Number = int | float | bool


@dataclass(frozen=True, eq=False)
class Scalar(metaclass=_Interned):
    """A scalar expression. Arithmetic operators build `Op`s; numbers take the operand's dtype."""

    @property
    def dtype(self) -> DType:
        raise NotImplementedError

    @property
    def args(self) -> tuple["Scalar", ...]:
        """Operands, without those inside index expressions."""
        return ()

    def subs(self, mapping: Mapping[Atom, ExprLike]) -> "Scalar":
        """Replace axes and symbols in all index expressions."""
        return substitute(self, mapping)

    def symbols(self) -> frozenset[Symbol]:
        return frozenset().union(*(e.symbols() for e in index_exprs(self)))

    def axes(self) -> frozenset[Axis]:
        return frozenset().union(*(e.axes() for e in index_exprs(self)))

    def __add__(self, other: "Scalar | Number") -> "Scalar":
        return op("add", self, other)

    def __radd__(self, other: Number) -> "Scalar":
        return op("add", constant(other, self.dtype), self)

    def __sub__(self, other: "Scalar | Number") -> "Scalar":
        return op("sub", self, other)

    def __rsub__(self, other: Number) -> "Scalar":
        return op("sub", constant(other, self.dtype), self)

    def __mul__(self, other: "Scalar | Number") -> "Scalar":
        return op("mul", self, other)

    def __rmul__(self, other: Number) -> "Scalar":
        return op("mul", constant(other, self.dtype), self)

    def __truediv__(self, other: "Scalar | Number") -> "Scalar":
        return op("div", self, other)

    def __rtruediv__(self, other: Number) -> "Scalar":
        return op("div", constant(other, self.dtype), self)

    def __neg__(self) -> "Scalar":
        return op("neg", self)


@dataclass(frozen=True, eq=False)
class Const(Scalar):
    """A literal. Floats keep infinities, NaN and the sign of zero."""

    value: Number
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type

    def __str__(self) -> str:
        return f"{self.type}({self.value})"


@dataclass(frozen=True, eq=False)
class Value(Scalar):
    """An index expression as a value (Range, Shape, positions)."""

    expr: Expr
    type: DType = I64

    @property
    def dtype(self) -> DType:
        return self.type

    def __str__(self) -> str:
        return f"value({self.expr}, {self.type})"


@dataclass(frozen=True, eq=False)
class Load(Scalar):
    """One element of a buffer."""

    buffer: Buffer
    index: tuple[Expr, ...]

    def __post_init__(self) -> None:
        if len(self.index) != self.buffer.rank:
            raise ValueError(f"{len(self.index)} indices into {self.buffer}")

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(str, self.index)) or '()'}]"


@dataclass(frozen=True, eq=False)
class Op(Scalar):
    """A function of the table in ir/functions.py applied to operands of one dtype."""

    fn: str
    operands: tuple[Scalar, ...]
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type

    @property
    def args(self) -> tuple[Scalar, ...]:
        return self.operands

    def __str__(self) -> str:
        return f"{self.fn}({', '.join(map(str, self.operands))})"


@dataclass(frozen=True, eq=False)
class Cast(Scalar):
    """A conversion. Float to integer saturates and NaN gives 0; integer to integer wraps."""

    arg: Scalar
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type

    @property
    def args(self) -> tuple[Scalar, ...]:
        return (self.arg,)

    def __str__(self) -> str:
        return f"cast({self.arg}, {self.type})"


@dataclass(frozen=True, eq=False)
class Select(Scalar):
    """`then` where `cond` else `other`; lazy: loads of the branch not taken are not done."""

    cond: Scalar
    then: Scalar
    other: Scalar

    @property
    def dtype(self) -> DType:
        return self.then.dtype

    @property
    def args(self) -> tuple[Scalar, ...]:
        return (self.cond, self.then, self.other)

    def __str__(self) -> str:
        return f"select({self.cond}, {self.then}, {self.other})"


@dataclass(frozen=True, eq=False)
class Acc(Scalar):
    """The reduced value, in a stage's epilogue.

    Component 1 of an arg reduction is its index (i64); components 0, 1, 2 of welford are the mean,
    the sum of squared differences and the count.
    """

    type: DType
    component: int = 0

    @property
    def dtype(self) -> DType:
        return self.type

    def __str__(self) -> str:
        return f"acc({self.type}, {self.component})"


def constant(value: Number, dtype: DType) -> Const:
    """A literal of that dtype, its Python type made to fit."""
    if dtype.kind == "bool":
        return Const(bool(value), dtype)
    return Const(float(value) if dtype.is_float else int(value), dtype)


PREDICATES = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "not", "isnan", "isinf")
)


def op(fn: str, *args: "Scalar | Number") -> Scalar:
    """Apply a scalar function; plain numbers take the dtype of the first Scalar operand."""
    dtype = next(a.dtype for a in args if isinstance(a, Scalar))
    operands = tuple(a if isinstance(a, Scalar) else constant(a, dtype) for a in args)
    if any(a.dtype != dtype for a in operands):
        raise TypeError(f"{fn} on {', '.join(str(a.dtype) for a in operands)}: cast them to one")
    return Op(fn, operands, BOOL if fn in PREDICATES else dtype)


def cast(arg: Scalar, dtype: DType) -> Scalar:
    """Convert, or the operand itself if it has that dtype already."""
    return arg if arg.dtype == dtype else Cast(arg, dtype)


def select(cond: Scalar, then: Scalar, other: Scalar) -> Scalar:
    """A lazy choice, folded where the condition is a literal."""
    if then.dtype != other.dtype:
        raise TypeError(f"select between {then.dtype} and {other.dtype}")
    if isinstance(cond, Const):
        return then if cond.value else other
    return then if then is other else Select(cond, then, other)


def in_range(expr: ExprLike, lo: ExprLike, hi: ExprLike) -> Scalar:
    """lo <= expr < hi as a condition over index expressions, proven sides left out."""
    low = compare("ge", expr, lo)
    high = compare("lt", expr, hi)
    if isinstance(low, Const):
        return high if low.value else low
    if isinstance(high, Const):
        return low if high.value else high
    return op("and", low, high)


def compare(fn: str, a: ExprLike, b: ExprLike) -> Scalar:
    """Compare two index expressions: a literal if proven. `fn` is ge, lt or eq."""
    x, y = as_expr(a), as_expr(b)
    proven = {"ge": prove_le(y, x), "lt": prove_lt(x, y), "eq": prove_eq(x, y)}[fn]
    if proven is not None:
        return constant(proven, BOOL)
    return op(fn, Value(x), Value(y))


def own_exprs(node: Scalar) -> tuple[Expr, ...]:
    """Index expressions held by this very node."""
    if isinstance(node, Load):
        return node.index
    return (node.expr,) if isinstance(node, Value) else ()


def walk(root: Scalar) -> Iterator[Scalar]:
    """Every node once, operands first; not into gathers inside index expressions."""
    seen: set[Scalar] = set()
    todo: list[tuple[Scalar, bool]] = [(root, False)]
    while todo:
        node, ready = todo.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            todo.extend((a, False) for a in reversed(node.args))


def listing(root: Scalar) -> tuple[str, ...]:
    """What `repr` says with every node once, operands first and then by their numbers.

    As a tree, what many nodes share would be written as often as there are ways to it.
    """
    lines: dict[str, int] = {}
    numbers: dict[Scalar, int] = {}
    for node in walk(root):
        of_operands = [numbers[a] for a in node.args]
        own = [v for f in fields(node) if not _holds_operands(v := getattr(node, f.name))]
        text = f"{type(node).__name__}{own!r}{of_operands}"
        numbers[node] = lines.setdefault(text, len(lines))
    return tuple(lines)


def _holds_operands(value: object) -> bool:
    return isinstance(value[0] if isinstance(value, tuple) and value else value, Scalar)


def index_exprs(root: Scalar) -> Iterator[Expr]:
    """All index expressions of a tree."""
    for node in walk(root):
        yield from own_exprs(node)


def gathers(expr: Expr) -> Iterator[Scalar]:
    """The scalars that an index expression gathers (payloads of its opaque atoms), at any depth."""
    for atom in expr.atoms():
        if isinstance(atom, Opaque) and isinstance(atom.payload, Scalar):
            yield atom.payload


def loads(root: Scalar) -> Iterator[Load]:
    """Every load of a tree, those inside index expressions included; each once."""
    seen: set[Load] = set()
    todo = [root]
    while todo:
        for node in walk(todo.pop()):
            if isinstance(node, Load) and node not in seen:
                seen.add(node)
                yield node
            for expr in own_exprs(node):
                todo.extend(gathers(expr))


def rewrite(root: Scalar, leaf: Callable[[Scalar], Scalar | None]) -> Scalar:
    """Rebuild bottom-up. `leaf` may replace a node, seen with its operands already rebuilt."""
    done: dict[Scalar, Scalar] = {}
    for node in walk(root):
        built = rebuild(node, tuple(done[a] for a in node.args))
        replaced = leaf(built)
        done[node] = built if replaced is None else replaced
    return done[root]


def rebuild(node: Scalar, args: tuple[Scalar, ...]) -> Scalar:
    """The same node over other operands."""
    if args == node.args:
        return node
    match node:
        case Op():
            return Op(node.fn, args, node.type)
        case Cast():
            return cast(args[0], node.type)
        case Select():
            return select(*args)
    return node


def substitute(root: Scalar, mapping: Mapping[Atom, ExprLike]) -> Scalar:
    """Replace axes and symbols in the index expressions, those of gathers included."""

    def leaf(node: Scalar) -> Scalar | None:
        if isinstance(node, Load):
            return Load(node.buffer, tuple(e.subs(mapping) for e in node.index))
        if isinstance(node, Value):
            return Value(node.expr.subs(mapping), node.type)
        return None

    return rewrite(root, leaf)


def gather(index: Scalar, extent: ExprLike) -> Expr:
    """A loaded integer as an index expression into a dim of `extent`.

    One documented meaning on every host: a negative index counts from the end, and what is still
    outside [0, extent) is clamped to it.
    """
    size = as_expr(extent)
    raw = as_expr(Opaque(cast(index, I64), None, None))
    wrapped = choose(ge(raw, 0), raw, raw + size)
    return maximum(0, minimum(wrapped, size - 1))


def map_expr(root: Scalar, change: Callable[[Expr], Expr]) -> Scalar:
    """Apply `change` to every index expression."""

    def leaf(node: Scalar) -> Scalar | None:
        if isinstance(node, Load):
            return Load(node.buffer, tuple(change(e) for e in node.index))
        return Value(change(node.expr), node.type) if isinstance(node, Value) else None

    return rewrite(root, leaf)


def replace_loads(root: Scalar, replace: Callable[[Load], Scalar | None]) -> Scalar:
    """Replace loads by other scalars, those inside gathered indices included."""

    def inside(expr: Expr) -> Expr:
        swaps: dict[Atom, ExprLike] = {}
        for atom in expr.atoms():
            if isinstance(atom, Opaque) and isinstance(atom.payload, Scalar):
                payload = replace_loads(atom.payload, replace)
                if payload is not atom.payload:
                    swaps[atom] = as_expr(Opaque(payload, atom.lo, atom.hi))
        return expr.subs(swaps) if swaps else expr

    def leaf(node: Scalar) -> Scalar | None:
        if isinstance(node, Load):
            load: Load = Load(node.buffer, tuple(inside(e) for e in node.index))
            replaced = replace(load)
            return load if replaced is None else replaced
        return Value(inside(node.expr), node.type) if isinstance(node, Value) else None

    return rewrite(root, leaf)
