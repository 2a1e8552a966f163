"""Conversion between element types.

Float to integer truncates and saturates, NaN gives 0; to integers of less than a byte it wraps, as
from 32 bits. Integer to integer wraps. Anything to bool is whether it is not 0. To a float of 8
bits or less, `saturate` says whether what is out of range becomes the largest finite value or what
the format has for overflow (infinity, NaN, or that value where there is neither).
"""

import ml_dtypes
import numpy as np

from edgerelax.ir.dtypes import (
    BF16,
    BOOL,
    DTYPES,
    F8E8M0,
    F16,
    F32,
    I8,
    I32,
    I64,
    U8,
    DType,
    to_powers,
)
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Scalar, cast, op
from edgerelax.ir.types import Annotation, IntTensor, Tensor
from edgerelax.ops import folding
from edgerelax.ops.elementwise import SPECIAL
from edgerelax.ops.lowering import lower_elementwise
from edgerelax.ops.maps import dtype_attr, tensor_of
from edgerelax.ops.rules import tracked
from edgerelax.sym import as_expr


def converted(x: Scalar, dtype: DType, saturate: bool = True) -> Scalar:
    """An element in another type."""
    if x.dtype == dtype:
        return x
    if dtype == BOOL:
        return op("ne", x, 0)
    if x.dtype.is_float and _is_short(dtype):
        return cast(cast(x, I32), dtype)
    if saturate and _is_tiny_float(dtype):
        largest = float(ml_dtypes.finfo(dtype.numpy).max)
        return cast(op("min", op("max", cast(x, F32), -largest), largest), dtype)
    return cast(x, dtype)


def _is_tiny_float(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits <= 8


def _is_short(dtype: DType) -> bool:
    return dtype.is_integer and dtype.bits < 8


def _infer(site: CallSite) -> Annotation:
    dtype, x = dtype_attr(site), site.args[0]
    if isinstance(x, IntTensor):
        values = x.values
        if dtype == BOOL:
            values = tuple(1 - folding.equal(v, as_expr(0)) for v in values)
        found = tracked(values, x.rank, dtype)
        if found is not None:
            return found
    source = tensor_of(site, 0)
    return Tensor(source.dims, dtype, source.rank)


def _lower(site: CallSite) -> LoopFunc:
    dtype, saturate = dtype_attr(site), bool(site.attrs["saturate"])
    return lower_elementwise(site, lambda x: converted(x, dtype, saturate))


def reference(x: Array, dtype: DType, saturate: bool = True) -> Array:
    """The meaning of a conversion, on arrays."""
    with np.errstate(all="ignore"):
        if dtype == BOOL:
            return np.asarray(x != 0)
        if dtype.is_integer and np.issubdtype(_as_standard(x).dtype, np.floating):
            whole = _float_to_integer(_as_standard(x), I32 if _is_short(dtype) else dtype)
            return whole.astype(dtype.numpy)
        if saturate and _is_tiny_float(dtype):
            largest = np.float32(ml_dtypes.finfo(dtype.numpy).max)
            x = np.clip(x.astype(np.float32), -largest, largest)
        return to_powers(x) if dtype == F8E8M0 else x.astype(dtype.numpy)


def _as_standard(x: Array) -> Array:
    """Types that numpy does not know as floats, as f32."""
    known = DTYPES.values()
    extension = any(d.is_float and d.numpy == x.dtype for d in known) and x.dtype.kind != "f"
    return x.astype(np.float32) if extension else x


def _float_to_integer(x: Array, dtype: DType) -> Array:
    least, greatest = dtype.int_range
    whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf))
    inside = (whole > least) & (whole < greatest)
    exact = np.where(inside, whole, 0)
    small = exact.astype(np.uint64 if dtype.kind == "uint" else np.int64).astype(dtype.numpy)
    ends = np.where(whole >= greatest, np.array(greatest, dtype.numpy), small)
    return np.asarray(np.where(whole <= least, np.array(least, dtype.numpy), ends))


_NARROW = (F16, BF16, I8, U8, BOOL, DTYPES["f8e4m3fn"], DTYPES["f8e5m2"])
_SHORT = tuple(DTYPES[d] for d in ("i4", "u4", "i2", "u2"))
_NEAR_ZERO = np.append(SPECIAL, np.linspace(-7, 7, 113)).astype(np.float32)

OPERATORS = (
    Operator(
        "cast",
        ("x",),
        _infer,
        reference,
        _lower,
        attrs={"dtype": F32, "saturate": True},
        samples=(
            *(Sample((SPECIAL * 7,), {"dtype": d}) for d in (*_NARROW, I32, I64)),
            *(Sample((np.arange(-9.5, 16),), {"dtype": d}) for d in _SHORT),
            *(Sample((_NEAR_ZERO,), {"dtype": DTYPES[d]}) for d in ("f4e2m1", "f8e8m0")),
            *(Sample((SPECIAL * 1e3,), {"dtype": d, "saturate": False}) for d in _NARROW[-2:]),
            *(Sample((np.arange(-300, 300, 37),), {"dtype": d}) for d in (*_NARROW[:5], F32, I32)),
            Sample((np.array([True, False]),), {"dtype": F32}),
            Sample((normal(0, 3),), {"dtype": I32}),
            Sample((normal(),), {"dtype": F16}),
            Sample((normal(3).astype(BF16.numpy),), {"dtype": F32}),
        ),
    ),
)
