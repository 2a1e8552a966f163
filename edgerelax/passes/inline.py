"""Put the bodies of graph functions in place of calls to them, so that passes see one function.

A callee's symbols are bound from the arguments (`deduce.bind_call`). What only a run can tell (a
size that two arguments share, a symbol's bounds) becomes a MatchCast of the argument; what the
caller promises of a result, one of the result.

Before: any module without recursion. After: no CallGraph but of primitive functions (fuse.py); of
the others only entry points are left: `main` and what no function calls.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edgerelax.ir.builder import Builder
from edgerelax.ir.deduce import (
    Fit,
    bind_call,
    defined_by,
    keeps_bounds,
    signature,
    substitute_annotation,
    subsumes,
)
from edgerelax.ir.diagnostics import ShapeError, UnsupportedError, VerifyError
from edgerelax.ir.graph import (
    Binding,
    CallGraph,
    GraphFunc,
    MakeShape,
    MakeTuple,
    Module,
    ReadInts,
    Value,
    Var,
)
from edgerelax.ir.rebuild import emit_body, rebuild
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import Annotation, IntTensor, Shape, Tensor, Tuple, symbols_of
from edgerelax.ops import OPS
from edgerelax.sym import Atom, Expr, ExprLike, Symbol

Calls = Mapping[str, Sequence[str]]
"""For each function those that it calls."""


def inline(module: Module) -> Module:
    """Replace every call of a function that is not primitive by its body, callees first."""
    calls = {name: _callees(module, func) for name, func in module.funcs.items()}
    called = {callee for callees in calls.values() for callee in callees}
    if not called:
        return module
    _refuse_recursion(calls)
    rebuilt = rebuild(module, _visit)
    kept = {n: f for n, f in rebuilt.funcs.items() if n == "main" or n not in called}
    return replace(rebuilt, funcs=kept)


def _callees(module: Module, func: GraphFunc) -> list[str]:
    names = [b.value.func for b in all_bindings(func.body) if isinstance(b.value, CallGraph)]
    for name in names:
        if name not in module.funcs:
            raise VerifyError(f"function {func.name}: no function {name}")
    return [name for name in dict.fromkeys(names) if not _is_primitive(module.funcs[name])]


def _is_primitive(func: GraphFunc) -> bool:
    return bool(func.attrs.get("primitive"))


def _refuse_recursion(calls: Calls) -> None:
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycle = " → ".join((*path[path.index(name) :], name))
            raise UnsupportedError(
                f"recursion: {cycle}",
                hint="a program's functions must not call themselves, not even through others",
            )
        if name not in done:
            for callee in calls[name]:
                walk(callee, (*path, name))
            done.add(name)

    for name in calls:
        walk(name, ())


def _visit(binding: Binding, builder: Builder) -> Value | None:
    call = binding.value
    if not isinstance(call, CallGraph) or _is_primitive(builder.funcs[call.func]):
        return None
    return _Site(builder, binding.var, builder.funcs[call.func]).body(call.args)


class _Site:
    """One call that is being replaced."""

    def __init__(self, builder: Builder, var: Var, callee: GraphFunc) -> None:
        self.builder, self.var, self.callee = builder, var, callee
        self.where = f"{var.origin}: {callee.name}" if var.origin else callee.name

    def body(self, args: Sequence[Value]) -> Value:
        bound, fresh = self._bind(args)
        results = emit_body(self.callee, self._fit_all(args, bound, fresh), bound, self.builder)
        promised = self.var.annotation
        if len(results) == 1:
            return self._fit(results[0], promised, f"result of {self.where}")
        if isinstance(promised, Tuple):
            results = tuple(
                self._fit(r, p, f"result {name} of {self.where}")
                for name, r, p in zip(
                    self.callee.result_names, results, promised.fields, strict=True
                )
            )
        return self.builder.emit(MakeTuple(results), self.var.name, self.var.origin)

    def _bind(self, args: Sequence[Value]) -> tuple[dict[Symbol, Expr], set[Symbol]]:
        """What stands for each symbol of the parameters.

        A fresh symbol, to be defined by a MatchCast, where the arguments' annotations do not say
        it, or do not say that it keeps the callee's bounds.
        """
        solution = bind_call(self.callee.name, signature(self.callee), [a.annotation for a in args])
        kinds = [p.annotation for p in self.callee.params]
        sizes = set().union(*(defined_by(k) for k in kinds if isinstance(k, Tensor)))
        bound: dict[Symbol, Expr] = {}
        fresh: set[Symbol] = set()
        for symbol in sorted({s for k in kinds for s in symbols_of(k)}, key=str):
            found = solution.bindings.get(symbol)
            if found is None or not keeps_bounds(symbol, found, is_size=symbol in sizes):
                own = self.builder.fresh_symbol(
                    symbol.name, symbol.lo, symbol.hi, symbol.multiple_of
                )
                fresh.add(own)
                found = own.expr
            bound[symbol] = found
        return bound, fresh

    def _fit_all(
        self, args: Sequence[Value], bound: Mapping[Symbol, Expr], fresh: set[Symbol]
    ) -> list[Value]:
        """Arguments with the annotations that the callee wants; what defines symbols goes first."""
        fitted = dict(enumerate(args))
        atoms: dict[Atom, ExprLike] = {s: e for s, e in bound.items()}
        left = [
            (k, param, substitute_annotation(param.annotation, atoms))
            for k, param in enumerate(self.callee.params)
        ]
        while left:
            undefined = fresh - self.builder.visible
            at = next((j for j, (*_, w) in enumerate(left) if _is_ready(w, undefined)), None)
            if at is None:
                k, param, wanted = left[0]
                raise ShapeError(
                    f"{self.where}: argument {param.name} must be {param.annotation}, got "
                    f"{args[k].annotation}, which does not say what its symbols are",
                    origin=self.var.origin,
                )
            k, param, wanted = left.pop(at)
            fitted[k] = self._fit(args[k], wanted, f"argument {param.name} of {self.where}")
        return [fitted[k] for k in range(len(args))]

    def _fit(self, value: Value, wanted: Annotation, what: str) -> Value:
        """The value if it is known to be as wanted, else with checks."""
        given = value.annotation
        if subsumes(wanted, given) is Fit.PASS:
            return value
        match wanted, given:
            case Tuple(), Tuple() if isinstance(value, Var):
                fields = zip(self.builder.fields(value), wanted.fields, strict=True)
                parts = tuple(self._fit(f, w, what) for f, w in fields)
                return self.builder.emit(MakeTuple(parts), value.name, what)
            case IntTensor(), IntTensor():
                return self._integers(MakeShape(given.values), wanted, value.name, what)
            case IntTensor(), _:
                data = self._fit(value, wanted.tensor, what)
                return self._integers(ReadInts(data), wanted, value.name, what)
        return self.builder.match(value, wanted, origin=what)

    def _integers(
        self, source: MakeShape | ReadInts, wanted: IntTensor, name: str, what: str
    ) -> Value:
        """Check integers of the host; give them as a tensor again."""
        found = self.builder.emit(source, name, what)
        self.builder.match(found, Shape(wanted.values), origin=what)
        attrs = {"values": wanted.values, "rank": wanted.rank, "dtype": wanted.dtype}
        return self.builder.call(OPS["integers"], name=name, origin=what, **attrs)


def _is_ready(wanted: Annotation, undefined: set[Symbol]) -> bool:
    """Whether a MatchCast to this annotation defines all of it that is still undefined."""
    return symbols_of(wanted) & undefined <= defined_by(wanted)
