"""Activation functions: elementwise rows of scalar functions, in forms that do not overflow."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import F64
from edgerelax.ir.functions import FUNCTIONS
from edgerelax.ir.op import Array, Operator, Sample, normal
from edgerelax.ir.scalar import Scalar, cast, constant, op, select
from edgerelax.ops.elementwise import SPECIAL, map_operator, unary_samples
from edgerelax.ops.lowering import narrow_reference, widened
from edgerelax.ops.rules import FLOATS, NUMERIC, Kinds

_erf = FUNCTIONS["erf"].meaning

SELU_ALPHA = 1.67326319217681884765625
SELU_GAMMA = 1.05070102214813232421875


def _activation(
    name: str,
    body: Callable[..., Scalar],
    reference: Callable[..., Array],
    attrs: dict[str, Any] | None = None,
    *others: dict[str, Any],
    kinds: Kinds = FLOATS,
) -> Operator:
    """A function of one operand; `attrs` are the defaults, `others` further settings to test."""
    settings = (attrs or {}, *others)

    def wide_body(x: Scalar, **own: Any) -> Scalar:
        return body(widened(x), **own)

    def silent(x: Array, **own: Any) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(reference(x, **own)).astype(x.dtype)

    samples = unary_samples(kinds, settings)
    return map_operator(
        name, ("x",), wide_body, narrow_reference(silent), samples, kinds=kinds, attrs=attrs
    )


def _zero(x: Scalar) -> Scalar:
    return constant(0, x.dtype)


def _relu(x: Scalar) -> Scalar:
    return op("max", x, 0)


def _positive(x: Scalar, then: Scalar, other: Scalar) -> Scalar:
    """`then` for x >= 0, `other` for x < 0 and NaN."""
    return select(op("ge", x, 0), then, other)


def _leaky_relu(x: Scalar, alpha: float) -> Scalar:
    return _positive(x, x, x * alpha)


def _elu(x: Scalar, alpha: float) -> Scalar:
    return _positive(x, x, op("expm1", x) * alpha)


def _selu(x: Scalar, alpha: float, gamma: float) -> Scalar:
    return _elu(x, alpha) * gamma


def _celu(x: Scalar, alpha: float) -> Scalar:
    return _positive(x, x, op("expm1", x / alpha) * alpha)


def _thresholded_relu(x: Scalar, alpha: float) -> Scalar:
    return select(op("gt", x, alpha), x, _zero(x))


def _unit(x: Scalar) -> Scalar:
    """Clipped to [0, 1]."""
    return op("min", op("max", x, 0), 1)


def _hard_sigmoid(x: Scalar, alpha: float, beta: float) -> Scalar:
    return _unit(x * alpha + beta)


def _softplus(x: Scalar) -> Scalar:
    """log(1 + e^x) as max(x, 0) + log1p(e^-|x|)."""
    return op("max", x, 0) + op("log1p", op("exp", -op("abs", x)))


def _gelu(x: Scalar, approximate: str) -> Scalar:
    if approximate == "tanh":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        return x * 0.5 * (op("tanh", inner) + 1)
    return x * 0.5 * (op("erf", x * math.sqrt(0.5)) + 1)


def _gelu_reference(x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        return np.asarray(
            0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
        )
    return np.asarray(0.5 * x * (1 + _erf(x * math.sqrt(0.5))))


def _swish(x: Scalar, alpha: float) -> Scalar:
    return x * op("sigmoid", x * alpha)


def _shrink(x: Scalar, lambd: float, bias: float) -> Scalar:
    if x.dtype.is_integer:  # the limits and the bias need not be integers
        x = cast(x, F64)
    low = select(op("lt", x, -lambd), x + bias, _zero(x))
    return select(op("gt", x, lambd), x - bias, low)


def _shrink_reference(x: Array, lambd: float, bias: float) -> Array:
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    return np.where(wide < -lambd, wide + bias, np.where(wide > lambd, wide - bias, 0))


def _prelu(x: Scalar, slope: Scalar) -> Scalar:
    return _positive(x, x, x * slope)


_PRELU = map_operator(
    "prelu",
    ("x", "slope"),
    _prelu,
    lambda x, slope: np.where(x >= 0, x, x * slope),
    (
        Sample((normal(2, 3, 4), normal(3, 1))),
        Sample((normal(2, 3, 4), normal(1))),
        Sample((normal(0, 3), normal(3))),
        Sample((SPECIAL, normal(1))),
        Sample((np.arange(-3, 3, dtype=np.int32), np.array([2], np.int32))),
    ),
    kinds=NUMERIC,
)


OPERATORS = (
    _activation("relu", _relu, lambda x: np.maximum(x, 0), kinds=("float", "int")),
    _activation(
        "leaky_relu", _leaky_relu, lambda x, alpha: np.where(x >= 0, x, x * alpha), {"alpha": 0.01}
    ),
    _activation(
        "elu", _elu, lambda x, alpha: np.where(x >= 0, x, np.expm1(x) * alpha), {"alpha": 1.0}
    ),
    _activation(
        "selu",
        _selu,
        lambda x, alpha, gamma: gamma * np.where(x >= 0, x, alpha * np.expm1(x)),
        {"alpha": SELU_ALPHA, "gamma": SELU_GAMMA},
    ),
    _activation(
        "celu",
        _celu,
        lambda x, alpha: np.where(x >= 0, x, alpha * np.expm1(x / alpha)),
        {"alpha": 1.0},
        {"alpha": 2.5},
    ),
    _PRELU,
    _activation(
        "thresholded_relu",
        _thresholded_relu,
        lambda x, alpha: np.where(x > alpha, x, 0),
        {"alpha": 1.0},
    ),
    _activation(
        "hard_sigmoid",
        _hard_sigmoid,
        lambda x, alpha, beta: np.clip(x * alpha + beta, 0, 1),
        {"alpha": 0.2, "beta": 0.5},
    ),
    _activation(
        "hard_swish",
        lambda x: x * _unit(x * (1 / 6) + 0.5),
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    ),
    _activation("softplus", _softplus, lambda x: np.logaddexp(0, x)),
    _activation("softsign", lambda x: x / (op("abs", x) + 1), lambda x: x / (1 + np.abs(x))),
    _activation(
        "gelu", _gelu, _gelu_reference, {"approximate": "none"}, {"approximate": "tanh"}
    ),
    _activation(
        "mish",
        lambda x: x * op("tanh", _softplus(x)),
        lambda x: x * np.tanh(np.logaddexp(0, x)),
    ),
    _activation(
        "swish",
        _swish,
        lambda x, alpha: x / (1 + np.exp(-alpha * x)),
        {"alpha": 1.0},
        {"alpha": 1.702},
    ),
    _activation(
        "shrink", _shrink, _shrink_reference, {"lambd": 0.5, "bias": 0.0},
        {"lambd": 1.0, "bias": 1.0}, kinds=NUMERIC,
    ),
)  # fmt: skip
