"""Tensors stored in a model or beside it, as arrays. Sizes are checked before memory is taken."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from edgerelax.frontends.onnx.external import Beside
from edgerelax.ir.diagnostics import FormatError, UnsupportedError
from edgerelax.ir.dtypes import DTYPES, DType
from edgerelax.ir.op import Array

ELEMENT_TYPES: dict[int, DType] = {
    TensorProto.FLOAT: DTYPES["f32"],
    TensorProto.DOUBLE: DTYPES["f64"],
    TensorProto.FLOAT16: DTYPES["f16"],
    TensorProto.BFLOAT16: DTYPES["bf16"],
    TensorProto.FLOAT8E4M3FN: DTYPES["f8e4m3fn"],
    TensorProto.FLOAT8E4M3FNUZ: DTYPES["f8e4m3fnuz"],
    TensorProto.FLOAT8E5M2: DTYPES["f8e5m2"],
    TensorProto.FLOAT8E5M2FNUZ: DTYPES["f8e5m2fnuz"],
    TensorProto.INT64: DTYPES["i64"],
    TensorProto.INT32: DTYPES["i32"],
    TensorProto.INT16: DTYPES["i16"],
    TensorProto.INT8: DTYPES["i8"],
    TensorProto.INT4: DTYPES["i4"],
    TensorProto.UINT64: DTYPES["u64"],
    TensorProto.UINT32: DTYPES["u32"],
    TensorProto.UINT16: DTYPES["u16"],
    TensorProto.UINT8: DTYPES["u8"],
    TensorProto.UINT4: DTYPES["u4"],
    TensorProto.BOOL: DTYPES["bool"],
    TensorProto.INT2: DTYPES["i2"],
    TensorProto.UINT2: DTYPES["u2"],
    TensorProto.FLOAT4E2M1: DTYPES["f4e2m1"],
    TensorProto.FLOAT8E8M0: DTYPES["f8e8m0"],
    TensorProto.STRING: DTYPES["string"],
}
ONNX_TYPES = {dtype.name: number for number, dtype in ELEMENT_TYPES.items()}

MAX_LITERAL_BYTES = 1 << 31
"""More than this in one tensor can only come from external data."""


def element_type(number: int, what: str) -> DType:
    """The dtype of an ONNX element type number."""
    if number not in ELEMENT_TYPES:
        known = number in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(number) if known else f"number {number}"
        error = UnsupportedError if known and number else FormatError
        raise error(
            f"{what}: element type {name}", hint=f"known are {', '.join(map(str, DTYPES.values()))}"
        )
    return ELEMENT_TYPES[number]


def array_of(proto: onnx.TensorProto, beside: Beside | None) -> Array:
    """A stored tensor. Large external ones are mapped, not read."""
    what = f"tensor {proto.name!r}"
    dtype = element_type(proto.data_type, what)
    shape = tuple(proto.dims)
    if any(d < 0 for d in shape):
        raise FormatError(f"{what}: negative dim in {list(shape)}")
    count = math.prod(shape)
    if proto.data_location == TensorProto.EXTERNAL:
        return _external(proto, dtype, shape, beside)
    if proto.HasField("raw_data"):
        return _unpacked(np.frombuffer(proto.raw_data, np.uint8), dtype, shape, what)
    return _from_fields(proto, dtype, count, what).reshape(shape)


def stored_bytes(dtype: DType, count: int) -> int:
    """Bytes of `count` elements in a file; those of 2 and 4 bits share bytes."""
    return (count * dtype.bits + 7) // 8


def _unpacked(data: Array, dtype: DType, shape: tuple[int, ...], what: str) -> Array:
    """Raw little-endian bytes as an array."""
    if dtype.kind == "string":
        raise FormatError(f"{what}: strings cannot be stored as raw data")
    count = math.prod(shape)
    need = stored_bytes(dtype, count)
    if data.size != need:
        raise FormatError(
            f"{what}: {dtype}{list(shape)} takes {need} bytes, the file has {data.size}"
        )
    if dtype.bits < 8:
        return _split(data, dtype, count).reshape(shape)
    return data.view(dtype.numpy.newbyteorder("<")).astype(dtype.numpy, copy=False).reshape(shape)


def _split(data: Array, dtype: DType, count: int) -> Array:
    """Elements of less than a byte, those in the low bits first."""
    shifts = np.arange(0, 8, dtype.bits, dtype=np.uint8)
    codes = data.reshape(-1, 1) >> shifts & (1 << dtype.bits) - 1
    return codes.astype(np.uint8).reshape(-1)[:count].view(dtype.numpy)


def _bits(carrier: type) -> Callable[[Any, DType], Array]:
    """A field that carries bit patterns in wider integers."""

    def convert(field: Any, dtype: DType) -> Array:
        return np.array(field, np.int64).astype(carrier).view(dtype.numpy)

    return convert


def _plain(field: Any, dtype: DType) -> Array:
    return np.array(field, dtype.numpy)


def _small(field: Any, dtype: DType) -> Array:
    return np.array(field, np.int64).astype(dtype.numpy)


def _text(field: Any, dtype: DType) -> Array:
    return np.array([s.decode("utf-8", "replace") for s in field], np.object_)


def _field_of(dtype: DType) -> tuple[str, Callable[[Any, DType], Array]]:
    """The typed field that holds this dtype, and how."""
    match dtype.name:
        case "f32":
            return "float_data", _plain
        case "f64":
            return "double_data", _plain
        case "i64":
            return "int64_data", _plain
        case "u32" | "u64":
            return "uint64_data", _plain
        case "string":
            return "string_data", _text
        case "f16" | "bf16":
            return "int32_data", _bits(np.uint16)
        case name if name.startswith(("f8", "f4")):
            return "int32_data", _bits(np.uint8)
    return "int32_data", _small


def _from_fields(proto: onnx.TensorProto, dtype: DType, count: int, what: str) -> Array:
    name, convert = _field_of(dtype)
    field = getattr(proto, name)
    if 0 < dtype.bits < 8 and len(field) == stored_bytes(dtype, count):
        return _split(np.array(field, np.int64).astype(np.uint8), dtype, count)
    if len(field) != count:
        raise FormatError(
            f"{what}: {dtype}{list(proto.dims)} has {count} elements, {name} holds {len(field)}"
        )
    return convert(field, dtype)


def _external(
    proto: onnx.TensorProto, dtype: DType, shape: tuple[int, ...], beside: Beside | None
) -> Array:
    what = f"tensor {proto.name!r}"
    entries = {e.key: e.value for e in proto.external_data}
    location = entries.get("location", "")
    if beside is None:
        raise FormatError(
            f"{what} is stored in an external file, {location!r}, but the model came as bytes",
            hint="give the model's path",
        )
    path = beside.find(location, what)
    size = path.stat().st_size
    need = stored_bytes(dtype, math.prod(shape))
    offset = _number(entries, "offset", 0, what)
    length = _number(entries, "length", need, what)
    if length != need:
        raise FormatError(
            f"{what}: {dtype}{list(shape)} takes {need} bytes, its entry says {length}"
        )
    if offset + length > size:
        raise FormatError(
            f"{what}: bytes {offset} to {offset + length} of {path.name}, which has only {size}",
            hint="the external data file is cut short",
        )
    if not need:
        return np.zeros(shape, dtype.numpy)
    data = np.asarray(np.memmap(path, np.uint8, "r", offset, (need,)))
    return _unpacked(data, dtype, shape, what)


def _number(entries: dict[str, str], key: str, default: int, what: str) -> int:
    text = entries.get(key, "")
    if text and not (text.isascii() and text.isdigit()):
        raise FormatError(f"{what}: external data {key} is {text!r}, not a number")
    return int(text) if text else default


def dense(proto: onnx.SparseTensorProto, beside: Beside | None) -> Array:
    """A sparse tensor with its zeros."""
    values, indices = array_of(proto.values, beside), array_of(proto.indices, beside)
    shape = tuple(proto.dims)
    what = f"sparse tensor {proto.values.name!r}"
    if any(d < 0 for d in shape) or math.prod(shape) * values.itemsize > MAX_LITERAL_BYTES:
        raise FormatError(f"{what}: dims {list(shape)}")
    flat = indices
    if indices.ndim == 2 and indices.shape == (values.size, len(shape)):
        flat = np.array([_flat(index, shape, what) for index in indices.tolist()], np.int64)
    if flat.shape != values.shape or np.any((flat < 0) | (flat >= math.prod(shape))):
        raise FormatError(
            f"{what}: indices {indices.shape} for {values.shape} values in {list(shape)}"
        )
    out = np.zeros(math.prod(shape), values.dtype)
    out[flat] = values
    return out.reshape(shape)


def _flat(index: list[int], shape: tuple[int, ...], what: str) -> int:
    position = 0
    for at, dim in zip(index, shape, strict=True):
        if not 0 <= at < dim:
            raise FormatError(f"{what}: index {index} outside {list(shape)}")
        position = position * dim + at
    return position
