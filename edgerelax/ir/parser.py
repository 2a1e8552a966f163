"""Reads the text that printer.py writes: parsed with `ast` and a whitelist, never executed."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from edgerelax.ir.builder import make_call
from edgerelax.ir.diagnostics import FormatError
from edgerelax.ir.graph import (
    Binding,
    Block,
    CallGraph,
    CallLibrary,
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
    ToDevice,
    Value,
    Var,
)
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, Operator
from edgerelax.ir.parse_loop import parse_loop
from edgerelax.ir.parse_text import TextReader, decorator, fault, named_call, one, parameters
from edgerelax.ir.printer import VERSION
from edgerelax.sym import Expr, Symbol

Inner = tuple[Block, tuple[Symbol, ...], tuple[Expr, ...], Expr | None]
"""A nested body, the symbols it defines for what follows, what they are, whether to go on."""


def parse(
    text: str, ops: Mapping[str, Operator], weights: Mapping[str, Array] | None = None
) -> Module:
    """A module from its text. `weights` are the arrays that it refers to by name.

    Raises FormatError with the line of whatever is not IR.
    """
    first = text.split("\n", 1)[0].split()
    if first[:3] != ["#", "edgerelax", "ir"] or len(first) != 4:
        raise FormatError(
            "line 1: not IR text", hint=f"the first line is '# edgerelax ir {VERSION}'"
        )
    if first[3] != str(VERSION):
        raise FormatError(f"line 1: IR text of version {first[3]}, this is version {VERSION}")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        raise FormatError(f"line {line}: not Python syntax ({error})") from error
    return _ModuleParser(ops, weights or {}).module(tree)


class _ModuleParser:
    def __init__(self, ops: Mapping[str, Operator], weights: Mapping[str, Array]) -> None:
        self.ops, self.weights = ops, weights
        self.reader = TextReader()
        self.constants: dict[str, Constant] = {}
        self.funcs: dict[str, GraphFunc] = {}
        self.loops: dict[str, LoopFunc] = {}
        self.attrs: dict[str, Any] = {}

    def module(self, tree: ast.Module) -> Module:
        for stmt in tree.body:
            match stmt:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    word, call = named_call(value)
                    if word != "dim":
                        raise fault(stmt, "not a dim")
                    self.reader.declare(name, call)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() as value):
                    self.constants[name] = self._constant(name, stmt.annotation, value)
                case ast.Expr(value=ast.Call(func=ast.Name(id="attrs"), keywords=words)):
                    self.attrs = {k.arg: self.reader.literal(k.value) for k in words if k.arg}
                case ast.FunctionDef():
                    self._function(stmt)
                case _:
                    raise fault(stmt, "not a dim, a constant or a function")
        return Module(self.funcs, self.loops, self.attrs)

    def _constant(self, name: str, kind: ast.expr, value: ast.Call) -> Constant:
        annotation = self.reader.annotation(kind)
        match value:
            case ast.Call(func=ast.Name(id="array")):
                return Constant(name, self.reader.array(value), annotation)
            case ast.Call(func=ast.Name(id="weight"), args=[ast.Constant(value=str() as key)]):
                if key not in self.weights:
                    raise fault(value, f"weight {key!r} is not given")
                return Constant(key, self.weights[key], annotation)
        raise fault(value, "a constant is weight('name') or array(dtype, [dims], [elements])")

    def _function(self, node: ast.FunctionDef) -> None:
        word, _ = decorator(node, self.reader.literal)
        if word == "loop":
            loop = parse_loop(node, self.reader)
            self.loops[loop.name] = loop
        elif word == "graph":
            func = _FuncParser(self, node).func
            self.funcs[func.name] = func
        else:
            raise fault(node, "a function is @graph or @loop")


class _FuncParser:
    """One graph function. `scope` holds the values that its text can name at this place."""

    def __init__(self, around: _ModuleParser, node: ast.FunctionDef) -> None:
        self.ops, self.reader = around.ops, around.reader
        self.scope: dict[str, Value] = dict(around.constants)
        words = decorator(node, self.reader.literal)[1]
        names: Mapping[str, str] = words.pop("inputs", {})
        params: list[Var] = []
        for name, kind in parameters(node):
            params.append(Var(names.get(name, name), self.reader.annotation(kind)))
            self.scope[name] = params[-1]
        match node.body[-1]:
            case ast.Return(value=ast.Dict(keys=keys, values=values)):
                bindings = self._bindings(node.body[:-1])
                results = tuple(self.value(v) for v in values)
                result_names = tuple(str(self.reader.literal(k)) for k in keys if k is not None)
            case last:
                raise fault(last, "a graph function ends in return {'name': value}")
        self.func = GraphFunc(
            words.pop("name", node.name),
            tuple(params),
            Block(tuple(bindings), results),
            result_names,
            words,
        )

    def value(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Name) and node.id in self.scope:
            return self.scope[node.id]
        raise fault(node, "no such value here")

    def _bindings(self, body: Sequence[ast.stmt]) -> list[Binding]:
        bindings: list[Binding] = []
        todo = iter(body)
        for stmt in todo:
            match stmt:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=None):
                    match next(todo, None):
                        case ast.If() as branch:
                            value: Expression = self._branch(name, branch)
                        case ast.For() as loop:
                            value = self._repeat(name, loop)
                        case _:
                            what = "a declaration without a value stands before an if or a for"
                            raise fault(stmt, what)
                case ast.AnnAssign(
                    target=ast.Name(id=name), annotation=kind, value=ast.expr() as e
                ):
                    value = self._expression(e)
                case _:
                    raise fault(stmt, "not a binding")
            var = Var(name, self.reader.annotation(kind))
            self.scope[name] = var
            bindings.append(Binding(var, value))
        return bindings

    def _branch(self, name: str, node: ast.If) -> IfElse:
        match node.test:
            case ast.Call(func=ast.Name(id="dim"), args=[size], keywords=[]):
                cond: Value | Expr = self.reader.expr(size)
            case test:
                cond = self.value(test)
        then, symbols, then_symbols, more = self._inner(name, node, node.body)
        other, other_names, other_symbols, others = self._inner(name, node, node.orelse)
        if symbols != other_names:
            raise fault(node, "both arms define the same dims in the same order")
        if more or others:
            raise fault(node, "an arm does not say whether to go on")
        return IfElse(cond, then, other, symbols, then_symbols, other_symbols)

    def _repeat(self, name: str, node: ast.For) -> Repeat:
        match node.target, node.iter:
            case (
                ast.Name() | ast.Tuple() as target,
                ast.Call(func=ast.Name(id="repeat"), args=[trips, *first], keywords=[]),
            ) if not node.orelse:
                names = [target] if isinstance(target, ast.Name) else target.elts
            case _:
                raise fault(node, "a loop is for i, … in repeat(dim, …)")
        outer = dict(self.scope)
        counter, *symbols = (self._symbol(n, n) for n in names)
        params: list[Var] = []
        initial: list[Value] = []
        for stmt in node.body:
            match stmt:
                case ast.AnnAssign(
                    target=ast.Name(id=own),
                    annotation=kind,
                    value=ast.Call(func=ast.Name(id="carried"), args=[value], keywords=[]),
                ):
                    params.append(Var(own, self.reader.annotation(kind)))
                    initial.append(self.value(value))
                case _:
                    break
        self.scope.update((p.name, p) for p in params)
        body, after, following, going = self._inner(name, node, node.body[len(params) :])
        self.scope = outer
        return Repeat(
            self.reader.expr(trips),
            counter,
            tuple(initial),
            tuple(params),
            body,
            tuple(symbols),
            tuple(map(self.reader.expr, first)),
            following,
            after,
            going,
        )

    def _inner(self, name: str, node: ast.stmt, body: Sequence[ast.stmt]) -> Inner:
        outer = dict(self.scope)
        match body[-1] if body else None:
            case ast.Assign(
                targets=[ast.Name(id=target)],
                value=ast.Call(func=ast.Name(id="results"), args=args, keywords=words),
            ) if target == name:
                bindings = self._bindings(body[:-1])
                going: Expr | None = None
                match args:
                    case [*given, ast.Call(func=ast.Name(id="dim"), args=[size], keywords=[])]:
                        args, going = given, self.reader.expr(size)
                results = tuple(self.value(a) for a in args)
                symbols = tuple(self.reader.symbol(w.arg, w.value) for w in words)
                exprs = tuple(self.reader.expr(w.value) for w in words)
            case _:
                raise fault(node, f"a nested body ends in {name} = results(…)")
        self.scope = outer
        return Block(tuple(bindings), results), symbols, exprs, going

    def _expression(self, node: ast.expr) -> Expression:
        match node:
            case ast.Name():
                return self.value(node)
            case ast.Subscript(value=source, slice=ast.Constant(value=int() as index)):
                return GetItem(self.value(source), index)
        name, call = named_call(node)
        args = call.args
        match name:
            case "call_tir":
                return self._call_tir(call)
            case "call_graph":
                return CallGraph(self._func_name(call), self._values(args[1:]))
            case "call_library":
                attrs = self._attrs(call)
                device = str(attrs.pop("device", ""))
                return CallLibrary(self._func_name(call), self._values(args[1:]), attrs, device)
            case "match_cast":
                return MatchCast(self.value(one(args, node)))
            case "read_ints":
                return ReadInts(self.value(one(args, node)))
            case "make_shape":
                return MakeShape(tuple(self.reader.expr(a) for a in args))
            case "make_tuple":
                return MakeTuple(self._values(args))
            case "to_device":
                if len(args) != 2:
                    raise fault(node, "a copy is to_device(value, 'device')")
                return ToDevice(self.value(args[0]), str(self.reader.literal(args[1])))
        if name not in self.ops:
            raise fault(node, f"no operator {name}")
        operands = [None if _is_none(a) else self.value(a) for a in args]
        try:
            return make_call(self.ops[name], operands, self._attrs(call))
        except TypeError as error:
            raise fault(node, str(error)) from error

    def _values(self, nodes: Sequence[ast.expr]) -> tuple[Value, ...]:
        return tuple(self.value(n) for n in nodes)

    def _attrs(self, call: ast.Call) -> dict[str, Any]:
        return {k.arg: self.reader.literal(k.value) for k in call.keywords if k.arg is not None}

    def _func_name(self, call: ast.Call) -> str:
        match call.args[:1]:
            case [ast.Name(id=name)] | [ast.Constant(value=str() as name)]:
                return name
        raise fault(call, "the first argument names a function")

    def _symbol(self, key: ast.expr | None, value: ast.expr) -> Symbol:
        return self.reader.symbol(key.id if isinstance(key, ast.Name) else None, value)

    def _call_tir(self, call: ast.Call) -> CallTIR:
        symbols: tuple[tuple[Symbol, Expr], ...] = ()
        device = ""
        for word in call.keywords:
            match word:
                case ast.keyword(arg="symbols", value=ast.Dict(keys=keys, values=values)):
                    symbols = tuple(
                        (self._symbol(k, v), self.reader.expr(v))
                        for k, v in zip(keys, values, strict=True)
                    )
                case ast.keyword(arg="device", value=ast.Constant(value=str() as device)):
                    pass
                case _:
                    raise fault(call, f"call_tir has no keyword {word.arg}")
        return CallTIR(self._func_name(call), self._values(call.args[1:]), symbols, device)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
