"""Importers of quantised operators, the standard's and onnxruntime's, by exact integer products."""

import numpy as np

from edgerelax.frontends.onnx.broadcasting import settled
from edgerelax.frontends.onnx.nn import average_pool, conv_integer, fitted
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.reduction import flat_softmax
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.dtypes import F32, U8, DType
from edgerelax.ir.graph import Value


@importer("QuantizeLinear")
@importer("QuantizeLinear", domain="com.microsoft")
def _quantize_linear(node: Node) -> Result:
    x, scale, zero = node.value(0), node.value(1), node.input(2)
    named = node.attr("output_dtype", 0)
    dtype = node.dtype_attr("output_dtype") if named else U8 if zero is None else node.dtype(zero)
    if node.attr("precision", 0) not in (0, 1):
        raise node.unsupported("a precision other than f32")
    return quantize(node, x, scale, zero, dtype)


@importer("DequantizeLinear")
@importer("DequantizeLinear", domain="com.microsoft")
def _dequantize_linear(node: Node) -> Result:
    x, scale, zero = node.value(0), node.value(1), node.input(2)
    named = node.attr("output_dtype", 0)
    dtype = node.dtype_attr("output_dtype") if named else node.dtype(scale)
    scale, zero, attrs = _scales(node, x, scale, zero)
    return node.emit("dequantize_linear", x, scale, zero, dtype=dtype, **attrs)


def quantize(node: Node, x: Value, scale: Value, zero: Value | None, dtype: DType) -> Value:
    """round(x / scale) + zero, saturated; per axis or block as the node says."""
    scale, zero, attrs = _scales(node, x, scale, zero)
    if node.dtype(x) != node.dtype(scale):
        x = node.cast(x, node.dtype(scale))
    saturate = bool(node.attr("saturate", 1))
    return node.emit("quantize_linear", x, scale, zero, dtype=dtype, saturate=saturate, **attrs)


def _scales(
    node: Node, x: Value, scale: Value, zero: Value | None
) -> tuple[Value, Value | None, dict[str, int]]:
    """Scales and zero points, which axis they run along, and how many elements each reaches.

    There is one scale for all where that is known, or where x has no such axis.
    """
    axis, rank = node.attr("axis", 1), node.rank(x)
    if node.rank(scale) == 0 or node.is_single(scale) or not -rank <= axis < rank:
        return node.reshape(scale, ()), None if zero is None else node.reshape(zero, ()), {}
    attrs = {"axis": node.axis(x, axis), "block_size": node.attr("block_size", 0)}
    return scale, one(node, zero), attrs


def one(node: Node, value: Value | None) -> Value | None:
    """A scale or zero point, one of one element as a scalar."""
    if value is None or node.rank(value) == 0 or not node.is_single(value):
        return value
    return node.reshape(value, ())


@importer("DynamicQuantizeLinear")
def _dynamic_quantize_linear(node: Node) -> Result:
    return node.emit_all("dynamic_quantize_linear", node.value(0))


# Products


@importer("MatMulInteger")
def _matmul_integer(node: Node) -> Result:
    return matmul_integer(node, node.value(0), node.value(1), node.input(2), node.input(3))


def matmul_integer(
    node: Node, a: Value, b: Value, a_zero: Value | None, b_zero: Value | None
) -> Value:
    """The exact product of 8-bit operands less their zero points, as i32."""
    operands, sizes = fitted(node, a, b)
    zeros = (one(node, a_zero), one(node, b_zero))
    return settled(node, node.emit("matmul_integer", *operands, *zeros), sizes)


@importer("QLinearMatMul")
def _qlinear_matmul(node: Node) -> Result:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.values()
    total = matmul_integer(node, a, b, a_zero, b_zero)
    if node.rank(a_scale) == 1 and not node.is_single(a_scale) and node.rank(a) > 1:
        a_scale = node.reshape(a_scale, (*node.dims(a_scale), 1))
    found = scaled(node, total, one(node, a_scale), one(node, b_scale))
    return _requantized(node, found, y_scale, y_zero)


def scaled(node: Node, total: Value, *scales: Value | None) -> Value:
    """An integer sum times scales, in f32."""
    factor: Value | None = None
    for scale in scales:
        if scale is not None:
            own = node.cast(scale, F32)
            factor = own if factor is None else node.emit("mul", factor, own)
    value = node.cast(total, F32)
    return value if factor is None else node.emit("mul", value, factor)


def _requantized(node: Node, value: Value, scale: Value, zero: Value) -> Value:
    scale = one(node, node.cast(scale, F32)) or scale
    return node.emit(
        "quantize_linear", value, scale, one(node, zero), dtype=node.dtype(zero), saturate=True
    )


@importer("QLinearConv")
def _qlinear_conv(node: Node) -> Result:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.value(k) for k in range(8))
    total = conv_integer(node, x, w, one(node, x_zero), one(node, w_zero))
    rank, bias = node.rank(x), node.input(8)
    if bias is not None:
        column = node.reshape(bias, [node.dims(w)[0], *[1] * (rank - 2)])
        total = node.emit("add", total, column)
    if node.rank(w_scale) == 1 and not node.is_single(w_scale):
        w_scale = node.reshape(w_scale, [*node.dims(w_scale), *[1] * (rank - 2)])
    found = scaled(node, total, one(node, x_scale), one(node, w_scale))
    return _requantized(node, found, y_scale, y_zero)


# onnxruntime's own


@importer("MatMulIntegerToFloat", domain="com.microsoft")
def _matmul_integer_to_float(node: Node) -> Result:
    a, b, a_scale, b_scale = (node.value(k) for k in range(4))
    total = matmul_integer(node, a, b, node.input(4), node.input(5))
    return _with_bias(node, scaled(node, total, one(node, a_scale), one(node, b_scale)), 6)


@importer("DynamicQuantizeMatMul", domain="com.microsoft")
def _dynamic_quantize_matmul(node: Node) -> Result:
    a, b, b_scale = node.value(0), node.value(1), node.value(2)
    q, scale, zero = node.emit_all("dynamic_quantize_linear", a)
    total = matmul_integer(node, q, b, zero, node.input(3))
    return _with_bias(node, scaled(node, total, scale, one(node, b_scale)), 4)


def _with_bias(node: Node, value: Value, k: int) -> Value:
    bias = node.input(k)
    return value if bias is None else node.emit("add", value, bias)


@importer("QLinearAdd", "QLinearMul", domain="com.microsoft")
def _qlinear_binary(node: Node) -> Result:
    op = {"QLinearAdd": "add", "QLinearMul": "mul"}[node.op]
    a, b = (_dequantized(node, k) for k in (0, 3))
    return _requantized(node, node.emit(op, a, b), *_result_scale(node, 6))


@importer("QLinearSigmoid", "QLinearLeakyRelu", domain="com.microsoft")
def _qlinear_unary(node: Node) -> Result:
    x = _dequantized(node, 0)
    if node.op == "QLinearSigmoid":
        y = node.emit("sigmoid", x)
    else:
        y = node.emit("leaky_relu", x, alpha=node.attr("alpha", 0.01))
    return _requantized(node, y, *_result_scale(node, 3))


@importer("QLinearGlobalAveragePool", domain="com.microsoft")
def _qlinear_global_average_pool(node: Node) -> Result:
    if node.attr("channels_last", 0):
        raise node.unsupported("channels_last")
    x = _dequantized(node, 0)
    mean = node.emit("reduce_mean", x, axes=tuple(range(2, node.rank(x))), keepdims=True)
    return _requantized(node, mean, node.value(3), node.value(4))


@importer("QLinearAveragePool", domain="com.microsoft")
def _qlinear_average_pool(node: Node) -> Result:
    if node.attr("channels_last", 0):
        raise node.unsupported("channels_last")
    return _requantized(node, average_pool(node, _dequantized(node, 0)), *_result_scale(node, 3))


@importer("QLinearSoftmax", domain="com.microsoft")
def _qlinear_softmax(node: Node) -> Result:
    """The attribute `opset` says which Softmax is meant."""
    x, axis, opset = _dequantized(node, 0), node.attr("axis", -1), node.attr("opset")
    if opset >= 13:
        y = node.emit("softmax", x, axis=axis)
    else:
        y = flat_softmax(node, "softmax", x, axis)
    return _requantized(node, y, *_result_scale(node, 3))


@importer("QGemm", domain="com.microsoft")
def _qgemm(node: Node) -> Result:
    """A bias has the scale of the sums; without a scale of its own the result is f32."""
    a, b, bias = node.value(0), node.value(3), node.input(6)
    a = node.transpose(a, (1, 0)) if node.attr("transA", 0) else a
    b = node.transpose(b, (1, 0)) if node.attr("transB", 0) else b
    total = matmul_integer(node, a, b, node.value(2), node.value(5))
    total = total if bias is None else node.emit("add", total, bias)
    alpha = node.array(np.array(node.attr("alpha", 1.0), np.float32))
    found = scaled(node, total, one(node, node.value(1)), one(node, node.value(4)), alpha)
    return found if node.input(7) is None else _requantized(node, found, *_result_scale(node, 7))


def _result_scale(node: Node, k: int) -> tuple[Value, Value]:
    """Operands k and k + 1, the result's scale and zero point, 0 where none is given."""
    zero = node.input(k + 1)
    if zero is None:
        zero = node.array(np.zeros((), node.dtype(node.value(0)).numpy))
    return node.value(k), zero


@importer("QLinearConcat", domain="com.microsoft")
def _qlinear_concat(node: Node) -> Result:
    parts = [_dequantized(node, k) for k in range(2, len(node.inputs), 3)]
    axis = node.axis(parts[0], node.attr("axis"))
    joined = node.emit("concat", *parts, axis=axis)
    return _requantized(node, joined, node.value(0), node.value(1))


def _dequantized(node: Node, k: int) -> Value:
    """Operands k to k + 2 (value, scale, zero point) as floats."""
    zero = one(node, node.input(k + 2))
    return node.emit("dequantize_linear", node.value(k), one(node, node.value(k + 1)), zero)
