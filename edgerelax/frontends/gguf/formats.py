"""The types of GGUF's tensors: which are kept in groups, and how their blocks are taken apart.

A block holds the codes of 32 or 256 neighbours in a row with their scales; here each kind of number
becomes a plane of its own, which kernels read in order. Codes of 3, 5 and 6 bits take 4 or 8. Types
without a row in `KEPT` or `PLAIN` become f32, by the gguf package.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from edgerelax.frontends.nn.grouped import Grouped, halves, packed
from edgerelax.frontends.nn.module import Array
from edgerelax.ir.diagnostics import UnsupportedError

Type = GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a matrix: bytes [rows, blocks, bytes of a block]."""

    shape: tuple[int, int]
    bytes: Array

    def plane(self, start: int, stop: int, dtype: type[np.generic]) -> Array:
        """Numbers that lie at the same bytes of each block: [rows, blocks · numbers]."""
        part = np.ascontiguousarray(self.bytes[:, :, start:stop])
        return part.view(dtype).reshape(self.shape[0], -1)

    def nibbles(self, start: int, stop: int, group: int) -> Array:
        """4-bit codes [rows, columns]: the lower halves of `group` bytes, then the upper ones."""
        part = self.bytes[:, :, start:stop].reshape(self.shape[0], -1, 1, group)
        return np.concatenate((part & 15, part >> 4), axis=2).reshape(self.shape)

    def fields(self, start: int, stop: int, bits: int) -> Array:
        """Codes of so many bits [rows, columns]: the lowest ones of 32 bytes, then the next ones.

        Where the bytes have fewer than 8 bits for each column, the rest of the columns follows
        in the next 32 bytes.
        """
        part = self.bytes[:, :, start:stop].reshape(self.shape[0], -1, 1, 32)
        shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
        return ((part >> shifts) & np.uint8((1 << bits) - 1)).reshape(self.shape)


def _q4_0(blocks: Blocks) -> Grouped:
    codes = halves(blocks.nibbles(2, 18, 16))
    return Grouped(blocks.shape, codes, (blocks.plane(0, 2, np.float16),), centre=8)


def _q4_1(blocks: Blocks) -> Grouped:
    scales, offsets = blocks.plane(0, 2, np.float16), blocks.plane(2, 4, np.float16)
    return Grouped(blocks.shape, halves(blocks.nibbles(4, 20, 16)), (scales,), (offsets,))


def _fifth_bits(blocks: Blocks, start: int) -> Array:
    words = blocks.plane(start, start + 4, np.uint32)[:, :, None]
    return ((words >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8).reshape(blocks.shape)


def _q5_0(blocks: Blocks) -> Grouped:
    codes = blocks.nibbles(6, 22, 16) | (_fifth_bits(blocks, 2) << 4)
    return Grouped(blocks.shape, codes, (blocks.plane(0, 2, np.float16),), centre=16)


def _q5_1(blocks: Blocks) -> Grouped:
    codes = blocks.nibbles(8, 24, 16) | (_fifth_bits(blocks, 4) << 4)
    scales, offsets = blocks.plane(0, 2, np.float16), blocks.plane(2, 4, np.float16)
    return Grouped(blocks.shape, codes, (scales,), (offsets,))


def _q8_0(blocks: Blocks) -> Grouped:
    codes = blocks.plane(2, 34, np.int8)
    return Grouped(blocks.shape, codes, (blocks.plane(0, 2, np.float16),))


def _scales_of_k(blocks: Blocks) -> tuple[Array, Array]:
    """Eight scales and eight least values of 6 bits in the 12 bytes from the fifth on."""
    part = blocks.bytes[:, :, 4:16]
    low, middle, high = part[..., 0:4], part[..., 4:8], part[..., 8:12]
    scales = np.concatenate((low & 63, (high & 15) | ((low >> 6) << 4)), axis=2)
    least = np.concatenate((middle & 63, (high >> 4) | ((middle >> 6) << 4)), axis=2)
    rows = blocks.shape[0]
    return scales.reshape(rows, -1), least.reshape(rows, -1)


def _q4_k(blocks: Blocks) -> Grouped:
    scales, least = _scales_of_k(blocks)
    offsets = (-blocks.plane(2, 4, np.float16), least)
    codes = halves(blocks.nibbles(16, 144, 32))
    return Grouped(blocks.shape, codes, (blocks.plane(0, 2, np.float16), scales), offsets)


def _q5_k(blocks: Blocks) -> Grouped:
    scales, least = _scales_of_k(blocks)
    offsets = (-blocks.plane(2, 4, np.float16), least)
    codes = blocks.nibbles(48, 176, 32) | (blocks.fields(16, 48, 1) << 4)
    return Grouped(blocks.shape, codes, (blocks.plane(0, 2, np.float16), scales), offsets)


def _q2_k(blocks: Blocks) -> Grouped:
    both = blocks.plane(0, 16, np.uint8)
    scales = (blocks.plane(80, 82, np.float16), both & 15)
    offsets = (-blocks.plane(82, 84, np.float16), both >> 4)
    return Grouped(blocks.shape, packed(blocks.fields(16, 80, 2), 2), scales, offsets)


def _q3_k(blocks: Blocks) -> Grouped:
    """Sixteen scales of 6 bits: the low four in 8 bytes, the high two in the 4 bytes after."""
    rows = blocks.shape[0]
    low = blocks.bytes[:, :, 96:104]
    low = np.concatenate((low & 15, low >> 4), axis=2)
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    high = ((blocks.bytes[:, :, None, 104:108] >> shifts) & 3).reshape(low.shape)
    scales = (low | (high << 4)).astype(np.int8) - np.int8(32)
    codes = blocks.fields(32, 96, 2) | (blocks.fields(0, 32, 1) << 2)
    planes = (blocks.plane(108, 110, np.float16), scales.reshape(rows, -1))
    return Grouped(blocks.shape, halves(codes), planes, centre=4)


def _q6_k(blocks: Blocks) -> Grouped:
    low = blocks.nibbles(0, 128, 64)
    codes = low | (blocks.fields(128, 192, 2) << 4)
    scales = (blocks.plane(208, 210, np.float16), blocks.plane(192, 208, np.int8))
    return Grouped(blocks.shape, codes, scales, centre=32)


IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""What the codes of IQ4 stand for (ggml's kvalues_iq4nl)."""
TWICE_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""What the codes of MXFP4 stand for, times 2 (OCP microscaling formats 1.0, 5.3.3)."""


def _iq4_nl(blocks: Blocks) -> Grouped:
    codes = halves(blocks.nibbles(2, 18, 16))
    return Grouped(blocks.shape, codes, (blocks.plane(0, 2, np.float16),), table=IQ4)


def _iq4_xs(blocks: Blocks) -> Grouped:
    """Eight scales of 6 bits: the high two in a word, the low four in the 4 bytes after."""
    rows = blocks.shape[0]
    high = blocks.plane(2, 4, np.uint16)[:, :, None] >> np.arange(0, 16, 2, dtype=np.uint16)
    low = blocks.bytes[:, :, 4:8, None] >> np.array([0, 4], np.uint8)
    scales = (low & 15).reshape(rows, -1) | ((high & 3).astype(np.uint8).reshape(rows, -1) << 4)
    planes = (blocks.plane(0, 2, np.float16), scales.astype(np.int8) - np.int8(32))
    return Grouped(blocks.shape, halves(blocks.nibbles(8, 136, 16)), planes, table=IQ4)


def _mxfp4(blocks: Blocks) -> Grouped:
    """Powers of two from 2⁻¹²⁸ to 2¹²⁷, half of what the exponents say: bf16 has them all."""
    exponents = blocks.plane(0, 1, np.uint8).astype(np.int32) - 128
    scales = np.ldexp(np.float32(1), exponents).astype(ml_dtypes.bfloat16)
    return Grouped(blocks.shape, halves(blocks.nibbles(1, 17, 16)), (scales,), table=TWICE_E2M1)


KEPT: dict[GGMLQuantizationType, Callable[[Blocks], Grouped]] = {
    Type.Q4_0: _q4_0,
    Type.Q4_1: _q4_1,
    Type.Q5_0: _q5_0,
    Type.Q5_1: _q5_1,
    Type.Q8_0: _q8_0,
    Type.Q2_K: _q2_k,
    Type.Q3_K: _q3_k,
    Type.Q4_K: _q4_k,
    Type.Q5_K: _q5_k,
    Type.Q6_K: _q6_k,
    Type.IQ4_NL: _iq4_nl,
    Type.IQ4_XS: _iq4_xs,
    Type.MXFP4: _mxfp4,
}
PLAIN: dict[GGMLQuantizationType, type[np.generic]] = {
    Type.F64: np.float64,
    Type.F32: np.float32,
    Type.F16: np.float16,
    Type.BF16: ml_dtypes.bfloat16,
}


def stored(data: Array, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> Array | Grouped:
    """A tensor's data as a parameter takes it. `data` are its bytes, `shape` in numpy's order.

    Raises UnsupportedError for a type whose numbers nobody can tell.
    """
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    if kind in PLAIN:
        return raw.view(PLAIN[kind]).reshape(shape).astype(np.float32)
    take = KEPT.get(kind)
    if take is None or len(shape) < 2:
        try:
            wide = dequantize(raw.reshape(*shape[:-1], -1), kind)
        except NotImplementedError as error:
            raise UnsupportedError(f"tensors of type {kind.name} are not known") from error
        return np.asarray(wide, np.float32).reshape(shape)
    _, block_bytes = GGML_QUANT_SIZES[kind]
    rows, columns = math.prod(shape[:-1]), shape[-1]
    grouped = take(Blocks((rows, columns), raw.reshape(rows, -1, block_bytes)))
    return grouped.reshape(*shape)
