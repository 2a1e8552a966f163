"""Importers of operators on weights in few bits with scales by blocks, kept as they are stored."""

import ml_dtypes
import numpy as np

from edgerelax.frontends.nn.grouped import Grouped
from edgerelax.frontends.onnx.attention import MICROSOFT
from edgerelax.frontends.onnx.nn import matmul
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.normalisation import over_trailing
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value
from edgerelax.ir.op import Array


@importer("MatMulNBits", domain=MICROSOFT)
def _matmul_n_bits(node: Node) -> Result:
    """Weights as a constant of 4 or 8 bits, dequantised by blocks along their last dim."""
    bits, block = node.attr("bits", 4), node.attr("block_size")
    rows, columns = node.attr("N"), node.attr("K")
    packed = node.constant(node.value(1))
    if bits not in (4, 8) or packed is None or node.input(4) is not None:
        raise node.unsupported(f"{bits} bits, weights that are not constant, or g_idx")
    a, bias = node.value(0), node.input(5)
    kept = _kept(node, packed, bits, (rows, columns), block)
    weights = (
        _dequantised(node, packed, bits, (rows, columns), block)
        if kept is None
        else kept.emit(node.walk.builder, f"{node.proto.output[0]}_weight")
    )
    result = matmul(node, a, node.cast(weights, node.dtype(a)), transpose_b=True)
    return result if bias is None else node.emit("add", result, over_trailing(node, result, bias))


def _kept(
    node: Node, packed: Array, bits: int, sizes: tuple[int, int], block: int
) -> Grouped | None:
    """The weights in groups as they are; None where blocks are not whole or scales not constant."""
    rows, columns = sizes
    scales = node.constant(node.value(2))
    if scales is None or columns % block or packed.dtype != np.uint8:
        return None
    blocks = columns // block
    if packed.size * 8 != rows * columns * bits or scales.size != rows * blocks:
        return None  # an error that the other way tells
    codes, scales = packed.reshape(rows, columns * bits // 8), scales.reshape(rows, blocks)
    if node.input(3) is None:
        return Grouped(sizes, codes, (scales,), centre=1 << (bits - 1))
    zeros = _zero_points(node, bits, rows, blocks).astype(np.float32)
    return Grouped(sizes, codes, (scales,), (-zeros * scales.astype(np.float32),))


def _dequantised(node: Node, packed: Array, bits: int, sizes: tuple[int, int], block: int) -> Value:
    rows, columns = sizes
    blocks = -(-columns // block)
    data = _unpacked(node, packed, bits, (rows, blocks * block))[:, :columns]
    scales = node.reshape(node.value(2), (rows, blocks))
    zeros = _zero_points(node, bits, rows, blocks)
    return node.emit(
        "dequantize_linear", node.array(data), scales, node.array(zeros),
        axis=1, block_size=block, dtype=node.dtype(scales),
    )  # fmt: skip


def _zero_points(node: Node, bits: int, rows: int, blocks: int) -> Array:
    given = node.input(3)
    if given is None:
        middle = np.full((rows, blocks), 1 << (bits - 1), np.uint8)
        return middle.astype(ml_dtypes.uint4) if bits == 4 else middle
    packed = node.constant(given)
    if packed is None or packed.dtype != np.uint8:
        raise node.unsupported("zero points that are not constant bytes")
    wide = -(-blocks * bits // 8) * 8 // bits
    return _unpacked(node, packed, bits, (rows, wide))[:, :blocks]


def _unpacked(node: Node, packed: Array, bits: int, dims: tuple[int, int]) -> Array:
    """Bytes as elements of that many bits, low ones first."""
    flat = packed.reshape(-1)
    if flat.dtype != np.uint8 or flat.size * 8 != dims[0] * dims[1] * bits:
        raise node.bad(f"{flat.size} packed bytes for {list(dims)} elements of {bits} bits")
    if bits == 8:
        return flat.reshape(dims)
    pairs = np.stack([flat & 15, flat >> 4], axis=-1)
    return pairs.reshape(dims).astype(ml_dtypes.uint4)
