"""Expressions as Python text, and back. Text is parsed by a whitelist, never evaluated."""

import ast
from collections.abc import Callable
from typing import Literal

from edgerelax.sym.choice import ceildiv, eq, ge, maximum, minimum, select
from edgerelax.sym.emit import emit
from edgerelax.sym.expr import Axis, Cond, Expr, Opaque, Symbol, as_expr

Text = tuple[str, int]  # text and precedence: 1 sum, 2 product, 3 anything that needs no brackets


class _Python:
    def const(self, value: int) -> Text:
        return str(value), 3 if value >= 0 else 1

    def atom(self, atom: Symbol | Axis | Opaque) -> Text:
        return str(atom), 3

    def add(self, a: Text, b: Text) -> Text:
        return f"{a[0]} + {_wrap(b, 2)}", 1

    def sub(self, a: Text, b: Text) -> Text:
        if a[0] == "0":
            return f"-{_wrap(b, 3)}", 1
        return f"{a[0]} - {_wrap(b, 2)}", 1

    def mul(self, a: Text, b: Text) -> Text:
        return f"{_wrap(a, 2)}*{_wrap(b, 3)}", 2

    def floordiv(self, a: Text, b: Text, nonneg: bool) -> Text:
        return f"{_wrap(a, 3)}//{_wrap(b, 3)}", 2

    def mod(self, a: Text, b: Text, nonneg: bool) -> Text:
        return f"{_wrap(a, 3)}%{_wrap(b, 3)}", 2

    def min(self, a: Text, b: Text) -> Text:
        return f"min({a[0]}, {b[0]})", 3

    def max(self, a: Text, b: Text) -> Text:
        return f"max({a[0]}, {b[0]})", 3

    def select(self, kind: Literal["ge", "eq"], test: Text, then: Text, other: Text) -> Text:
        sign = ">=" if kind == "ge" else "=="
        return f"select({test[0]} {sign} 0, {then[0]}, {other[0]})", 3


def _wrap(text: Text, at_least: int) -> str:
    return text[0] if text[1] >= at_least else f"({text[0]})"


def to_text(expr: Expr) -> str:
    """The expression in Python syntax."""
    return emit(expr, _Python())[0]


def parse(text: str, resolve: Callable[[str], Expr]) -> Expr:
    """Read an expression; `resolve` gives the meaning of a name (KeyError if there is none).

    Raises ValueError naming what is not allowed.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"not an integer expression: {text!r}") from error
    return parse_ast(tree, resolve)


def parse_ast(node: ast.expr, resolve: Callable[[str], Expr]) -> Expr:
    """The same for a syntax tree."""
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() as value):
            return as_expr(value)
        case ast.Name(id=name):
            return resolve(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -parse_ast(operand, resolve)
        case ast.BinOp(left=left, op=operator, right=right):
            return _binary(operator, parse_ast(left, resolve), parse_ast(right, resolve), node)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _call(name, args, resolve, node)
    raise ValueError(f"not allowed in an integer expression: {ast.unparse(node)}")


def _binary(operator: ast.operator, a: Expr, b: Expr, node: ast.expr) -> Expr:
    match operator:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.FloorDiv():
            return a // b
        case ast.Mod():
            return a % b
    raise ValueError(f"not allowed in an integer expression: {ast.unparse(node)}")


def _call(name: str, args: list[ast.expr], resolve: Callable[[str], Expr], node: ast.expr) -> Expr:
    if name == "select" and len(args) == 3:
        cond = _cond(args[0], resolve)
        return select(cond, parse_ast(args[1], resolve), parse_ast(args[2], resolve))
    values = [parse_ast(a, resolve) for a in args]
    if name == "min" and values:
        return minimum(*values)
    if name == "max" and values:
        return maximum(*values)
    if name == "ceildiv" and len(values) == 2:
        return ceildiv(values[0], values[1])
    raise ValueError(f"not allowed in an integer expression: {ast.unparse(node)}")


def _cond(node: ast.expr, resolve: Callable[[str], Expr]) -> Cond:
    match node:
        case ast.Compare(left=left, ops=[ast.GtE()], comparators=[right]):
            return ge(parse_ast(left, resolve), parse_ast(right, resolve))
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return eq(parse_ast(left, resolve), parse_ast(right, resolve))
    raise ValueError(f"not a condition: {ast.unparse(node)}")
