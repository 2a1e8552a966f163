"""Arithmetic and mathematical functions, element by element with numpy's broadcasting.

A row names the scalar function. 16-bit floats go through functions as f32; plain arithmetic stays.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import F64
from edgerelax.ir.functions import FUNCTIONS
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Scalar, cast, op
from edgerelax.ir.types import Annotation
from edgerelax.ops import folding
from edgerelax.ops.lowering import lower_elementwise, narrow_reference, widened
from edgerelax.ops.maps import tensor_of
from edgerelax.ops.rules import (
    FLOATS,
    INTEGERS,
    NUMERIC,
    Fold,
    Kinds,
    allowed,
    broadcast,
    elementwise,
    folded,
    operands,
)
from edgerelax.sym import Expr, maximum, minimum

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 100.0], np.float32)

COMMUTATIVE = frozenset(("add", "mul", "min", "max", "bit_and", "bit_or", "bit_xor"))


def map_operator(
    name: str,
    operand_names: tuple[str, ...],
    body: Callable[..., Scalar],
    reference: Callable[..., Array],
    samples: tuple[Sample, ...],
    *,
    kinds: Kinds = FLOATS,
    fold: Fold | None = None,
    attrs: dict[str, Any] | None = None,
) -> Operator:
    """An elementwise operator. `body` and `reference` take attributes by name."""

    def infer(site: CallSite) -> Annotation:
        return elementwise(site, kinds, fold)

    def lower(site: CallSite) -> LoopFunc:
        return lower_elementwise(site, lambda *elements: body(*elements, **site.attrs))

    return Operator(
        name, operand_names, infer, reference, lower, attrs=attrs or {}, samples=samples
    )


def _plain(fn: str) -> Callable[..., Scalar]:
    return lambda *elements: op(fn, *elements)


def _through_f32(fn: str) -> Callable[..., Scalar]:
    return lambda *elements: op(fn, *(widened(e) for e in elements))


def _binary(name: str, kinds: Kinds = NUMERIC, fold: Fold | None = None, fn: str = "") -> Operator:
    meaning = FUNCTIONS[fn or name].meaning
    made = map_operator(
        name,
        ("a", "b"),
        _plain(fn or name),
        meaning,
        _binary_samples(kinds),
        kinds=kinds,
        fold=fold,
    )
    return replace(made, commutative=(fn or name) in COMMUTATIVE)


def _binary_samples(kinds: Kinds) -> tuple[Sample, ...]:
    small = np.arange(-6, 6).reshape(3, 4)
    ints = tuple(
        Sample((small.astype(t), (small.T[:, :3] + 1).astype(t)[:1].T)) for t in ("int32", "int64")
    )
    unsigned = (Sample((np.arange(7, dtype=np.uint8), np.array([3], np.uint8))),)
    if "float" not in kinds:
        return (*(ints if "int" in kinds else ()), *unsigned)
    return (
        Sample((normal(2, 1, 5), normal(3, 1))),
        Sample((SPECIAL, SPECIAL[:, None])),
        Sample((normal(0, 3), normal(1))),
        Sample((normal(0, 3), normal(1, 3))),
        Sample((normal(), normal(1, 1, 1))),
        Sample((normal(7, dtype="float16"), normal(7, dtype="float16", seed=1))),
        *ints,
    )


def unary_samples(kinds: Kinds, attrs: tuple[dict[str, Any], ...] = ({},)) -> tuple[Sample, ...]:
    """One operand of each allowed kind and several shapes, under each setting of attributes."""
    wide = np.linspace(-9, 9, 13, dtype=np.float32)
    arrays: list[Array] = []
    if "float" in kinds:
        arrays += [normal(2, 3), SPECIAL, normal(0, 4), normal(), normal(5, 1, dtype="float16")]
        arrays += [wide, wide.astype(np.float64)]
    if "int" in kinds:
        arrays.append(np.arange(-5, 6, dtype=np.int32))
    if "uint" in kinds:
        arrays.append(np.arange(6, dtype=np.uint8))
    return tuple(Sample((a,), dict(own)) for a in arrays for own in attrs)


def _unary(name: str, kinds: Kinds = FLOATS, fold: Fold | None = None, fn: str = "") -> Operator:
    meaning = FUNCTIONS[fn or name].meaning
    body = _through_f32(fn or name)
    samples = unary_samples(kinds)
    return map_operator(
        name, ("x",), body, narrow_reference(meaning), samples, kinds=kinds, fold=fold
    )


def _unchanged(a: Expr) -> Expr:
    return a


_IDENTITY = map_operator(
    "identity",
    ("x",),
    lambda x: x,
    lambda x: x.copy(),
    (Sample((normal(2, 3),)), Sample((normal(0),)), Sample((np.array([True, False]),))),
    kinds=("float", "int", "uint", "bool", "string"),
    fold=_unchanged,
)


# pow: the exponent may have a dtype of its own; the result has the dtype of the first operand.


def _infer_pow(site: CallSite) -> Annotation:
    tensors = operands(site)
    for tensor in tensors:
        if tensor.dtype is not None:
            allowed(site, tensor.dtype, NUMERIC)
    dtype = tensors[0].dtype
    exponent = tensor_of(site, 1).dtype
    whole = broadcast(site, tensors, dtype)
    exact = exponent is not None and exponent.is_integer
    return (folded(site, folding.power, dtype) if exact else None) or whole


def _lower_pow(site: CallSite) -> LoopFunc:
    data = site.constants[1] if len(site.constants) > 1 else None
    exponent = data.reshape(-1)[0] if data is not None and data.size == 1 else None

    def body(a: Scalar, b: Scalar) -> Scalar:
        if exponent == 1:
            return a
        if exponent == 2:
            return a * a
        if exponent == 3:
            return a * a * a
        if a.dtype.is_integer and b.dtype.is_float:
            return cast(op("pow", cast(a, F64), cast(b, F64)), a.dtype)
        compute = widened(a).dtype
        return op("pow", cast(a, compute), cast(b, compute))

    return lower_elementwise(site, body)


def _reference_pow(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu" and b.dtype.kind not in "iu":
        return np.power(a.astype(np.float64), b.astype(np.float64)).astype(a.dtype)
    return np.asarray(FUNCTIONS["pow"].meaning(a, b.astype(a.dtype)))


_POW = Operator(
    "pow",
    ("a", "b"),
    _infer_pow,
    _reference_pow,
    _lower_pow,
    samples=(
        Sample((np.abs(normal(2, 1, 5)), normal(3, 1))),
        Sample((SPECIAL, np.array([[0.0], [2.0], [0.5], [-1.0], [3.0]], np.float32))),
        Sample((normal(4), np.array([2], np.int64))),
        Sample((np.arange(1, 5, dtype=np.int32), np.array([4.0, 5.0, 6.0, 0.5], np.float32))),
        Sample((np.arange(-3, 4), np.array(3))),
        Sample((normal(0, 2), np.array(3, np.float32))),
    ),
)


# clip: bounds are scalars, each may be absent. Where they cross, the upper one wins.


def _infer_clip(site: CallSite) -> Annotation:
    whole = elementwise(site, NUMERIC)
    bounds = [k for k in (1, 2) if k < len(site.args) and site.args[k] is not None]
    if bounds:
        return folded(site, _clip_fold(1 in bounds, 2 in bounds), tensor_of(site, 0).dtype) or whole
    return site.args[0] or whole


def _clip_fold(has_low: bool, has_high: bool) -> Fold:
    def fold(x: Expr, *limits: Expr) -> Expr:
        raised = maximum(x, limits[0]) if has_low else x
        return minimum(raised, limits[-1]) if has_high else raised

    return fold


def _lower_clip(site: CallSite) -> LoopFunc:
    given = [k for k, arg in enumerate(site.args) if arg is not None]

    def body(*elements: Scalar) -> Scalar:
        found = dict(zip(given, elements, strict=True))
        raised = op("max", found[0], found[1]) if 1 in found else found[0]
        return op("min", raised, found[2]) if 2 in found else raised

    return lower_elementwise(site, body)


def _reference_clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    raised = x if low is None else np.maximum(x, low)
    return np.asarray(raised if high is None else np.minimum(raised, high))


def _number(value: float, dtype: str = "float32") -> Array:
    return np.array(value, dtype)


_CLIP = Operator(
    "clip",
    ("x", "min", "max"),
    _infer_clip,
    _reference_clip,
    _lower_clip,
    optional=2,
    samples=(
        Sample((normal(3, 4), _number(-0.5), _number(0.5))),
        Sample((normal(3, 4), None, _number(0.5))),
        Sample((normal(3, 4), _number(-0.5), None)),
        Sample((normal(3, 4), _number(1.0), _number(-1.0))),
        Sample((normal(3, 4), None, None)),
        Sample((SPECIAL, _number(-1.0), _number(1.0))),
        Sample((normal(0), _number(-1.0), _number(1.0))),
        Sample((np.arange(-4, 4, dtype=np.int8), _number(-2, "int8"), _number(3, "int8"))),
    ),
)


OPERATORS = (
    _IDENTITY,
    _binary("add", fold=lambda a, b: a + b),
    _binary("sub", fold=lambda a, b: a - b),
    _binary("mul", fold=lambda a, b: a * b),
    _binary("div", fold=folding.quotient),
    _binary("mod", fold=folding.remainder),
    _binary("fmod", fold=folding.truncated_remainder),
    _binary("min", fold=minimum),
    _binary("max", fold=maximum),
    _POW,
    _binary("bitwise_and", INTEGERS, fn="bit_and"),
    _binary("bitwise_or", INTEGERS, fn="bit_or"),
    _binary("bitwise_xor", INTEGERS, fn="bit_xor"),
    _unary("bitwise_not", INTEGERS, fn="bit_not"),
    _binary("shift_left", ("uint",), fn="shl"),
    _binary("shift_right", ("uint",), fn="shr"),
    _unary("neg", ("float", "int"), fold=lambda a: -a),
    _unary("abs", NUMERIC, fold=folding.absolute),
    _unary("sign", NUMERIC, fold=folding.sign),
    _unary("floor"),
    _unary("ceil"),
    _unary("round"),
    _unary("sqrt"),
    _unary("exp"),
    _unary("log"),
    _unary("sin"),
    _unary("cos"),
    _unary("tan"),
    _unary("asin"),
    _unary("acos"),
    _unary("atan"),
    _unary("sinh"),
    _unary("cosh"),
    _unary("tanh"),
    _unary("asinh"),
    _unary("acosh"),
    _unary("atanh"),
    _unary("erf"),
    _unary("sigmoid"),
    map_operator(
        "reciprocal", ("x",), lambda x: 1.0 / x, lambda x: (1 / x).astype(x.dtype),
        unary_samples(FLOATS),
    ),
    _CLIP,
)  # fmt: skip
