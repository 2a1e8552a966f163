"""Building graph functions: every binding gets its annotation as it is emitted.

`Builder` emits into nested blocks and is what passes and importers use; `Function` adds named
inputs and outputs for people:

    n = symbol("n", lo=1, hi=64)
    f = Function("main")
    x = f.input("x", (n, 64), F32)
    y = f.call(OPS["matmul"], x, f.constant("w", weights))
    f.output("y", f.call(OPS["relu"], y))
    module = f.module()
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgerelax.ir.deduce import (
    Fit,
    bind_call,
    deduce,
    defined_by,
    derive_call,
    erase_to,
    keeps_bounds,
    lca,
    signature,
    subsumes,
    symbols_defined,
)
from edgerelax.ir.diagnostics import InputError, ShapeError, UnsupportedError
from edgerelax.ir.dtypes import DType
from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallGraph,
    CallTIR,
    Constant,
    Expression,
    GetItem,
    GraphFunc,
    IfElse,
    MakeShape,
    MakeTuple,
    MatchCast,
    Module,
    ReadInts,
    Repeat,
    Value,
    Var,
    bodies,
    body_symbols,
    used_symbols,
)
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.names import Names
from edgerelax.ir.op import Operator
from edgerelax.ir.types import (
    Annotation,
    IntTensor,
    Object,
    Shape,
    Tensor,
    Tuple,
    annotation_of,
    as_tensor,
    symbols_of,
    tensor,
)
from edgerelax.ir.types import Callable as Signature
from edgerelax.sym import Atom, Expr, ExprLike, Symbol, as_expr, prove_eq

Results = Sequence[Value]


@dataclass(slots=True)
class _Scope:
    """An open block: what it holds so far and the symbols it defines."""

    bindings: list[Binding] = field(default_factory=list)
    symbols: set[Symbol] = field(default_factory=set)


class Builder:
    """Emits bindings into the innermost open block. One per graph function being built.

    `funcs` and `loops` are the functions it may call without saying what they give.
    """

    def __init__(
        self,
        names: Names | None = None,
        funcs: Mapping[str, GraphFunc] | None = None,
        loops: Mapping[str, LoopFunc] | None = None,
    ) -> None:
        self.names = names or Names()
        self.funcs = funcs or {}
        self.loops = dict(loops or {})
        self._scopes = [_Scope()]

    # Scopes

    @property
    def visible(self) -> set[Symbol]:
        """Symbols that are defined here."""
        return set().union(*(s.symbols for s in self._scopes))

    def define(self, symbols: Iterable[Symbol]) -> None:
        """Say that symbols are defined from here on; their names are taken."""
        new = set(symbols)
        self._scopes[-1].symbols.update(new)
        self.names.taken.update(s.name for s in new)

    def fresh(self, hint: str, lo: int = 0, hi: int | None = None, multiple_of: int = 1) -> Expr:
        """A new symbol. Whoever asks for it must define it, by a match_cast."""
        return self.fresh_symbol(hint, lo, hi, multiple_of).expr

    def fresh_symbol(
        self, hint: str, lo: int = 0, hi: int | None = None, multiple_of: int = 1
    ) -> Symbol:
        """The same, as an atom."""
        return Symbol(self.names.pick(hint), lo, hi, multiple_of)

    @contextmanager
    def block(self) -> Iterator[list[Binding]]:
        """Emit into an inner block; gives its list of bindings."""
        scope = _Scope()
        self._scopes.append(scope)
        try:
            yield scope.bindings
        finally:
            self._scopes.pop()

    def finish(self, results: Results) -> Block:
        """The outermost block as built."""
        return Block(tuple(self._scopes[0].bindings), tuple(results))

    # Emitting

    def emit(
        self,
        value: Expression,
        name: str = "",
        origin: str = "",
        annotation: Annotation | None = None,
    ) -> Var:
        """Bind an expression to a new name.

        One given here must not contradict the deduced one; the one that says more is kept.
        """
        deduced = self._deduce(value, name, origin)
        if annotation is None:
            annotation = deduced
        elif deduced is not None and not isinstance(value, MatchCast):
            annotation = _finer(annotation, deduced, name, origin)
        if annotation is None:
            raise TypeError(f"{type(value).__name__} needs its annotation given")
        var = Var(self.names.pick(name or _hint(value)), annotation, origin)
        self.append(Binding(var, value))
        return var

    def append(self, binding: Binding) -> None:
        """Take over a binding as it is, its name included."""
        self.names.taken.add(binding.var.name)
        self._scopes[-1].bindings.append(binding)
        self.define(symbols_defined(binding) - self.visible)

    def _deduce(self, value: Expression, name: str, origin: str) -> Annotation | None:
        match value:
            case CallGraph(func=func, args=args) if func in self.funcs:
                callee = self.funcs[func]
                if callee.attrs.get("primitive"):  # shares the symbols of its only caller
                    return signature(callee).result
                return derive_call(func, signature(callee), [a.annotation for a in args])
            case CallTIR(func=func) if func in self.loops:
                return loop_result(self.loops[func], dict(value.symbols))
        return deduce(value, name, origin)

    def call(
        self, op: Operator, *args: Value | None, name: str = "", origin: str = "", **attrs: Any
    ) -> Var:
        """Call an operator; attributes not given take the record's defaults."""
        return self.emit(make_call(op, args, attrs), name, origin)

    def call_all(
        self, op: Operator, *args: Value | None, name: str = "", origin: str = "", **attrs: Any
    ) -> tuple[Var, ...]:
        """Call an operator and take its results apart."""
        return self.fields(self.call(op, *args, name=name, origin=origin, **attrs))

    def call_tir(
        self,
        func: LoopFunc | str,
        *args: Value,
        name: str = "",
        symbols: Mapping[Symbol, ExprLike] | None = None,
    ) -> Var:
        """Call a loop function, by record or by the name of one in `loops`.

        Its symbols are bound from the arguments' dims, as far as `symbols` does not give them.
        Sizes that are not proved to be equal are checked at run time; bounds must be known to hold.
        """
        loop = self.loops[func] if isinstance(func, str) else func
        if self.loops.setdefault(loop.name, loop) != loop:
            raise ValueError(f"there is another loop function {loop.name}")
        bound = self._loop_symbols(loop, args, symbols or {})
        fitted = []
        for arg, buffer in zip(args, loop.inputs, strict=True):
            wanted = Tensor(tuple(d.subs(bound) for d in buffer.dims), buffer.dtype)
            fits = subsumes(wanted, arg.annotation) is Fit.PASS
            what = f"argument {buffer.name} of {loop.name}"
            fitted.append(arg if fits else self.match(arg, wanted, origin=what))
        given = tuple((s, as_expr(bound[s])) for s in loop.symbols() if s in bound)
        return self.emit(CallTIR(loop.name, tuple(fitted), given), name)

    def _loop_symbols(
        self, loop: LoopFunc, args: Sequence[Value], given: Mapping[Symbol, ExprLike]
    ) -> dict[Atom, ExprLike]:
        """What stands for a loop function's symbols here, where it is not the same symbol."""
        kinds = tuple(Tensor(b.dims, b.dtype) for b in loop.inputs)
        found = bind_call(loop.name, Signature(kinds, Object()), [a.annotation for a in args])
        bound: dict[Atom, ExprLike] = {s: e for s, e in found.bindings.items() if e.atom is not s}
        sizes = bound.keys() - given.keys()
        bound.update(given.items())
        unknown = set(loop.symbols()) - self.visible - bound.keys()
        if unknown:
            names = ", ".join(sorted(s.name for s in unknown))
            raise ShapeError(
                f"{loop.name}: nothing says what {names} is here",
                hint="give it to call_tir with symbols={...}",
            )
        for symbol in loop.symbols():
            value = as_expr(bound.get(symbol, symbol))
            if not keeps_bounds(symbol, value, is_size=symbol in sizes):
                raise ShapeError(
                    f"{loop.name}: {symbol.name} is {value} here, which is not known to keep the "
                    f"bounds of {symbol.name}: {_bounds_text(symbol)}",
                    hint="give the symbols of the caller bounds",
                )
        return bound

    def call_graph(self, func: str, *args: Value, name: str = "", origin: str = "") -> Var:
        """Call a graph function of `funcs`; several results are a tuple (see `fields`)."""
        if func not in self.funcs:
            known = ", ".join(self.funcs) or "none"
            raise InputError(f"no function {func}; the module has {known}", origin=origin)
        return self.emit(CallGraph(func, args), name, origin)

    def fields(self, value: Var) -> tuple[Var, ...]:
        """Every field of a tuple; the value itself if it is none."""
        whole = value.annotation
        if not isinstance(whole, Tuple):
            return (value,)
        return tuple(
            self.emit(GetItem(value, k), f"{value.name}_{k}", value.origin)
            for k in range(len(whole.fields))
        )

    def constant(self, name: str, data: Any) -> Constant:
        """A tensor known now."""
        array = np.asarray(data)
        return Constant(self.names.pick(name), array, annotation_of(array))

    def match(self, value: Value, annotation: Annotation, name: str = "", origin: str = "") -> Var:
        """Assert a finer annotation, which may define symbols: a check at run time.

        Raises ShapeError if the value provably has no such annotation.
        """
        if subsumes(annotation, value.annotation) is Fit.IMPOSSIBLE:
            raise ShapeError(
                f"match_cast: {value.name} is {value.annotation}, it cannot be {annotation}",
                origin=origin,
            )
        return self.emit(MatchCast(value), name or value.name, origin, annotation)

    def with_fresh_dims(self, value: Value, hint: str = "", origin: str = "") -> Value:
        """The value with every dim known: unknown ones as new symbols, read at run time."""
        known = as_tensor(value.annotation)
        if known is None or known.rank is None:
            raise UnsupportedError(
                f"{value.name} is {value.annotation}: its rank must be known",
                origin=origin,
                hint="give the model's inputs shapes, or simplify the model",
            )
        if known.dims is not None:
            return value
        stem = hint or value.name
        dims = tuple(self.fresh(f"{stem}_d{k}") for k in range(known.rank))
        return self.match(value, Tensor(dims, known.dtype), value.name, origin)

    def read_ints(self, value: Value, name: str = "", origin: str = "") -> tuple[Expr, ...]:
        """The elements of an integer or bool tensor of known length, on the host."""
        if isinstance(value.annotation, IntTensor):
            return value.annotation.values
        read = self.emit(ReadInts(value), name or f"{value.name}_host", origin)
        count = read.annotation.rank if isinstance(read.annotation, Shape) else None
        if count is None:
            raise UnsupportedError(
                f"{value.name} is {value.annotation}: how many integers it holds must be known",
                origin=origin,
            )
        lowest = _least(value)
        ints = tuple(self.fresh(f"{value.name}_{k}", lo=lowest) for k in range(count))
        self.match(read, Shape(ints), read.name, origin)
        return ints

    def if_else(
        self,
        cond: Value | Expr,
        then: Callable[[], Results],
        other: Callable[[], Results],
        name: str = "",
        origin: str = "",
    ) -> tuple[Var, ...]:
        """A branch; each arm emits into its own block and gives as many values.

        A size that differs between the arms, or that only an arm knows, becomes a new symbol.
        """
        blocks: list[Block] = []
        for arm in (then, other):
            with self.block() as bindings:
                results = tuple(arm())
                blocks.append(Block(tuple(bindings), results))
        whole = self.emit_branch(IfElse(cond, blocks[0], blocks[1]), name, origin)
        return self.fields(whole)

    def emit_repeat(self, repeat: Repeat, name: str = "", origin: str = "") -> Var:
        """Bind a loop whose body is built.

        Raises ShapeError where a run gives another dtype or rank, or surely other dims, than the
        next one takes; dims that may differ must have been checked in the body.
        """
        for param, first, after in zip(
            repeat.params, repeat.initial, repeat.body.results, strict=True
        ):
            for value in (first, after):
                if subsumes(param.annotation, value.annotation) is not Fit.PASS:
                    raise ShapeError(
                        f"a loop carries {param.name} as {param.annotation} and gets "
                        f"{value.annotation}",
                        origin=origin,
                    )
        return self.emit(repeat, name, origin, Tuple(tuple(p.annotation for p in repeat.params)))

    def emit_branch(self, branch: IfElse, name: str = "", origin: str = "") -> Var:
        """Bind a branch whose arms are built; its symbols are found anew, old ones kept."""
        then, other = branch.then.results, branch.other.results
        if len(then) != len(other):
            raise ShapeError(
                f"the arms of a branch give {len(then)} and {len(other)} values", origin=origin
            )
        join = _Join(self, name or "if", branch)
        fields = tuple(
            join.annotation(a.annotation, b.annotation) for a, b in zip(then, other, strict=True)
        )
        symbols = tuple(join.symbols)
        value = IfElse(
            branch.cond,
            branch.then,
            branch.other,
            symbols,
            tuple(join.symbols[s][0] for s in symbols),
            tuple(join.symbols[s][1] for s in symbols),
        )
        return self.emit(value, name, origin, Tuple(fields))


class _Join:
    """What the two arms of a branch have in common."""

    def __init__(self, builder: Builder, hint: str, branch: IfElse) -> None:
        self.builder, self.hint = builder, hint
        self.visible = builder.visible
        arms = zip(branch.then_symbols, branch.other_symbols, strict=True)
        self.old = dict(zip(arms, branch.symbols, strict=True))
        self.symbols: dict[Symbol, tuple[Expr, Expr]] = {}

    def annotation(self, a: Annotation, b: Annotation) -> Annotation:
        match a, b:
            case (IntTensor(), IntTensor()) if _alike(a, b):
                return IntTensor(self.exprs(a.values, b.values), a.rank, a.dtype)
            case (Tensor() | IntTensor(), Tensor() | IntTensor()):
                x, y = as_tensor(a), as_tensor(b)
                assert x is not None and y is not None
                if x.dims is not None and y.dims is not None and x.rank == y.rank:
                    dtype = x.dtype if x.dtype == y.dtype else None
                    return Tensor(self.exprs(x.dims, y.dims), dtype)
            case (Shape(dims=dims), Shape(dims=others)):
                if dims is not None and others is not None and len(dims) == len(others):
                    return Shape(self.exprs(dims, others))
            case (Tuple(), Tuple()) if len(a.fields) == len(b.fields):
                return Tuple(tuple(map(self.annotation, a.fields, b.fields)))
        return erase_to(lca(a, b), self.visible)

    def exprs(self, a: Iterable[Expr], b: Iterable[Expr]) -> tuple[Expr, ...]:
        return tuple(self.expr(x, y) for x, y in zip(a, b, strict=True))

    def expr(self, a: Expr, b: Expr) -> Expr:
        if a.symbols() <= self.visible and prove_eq(a, b) is True:
            return a
        if b.symbols() <= self.visible and prove_eq(a, b) is True:
            return b
        for symbol, arms in self.symbols.items():
            if arms == (a, b):
                return symbol.expr
        symbol = self.old.get((a, b)) or self.builder.fresh_symbol(f"{self.hint}_n")
        self.symbols[symbol] = (a, b)
        return symbol.expr


def _alike(a: IntTensor, b: IntTensor) -> bool:
    return (a.dtype, a.rank, len(a.values)) == (b.dtype, b.rank, len(b.values))


def _least(value: Value) -> int:
    """The least integer that a value to be read may hold."""
    known = as_tensor(value.annotation)
    if known is None or known.dtype is None:
        return -(1 << 63)
    return known.dtype.int_range[0]


def _finer(given: Annotation, deduced: Annotation, name: str, origin: str) -> Annotation:
    """The one of two annotations of one value that says more."""
    back = subsumes(deduced, given)
    if back is Fit.IMPOSSIBLE:
        raise ShapeError(f"{name or 'value'}: is {deduced}, annotated {given}", origin=origin)
    return deduced if back is not Fit.PASS and subsumes(given, deduced) is Fit.PASS else given


def _bounds_text(symbol: Symbol) -> str:
    high = "" if symbol.hi is None else f", at most {symbol.hi}"
    step = "" if symbol.multiple_of == 1 else f", a multiple of {symbol.multiple_of}"
    return f"at least {symbol.lo}{high}{step}"


def _hint(value: Expression) -> str:
    match value:
        case Call():
            return value.op.name
        case CallTIR() | CallGraph():
            return value.func
        case MakeShape():
            return "shape"
        case MakeTuple():
            return "tuple"
        case IfElse():
            return "branch"
        case Repeat():
            return "loop"
    return "v"


def make_call(op: Operator, args: Sequence[Value | None], attrs: Mapping[str, Any]) -> Call:
    """A call with every attribute of the record, in its order."""
    unknown = [k for k in attrs if k not in op.attrs]
    if unknown:
        known = ", ".join(op.attrs) or "none"
        raise TypeError(f"{op.name} has no attribute {unknown[0]}; it has {known}")
    return Call(op, tuple(args), {k: _plain(attrs.get(k, v)) for k, v in op.attrs.items()})


def _plain(attr: Any) -> Any:
    """Attributes hold expressions, not atoms, and tuples, not lists."""
    if isinstance(attr, Atom):
        return attr.expr
    if isinstance(attr, tuple | list):
        return tuple(_plain(a) for a in attr)
    return attr


def loop_result(loop: LoopFunc, symbols: Mapping[Atom, ExprLike] | None = None) -> Annotation:
    """What a call of a loop function gives."""
    bound = symbols or {}
    found = tuple(Tensor(tuple(d.subs(bound) for d in b.dims), b.dtype) for b in loop.outputs)
    return found[0] if len(found) == 1 else Tuple(found)


class Function(Builder):
    """A graph function in the making, with named inputs and outputs."""

    def __init__(self, name: str, module: Module | None = None) -> None:
        around = module or Module({})
        super().__init__(funcs=around.funcs, loops=around.loops)
        self.name = name
        self.around = around
        self._params: list[Var] = []
        self._outputs: dict[str, Value] = {}
        self._states: list[str] = []

    def state(self, name: str, dims: Sequence[ExprLike], dtype: DType) -> Var:
        """A tensor that lives on between calls; `output` of the same name is what it becomes."""
        self._states.append(name)
        return self.input(name, dims, dtype)

    def input(self, name: str, dims: Sequence[ExprLike], dtype: DType) -> Var:
        """A tensor that callers give. Bare symbols among its dims are defined by it."""
        return self.param(name, tensor(tuple(dims), dtype))

    def param(self, name: str, annotation: Annotation) -> Var:
        """An input of any kind."""
        if any(p.name == name for p in self._params):
            raise ValueError(f"{self.name} has an input {name} already")
        twins = {s.name for s in self.visible} & {
            s.name for s in defined_by(annotation) - self.visible
        }
        if twins:
            raise ShapeError(
                f"{self.name}: input {name} has another symbol {min(twins)}, of other bounds",
                hint="make it once and use that one",
            )
        var = Var(name, annotation)
        self.names.taken.add(name)
        self._params.append(var)
        self.define(defined_by(annotation))
        return var

    def output(self, name: str, value: Value) -> None:
        """Give a result a name."""
        if name in self._outputs:
            raise ValueError(f"{self.name} has an output {name} already")
        self._outputs[name] = value

    def func(self, **attrs: Any) -> GraphFunc:
        """The function as built. A state that no output names stays as it is."""
        for param in self._params:
            if param.name in self._states:
                self._outputs.setdefault(param.name, param)
        if self._states:
            attrs["states"] = tuple(self._states)
        body = self.finish(tuple(self._outputs.values()))
        if not attrs.get("primitive"):  # shares the symbols of its only caller
            self._check_symbols(body)
        return GraphFunc(self.name, tuple(self._params), body, tuple(self._outputs), attrs)

    def _check_symbols(self, body: Block) -> None:
        """Raise ShapeError for a symbol that is used where nothing defines it."""
        defined = {s for p in self._params for s in defined_by(p.annotation)}
        used = {p.name: symbols_of(p.annotation) - defined for p in self._params}
        for name, stray in (*used.items(), *_strays(body, defined)):
            if stray:
                names = ", ".join(sorted(s.name for s in stray))
                twins = {s.name for s in stray} & {s.name for s in defined}
                raise ShapeError(
                    f"{self.name}: nothing defines {names}, of which {name} speaks",
                    hint="use the symbol that the input has: this one has other bounds"
                    if twins
                    else "some input needs a dim that is just the symbol",
                )

    def module(self) -> Module:
        """A module with this function, the loop functions it calls and all it was built around."""
        return replace(self.around, loops=self.loops).with_func(self.func())


def _strays(block: Block, defined: set[Symbol]) -> Iterator[tuple[str, set[Symbol]]]:
    """Names of values, and the symbols of theirs that nothing before them defines."""
    visible = set(defined)
    for binding in block.bindings:
        value, var = binding.value, binding.var
        yield var.name, used_symbols(value) - visible
        for body in bodies(value):
            yield from _strays(body, visible | set(body_symbols(value)))
        visible |= symbols_defined(binding)
        yield var.name, symbols_of(var.annotation) - visible
