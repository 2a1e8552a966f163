"""Importers of Fourier transforms, as products with cosines and sines, and of mel filters."""

import math

import numpy as np

from edgerelax.frontends.onnx.nn import matmul
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.dtypes import I64, DType
from edgerelax.ir.graph import Value
from edgerelax.ir.op import Array
from edgerelax.sym import Expr, as_expr


@importer("DFT", since=17)
def _dft_attribute(node: Node) -> Result:
    return _dft(node, node.attr("axis"))


@importer("DFT", since=20)
def _dft_operand(node: Node) -> Result:
    axis = node.numbers(2, "the axis")
    return _dft(node, -2 if axis is None else axis[0])


def _dft(node: Node, axis: int) -> Value:
    x = node.value(0)
    rank, at = node.rank(x), node.axis(x, axis)
    if rank < 2 or at == rank - 1:
        raise node.bad(
            f"axis {axis} of {x.annotation}: the last dim holds real and imaginary parts"
        )
    parts = node.dims(x)[-1].as_int()
    if parts is None:
        raise node.unsupported(f"{x.annotation}: whether it is complex is not known")
    if parts not in (1, 2):
        raise node.bad(f"{x.annotation}: the last dim is 1 or 2")
    order = [*(k for k in range(rank - 1) if k != at), at, rank - 1]
    x = node.transpose(x, order)
    inverse, half = bool(node.attr("inverse")), bool(node.attr("onesided"))
    given = node.ints(1, lo=1, what="the length")
    size = node.dims(x)[-2]
    length = given[0] if given else (size - 1) * 2 if inverse and half else size
    if inverse and half:
        result = _real_inverse(node, x, length)
    else:
        result = _transform(node, _resized(node, x, length), length, inverse, half)
    back = [order.index(k) for k in range(rank)]
    return node.transpose(result, back)


def _resized(node: Node, x: Value, length: Expr) -> Value:
    """Padded with zeros or cut to the length of the transform."""
    if node.dims(x)[-2] == length:
        return x
    pads = (as_expr(0), length - node.dims(x)[-2])
    axes = (node.rank(x) - 2,)
    return node.with_dim(node.emit("pad", x, None, pads=pads, axes=axes), axes[0], length)


def _transform(node: Node, x: Value, length: Expr, inverse: bool, half: bool) -> Value:
    """[…, n, parts] to […, n or n // 2 + 1, 2]."""
    dtype, axis = node.dtype(x), node.rank(x) - 1
    rows = length // 2 + 1 if half else length
    cosines, sines = _waves(node, rows, length, dtype)
    if not inverse:
        sines = node.emit("neg", sines)
    halves = [x]
    if node.dims(x)[-1].as_int() == 2:
        halves = list(node.emit_all("split", x, sizes=(1, 1), axis=axis))
    real, imaginary = (matmul(node, wave, halves[0]) for wave in (cosines, sines))
    if len(halves) == 2:
        real = node.emit("sub", real, matmul(node, sines, halves[1]))
        imaginary = node.emit("add", imaginary, matmul(node, cosines, halves[1]))
    result = node.emit("concat", real, imaginary, axis=axis)
    return _divided(node, result, length) if inverse else result


def _real_inverse(node: Node, x: Value, length: Expr) -> Value:
    """A spectrum of n // 2 + 1 numbers back to n real ones: all but the ends count twice."""
    rows, dtype = length // 2 + 1, node.dtype(x)
    x = _resized(node, x, rows)
    cosines, sines = _waves(node, rows, length, dtype)
    k = node.emit("range", start=0, limit=rows, delta=1, dtype=I64)
    k = node.reshape(k, (rows, 1))
    whole = node.integers([length], I64, rank=0)
    is_end = node.emit(
        "or",
        node.emit("eq", k, node.scalar(0, I64)),
        node.emit("eq", node.emit("mul", k, node.scalar(2, I64)), whole),
    )
    weights = node.emit("where", is_end, node.scalar(1, dtype), node.scalar(2, dtype))
    parts = node.emit_all(
        "split", node.emit("mul", x, weights), sizes=(1, 1), axis=node.rank(x) - 1
    )
    real = matmul(node, cosines, parts[0], transpose_a=True)
    imaginary = matmul(node, sines, parts[1], transpose_a=True)
    return _divided(node, node.emit("sub", real, imaginary), length)


def _divided(node: Node, x: Value, length: Expr) -> Value:
    count = node.cast(node.integers([length], I64, rank=0), node.dtype(x))
    return node.emit("div", x, count)


def _angles(length: int, rows: int) -> Array:
    """2 pi k m / length for k < rows, m < length."""
    turns = np.outer(np.arange(rows), np.arange(length)) % max(1, length)
    return np.asarray(turns * (2 * math.pi / max(1, length)))


def _waves(node: Node, rows: Expr, length: Expr, dtype: DType) -> tuple[Value, Value]:
    """Cosines and sines of 2 pi k m / length, [rows, length]; constants if the sizes are known."""
    count, number = rows.as_int(), length.as_int()
    if count is not None and number is not None:
        angles = _angles(number, count)
        cosines, sines = np.cos(angles).astype(dtype.numpy), np.sin(angles).astype(dtype.numpy)
        return node.array(cosines), node.array(sines)
    across, down = (
        node.reshape(node.emit("range", start=0, limit=n, delta=1, dtype=I64), dims)
        for n, dims in ((length, (1, length)), (rows, (rows, 1)))
    )
    whole = node.integers([length], I64, rank=0)
    turns = node.cast(node.emit("mod", node.emit("mul", down, across), whole), dtype)
    step = node.emit("div", node.scalar(2 * math.pi, dtype), node.cast(whole, dtype))
    angle = node.emit("mul", turns, step)
    return node.emit("cos", angle), node.emit("sin", angle)


@importer("STFT", since=17)
def _stft(node: Node) -> Result:
    """A convolution of the signal with windowed waves, one frame per position."""
    signal, window = node.value(0), node.input(2)
    step, given = node.numbers(1, "the frame step"), node.numbers(3, "the frame length")
    batch, samples = node.dims(signal)[:2]
    if node.rank(signal) == 3 and node.dims(signal)[2].as_int() != 1:
        raise node.unsupported("a complex signal")
    length = given[0] if given else None if window is None else node.dims(window)[0].as_int()
    if length is None or not step or step[0] < 1:
        raise node.unsupported("a frame length that is not constant")
    rows, dtype = (length // 2 + 1 if node.attr("onesided") else length), node.dtype(signal)
    angles = _angles(length, rows)
    waves = np.concatenate([np.cos(angles), -np.sin(angles)])[:, None, :]
    kernel: Value = node.array(waves.astype(dtype.numpy))
    if window is not None:
        kernel = node.emit("mul", kernel, node.with_dims(window, (length,)))
    row = node.reshape(signal, (batch, 1, samples))
    found = node.emit("conv", row, kernel, None, strides=(step[0],))
    frames = node.dims(found)[2]
    parts = node.reshape(found, (batch, 2, rows, frames))
    return node.transpose(parts, (0, 3, 2, 1))


@importer("MelWeightMatrix", since=17)
def _mel_weight_matrix(node: Node) -> Result:
    """Triangles between points that are evenly spaced in mel."""
    given = [node.constant(v) for v in node.values()]
    numbers = [float(a.item()) for a in given if a is not None and a.size == 1]
    if len(numbers) != 5:
        raise node.unsupported("operands that are not constant")
    bands, length, rate = (int(n) for n in numbers[:3])
    if bands < 1 or length < 1 or rate < 1:
        raise node.bad(f"{bands} bands, length {length}, rate {rate}")
    low, high = (2595 * math.log10(1 + f / 700) for f in numbers[3:])
    mels = np.arange(bands + 2) * ((high - low) / (bands + 2)) + low
    edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate).astype(np.int64)
    bins = np.arange(length // 2 + 1)[:, None]
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(lower == centre, bins == centre, (bins - lower) / (centre - lower))
        falling = np.where(upper == centre, 0, (upper - bins) / (upper - centre))
    up = (bins >= lower) & (bins <= centre)
    down = (bins >= centre) & (bins < upper)
    weights = np.where(up, rising, np.where(down, falling, 0))
    return node.array(weights.astype(node.dtype_attr("output_datatype").numpy))
