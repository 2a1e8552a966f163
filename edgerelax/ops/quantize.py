"""Quantisation and back: one scale for all, one per index of an axis, or one per block along it.

Quantised is round(x / scale) + zero point, saturated; half goes to even. 8-bit floats have no zero
point.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import DTYPES, F32, I32, U8, DType, from_numpy
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, Load, Scalar, cast, constant, op, select
from edgerelax.ir.types import Annotation, Tensor, Tuple
from edgerelax.ops.cast import converted
from edgerelax.ops.cast import reference as cast_reference
from edgerelax.ops.lowering import broadcast_at
from edgerelax.ops.maps import (
    Dims,
    equal_dim,
    exprs,
    fail,
    inputs_of,
    loop_func,
    map_func,
    map_stage,
    normal_axis,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.rules import broadcast_dim
from edgerelax.sym import ceildiv, prove_eq

# Where the scale of an element is


def _check_scale(site: CallSite, k: int) -> None:
    """Operand k is a scalar, a vector along the axis, or has one element per block."""
    x, scale = tensor_of(site, 0), tensor_of(site, k)
    if x.dims is None or scale.dims is None or not scale.dims:
        return
    name, block = site.op.operands[k], site.attrs["block_size"]
    if block:
        along = normal_axis(site, site.attrs["axis"], len(x.dims))
        if len(scale.dims) != len(x.dims):
            raise fail(site, f"{name} has rank {scale.rank}, x has rank {x.rank}")
        for j, (a, b) in enumerate(zip(x.dims, scale.dims, strict=True)):
            equal_dim(site, ceildiv(a, block) if j == along else a, b, f"dim {j} of {name}")
        return
    if len(scale.dims) != 1:
        raise fail(site, f"{name} has rank {scale.rank}", "0, or 1, or x's with a block_size")
    if prove_eq(scale.dims[0], 1) is not True:
        along = normal_axis(site, site.attrs["axis"], len(x.dims))
        if broadcast_dim(scale.dims[0], x.dims[along]) is None:
            raise fail(site, f"{name} has {scale.dims[0]} elements, the axis {x.dims[along]}")


def _scale_of(site: CallSite, scale: Buffer, at: Dims, dims: Dims) -> Load:
    """The element of a scale or zero point that belongs to the element of x at `at`."""
    if scale.rank == 0:
        return scale[()]
    if scale.rank == 1 and prove_eq(scale.dims[0], 1) is True:
        return scale[0]
    along = normal_axis(site, site.attrs["axis"], len(dims))
    block = site.attrs["block_size"]
    if block:
        return scale[(*at[:along], at[along] // block, *at[along + 1 :])]
    return scale[broadcast_at(scale.dims[0], at[along], dims[along])]


def _spread(scale: Array, x: Array, axis: int, block_size: int) -> Array:
    """A scale or zero point in a shape that broadcasts to x."""
    if scale.size == 1 and not block_size:
        return scale.reshape(())
    if block_size:
        return np.repeat(scale, block_size, axis).take(range(x.shape[axis]), axis)
    return scale.reshape([-1 if k == axis % x.ndim else 1 for k in range(x.ndim)])


# quantize_linear


def _quantized_dtype(site: CallSite) -> DType:
    """The zero point's type, else the attribute, else u8."""
    zero = tensor_of(site, 2).dtype if len(site.args) > 2 else None
    dtype: DType | None = site.attrs["dtype"]
    if zero is not None and dtype is not None and zero != dtype:
        raise fail(site, f"a zero point of {zero} for a result of {dtype}")
    return zero or dtype or U8


def _infer_quantize(site: CallSite) -> Annotation:
    x = tensor_of(site, 0)
    for k in range(1, len(site.args)):
        _check_scale(site, k)
    return Tensor(x.dims, _quantized_dtype(site), x.rank)


def _lower_quantize(site: CallSite) -> LoopFunc:
    x, scale, zero = (*inputs_of(site), None)[:3]
    assert x is not None and scale is not None
    dtype, saturate = _quantized_dtype(site), bool(site.attrs["saturate"])

    def element(at: Dims) -> Scalar:
        own = cast(_scale_of(site, scale, at, x.dims), F32)
        offset = None if zero is None else _scale_of(site, zero, at, x.dims)
        return _quantized(cast(x[at], F32) / own, offset, dtype, saturate)

    return map_func(site, element)


def _quantized(scaled: Scalar, zero: Scalar | None, dtype: DType, saturate: bool = True) -> Scalar:
    if dtype.is_float:
        return converted(scaled, dtype, saturate)
    rounded = op("round", scaled)
    return cast(rounded if zero is None else rounded + cast(zero, F32), dtype)


def _quantize(
    x: Array,
    scale: Array,
    zero: Array | None = None,
    axis: int = 1,
    block_size: int = 0,
    dtype: DType | None = None,
    saturate: bool = True,
) -> Array:
    found = (dtype or U8) if zero is None else from_numpy(zero.dtype)
    with np.errstate(all="ignore"):
        scaled = x.astype(np.float32) / _spread(scale, x, axis, block_size).astype(np.float32)
        if not found.is_float:
            scaled = np.rint(scaled)
            if zero is not None:
                scaled = scaled + _spread(zero, x, axis, block_size).astype(np.float32)
    if found.is_integer:
        low, high = found.int_range
        return np.clip(np.nan_to_num(scaled), low, high).astype(found.numpy)
    return cast_reference(scaled, found, saturate)


# dequantize_linear


def _infer_dequantize(site: CallSite) -> Annotation:
    x, dtype = tensor_of(site, 0), site.attrs["dtype"] or tensor_of(site, 1).dtype
    for k in range(1, len(site.args)):
        _check_scale(site, k)
    zero = tensor_of(site, 2).dtype if len(site.args) > 2 else None
    if zero is not None and x.dtype is not None and zero != x.dtype:
        raise fail(site, f"a zero point of {zero} for elements of {x.dtype}")
    return Tensor(x.dims, dtype, x.rank)


def _lower_dequantize(site: CallSite) -> LoopFunc:
    x, scale, zero = (*inputs_of(site), None)[:3]
    assert x is not None and scale is not None
    out = outputs_of_site(site)[0]

    def element(at: Dims) -> Scalar:
        value: Scalar = x[at]
        if zero is not None and not x.dtype.is_float:
            value = cast(value, I32) - cast(_scale_of(site, zero, at, x.dims), I32)
        own = cast(_scale_of(site, scale, at, x.dims), F32)
        return cast(cast(value, F32) * own, out.dtype)

    return map_func(site, element)


def _dequantize(
    x: Array,
    scale: Array,
    zero: Array | None = None,
    axis: int = 1,
    block_size: int = 0,
    dtype: DType | None = None,
) -> Array:
    value = x.astype(np.float32)
    if zero is not None and not from_numpy(x.dtype).is_float:
        offset = _spread(zero, x, axis, block_size).astype(np.int32)
        value = (x.astype(np.int32) - offset).astype(np.float32)
    found = value * _spread(scale, x, axis, block_size).astype(np.float32)
    return found.astype(scale.dtype if dtype is None else dtype.numpy)


# dynamic_quantize_linear: f32 to u8, with the scale and zero point that the data ask for.


def _infer_dynamic(site: CallSite) -> Annotation:
    x = tensor_of(site, 0)
    if x.dtype not in (None, F32):
        raise fail(site, f"not defined for {x.dtype}", "it takes f32")
    return Tuple((Tensor(x.dims, U8, x.rank), Tensor((), F32), Tensor((), U8)))


def _lower_dynamic(site: CallSite) -> LoopFunc:
    x = inputs_of(site)[0]
    assert x is not None
    out, scale, zero = outputs_of_site(site)
    lowest, highest = Buffer("lowest", F32, ()), Buffer("highest", F32, ())
    steps = tuple(axis(f"r{k}", dim) for k, dim in enumerate(x.dims))
    body, start = x[exprs(steps)], constant(0, F32)
    span = highest[()] - lowest[()]
    step = select(op("eq", span, 0), constant(1, F32), span / 255)
    return loop_func(
        site,
        [
            Stage(lowest, (), body, steps, "min", init=start),
            Stage(highest, (), body, steps, "max", init=start),
            Stage(scale, grid(scale), step),
            Stage(zero, grid(zero), cast(op("round", -lowest[()] / scale[()]), U8)),
            map_stage(out, lambda at: _quantized(x[at] / scale[()], zero[()], U8)),
        ],
    )


def _quantize_dynamically(x: Array) -> tuple[Array, Array, Array]:
    lowest, highest = x.min(initial=np.float32(0)), x.max(initial=np.float32(0))
    span = np.float32(highest - lowest)
    scale = np.asarray(span / np.float32(255) if span else np.float32(1), np.float32)
    zero = np.asarray(np.clip(np.rint(-lowest / scale), 0, 255), np.uint8)
    return _quantize(x, scale, zero), scale, zero


# Samples


def _scales(*shape: int) -> Array:
    return np.abs(normal(*shape)) * 0.1 + 0.01


def _ints(dtype: str, *shape: int) -> Array:
    least, greatest = DTYPES[dtype].int_range
    numbers = np.random.default_rng(sum(shape)).integers(least, greatest, shape, endpoint=True)
    return numbers.astype(DTYPES[dtype].numpy)


def _quantize_samples() -> Sequence[Sample]:
    x, one = normal(2, 4, 6) * 3, np.array(0.05, np.float32)
    ties = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e6, -1e6], np.float32)
    return (
        Sample((x, one, _ints("u8"))),
        Sample((x, one, None), {"dtype": DTYPES["i8"]}),
        Sample((x, _scales(4), _ints("i8", 4))),
        Sample((x, _scales(6), _ints("i16", 6)), {"axis": -1}),
        Sample((x, _scales(2, 4, 2), _ints("u4", 2, 4, 2)), {"axis": 2, "block_size": 4}),
        Sample((ties, np.array(1, np.float32), np.array([3], np.uint8)), {"axis": 0}),
        Sample((normal(0, 3), _scales(3), _ints("u8", 3))),
        Sample((x * 1e3, one, None), {"dtype": DTYPES["f8e4m3fn"]}),
        Sample((x.astype(np.float16), one.astype(np.float16), _ints("u8"))),
    )


def _dequantize_samples() -> Sequence[Sample]:
    one: Array = np.array(0.05, np.float32)
    return (
        Sample((_ints("u8", 2, 4, 6), one, _ints("u8"))),
        Sample((_ints("i8", 2, 4, 6), _scales(4), None)),
        Sample((_ints("u8", 2, 4, 6), _scales(6), _ints("u8", 6)), {"axis": -1}),
        Sample((_ints("i4", 3, 8), _scales(3, 2), _ints("i4", 3, 2)), {"axis": 1, "block_size": 4}),
        Sample((_ints("u4", 3, 7), _scales(3, 2), None), {"axis": 1, "block_size": 4}),
        Sample((_ints("i32", 5), one.reshape(1), None), {"axis": 0}),
        Sample((_ints("u8", 0, 3), _scales(3), _ints("u8", 3))),
        Sample((normal(5).astype(DTYPES["f8e5m2"].numpy), one, None)),
        Sample((_ints("u8", 4, 2), _scales(2).astype(np.float16), None)),
    )


_ATTRS: dict[str, Any] = {"axis": 1, "block_size": 0, "dtype": None}

OPERATORS = (
    Operator(
        "quantize_linear",
        ("x", "scale", "zero"),
        _infer_quantize,
        _quantize,
        _lower_quantize,
        attrs={**_ATTRS, "saturate": True},
        optional=1,
        samples=tuple(_quantize_samples()),
    ),
    Operator(
        "dequantize_linear",
        ("x", "scale", "zero"),
        _infer_dequantize,
        _dequantize,
        _lower_dequantize,
        attrs=_ATTRS,
        optional=1,
        samples=tuple(_dequantize_samples()),
    ),
    Operator(
        "dynamic_quantize_linear",
        ("x",),
        _infer_dynamic,
        _quantize_dynamically,
        _lower_dynamic,
        samples=(
            Sample((normal(3, 5),)),
            Sample((np.abs(normal(7)) + 1,)),
            Sample((np.zeros((2, 2), np.float32),)),
            Sample((normal(0, 3),)),
        ),
    ),
)
