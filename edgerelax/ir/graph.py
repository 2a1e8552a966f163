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


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """A body run again and again: `trips` times (below 1: never), or until it says to stop.

    What a run gives the next one takes. Tensors: `params[k]` is first `initial[k]`, then the body's
    result k, of the same dtype and dims. Integers of the host: `symbols[k]` is first `first[k]`,
    then `next[k]`. In the body `counter` is the number of the run, from 0. `going` is an integer
    of the body: where it is 0, this run was the last; None: it always goes on.

    The binding's annotation is a Tuple with one field per param, what the last run left. After it
    `after[k]` are the integers; no outer scope defines them.
    """

    trips: Expr
    counter: Symbol
    initial: tuple[Value, ...]
    params: tuple[Var, ...]
    body: "Block"
    symbols: tuple[Symbol, ...] = ()
    first: tuple[Expr, ...] = ()
    next: tuple[Expr, ...] = ()
    after: tuple[Symbol, ...] = ()
    going: Expr | None = None


Expression = (
    Call | CallTIR | CallLibrary | CallGraph | MatchCast | ReadInts
    | MakeShape | MakeTuple | GetItem | ToDevice | IfElse | Repeat | Constant | Var
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """`var = value`; a bare Var or Constant on the right is an alias."""

    var: Var
    value: Expression


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Straight-line bindings and the values it gives.

    Without nested bodies and reads it is dataflow.
    """

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


def bodies(value: Expression) -> tuple[Block, ...]:
    """The blocks inside an expression, of which each may run, or run often: arms, loop bodies."""
    match value:
        case IfElse():
            return value.then, value.other
        case Repeat():
            return (value.body,)
    return ()


def with_bodies(value: Expression, inner: Iterable[Block]) -> Expression:
    """The same expression with other blocks inside, as many as `bodies` gives."""
    match value:
        case IfElse():
            then, other = inner
            return replace(value, then=then, other=other)
        case Repeat():
            (body,) = inner
            return replace(value, body=body)
    return value


def body_params(value: Expression) -> tuple[Var, ...]:
    """Values that an expression defines inside its bodies."""
    return value.params if isinstance(value, Repeat) else ()


def body_symbols(value: Expression) -> tuple[Symbol, ...]:
    """Symbols that an expression defines inside its bodies."""
    return (value.counter, *value.symbols) if isinstance(value, Repeat) else ()


def symbols_after(value: Expression) -> tuple[Symbol, ...]:
    """Symbols that an expression with bodies defines for what follows it."""
    match value:
        case IfElse():
            return value.symbols
        case Repeat():
            return value.after
    return ()


def body_exprs(value: Expression) -> tuple[Expr, ...]:
    """Integers that an expression takes from the scopes of its bodies."""
    match value:
        case IfElse():
            return value.then_symbols + value.other_symbols
        case Repeat(going=going):
            return value.next if going is None else (*value.next, going)
    return ()


def operands(value: Expression) -> tuple[Value, ...]:
    """Values that an expression uses, those included that its bodies use from outside."""
    inner = [v for body in bodies(value) for v in free_values(body)]
    if not inner:
        return direct_operands(value)
    own = set(body_params(value))
    return (*direct_operands(value), *(v for v in inner if v not in own))


def direct_operands(value: Expression) -> tuple[Value, ...]:
    """Values that an expression uses itself; not what only its bodies use."""
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
            return (value.cond,) if isinstance(value.cond, (Var, Constant)) else ()
        case Repeat():
            return value.initial
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
        case Repeat():
            exprs = [value.trips, *value.first]
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
        for body in bodies(binding.value):
            yield from blocks(body)


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
