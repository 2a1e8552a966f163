"""What import can know of values: constants through chains of operators, integers through floats.

Annotations carry integers through integer arithmetic. Exporters also send sizes through floats
(Cast, Mul by a scale, Floor, Cast); while every number on the way is a fraction of known
integers, the result is known too.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from edgerelax.ir.concrete import concrete
from edgerelax.ir.graph import Call, Constant, Expression, MatchCast, Value, Var
from edgerelax.ir.op import Array
from edgerelax.ir.types import IntTensor, as_tensor, exprs_in
from edgerelax.sym import Expr, as_expr, ceildiv, prove_eq, proves_le

LIMIT = 1 << 16
"""Constants of more elements are left to the compiler's fold pass."""

MAX_TRACKED = 64
EXACT = 1 << 16
"""Greatest denominator of a fraction that is followed exactly."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """top / bottom, with bottom at least 1."""

    top: Expr
    bottom: int = 1


@dataclass(slots=True)
class Constants:
    """Looks back through the bindings made so far."""

    producers: dict[Value, Expression] = field(default_factory=dict)
    _arrays: dict[Value, Array | None] = field(default_factory=dict)

    def array(self, value: Value) -> Array | None:
        """The value, if it depends on constants only."""
        if isinstance(value, Constant):
            return value.data
        if value not in self._arrays:
            self._arrays[value] = self._compute(value)
        return self._arrays[value]

    def _compute(self, value: Value) -> Array | None:
        known = value.annotation
        if isinstance(known, IntTensor):
            numbers = [e.as_int() for e in known.values]
            if None in numbers:
                return None
            array = np.array(numbers, np.int64).astype(known.dtype.numpy)
            return array if known.rank else array.reshape(())
        match self.producers.get(value):
            case MatchCast(inner) | (Var() | Constant() as inner):
                return self.array(inner)
            case Call() as call if call.op.pure and call.args and _is_cheap(call, value):
                return self._called(call)
        return None

    def _called(self, call: Call) -> Array | None:
        arrays = [None if a is None else self.array(a) for a in call.args]
        if any(a is not None and b is None for a, b in zip(call.args, arrays, strict=True)):
            return None
        if any(e.as_int() is None for e in exprs_in(call.attrs)):
            return None
        with np.errstate(all="ignore"):
            result = call.op.reference(*arrays, **concrete(call.attrs, {}))
        return None if isinstance(result, tuple) else np.asarray(result)

    def integers(self, value: Value) -> tuple[Expr, ...] | None:
        """The elements of a rank 0 or 1 integer value, if they are known."""
        if isinstance(value.annotation, IntTensor):
            return value.annotation.values
        array = self.array(value)
        if array is None or array.ndim > 1 or array.dtype.kind not in "iub":
            return None
        return tuple(as_expr(int(v)) for v in array) if array.ndim else (as_expr(int(array)),)

    def whole(self, value: Value) -> tuple[Expr, ...] | None:
        """A float value of rank 0 or 1 truncated to integers, if they are known."""
        found = self.ratios(value)
        if found is None or any(not proves_le(0, r.top) for r in found):
            return None
        return tuple(r.top // r.bottom for r in found)

    def ratios(self, value: Value) -> tuple[Ratio, ...] | None:
        """The elements of a rank 0 or 1 value as exact fractions of known integers."""
        tensor = as_tensor(value.annotation)
        if tensor is None or tensor.rank is None or tensor.rank > 1:
            return None
        if isinstance(value.annotation, IntTensor):
            return tuple(Ratio(v) for v in value.annotation.values)
        if isinstance(value, Constant):
            return _exact(value.data)
        match self.producers.get(value):
            case MatchCast(inner) | (Var() | Constant() as inner):
                return self.ratios(inner)
            case Call() as call:
                return self._ratios_of_call(call)
        return None

    def _ratios_of_call(self, call: Call) -> tuple[Ratio, ...] | None:
        parts = [None if a is None else self.ratios(a) for a in call.args]
        known = [p for p in parts if p is not None]
        if not known or len(known) < len(parts):
            return None
        match call.op.name:
            case "concat":
                return tuple(r for p in known for r in p)
            case "reshape" | "identity":
                return known[0]
            case "cast" if call.attrs["dtype"].is_float and call.attrs["dtype"].bits >= 32:
                return known[0]
            case "floor":
                return tuple(Ratio(r.top // r.bottom) for r in known[0])
            case "ceil":
                return tuple(Ratio(ceildiv(r.top, r.bottom)) for r in known[0])
            case "round" if all(r.bottom == 1 for r in known[0]):
                return known[0]
            case "add" | "sub" | "mul" | "div" as name:
                return _elementwise(name, known[0], known[1])
        return None


def _is_cheap(call: Call, value: Value) -> bool:
    """Whether nothing large is computed: a view of something large is nothing new."""
    return call.op.name == "reshape" or _is_small(value)


def _is_small(value: Value) -> bool:
    tensor = as_tensor(value.annotation)
    if tensor is None or tensor.dims is None:
        return False
    sizes = [d.as_int() for d in tensor.dims]
    return all(s is not None for s in sizes) and math.prod(s or 0 for s in sizes) <= LIMIT


def _exact(data: Array) -> tuple[Ratio, ...] | None:
    """Constants that are fractions of small denominators, as those of powers of two are."""
    if data.ndim > 1 or data.size > MAX_TRACKED or data.dtype.kind not in "iuf":
        return None
    if not np.all(np.isfinite(data)):
        return None
    fractions = [Fraction(float(v)) for v in data.reshape(-1)]
    if any(f.denominator > EXACT for f in fractions):
        return None
    return tuple(Ratio(as_expr(f.numerator), f.denominator) for f in fractions)


def _elementwise(
    name: str, left: tuple[Ratio, ...], right: tuple[Ratio, ...]
) -> tuple[Ratio, ...] | None:
    length = max(len(left), len(right))
    if {len(left), len(right)} - {1, length}:
        return None
    pairs = zip(left * (length // len(left)), right * (length // len(right)), strict=True)
    found = [_combined(name, a, b) for a, b in pairs]
    exact = tuple(r for r in found if r is not None)
    return exact if len(exact) == len(found) else None


def _combined(name: str, a: Ratio, b: Ratio) -> Ratio | None:
    match name:
        case "mul":
            return _reduced(a.top * b.top, a.bottom * b.bottom)
        case "div":
            return _quotient(a, b)
        case "add":
            return _reduced(a.top * b.bottom + b.top * a.bottom, a.bottom * b.bottom)
    return _reduced(a.top * b.bottom - b.top * a.bottom, a.bottom * b.bottom)


def _quotient(a: Ratio, b: Ratio) -> Ratio | None:
    """a / b where b is a positive constant or divides a. Other divisors leave floats inexact."""
    number = b.top.as_int()
    if number is not None and number > 0 and number & (number - 1) == 0:
        return _reduced(a.top * b.bottom, a.bottom * number)
    if not proves_le(1, b.top):
        return None
    whole = (a.top * b.bottom) // b.top
    exact = prove_eq(whole * b.top, a.top * b.bottom)
    return _reduced(whole, a.bottom) if exact is True else None


def _reduced(top: Expr, bottom: int) -> Ratio | None:
    number = top.as_int()
    if number is not None:
        fraction = Fraction(number, bottom)
        top, bottom = as_expr(fraction.numerator), fraction.denominator
    elif bottom > 1 and prove_eq(top // bottom * bottom, top) is True:
        top, bottom = top // bottom, 1
    return Ratio(top, bottom) if bottom <= EXACT else None
