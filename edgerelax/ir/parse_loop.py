"""Reads the loop functions that print_loop.py writes."""

import ast
from collections.abc import Sequence
from typing import Any, get_args

from edgerelax.ir.dtypes import BOOL, DTYPES, F32, I64, DType
from edgerelax.ir.functions import FUNCTIONS
from edgerelax.ir.loop import Combiner, LoopFunc, Stage, Template
from edgerelax.ir.parse_text import TextReader, decorator, elements, fault, named_call, parameters
from edgerelax.ir.print_loop import INFIX, acc_dtype, has_components
from edgerelax.ir.scalar import Acc, Buffer, Cast, Const, Load, Scalar, Select, Value, constant, op
from edgerelax.ir.types import Tensor
from edgerelax.sym import Axis, Expr, Opaque, as_expr

COMBINERS: tuple[Combiner, ...] = get_args(Combiner)
_BINARY: dict[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div",
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
    ast.And: "and", ast.Or: "or",
}  # fmt: skip
assert set(_BINARY.values()) == INFIX.keys()


def parse_loop(node: ast.FunctionDef, reader: TextReader) -> LoopFunc:
    """A loop function from its syntax tree."""
    return _LoopParser(node, reader).func()


class _LoopParser:
    def __init__(self, node: ast.FunctionDef, reader: TextReader) -> None:
        self.node, self.reader = node, reader
        self.buffers: dict[str, Buffer] = {}

    def func(self) -> LoopFunc:
        groups: dict[str, list[Buffer]] = {"": [], "weight": [], "out": []}
        inputs: list[Buffer] = []
        for name, kind in parameters(self.node):
            word, buffer = self._declare(name, kind, ("weight", "out"))
            groups[word].append(buffer)
            if word != "out":
                inputs.append(buffer)
        stages: list[Stage | Template] = []
        for stmt in self.node.body:
            match stmt:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind, value=None):
                    self._declare(name, kind, ("temp",))
                case ast.Expr(value=call):
                    stages.append(self._template(call))
                case ast.For():
                    stages.append(_StageParser(self, stmt).stage)
                case ast.Pass():
                    pass
                case _:
                    raise fault(stmt, "not a stage")
        words = decorator(self.node, self.reader.literal)[1]
        weights = frozenset(b.name for b in groups["weight"])
        name = str(words.get("name", self.node.name))
        return LoopFunc(name, tuple(inputs), tuple(groups["out"]), tuple(stages), weights)

    def _declare(self, name: str, kind: ast.expr, words: Sequence[str]) -> tuple[str, Buffer]:
        word = ""
        match kind:
            case ast.Subscript(value=ast.Name(id=wrapper), slice=inner) if wrapper in words:
                word, kind = wrapper, inner
        tensor = self.reader.annotation(kind)
        if not isinstance(tensor, Tensor) or tensor.dims is None or tensor.dtype is None:
            raise fault(kind, "a buffer has known dims and dtype")
        if name in self.buffers:
            raise fault(kind, f"buffer {name} is declared twice")
        self.buffers[name] = Buffer(name, tensor.dtype, tensor.dims)
        return word, self.buffers[name]

    def buffer(self, node: ast.expr) -> Buffer:
        if isinstance(node, ast.Name) and node.id in self.buffers:
            return self.buffers[node.id]
        raise fault(node, "no such buffer")

    def _template(self, node: ast.expr) -> Template:
        word, call = named_call(node)
        match call.args:
            case [ast.Constant(value=str() as kind), ast.Tuple() as inputs, ast.Tuple() as outputs]:
                if word == "template":
                    return Template(
                        kind,
                        tuple(self.buffer(b) for b in inputs.elts),
                        tuple(self.buffer(b) for b in outputs.elts),
                        {k.arg: self.reader.literal(k.value) for k in call.keywords if k.arg},
                    )
        raise fault(node, "a template is template('kind', (inputs,), (outputs,), parameters)")


class _StageParser:
    """One stage: names of axes, gathered integers, shared scalars, and its parts as they come."""

    def __init__(self, around: _LoopParser, node: ast.For) -> None:
        self.around, self.reader = around, around.reader
        self.sizes: dict[str, Expr] = {}
        self.scalars: dict[str, Scalar] = {}
        self.parts: dict[str, Any] = {}
        self.parts["axes"] = self._axes(node, "grid")
        self._block(node.body)
        if "out" not in self.parts:
            raise fault(node, "a stage stores into a buffer")
        self.stage = Stage(**self.parts)

    def _axes(self, node: ast.For, word: str) -> tuple[Axis, ...]:
        name, call = named_call(node.iter)
        targets = elements(node.target)
        if name != word or len(targets) != len(call.args) or node.orelse:
            raise fault(node, f"a loop is for … in {word}(extents), one name for each extent")
        axes: list[Axis] = []
        for target, extent in zip(targets, call.args, strict=True):
            if not isinstance(target, ast.Name):
                raise fault(target, "not the name of an axis")
            axes.append(Axis(target.id, self.reader.expr(extent)))
            self.sizes[target.id] = as_expr(axes[-1])
        return tuple(axes)

    def _block(self, body: Sequence[ast.stmt]) -> None:
        for stmt in body:
            match stmt:
                case ast.If(test=test, body=inner, orelse=[]) if "where" not in self.parts:
                    self.parts["where"] = self.scalar(test)
                    self._block(inner)
                case ast.For() if "reduce" not in self.parts:
                    self.parts["reduce"] = self._axes(stmt, "reduce")
                    self._block(stmt.body)
                case ast.Assign(targets=[ast.Name(id="acc")], value=value):
                    self._reduction(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._let(name, value)
                case ast.Assign(targets=[ast.Subscript() as place], value=value):
                    self._store(place, value)
                case _:
                    raise fault(stmt, "not a statement of a stage")

    def _let(self, name: str, value: ast.expr) -> None:
        match value:
            case ast.Call(func=ast.Name(id="gather"), args=[inner, *bounds], keywords=[]):
                ends = [None if _is_none(b) else self.size(b) for b in bounds]
                self.sizes[name] = as_expr(Opaque(self.scalar(inner), *ends))
            case _:
                self.scalars[name] = self.scalar(value)

    def _reduction(self, node: ast.expr) -> None:
        name, call = named_call(node)
        words = {k.arg: k.value for k in call.keywords}
        if name not in COMBINERS or len(call.args) != 1 or words.keys() - {"init"}:
            raise fault(node, "a reduction is acc = combiner(body, init=…)", ", ".join(COMBINERS))
        self.parts["combiner"] = name
        self.parts["body"] = self.scalar(call.args[0])
        if "init" in words:
            self.parts["init"] = self.scalar(words["init"])

    def _store(self, place: ast.Subscript, value: ast.expr) -> None:
        if "out" in self.parts:
            raise fault(place, "a stage stores once")
        self.parts["out"] = self.around.buffer(place.value)
        index = tuple(self.size(e) for e in elements(place.slice))
        if index != tuple(as_expr(a) for a in self.parts["axes"]):
            self.parts["index"] = index
        if "combiner" not in self.parts:
            self.parts["body"] = self.scalar(value)
        elif not (isinstance(value, ast.Name) and value.id == "acc"):
            self.parts["epilogue"] = self.scalar(value)

    def size(self, node: ast.expr) -> Expr:
        return self.reader.expr(node, self.sizes)

    def scalar(self, node: ast.expr) -> Scalar:
        match node:
            case ast.Constant(value=bool() | int() | float() as literal):
                dtype = {bool: BOOL, int: I64, float: F32}[type(literal)]
                return constant(literal, dtype)
            case ast.Name(id="acc"):
                return self._acc(node, 0)
            case ast.Name(id=name) if name in self.scalars:
                return self.scalars[name]
            case ast.Subscript(value=ast.Name(id="acc"), slice=ast.Constant(value=int() as k)):
                return self._acc(node, k)
            case ast.Subscript(value=base, slice=inner):
                return self._load(node, base, elements(inner))
            case ast.IfExp(test=test, body=then, orelse=other):
                return Select(self.scalar(test), self.scalar(then), self.scalar(other))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._op(node, "not", [operand])
            case ast.BinOp(left=left, op=word, right=right) if type(word) in _BINARY:
                return self._op(node, _BINARY[type(word)], [left, right])
            case ast.BoolOp(op=joint, values=[left, right]):
                return self._op(node, _BINARY[type(joint)], [left, right])
            case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _BINARY:
                return self._op(node, _BINARY[type(sign)], [left, right])
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
                return self._call(node, name, args)
        raise fault(node, "not a scalar")

    def _load(self, node: ast.expr, base: ast.expr, index: Sequence[ast.expr]) -> Scalar:
        try:
            return Load(self.around.buffer(base), tuple(self.size(e) for e in index))
        except ValueError as error:
            raise fault(node, str(error)) from error

    def _call(self, node: ast.expr, name: str, args: Sequence[ast.expr]) -> Scalar:
        match name, args:
            case ("value", [size]):
                return Value(self.size(size), I64)
            case ("value", [size, dtype]):
                return Value(self.size(size), self.reader.dtype(dtype))
            case ("cast", [arg, dtype]):
                return Cast(self.scalar(arg), self.reader.dtype(dtype))
            case ("acc", [dtype, ast.Constant(value=int() as k)]):
                return Acc(self.reader.dtype(dtype), k)
            case (_, [literal]) if name in DTYPES:
                return self._literal(literal, DTYPES[name])
        if name in FUNCTIONS and len(args) == FUNCTIONS[name].arity:
            return self._op(node, name, args)
        raise fault(node, f"no scalar function {name} of {len(args)} operands")

    def _literal(self, node: ast.expr, dtype: DType) -> Const:
        value = self.reader.literal(node)
        if isinstance(value, bool | int | float):
            return constant(value, dtype)
        raise fault(node, "not a number")

    def _op(self, node: ast.expr, fn: str, args: Sequence[ast.expr]) -> Scalar:
        try:
            return op(fn, *(self.scalar(a) for a in args))
        except TypeError as error:
            raise fault(node, str(error)) from error

    def _acc(self, node: ast.expr, component: int) -> Scalar:
        if "body" not in self.parts:
            raise fault(node, "acc where nothing is reduced")
        combiner = self.parts["combiner"]
        if isinstance(node, ast.Name) == has_components(combiner):
            raise fault(node, f"the reduced value of {combiner} is several: acc[0], acc[1]…")
        return Acc(acc_dtype(combiner, self.parts["body"].dtype, component), component)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
