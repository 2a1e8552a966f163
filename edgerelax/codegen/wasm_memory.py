"""Loads and stores of CPU kernels: elements lie as in numpy, the shortest in a byte.

Constant parts of an index become the offset of the instruction. What remains of the address must
not be negative, which holds for offsets below 1 KiB because no tensor lies below that address.
"""

from dataclasses import dataclass

from edgerelax.codegen.wasm_text import scalar_type, value_type
from edgerelax.ir.dtypes import I32, DType
from edgerelax.ir.kernel import KConst, KExpr, KOp

_MAX_OFFSET = 1024
_ZERO = "(v128.const i32x4 0 0 0 0)"


@dataclass(frozen=True, slots=True)
class Address:
    """The code of an address, and a constant to add to it."""

    code: str
    offset: int = 0

    def operands(self, lane: str = "") -> str:
        """What follows the name of the instruction, with its lane if it has one."""
        offset = f"offset={self.offset} " if self.offset else ""
        return f"{offset}{lane}{self.code}"


def split_offset(index: KExpr, size: int) -> tuple[KExpr, int]:
    """An index as a rest and a constant number of bytes."""
    if isinstance(index, KConst) and int(index.value) >= 0:
        return KConst(I32, 1, 0), int(index.value) * size
    if isinstance(index, KOp) and index.fn == "add":
        rest, constant = index.args
        if isinstance(constant, KConst) and 0 <= int(constant.value) * size < _MAX_OFFSET:
            return rest, int(constant.value) * size
    return index, 0


def load(address: Address, dtype: DType, lanes: int) -> str:
    """The value at an address."""
    if lanes == 4:
        return _load_vector(address, dtype)
    kind = scalar_type(dtype)
    if dtype.bits >= 32:
        return f"({kind}.load {address.operands()})"
    width = 16 if dtype.bits == 16 else 8
    sign = "s" if dtype.kind == "int" else "u"
    bits = f"(i32.load{width}_{sign} {address.operands()})"
    if dtype.is_float:
        return f"(f32x4.extract_lane 0 {_decode(f'(i32x4.splat {bits})', dtype)})"
    return _sign_extend(bits, "i32", dtype.bits) if _is_short(dtype) else bits


def _load_vector(address: Address, dtype: DType) -> str:
    value_type(dtype, 4)
    if dtype.bits == 32:
        return f"(v128.load {address.operands()})"
    sign = "s" if dtype.kind == "int" else "u"
    if dtype.bits == 16:
        halves = f"(v128.load64_zero {address.operands()})"
    else:
        halves = f"(i16x8.extend_low_i8x16_{sign} (v128.load32_zero {address.operands()}))"
    bits = f"(i32x4.extend_low_i16x8_{sign} {halves})"
    if dtype.is_float:
        return _decode(bits, dtype)
    if dtype.kind == "bool":
        return f"(i32x4.neg {bits})"
    return _sign_extend(bits, "i32x4", dtype.bits) if _is_short(dtype) else bits


def _is_short(dtype: DType) -> bool:
    """Whether it is a signed type of less than a byte: numpy keeps the byte's other bits zero."""
    return dtype.kind == "int" and dtype.bits < 8


def _sign_extend(code: str, prefix: str, bits: int) -> str:
    by = f"(i32.const {32 - bits})"
    return f"({prefix}.shr_s ({prefix}.shl {code} {by}) {by})"


def _decode(bits: str, dtype: DType) -> str:
    return f"(call $er_decode_{dtype.name}_v4 {bits})"


def store(address: Address, value: str, dtype: DType, lanes: int) -> str:
    """The instruction that stores a value."""
    if lanes == 4:
        return _store_vector(address, value, dtype)
    if dtype.bits >= 32:
        return f"({scalar_type(dtype)}.store {address.operands()} {value})"
    width = 16 if dtype.bits == 16 else 8
    if dtype.is_float:
        value = f"(i32x4.extract_lane 0 {_encode(f'(f32x4.splat {value})', dtype)})"
    elif _is_short(dtype):
        value = f"(i32.and {value} (i32.const {(1 << dtype.bits) - 1}))"
    return f"(i32.store{width} {address.operands()} {value})"


def _store_vector(address: Address, value: str, dtype: DType) -> str:
    value_type(dtype, 4)
    if dtype.bits == 32:
        return f"(v128.store {address.operands()} {value})"
    if dtype.is_float:
        value = _encode(value, dtype)
    elif dtype.kind == "bool":
        value = f"(i32x4.neg {value})"
    elif _is_short(dtype):
        value = f"(v128.and {value} (i32x4.splat (i32.const {(1 << dtype.bits) - 1})))"
    sign = "s" if dtype.kind == "int" else "u"
    halves = f"(i16x8.narrow_i32x4_{sign} {value} {_ZERO})"
    if dtype.bits == 16:
        return f"(v128.store64_lane {address.operands('0 ')} {halves})"
    quarters = f"(i8x16.narrow_i16x8_{sign} {halves} {_ZERO})"
    return f"(v128.store32_lane {address.operands('0 ')} {quarters})"


def _encode(value: str, dtype: DType) -> str:
    return f"(call $er_encode_{dtype.name}_v4 {value})"
