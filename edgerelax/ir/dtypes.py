"""Element types: all of ONNX's, by short names, with their numpy types and storage sizes."""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

Kind = Literal["float", "int", "uint", "bool", "string"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type of so many bits. In memory an element has `bytes`."""

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[Any]

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def bytes(self) -> int:
        """Bytes of one element; 1 for sub-byte types, as in numpy."""
        return max(1, self.bits // 8)

    @property
    def int_range(self) -> tuple[int, int]:
        """The least and the greatest value of an integer or bool type."""
        if self.kind == "bool":
            return 0, 1
        if self.kind == "uint":
            return 0, (1 << self.bits) - 1
        return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1

    def __str__(self) -> str:
        return self.name


def _row(name: str, kind: Kind, bits: int, numpy: Any) -> tuple[str, DType]:
    return name, DType(name, kind, bits, np.dtype(numpy))


# In the order of their numbers in program files.
DTYPES: dict[str, DType] = dict(
    (
        _row("f32", "float", 32, np.float32),
        _row("f64", "float", 64, np.float64),
        _row("f16", "float", 16, np.float16),
        _row("bf16", "float", 16, ml_dtypes.bfloat16),
        _row("f8e4m3fn", "float", 8, ml_dtypes.float8_e4m3fn),
        _row("f8e4m3fnuz", "float", 8, ml_dtypes.float8_e4m3fnuz),
        _row("f8e5m2", "float", 8, ml_dtypes.float8_e5m2),
        _row("f8e5m2fnuz", "float", 8, ml_dtypes.float8_e5m2fnuz),
        _row("i64", "int", 64, np.int64),
        _row("i32", "int", 32, np.int32),
        _row("i16", "int", 16, np.int16),
        _row("i8", "int", 8, np.int8),
        _row("i4", "int", 4, ml_dtypes.int4),
        _row("u64", "uint", 64, np.uint64),
        _row("u32", "uint", 32, np.uint32),
        _row("u16", "uint", 16, np.uint16),
        _row("u8", "uint", 8, np.uint8),
        _row("u4", "uint", 4, ml_dtypes.uint4),
        _row("bool", "bool", 8, np.bool_),
        _row("string", "string", 0, np.object_),
        _row("i2", "int", 2, ml_dtypes.int2),
        _row("u2", "uint", 2, ml_dtypes.uint2),
        _row("f4e2m1", "float", 4, ml_dtypes.float4_e2m1fn),
        _row("f8e8m0", "float", 8, ml_dtypes.float8_e8m0fnu),
    )
)

F32, F64, F16, BF16 = DTYPES["f32"], DTYPES["f64"], DTYPES["f16"], DTYPES["bf16"]
I64, I32, I16, I8 = DTYPES["i64"], DTYPES["i32"], DTYPES["i16"], DTYPES["i8"]
U64, U32, U16, U8 = DTYPES["u64"], DTYPES["u32"], DTYPES["u16"], DTYPES["u8"]
F8E8M0 = DTYPES["f8e8m0"]
BOOL, STRING = DTYPES["bool"], DTYPES["string"]

_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values()}


def to_powers(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Conversion to f8e8m0, which holds powers of two: rounded up, as ONNX does by default.

    Zero gives the least; negative numbers, NaN and what is more than the greatest give NaN.
    """
    x = values.astype(np.float32)
    bits = np.abs(x).view(np.uint32)
    codes = np.where(bits > 0x400000, (bits >> 23) + (bits & 0x7FFFFF != 0), 0)
    return np.where((x >= 0) & (codes < 255), codes, 255).astype(np.uint8).view(F8E8M0.numpy)


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """The element type of a numpy dtype. Raises TypeError for one that ONNX does not know."""
    found = _BY_NUMPY.get(np.dtype(dtype))
    if found is None:
        raise TypeError(f"no element type for numpy dtype {dtype}; known: {', '.join(DTYPES)}")
    return found
