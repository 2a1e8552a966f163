"""What all levels of IR text share: sizes, annotations, attribute values, faults by line."""

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from edgerelax.ir.diagnostics import FormatError
from edgerelax.ir.dtypes import DTYPES, DType
from edgerelax.ir.types import Annotation, IntTensor, Object, Prim, Shape, Tensor, Tuple
from edgerelax.ir.types import Callable as Signature
from edgerelax.sym import Expr, Symbol, parse_ast


def fault(node: ast.AST, what: str, hint: str = "") -> FormatError:
    """An error at a place of the text, to raise."""
    text = ast.unparse(node).splitlines()[0] if isinstance(node, ast.expr | ast.stmt) else ""
    shown = f": {text}" if text else ""
    return FormatError(f"line {getattr(node, 'lineno', 0)}: {what}{shown}", hint=hint)


class TextReader:
    """Reads with the symbols declared so far."""

    def __init__(self) -> None:
        self.symbols: dict[str, Symbol] = {}

    def declare(self, name: str, node: ast.Call) -> None:
        """`name = dim('original name', lo=…, hi=…, multiple_of=…)`"""
        words = {k.arg: self.literal(k.value) for k in node.keywords}
        given = [self.literal(a) for a in node.args]
        known = {"lo", "hi", "multiple_of"}
        if len(given) > 1 or not all(isinstance(g, str) for g in given) or words.keys() - known:
            raise fault(node, "not a dim")
        if not all(isinstance(v, int) for v in words.values()):
            raise fault(node, "bounds of a dim are integers")
        try:
            self.symbols[name] = Symbol(given[0] if given else name, **words)  # type: ignore[arg-type]
        except ValueError as error:
            raise fault(node, str(error)) from error

    def expr(self, node: ast.expr, names: Mapping[str, Expr] | None = None) -> Expr:
        """A size; `names` are meant before symbols."""

        def resolve(name: str) -> Expr:
            if names is not None and name in names:
                return names[name]
            return self.symbols[name].expr

        try:
            return parse_ast(node, resolve)
        except KeyError as error:
            raise fault(node, f"no dim {error.args[0]}") from error
        except ValueError as error:
            raise fault(node, "not a size") from error

    def symbol(self, name: str | None, node: ast.AST) -> Symbol:
        """A declared symbol by its bare name."""
        if name is None or name not in self.symbols:
            raise fault(node, f"no dim {name}")
        return self.symbols[name]

    def annotation(self, node: ast.expr) -> Annotation:
        """What is known about a value."""
        match node:
            case ast.Name(id="object"):
                return Object()
            case ast.Name(id="shape"):
                return Shape()
            case ast.Name(id="prim"):
                return Prim()
            case ast.Subscript(value=ast.Name(id=word), slice=inner):
                return self._subscripted(node, word, elements(inner))
            case ast.Call(func=ast.Name(id="prim"), args=[value], keywords=[]):
                return Prim(self.expr(value))
            case ast.Call(func=ast.Name(id="ints"), args=[dtype, values], keywords=[]):
                if isinstance(values, ast.List):
                    known = tuple(self.expr(v) for v in values.elts)
                    return IntTensor(known, 1, self.dtype(dtype))
                return IntTensor((self.expr(values),), 0, self.dtype(dtype))
            case ast.Call(func=ast.Name(id=word), args=[], keywords=[ast.keyword(arg="rank")]):
                rank = self.literal(node.keywords[0].value)
                if rank is None or isinstance(rank, int):
                    return self._ranked(node, word, rank)
        raise fault(node, "not an annotation")

    def _subscripted(self, node: ast.expr, word: str, inner: Sequence[ast.expr]) -> Annotation:
        if word == "tuple":
            return Tuple(tuple(self.annotation(e) for e in inner))
        if word == "callable":
            if len(inner) == 2 and isinstance(inner[0], ast.List):
                params = tuple(self.annotation(e) for e in inner[0].elts)
                return Signature(params, self.annotation(inner[1]))
            raise fault(node, "not an annotation")
        dims = tuple(self.expr(e) for e in inner)
        if word == "shape":
            return Shape(dims)
        return Tensor(dims, self._tensor_dtype(node, word))

    def _ranked(self, node: ast.expr, word: str, rank: int | None) -> Annotation:
        if word == "shape":
            return Shape(None, rank)
        return Tensor(None, self._tensor_dtype(node, word), rank)

    def _tensor_dtype(self, node: ast.expr, word: str) -> DType | None:
        if word != "tensor" and word not in DTYPES:
            raise fault(node, f"no dtype {word}", f"dtypes are {', '.join(DTYPES)}")
        return DTYPES.get(word)

    def dtype(self, node: ast.expr) -> DType:
        """An element type by name."""
        if isinstance(node, ast.Name) and node.id in DTYPES:
            return DTYPES[node.id]
        raise fault(node, "not a dtype", f"dtypes are {', '.join(DTYPES)}")

    def literal(self, node: ast.expr) -> Any:
        """An attribute's value."""
        match node:
            case ast.Constant(value=None | bool() | int() | float() | str() as value):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
                return -value
            case ast.Name(id=name) if name in DTYPES:
                return DTYPES[name]
            case ast.Tuple(elts=elts) | ast.List(elts=elts):
                return tuple(self.literal(e) for e in elts)
            case ast.Dict(keys=keys, values=values):
                if None in keys:
                    raise fault(node, "not a dict of values")
                pairs = ((k, v) for k, v in zip(keys, values, strict=True) if k is not None)
                return {self.literal(k): self.literal(v) for k, v in pairs}
            case ast.Call(
                func=ast.Name(id="float"), args=[ast.Constant(value="inf" | "-inf" | "nan" as word)]
            ):
                return float(word)
            case ast.Call(func=ast.Name(id="array")):
                return self.array(node)
        return self.expr(node)

    def array(self, node: ast.Call) -> np.ndarray[Any, Any]:
        """`array(f32, [2, 1], [0.5, 1.0])`"""
        if len(node.args) != 3 or node.keywords:
            raise fault(node, "an array is array(dtype, [dims], [elements])")
        dtype, dims, items = self.dtype(node.args[0]), *map(self.literal, node.args[1:])
        try:
            return np.array(items, dtype.numpy).reshape(dims)
        except (ValueError, TypeError, OverflowError) as error:
            raise fault(node, f"not an array ({error})") from error


def elements(node: ast.expr) -> list[ast.expr]:
    """What stands in brackets: one thing, or several in a tuple."""
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def named_call(node: ast.expr) -> tuple[str, ast.Call]:
    """A call of a plain name."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id, node
    raise fault(node, "not a call")


def decorator(
    node: ast.FunctionDef, literal: Callable[[ast.expr], Any]
) -> tuple[str, dict[str, Any]]:
    """`@graph(primitive=True)`: the word and its keywords."""
    if len(node.decorator_list) == 1:
        match node.decorator_list[0]:
            case ast.Name(id=word):
                return word, {}
            case ast.Call(func=ast.Name(id=word), args=[], keywords=keywords):
                return word, {k.arg: literal(k.value) for k in keywords if k.arg is not None}
    raise fault(node, "a function is @graph or @loop")


def parameters(node: ast.FunctionDef) -> list[tuple[str, ast.expr]]:
    """The annotated parameters of a function; nothing else is allowed in its head."""
    a = node.args
    if a.posonlyargs or a.vararg or a.kwonlyargs or a.kwarg or a.defaults:
        raise fault(node, "a function has plain annotated parameters")
    found: list[tuple[str, ast.expr]] = []
    for arg in a.args:
        if arg.annotation is None:
            raise fault(node, f"parameter {arg.arg} has no annotation")
        found.append((arg.arg, arg.annotation))
    return found


def one(values: Sequence[ast.expr], node: ast.expr) -> ast.expr:
    """The only argument."""
    if len(values) != 1:
        raise fault(node, "one argument expected")
    return values[0]
