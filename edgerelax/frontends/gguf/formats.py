"""The types of GGUF's tensors: which are kept in groups, and how their blocks are taken apart.

A block holds the codes of 32 or 256 neighbours in a row with their scales; here each kind of number
becomes a plane of its own, which kernels read in order. Types without a row in `KEPT` become f32,
by the gguf package.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from edgerelax.frontends.nn.grouped import Grouped, halves
from edgerelax.frontends.nn.module import Array

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


def _q6_k(blocks: Blocks) -> Grouped:
    rows = blocks.shape[0]
    low = blocks.nibbles(0, 128, 64)
    high = blocks.bytes[:, :, 128:192].reshape(rows, -1, 1, 32)
    high = (high >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)) & 3
    codes = low | (high.reshape(blocks.shape) << 4)
    scales = (blocks.plane(208, 210, np.float16), blocks.plane(192, 208, np.int8))
    return Grouped(blocks.shape, codes, scales, centre=32)


KEPT: dict[GGMLQuantizationType, Callable[[Blocks], Grouped]] = {
    Type.Q4_0: _q4_0,
    Type.Q4_1: _q4_1,
    Type.Q5_0: _q5_0,
    Type.Q5_1: _q5_1,
    Type.Q8_0: _q8_0,
    Type.Q4_K: _q4_k,
    Type.Q6_K: _q6_k,
}
PLAIN: dict[GGMLQuantizationType, type[np.generic]] = {
    Type.F32: np.float32,
    Type.F16: np.float16,
    Type.BF16: ml_dtypes.bfloat16,
}


def stored(data: Array, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> Array | Grouped:
    """A tensor's data as a parameter takes it. `data` are its bytes, `shape` in numpy's order."""
    raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    if kind in PLAIN:
        return raw.view(PLAIN[kind]).reshape(shape).astype(np.float32)
    take = KEPT.get(kind)
    _, block_bytes = GGML_QUANT_SIZES[kind]
    if take is None or len(shape) != 2:
        wide = dequantize(raw.reshape(*shape[:-1], -1), kind)
        return np.asarray(wide, np.float32).reshape(shape)
    rows, columns = shape
    return take(Blocks((rows, columns), raw.reshape(rows, -1, block_bytes)))
