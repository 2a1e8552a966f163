"""Graph level: functions in A-normal form over annotated values, and the module of all levels.

Everything is immutable; passes rebuild. Values compare by identity, modules by their text.
"""

import hashlib
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, Operator
from edgerelax.ir.types import Annotation, exprs_in
from edgerelax.sym import Expr, Symbol


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """A named value. `origin` says where it came from ('model.onnx: /mlp/fc1/MatMul')."""

    name: str
    annotation: Annotation
    origin: str = ""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Constant:
    """A tensor known at compile time. Large ones become weights of the artifact."""

    name: str
    data: Array
    annotation: Annotation

    def content(self) -> Hashable:
        """Equal for constants of equal type, shape and bits."""
        found = _CONTENTS.get(self)
        if found is None:
            dtype, bits = self.data.dtype, np.ascontiguousarray(self.data).reshape(-1)
            digest = hashlib.sha256(bits.view(np.uint8).data).digest()
            found = _CONTENTS[self] = (dtype.str, dtype.name, self.data.shape, digest)
        return found


_CONTENTS: WeakKeyDictionary[Constant, Hashable] = WeakKeyDictionary()
"""Of constants that were asked for theirs: reading all of a model's weights takes a while."""


Value = Var | Constant


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """An operator applied to values; None stands for an absent optional operand."""

    op: Operator
    args: tuple[Value | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class CallTIR:
    """`call_tir`: a loop function in destination-passing style; looks pure.

    `symbols` binds the callee's free symbols where they differ from the caller's of the same name.
    The result is one Tensor, or a Tuple of them, as the binding's annotation says. `device` is set
    by placement.
    """

    func: str
    args: tuple[Value, ...]
    symbols: tuple[tuple[Symbol, Expr], ...] = ()
    device: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class CallLibrary:
    """`call_dps_library`: an external function by registry name, same convention.

    `device` is where it runs; none: the main one.
    """

    func: str
    args: tuple[Value, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    device: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class CallGraph:
    """Another graph function of the module, deduced from its signature alone."""

    func: str
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MatchCast:
    """Asserts the binding's annotation of a value; may define symbols; a run-time check."""

    value: Value


@dataclass(frozen=True, slots=True, eq=False)
class ReadInts:
    """The elements of an integer or bool tensor of rank 0 or 1 as integers of the host.

    Annotation Shape(rank); a MatchCast on it names the integers. Waits for the device.
    """

    value: Value


@dataclass(frozen=True, slots=True, eq=False)
class MakeShape:
    """A shape as a first-class value."""

    dims: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MakeTuple:
    """Several values as one."""

    fields: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GetItem:
    """One field of a tuple."""

    value: Value
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class ToDevice:
    """A copy between devices ('gpu', 'cpu'), inserted by placement."""

    value: Value
    device: str


@dataclass(frozen=True, slots=True, eq=False)
class IfElse:
    """A branch on a bool scalar value, or on an integer the host knows (Expr, true if not 0).

    Each arm ends with the values of its result, one per result of the binding (whose annotation is
    a Tuple with one field per result). Symbols in the binding's annotation that no outer scope
    defines are defined by it: `symbols[k]` takes `then_symbols[k]` or `other_symbols[k]`, whichever
    arm ran.
    """

    cond: Value | Expr
    then: "Block"
    other: "Block"
    symbols: tuple[Symbol, ...] = ()
    then_symbols: tuple[Expr, ...] = ()
    other_symbols: tuple[Expr, ...] = ()


Expression = (
    Call | CallTIR | CallLibrary | CallGraph | MatchCast | ReadInts
    | MakeShape | MakeTuple | GetItem | ToDevice | IfElse | Constant | Var
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """`var = value`; a bare Var or Constant on the right is an alias."""

    var: Var
    value: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Straight-line bindings and the values it gives; without IfElse and reads it is dataflow."""

    bindings: tuple[Binding, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GraphFunc:
    """A graph function: named parameters, a block, named results."""

    name: str
    params: tuple[Var, ...]
    body: Block
    result_names: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """All levels of one program: graph functions and loop functions by name."""

    funcs: dict[str, GraphFunc]
    loops: dict[str, LoopFunc] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)

    def with_func(self, func: GraphFunc) -> "Module":
        return replace(self, funcs={**self.funcs, func.name: func})


def states(func: GraphFunc) -> dict[Var, Value]:
    """Parameters that live on between calls, each with the value that a call leaves in it.

    A state is a parameter and a result of one name, listed in the attribute `states`; functions of
    one module that list the same name share it.
    """
    params = {p.name: p for p in func.params}
    results = dict(zip(func.result_names, func.body.results, strict=True))
    return {params[name]: results[name] for name in func.attrs.get("states", ())}


def operands(value: Expression) -> tuple[Value, ...]:
    """Values that an expression uses directly; for IfElse also those its arms use from outside."""
    match value:
        case Call():
            return tuple(a for a in value.args if a is not None)
        case CallTIR() | CallLibrary() | CallGraph():
            return value.args
        case MatchCast() | ReadInts() | GetItem() | ToDevice():
            return (value.value,)
        case MakeTuple():
            return value.fields
        case IfElse():
            cond = (value.cond,) if isinstance(value.cond, (Var, Constant)) else ()
            return (*cond, *free_values(value.then), *free_values(value.other))
        case Var() | Constant():
            return (value,)
    return ()


def used_symbols(value: Expression) -> set[Symbol]:
    """Symbols that an expression itself speaks of; not its operands, not the blocks in it."""
    exprs: list[Expr] = []
    match value:
        case Call(attrs=attrs) | CallLibrary(attrs=attrs):
            exprs = list(exprs_in(attrs))
        case MakeShape(dims=dims):
            exprs = list(dims)
        case CallTIR(symbols=symbols):
            exprs = [e for _, e in symbols]
        case IfElse(cond=Expr() as cond):
            exprs = [cond]
    return {s for e in exprs for s in e.symbols()}


def free_values(block: Block) -> tuple[Value, ...]:
    """Values that a block uses and does not define, each once, in order of use."""
    defined = {b.var for b in block.bindings}
    used = [v for b in block.bindings for v in operands(b.value)] + list(block.results)
    return tuple(v for v in dict.fromkeys(used) if isinstance(v, Constant) or v not in defined)


def blocks(block: Block) -> Iterator[Block]:
    """A block and all blocks inside it."""
    yield block
    for binding in block.bindings:
        if isinstance(binding.value, IfElse):
            yield from blocks(binding.value.then)
            yield from blocks(binding.value.other)


def inputs_of(func: GraphFunc) -> tuple[Var, ...]:
    """What callers give: the parameters but for states."""
    own = states(func)
    return tuple(p for p in func.params if p not in own)


def results_of(func: GraphFunc) -> dict[str, Value]:
    """What callers get: the results but for states."""
    own = {s.name for s in states(func)}
    named = zip(func.result_names, func.body.results, strict=True)
    return {name: value for name, value in named if name not in own}


def module_states(funcs: Iterable[GraphFunc]) -> tuple[Var, ...]:
    """The states of functions that share them, each once: of those with one name the first."""
    found: dict[str, Var] = {}
    for func in funcs:
        for state in states(func):
            found.setdefault(state.name, state)
    return tuple(found.values())
