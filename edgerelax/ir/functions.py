"""The scalar functions: one row each, with the numpy meaning that every host reproduces.

A printer spells a function or expands it; nothing else may know what a function computes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Function:
    """`meaning` works on arrays of one dtype; predicates give bool."""

    name: str
    arity: int
    meaning: Callable[..., Array]


def _div(a: Array, b: Array) -> Array:
    """Floats as IEEE; integers truncate, x / 0 is 0 and the quotient that overflows wraps."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.divide(a, b)
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    quotient = np.floor_divide(a, safe)
    inexact = np.multiply(quotient, safe) != a
    quotient = quotient + ((inexact & ((a < 0) != (safe < 0))).astype(a.dtype))
    return np.asarray(np.where(zero, a.dtype.type(0), quotient), a.dtype)


def _mod(a: Array, b: Array) -> Array:
    """The remainder with the divisor's sign; integers give 0 for a divisor 0."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.mod(a, b)
    zero = b == 0
    rest = np.mod(a, np.where(zero, b.dtype.type(1), b))
    return np.where(zero, a.dtype.type(0), rest).astype(a.dtype)


def _fmod(a: Array, b: Array) -> Array:
    """The remainder with the dividend's sign; integers give 0 for a divisor 0."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.fmod(a, b)
    zero = b == 0
    rest = np.fmod(a, np.where(zero, b.dtype.type(1), b))
    return np.where(zero, a.dtype.type(0), rest).astype(a.dtype)


def _shl(a: Array, b: Array) -> Array:
    wide = b >= a.dtype.itemsize * 8
    return np.where(wide, a.dtype.type(0), np.left_shift(a, np.where(wide, b.dtype.type(0), b)))


def _shr(a: Array, b: Array) -> Array:
    wide = b >= a.dtype.itemsize * 8
    return np.where(wide, a.dtype.type(0), np.right_shift(a, np.where(wide, b.dtype.type(0), b)))


def _pow(a: Array, b: Array) -> Array:
    """Floats as IEEE pow; integers wrap, a negative exponent gives 0 but for bases 1 and -1."""
    if not np.issubdtype(a.dtype, np.integer):
        return np.power(a, b)
    negative = b < 0
    power = np.power(a, np.where(negative, b.dtype.type(0), b))
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(negative, inverse.astype(a.dtype), power)


def _dot_pairs(a: Array, b: Array) -> Array:
    """Products of the low and of the high halves, as i16, added up in i32, which wraps."""
    low = np.multiply((a << 16) >> 16, (b << 16) >> 16)
    return np.asarray(np.add(low, np.multiply(a >> 16, b >> 16)))


def _widen_pairs(a: Array) -> Array:
    """The two low bytes, as i8, made two i16."""
    return np.asarray((((a << 24) >> 24) & 0xFFFF) | (((a << 16) >> 24) << 16))


def _dot_quads(a: Array, b: Array) -> Array:
    """Products of the four bytes, as i8, added up."""
    total = np.multiply(a >> 24, b >> 24)
    for bits in (24, 16, 8):
        total = np.add(total, np.multiply((a << bits) >> 24, (b << bits) >> 24))
    return np.asarray(total)


_ERF = np.frompyfunc(math.erf, 1, 1)


def _erf(a: Array) -> Array:
    return np.asarray(_ERF(a.astype(np.float64))).astype(a.dtype)


def _sign(a: Array) -> Array:
    return np.sign(a)


FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        Function("add", 2, np.add),
        Function("sub", 2, np.subtract),
        Function("mul", 2, np.multiply),
        Function("div", 2, _div),
        Function("mod", 2, _mod),
        Function("fmod", 2, _fmod),
        Function("pow", 2, _pow),
        Function("min", 2, np.minimum),  # NaN if either is NaN
        Function("max", 2, np.maximum),  # NaN if either is NaN
        Function("neg", 1, np.negative),
        Function("abs", 1, np.abs),
        Function("sign", 1, _sign),
        Function("floor", 1, np.floor),
        Function("ceil", 1, np.ceil),
        Function("round", 1, np.rint),  # half to even
        Function("trunc", 1, np.trunc),
        Function("sqrt", 1, np.sqrt),
        Function("exp", 1, np.exp),
        Function("log", 1, np.log),
        Function("log1p", 1, np.log1p),
        Function("expm1", 1, np.expm1),
        Function("sin", 1, np.sin),
        Function("cos", 1, np.cos),
        Function("tan", 1, np.tan),
        Function("asin", 1, np.arcsin),
        Function("acos", 1, np.arccos),
        Function("atan", 1, np.arctan),
        Function("sinh", 1, np.sinh),
        Function("cosh", 1, np.cosh),
        Function("tanh", 1, np.tanh),
        Function("asinh", 1, np.arcsinh),
        Function("acosh", 1, np.arccosh),
        Function("atanh", 1, np.arctanh),
        Function("erf", 1, _erf),
        Function("sigmoid", 1, lambda a: (1 / (1 + np.exp(-a))).astype(a.dtype)),
        Function("eq", 2, np.equal),
        Function("ne", 2, np.not_equal),
        Function("lt", 2, np.less),
        Function("le", 2, np.less_equal),
        Function("gt", 2, np.greater),
        Function("ge", 2, np.greater_equal),
        Function("and", 2, np.logical_and),
        Function("or", 2, np.logical_or),
        Function("xor", 2, np.logical_xor),
        Function("not", 1, np.logical_not),
        Function("isnan", 1, np.isnan),
        Function("isinf", 1, np.isinf),
        Function("bit_and", 2, np.bitwise_and),
        Function("bit_or", 2, np.bitwise_or),
        Function("bit_xor", 2, np.bitwise_xor),
        Function("bit_not", 1, np.bitwise_not),
        Function("shl", 2, _shl),
        Function("shr", 2, _shr),
        Function("dot_pairs", 2, _dot_pairs),  # i32s that each hold two i16
        Function("dot_quads", 2, _dot_quads),  # i32s that each hold four i8
        Function("widen_pairs", 1, _widen_pairs),  # an i32 whose low half holds two i8
    )
}
