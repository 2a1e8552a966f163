"""Operators that make tensors from what the host knows: full, integers, range, eye.

Dims and values are attributes; only a float range takes operands.
"""

from collections.abc import Sequence

import numpy as np

from edgerelax.ir.assumptions import nonzero
from edgerelax.ir.dtypes import F32, I32, I64, DType
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample
from edgerelax.ir.scalar import Scalar, Value, cast, compare, constant, select
from edgerelax.ir.types import Annotation, IntTensor, Tensor
from edgerelax.ops.maps import (
    MAX_INTS,
    Dims,
    dtype_attr,
    even_steps,
    exprs,
    fail,
    inputs_of,
    map_func,
    product,
    range_count,
    tensor_of,
)
from edgerelax.sym import Expr, as_expr

# full


def _infer_full(site: CallSite) -> Annotation:
    dims, dtype = exprs(site.attrs["dims"]), dtype_attr(site)
    count = product(dims).as_int()
    whole = dtype.is_integer or dtype.kind == "bool"
    if whole and len(dims) <= 1 and count is not None and count <= MAX_INTS:
        return IntTensor((as_expr(int(site.attrs["value"])),) * count, len(dims), dtype)
    return Tensor(dims, dtype)


def _lower_full(site: CallSite) -> LoopFunc:
    return map_func(site, lambda at: constant(site.attrs["value"], dtype_attr(site)))


def _reference_full(dims: Sequence[int], value: float, dtype: DType) -> Array:
    return np.full(tuple(dims), value, dtype.numpy)


# integers


def _infer_integers(site: CallSite) -> Annotation:
    return IntTensor(exprs(site.attrs["values"]), site.attrs["rank"], dtype_attr(site))


def _lower_integers(site: CallSite) -> LoopFunc:
    values, dtype = exprs(site.attrs["values"]), dtype_attr(site)
    return map_func(site, lambda at: _pick(values, at[0] if at else as_expr(0), dtype))


def _pick(values: Dims, at: Expr, dtype: DType) -> Scalar:
    """The value at a position; one expression where they step evenly."""
    if not values:
        return constant(0, dtype)
    even = even_steps(values, at)
    if even is not None:
        return Value(even, dtype)
    half = len(values) // 2
    lower, upper = _pick(values[:half], at, dtype), _pick(values[half:], at - half, dtype)
    return select(compare("lt", at, half), lower, upper)


def _reference_integers(values: Sequence[int], rank: int, dtype: DType) -> Array:
    return np.array(values, dtype.numpy).reshape((-1,) if rank else ())


# range


def _range(site: CallSite) -> tuple[Expr, Expr, Expr]:
    """(start, count, delta)."""
    start, limit, delta = exprs((site.attrs["start"], site.attrs["limit"], site.attrs["delta"]))
    if not nonzero(delta, "delta must not be 0"):
        raise fail(site, "delta 0")
    return start, range_count(start, limit, delta), delta


def _infer_range(site: CallSite) -> Annotation:
    start, count, delta = _range(site)
    number = count.as_int()
    if number is not None and number <= MAX_INTS:
        return IntTensor(tuple(start + delta * k for k in range(number)), 1, dtype_attr(site))
    return Tensor((count,), dtype_attr(site))


def _lower_range(site: CallSite) -> LoopFunc:
    start, _, delta = _range(site)
    return map_func(site, lambda at: Value(start + at[0] * delta, dtype_attr(site)))


def _reference_range(start: int, limit: int, delta: int, dtype: DType) -> Array:
    return np.arange(start, limit, delta).astype(dtype.numpy)


def _infer_float_range(site: CallSite) -> Annotation:
    return Tensor((as_expr(site.attrs["count"]),), tensor_of(site, 0).dtype)


def _lower_float_range(site: CallSite) -> LoopFunc:
    start, delta = inputs_of(site)
    assert start is not None and delta is not None
    first, step = start[(0,) * start.rank], delta[(0,) * delta.rank]
    return map_func(site, lambda at: first + cast(Value(at[0]), start.dtype) * step)


def _reference_float_range(start: Array, delta: Array, count: int) -> Array:
    steps = np.arange(count).astype(start.dtype)
    return np.asarray(start.reshape(()) + steps * delta.reshape(()), start.dtype)


# eye


def _infer_eye(site: CallSite) -> Annotation:
    return Tensor(exprs((site.attrs["rows"], site.attrs["columns"])), dtype_attr(site))


def _lower_eye(site: CallSite) -> LoopFunc:
    one, zero = constant(1, dtype_attr(site)), constant(0, dtype_attr(site))
    k = site.attrs["k"]
    return map_func(site, lambda at: select(compare("eq", at[0] + k, at[1]), one, zero))


def _reference_eye(rows: int, columns: int, k: int, dtype: DType) -> Array:
    return np.asarray(np.eye(rows, columns, k, dtype.numpy))


OPERATORS = (
    Operator(
        "full",
        (),
        _infer_full,
        _reference_full,
        _lower_full,
        attrs={"dims": (), "value": 0, "dtype": F32},
        samples=(
            Sample((), {"dims": (2, 3), "value": 1.5}),
            Sample((), {"dims": (), "value": float("inf")}),
            Sample((), {"dims": (4,), "value": 7, "dtype": I64}),
            Sample((), {"dims": (0, 2)}),
        ),
    ),
    Operator(
        "integers",
        (),
        _infer_integers,
        _reference_integers,
        _lower_integers,
        attrs={"values": (), "rank": 1, "dtype": I64},
        samples=(
            Sample((), {"values": (3, 1, 4, 1, 5)}),
            Sample((), {"values": (2, 4, 6), "dtype": I32}),
            Sample((), {"values": (9,), "rank": 0}),
            Sample((), {"values": ()}),
        ),
    ),
    Operator(
        "range",
        (),
        _infer_range,
        _reference_range,
        _lower_range,
        attrs={"start": 0, "limit": 0, "delta": 1, "dtype": I64},
        samples=(
            Sample((), {"limit": 5}),
            Sample((), {"start": 10, "limit": -3, "delta": -4, "dtype": I32}),
            Sample((), {"start": 3, "limit": 1}),
            Sample((), {"limit": 1000, "delta": 3}),
        ),
    ),
    Operator(
        "float_range",
        ("start", "delta"),
        _infer_float_range,
        _reference_float_range,
        _lower_float_range,
        attrs={"count": 0},
        samples=(
            Sample((np.array(1.5, np.float32), np.array(-0.25, np.float32)), {"count": 6}),
            Sample((np.array(0.0), np.array(1.0)), {"count": 0}),
        ),
    ),
    Operator(
        "eye",
        (),
        _infer_eye,
        _reference_eye,
        _lower_eye,
        attrs={"rows": 0, "columns": 0, "k": 0, "dtype": F32},
        samples=(
            Sample((), {"rows": 3, "columns": 4}),
            Sample((), {"rows": 3, "columns": 3, "k": -1, "dtype": I64}),
            Sample((), {"rows": 2, "columns": 5, "k": 2}),
        ),
    ),
)
