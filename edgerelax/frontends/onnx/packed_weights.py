"""Importers of operators on weights in few bits with scales by blocks, kept as they are stored."""

import math
from dataclasses import dataclass

import numpy as np

from edgerelax.frontends.nn.grouped import Grouped, packed
from edgerelax.frontends.onnx.attention import MICROSOFT
from edgerelax.frontends.onnx.nn import matmul
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.normalisation import over_trailing
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value
from edgerelax.ir.op import Array

WIDTHS = (2, 4, 8)
"""Bits of a code."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Weights whose last axis is in blocks, each with a scale and a zero point.

    `codes` are unsigned integers packed as u8[..., bytes], low bits first; `columns` of them count,
    what completes the last block does not. Scales and zeros are [..., blocks].
    """

    codes: Array
    columns: int
    scales: Array
    zeros: Array
    bits: int

    def emit(self, node: Node) -> Value:
        """The weights, f32, computed from the codes where they are read."""
        kept = self.stored()
        found = kept.emit(node.walk.builder, f"{node.proto.output[0]}_weight")
        if self.columns == kept.shape[-1]:
            return found
        axes, ends = (len(kept.shape) - 1,), (self.columns,)
        return node.emit("slice", found, starts=(0,), ends=ends, axes=axes, steps=None)

    def stored(self) -> Grouped:
        """As they are stored, with what completes the last block."""
        whole = (*self.codes.shape[:-1], self.codes.shape[-1] * 8 // self.bits)
        scales, zeros = self.scales, self.zeros
        if zeros.dtype == np.uint8 and zeros.size and (zeros == zeros.flat[0]).all():
            return Grouped(whole, self.codes, (scales,), centre=int(zeros.flat[0]))
        offsets = -zeros.astype(np.float32) * scales.astype(np.float32)
        return Grouped(whole, self.codes, (scales,), (offsets,))


def packed_rows(node: Node, data: Array, bits: int, dims: tuple[int, ...]) -> Array:
    """Bytes that hold codes of these dims, by rows: each begins a byte."""
    row = -(-dims[-1] * bits // 8)
    size = math.prod(dims[:-1]) * row
    if data.dtype != np.uint8 or data.size != size:
        what = f"{list(dims)} codes of {bits} bits, which take {size} bytes"
        raise node.bad(f"{data.size} elements of {data.dtype} for {what}")
    return data.reshape(*dims[:-1], row)


def unpacked(data: Array, bits: int, columns: int) -> Array:
    """Codes from their bytes."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = data[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(*data.shape[:-1], -1)[..., :columns]


def constant(node: Node, k: int, what: str) -> Array:
    """Operand k, which must be known."""
    found = node.constant(node.value(k))
    if found is None:
        raise node.unsupported(f"{what} that are not constant")
    return found


def _bits(node: Node) -> int:
    bits = node.attr("bits", 4)
    if bits not in WIDTHS:
        raise node.unsupported(f"{bits} bits", hint=f"{', '.join(map(str, WIDTHS))} are supported")
    return int(bits)


@importer("MatMulNBits", domain=MICROSOFT)
def _matmul_n_bits(node: Node) -> Result:
    """Weights [rows, columns] in blocks along their last dim."""
    bits, block = _bits(node), node.attr("block_size")
    rows, columns = node.attr("N"), node.attr("K")
    if node.input(4) is not None:
        raise node.unsupported("g_idx, columns in another order")
    dims = (rows, -(-columns // block))
    codes = packed_rows(node, constant(node, 1, "weights"), bits, (rows, dims[1] * block))
    scales = constant(node, 2, "scales").reshape(dims)
    zeros = np.full(dims, 1 << (bits - 1), np.uint8)
    if node.input(3) is not None:
        zeros = _zero_points(node, constant(node, 3, "zero points"), bits, dims)
    a, bias = node.value(0), node.input(5)
    weights = Blocks(codes, columns, scales, zeros, bits).emit(node)
    result = matmul(node, a, node.cast(weights, node.dtype(a)), transpose_b=True)
    return result if bias is None else node.emit("add", result, over_trailing(node, result, bias))


def _zero_points(node: Node, data: Array, bits: int, dims: tuple[int, ...]) -> Array:
    """Packed as codes are, or floats."""
    if data.dtype != np.uint8:
        return data.reshape(dims)
    return unpacked(packed_rows(node, data, bits, dims), bits, dims[-1])


@importer("GatherBlockQuantized", domain=MICROSOFT)
def _gather_block_quantized(node: Node) -> Result:
    """Slices of a table in blocks along an axis; zeros for indices outside."""
    data, scales = node.value(0), node.value(2)
    along = node.axis(data, node.attr("quantize_axis", 1))
    if node.dtype(data).is_float:
        return _gathered(node, _floats(node, along))
    wide = _table(node, along).emit(node)
    last = node.rank(wide) - 1
    order = list(range(last))
    order.insert(along, last)
    found = _gathered(node, node.transpose(wide, order))
    return node.cast(found, node.dtype(scales))


def _gathered(node: Node, table: Value) -> Value:
    ids, axis = node.value(1), node.axis(table, node.attr("gather_axis", 0))
    count = node.integers([node.dims(table)[axis]], node.dtype(ids), rank=0)
    found = node.emit("gather", table, ids, axis=axis)
    first = node.emit("sub", node.scalar(0, node.dtype(ids)), count)
    inside = node.emit("and", node.emit("ge", ids, first), node.emit("lt", ids, count))
    after = node.rank(table) - 1 - axis
    inside = node.reshape(inside, (*[1] * axis, *node.dims(ids), *[1] * after))
    return node.emit("where", inside, found, node.scalar(0, node.dtype(found)))


def _table(node: Node, along: int) -> Blocks:
    """The table with the axis that is in blocks as its last."""
    data, block, given = constant(node, 0, "codes"), node.attr("block_size", 128), node.input(3)
    is_packed = data.dtype == np.uint8
    bits = _bits(node) if is_packed else 4
    lowest = -8 if node.dtype(node.value(0)).kind == "int" else 0
    dims = (*data.shape[:-1], data.shape[-1] * 8 // bits) if is_packed else data.shape
    columns, blocks = dims[along], -(-dims[along] // block)
    planes = (*dims[:along], blocks, *dims[along + 1 :])
    scales = constant(node, 2, "scales").reshape(planes)
    zeros = np.full(planes, 1 << (bits - 1) if is_packed else -lowest, np.uint8)
    if given is not None:
        stored = constant(node, 3, "zero points")
        zeros = _zero_points(node, stored, bits, planes) if is_packed else _unsigned(stored, lowest)
    if not is_packed or along < len(dims) - 1 or columns % block:
        codes = unpacked(data, bits, dims[-1]) if is_packed else _unsigned(data, lowest)
        codes, scales, zeros = (np.moveaxis(a, along, -1) for a in (codes, scales, zeros))
        beyond = [(0, 0)] * (len(dims) - 1) + [(0, blocks * block - columns)]
        data = packed(np.pad(codes, beyond), bits)
    return Blocks(data, columns, scales, zeros, bits)


def _unsigned(data: Array, lowest: int) -> Array:
    """Integers of 4 bits as codes, which begin at 0."""
    return np.asarray(data.astype(np.int16) - lowest, np.uint8)


def _floats(node: Node, along: int) -> Value:
    """A table of 8- or 4-bit floats; scales may be one along other axes, or for a whole row."""
    data, scales = node.value(0), constant(node, 2, "scales")
    dims = constant(node, 0, "codes").shape
    block = node.attr("block_size", 128) or dims[along]
    wanted = [-(-d // block) if k == along else d for k, d in enumerate(dims)]
    spread = node.array(np.broadcast_to(scales, wanted))
    attrs = {"axis": along, "block_size": block, "dtype": node.dtype(spread)}
    return node.emit("dequantize_linear", data, spread, None, **attrs)
