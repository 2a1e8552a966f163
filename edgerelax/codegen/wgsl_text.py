"""Pieces of WGSL: expressions with their precedence, types, literals."""

import math
from dataclasses import dataclass

import numpy as np

from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import DType

# Precedences. WGSL demands brackets around most mixtures: shifts and bit operations take only unary
# operands.
PRIMARY, UNARY, MUL, ADD, RELATION, LOGIC = 6, 5, 4, 3, 2, 1


@dataclass(frozen=True, slots=True)
class Text:
    """An expression as text, and how tightly it binds."""

    text: str
    precedence: int = PRIMARY

    def at(self, precedence: int) -> str:
        """The text as an operand of an operator of that precedence."""
        return self.text if self.precedence >= precedence else f"({self.text})"

    @property
    def is_simple(self) -> bool:
        """A name or a literal: nothing that is worth a name."""
        return self.text.replace("_", "").replace(".", "").isalnum()


def call(function: str, *args: Text) -> Text:
    """A call of a function, or a constructor."""
    return Text(f"{function}({', '.join(a.text for a in args)})")


def infix(operator: str, precedence: int, a: Text, b: Text) -> Text:
    """Left-associative: the right operand must bind tighter."""
    left = precedence if precedence in (MUL, ADD) else precedence + 1
    return Text(f"{a.at(left)} {operator} {b.at(precedence + 1)}", precedence)


def negated(operator: str, a: Text) -> Text:
    """A prefix operator; two never meet, for `--` is a token."""
    inner = a.at(PRIMARY)
    return Text(f"{operator}({inner})" if inner.startswith(operator) else operator + inner, UNARY)


def base_type(dtype: DType) -> str:
    """The type in which values of a dtype are computed."""
    match dtype.kind:
        case "float" if dtype.bits < 64:
            return "f32"
        case "bool":
            return "bool"
        case "int" | "uint" if dtype.bits == 64:
            return "vec2<u32>"
        case "int":
            return "i32"
        case "uint":
            return "u32"
    raise UnsupportedError(
        f"a GPU has no {dtype}", hint="placement puts what computes with it on the CPU"
    )


def element_type(dtype: DType) -> str:
    """The type in which single elements are stored."""
    return base_type(dtype) if dtype.bits >= 32 else "u32"


def value_type(dtype: DType, lanes: int) -> str:
    """The type of a value."""
    base = base_type(dtype)
    if lanes == 1:
        return base
    if dtype.bits == 64:
        raise UnsupportedError(f"{lanes} lanes of {dtype} in a GPU kernel", hint="use scalars")
    return f"vec{lanes}<{base}>"


def suffix(lanes: int) -> str:
    """Of the form of a prelude function for that many lanes."""
    return "" if lanes == 1 else f"_v{lanes}"


def splat(text: Text, dtype: DType, lanes: int) -> Text:
    """A scalar in every lane."""
    return text if lanes == 1 else call(value_type(dtype, lanes), text)


def literal(value: int | float | bool, dtype: DType, lanes: int) -> Text:
    """A constant; floats that no literal can say are made of bits at run time."""
    return splat(_scalar_literal(value, dtype), dtype, lanes)


def _scalar_literal(value: int | float | bool, dtype: DType) -> Text:
    match base_type(dtype):
        case "bool":
            return Text("true" if value else "false")
        case "f32":
            return _float_literal(float(value), dtype)
        case "u32":
            return Text(f"{int(value)}u")
        case "i32":
            return _int_literal(int(value))
    bits = int(value) & (1 << 64) - 1
    return Text(f"vec2<u32>({bits & 0xFFFFFFFF}u, {bits >> 32}u)")


def _int_literal(value: int) -> Text:
    if value == -(1 << 31):
        return Text("i32(-2147483648)")
    return Text(str(value), PRIMARY if value >= 0 else UNARY)


def _float_literal(value: float, dtype: DType) -> Text:
    with np.errstate(all="ignore"):
        held = np.float32(np.asarray(value).astype(dtype.numpy))
    if not math.isfinite(held):
        return Text(f"er_from_bits({hex(int(held.view(np.uint32)))}u)")
    # The shortest text that gives the float back may lie beyond the largest one.
    text = str(held) if abs(held) < 1e38 else format(float(held), ".17g")
    if not any(c in text for c in ".e"):
        text += ".0"
    return Text(f"{text}f", UNARY if math.copysign(1.0, held) < 0 else PRIMARY)
