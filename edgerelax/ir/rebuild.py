"""Rebuilding functions through a Builder: annotations follow as operands and symbols change.

`rewrite.py` is for passes that keep every annotation; this is for those that do not (dtypes,
layouts, sizes made constant):

    half = rebuild(module, symbols={n: 1})             # every n is 1, and all that follows from it

    def visit(binding, builder):                       # None: emit it again as it is
        match binding.value:
            case Call(op=op, args=(x,)) if op.name == "identity":
                return x                               # a value that stands for the binding's
        return None

    results = emit_body(callee, args, bound, builder)  # its body, in place of a call
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgerelax.ir.builder import Builder
from edgerelax.ir.deduce import (
    Fit,
    deduce,
    defined_by,
    substitute_annotation,
    subsumes,
    symbols_inside,
)
from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallGraph,
    CallLibrary,
    CallTIR,
    Expression,
    GraphFunc,
    IfElse,
    MakeShape,
    MatchCast,
    Module,
    Repeat,
    Value,
    Var,
    blocks,
)
from edgerelax.ir.printer import module_symbols
from edgerelax.ir.rewrite import substitute_operands
from edgerelax.ir.types import Annotation, Tensor, as_tensor, exprs_of
from edgerelax.sym import Atom, Expr, ExprLike, Symbol, as_expr

Visit = Callable[[Binding, Builder], Value | None]


def rebuild(
    module: Module, visit: Visit | None = None, symbols: Mapping[Symbol, ExprLike] | None = None
) -> Module:
    """Rebuild every graph function, callees first.

    `visit` sees each binding with its operands and symbols replaced, and emits through the builder.
    """
    work = _Rebuild(module, visit or _keep, {s: as_expr(e) for s, e in (symbols or {}).items()})
    for name in module.funcs:
        work.func(name)
    return replace(module, funcs={name: work.done[name] for name in module.funcs})


def emit_body(
    func: GraphFunc,
    args: Sequence[Value],
    symbols: Mapping[Symbol, ExprLike],
    builder: Builder,
) -> tuple[Value, ...]:
    """Emit a function's body on arguments; gives its results.

    `symbols` are those of its parameters; what the body itself defines gets fresh names.
    """
    values: dict[Value, Value] = dict(zip(func.params, args, strict=True))
    walk = _Walk(builder, _keep, values, {s: e for s, e in symbols.items()})
    for symbol in sorted(symbols_inside(func.body) - symbols.keys(), key=str):
        walk.symbols[symbol] = builder.fresh(symbol.name, symbol.lo, symbol.hi, symbol.multiple_of)
    walk.bindings(func.body)
    return walk.results(func.body)


def _keep(binding: Binding, builder: Builder) -> None:
    return None


class _Rebuild:
    def __init__(self, module: Module, visit: Visit, symbols: Mapping[Symbol, Expr]) -> None:
        self.module, self.visit, self.symbols = module, visit, symbols
        self.done: dict[str, GraphFunc] = {}
        self.taken = {s.name for s in module_symbols(module)}

    def func(self, name: str) -> None:
        if name in self.done:
            return
        func = self.module.funcs[name]
        for block in blocks(func.body):
            for binding in block.bindings:
                if isinstance(binding.value, CallGraph):
                    self.func(binding.value.func)
        found = self.done[name] = self._rebuilt(func)
        self.taken |= {s.name for s in module_symbols(Module({name: found}))}

    def _rebuilt(self, func: GraphFunc) -> GraphFunc:
        builder = Builder(funcs=self.done, loops=self.module.loops)
        builder.names.taken |= self.taken
        walk = _Walk(builder, self.visit, {}, {s: e for s, e in self.symbols.items()})
        params = tuple(walk.param(p) for p in func.params)
        walk.bindings(func.body)
        return replace(func, params=params, body=builder.finish(walk.results(func.body)))


class _Walk:
    """Emits blocks again with values and symbols replaced."""

    def __init__(
        self,
        builder: Builder,
        visit: Visit,
        values: dict[Value, Value],
        symbols: dict[Atom, ExprLike],
    ) -> None:
        self.builder, self.visit = builder, visit
        self.values, self.symbols = values, symbols

    def param(self, param: Var) -> Var:
        annotation = self._annotation(param.annotation)
        found = param
        if annotation is not param.annotation:
            found = Var(param.name, annotation, param.origin)
            self.values[param] = found
        self.builder.names.taken.add(param.name)
        self.builder.define(defined_by(annotation))
        return found

    def results(self, block: Block) -> tuple[Value, ...]:
        return tuple(self.values.get(r, r) for r in block.results)

    def bindings(self, block: Block) -> None:
        for binding in block.bindings:
            value = self._value(substitute_operands(binding.value, self.values))
            annotation = self._annotation(binding.var.annotation)
            var = binding.var
            if annotation is not var.annotation:
                var = Var(var.name, annotation, var.origin)
            found = self.visit(Binding(var, value), self.builder)
            self.values[binding.var] = self._emit(var, value) if found is None else found

    def _emit(self, var: Var, value: Expression) -> Var:
        if isinstance(value, IfElse):
            return self._emit_branch(var, value)
        if isinstance(value, Repeat):
            return self.builder.emit_repeat(value, var.name, var.origin)
        if isinstance(value, MatchCast):
            wanted = _with_dtype_of(value.value, var.annotation)
            return self.builder.match(value.value, wanted, var.name, var.origin)
        annotation: Annotation | None = var.annotation
        if isinstance(value, CallTIR | CallGraph):
            annotation = None
        else:
            deduced = deduce(value, var.name, var.origin)
            if deduced is not None and subsumes(deduced, var.annotation) is Fit.IMPOSSIBLE:
                annotation = None
        return self.builder.emit(value, var.name, var.origin, annotation)

    def _value(self, value: Expression) -> Expression:
        """The expression with symbols replaced and arms rebuilt."""
        match value:
            case IfElse():
                return self._branch(value)
            case Repeat():
                return self._repeat(value)
            case Call(attrs=attrs) | CallLibrary(attrs=attrs) if self.symbols:
                return replace(value, attrs=self._attr(attrs))
            case MakeShape(dims=dims):
                return MakeShape(tuple(self._expr(d) for d in dims))
            case CallTIR() if self.symbols:
                bound = {s: self._expr(e) for s, e in value.symbols}
                for symbol in self.builder.loops[value.func].symbols():
                    if symbol in self.symbols:
                        bound.setdefault(symbol, self._expr(symbol.expr))
                return replace(value, symbols=tuple(bound.items()))
        return value

    def _branch(self, branch: IfElse) -> IfElse:
        arms: list[Block] = []
        for arm in (branch.then, branch.other):
            with self.builder.block() as bindings:
                self.bindings(arm)
                arms.append(Block(tuple(bindings), self.results(arm)))
        cond = branch.cond
        return IfElse(
            self._expr(cond) if isinstance(cond, Expr) else self.values.get(cond, cond),
            arms[0],
            arms[1],
            tuple(self._symbol(s) for s in branch.symbols),
            tuple(self._expr(e) for e in branch.then_symbols),
            tuple(self._expr(e) for e in branch.other_symbols),
        )

    def _repeat(self, repeat: Repeat) -> Repeat:
        """What it carries has the dtypes of its initial values now."""
        symbols = tuple(self._symbol(s) for s in repeat.symbols)
        counter = self._symbol(repeat.counter)
        params = []
        for param, first in zip(repeat.params, repeat.initial, strict=True):
            annotation = _with_dtype_of(first, self._annotation(param.annotation))
            params.append(Var(self.builder.names.pick(param.name), annotation, param.origin))
            self.values[param] = params[-1]
        with self.builder.block() as bindings:
            self.builder.define((counter, *symbols))
            self.bindings(repeat.body)
            results = self.results(repeat.body)
            body = Block(tuple(bindings), results)
        return replace(
            repeat,
            trips=self._expr(repeat.trips),
            counter=counter,
            params=tuple(params),
            body=body,
            symbols=symbols,
            first=tuple(map(self._expr, repeat.first)),
            next=tuple(map(self._expr, repeat.next)),
            after=tuple(map(self._symbol, repeat.after)),
            going=None if repeat.going is None else self._expr(repeat.going),
        )

    def _emit_branch(self, var: Var, branch: IfElse) -> Var:
        """A symbol that the branch no longer needs becomes what now stands in its place."""
        found = self.builder.emit_branch(branch, var.name, var.origin)
        places = zip(exprs_of(var.annotation), exprs_of(found.annotation), strict=False)
        gone: dict[Atom, ExprLike] = {
            old.atom: new for old, new in places if old.atom in branch.symbols and old is not new
        }
        if gone:
            self.symbols = {s: as_expr(e).subs(gone) for s, e in self.symbols.items()} | gone
        return found

    def _symbol(self, symbol: Symbol) -> Symbol:
        """The name that a symbol defined in a body goes by."""
        atom = self._expr(symbol.expr).atom
        return atom if isinstance(atom, Symbol) else symbol

    def _expr(self, expr: Expr) -> Expr:
        return expr.subs(self.symbols) if self.symbols else expr

    def _attr(self, value: Any) -> Any:
        if isinstance(value, Expr):
            return self._expr(value)
        if isinstance(value, dict):
            return {k: self._attr(v) for k, v in value.items()}
        if isinstance(value, tuple | list):
            return tuple(self._attr(v) for v in value)
        return value

    def _annotation(self, annotation: Annotation) -> Annotation:
        return substitute_annotation(annotation, self.symbols)


def _with_dtype_of(source: Value, annotation: Annotation) -> Annotation:
    """A match_cast asserts dims; its dtype follows its operand's."""
    operand = as_tensor(source.annotation)
    if isinstance(annotation, Tensor) and operand is not None and operand.dtype is not None:
        return replace(annotation, dtype=operand.dtype)
    return annotation
