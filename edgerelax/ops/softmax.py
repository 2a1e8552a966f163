"""softmax, log_softmax and hardmax along an axis: the largest, the sum, then a map over both.

A row that is -inf everywhere gives NaN, as in numpy and onnxruntime. 16-bit floats go through f32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import I64
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, Load, Scalar, Value, cast, constant, op, select
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.lowering import load_reduced, narrow_reference, reduce_stage, wide, without
from edgerelax.ops.maps import (
    Dims,
    inputs_of,
    loop_func,
    map_stage,
    normal_axis,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.rules import FLOATS, NUMERIC, Kinds, allowed

Finish = Callable[[Scalar, Load], Scalar]


def _operator(
    name: str, lower: Callable[[CallSite], LoopFunc], reference: Any, kinds: Kinds = FLOATS
) -> Operator:
    def infer(site: CallSite) -> Annotation:
        x = tensor_of(site, 0)
        if x.dtype is not None:
            allowed(site, x.dtype, kinds)
        if x.rank is not None:
            normal_axis(site, site.attrs["axis"], x.rank)
        return Tensor(x.dims, x.dtype, x.rank)

    reference = narrow_reference(reference)
    return Operator(name, ("x",), infer, reference, lower, attrs={"axis": -1}, samples=_SAMPLES)


def _lower_with(finish: Finish) -> Callable[[CallSite], LoopFunc]:
    """`finish` takes x - max and the sum of its exponentials."""

    def lower(site: CallSite) -> LoopFunc:
        x, out, along = _parts(site)
        dtype, dims = wide(x.dtype), without(x.dims, (along,))
        peak, total = Buffer("peak", dtype, dims), Buffer("total", dtype, dims)

        def centred(at: Dims) -> Scalar:
            return cast(x[at], dtype) - load_reduced(peak, at, (along,))

        def result(at: Dims) -> Scalar:
            return cast(finish(centred(at), load_reduced(total, at, (along,))), out.dtype)

        return loop_func(
            site,
            [
                reduce_stage(peak, x.dims, (along,), lambda at: cast(x[at], dtype), "max"),
                reduce_stage(total, x.dims, (along,), lambda at: op("exp", centred(at)), "sum"),
                map_stage(out, result),
            ],
        )

    return lower


def _parts(site: CallSite) -> tuple[Buffer, Buffer, int]:
    x = inputs_of(site)[0]
    assert x is not None
    return x, outputs_of_site(site)[0], normal_axis(site, site.attrs["axis"], x.rank)


def _lower_hardmax(site: CallSite) -> LoopFunc:
    x, out, along = _parts(site)
    place = Buffer("place", I64, without(x.dims, (along,)))

    def result(at: Dims) -> Scalar:
        hit = op("eq", Value(at[along]), load_reduced(place, at, (along,)))
        return select(hit, constant(1, out.dtype), constant(0, out.dtype))

    first = reduce_stage(place, x.dims, (along,), lambda at: x[at], "argmax")
    return loop_func(site, [first, map_stage(out, result)])


def _centred(x: Array, axis: int) -> Array:
    return np.asarray(x - np.max(x, axis, keepdims=True, initial=-np.inf))


def _softmax(x: Array, axis: int = -1) -> Array:
    with np.errstate(invalid="ignore"):
        powers = np.exp(_centred(x, axis))
        return np.asarray(powers / powers.sum(axis, keepdims=True))


def _log_softmax(x: Array, axis: int = -1) -> Array:
    with np.errstate(invalid="ignore"):
        centred = _centred(x, axis)
        return np.asarray(centred - np.log(np.exp(centred).sum(axis, keepdims=True)))


def _hardmax(x: Array, axis: int = -1) -> Array:
    found = np.zeros_like(x)
    if x.size:
        np.put_along_axis(found, np.expand_dims(np.argmax(x, axis), axis), 1, axis)
    return found


_SAMPLES = (
    Sample((normal(2, 3, 5),), {"axis": -1}),
    Sample((normal(2, 3, 5),), {"axis": 0}),
    Sample((normal(2, 3, 5) * 100,), {"axis": 1}),
    Sample((normal(0, 3),), {"axis": 1}),
    Sample((normal(3, 0),), {"axis": -1}),
    Sample((normal(4, 1),), {"axis": 1}),
    Sample((normal(3),), {"axis": 0}),
    Sample((normal(2, 33, dtype="float16"),), {"axis": -1}),
    Sample((np.array([[1, -np.inf, 2], [3, 3, 0]], np.float32),), {"axis": -1}),
)

OPERATORS = (
    _operator("softmax", _lower_with(lambda x, total: op("exp", x) / total), _softmax),
    _operator("log_softmax", _lower_with(lambda x, total: x - op("log", total)), _log_softmax),
    _operator("hardmax", _lower_hardmax, _hardmax, NUMERIC),
)
