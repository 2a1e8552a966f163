"""Importers of onnxruntime's quantised operators (com.microsoft), sums in exact integers."""

import numpy as np

from edgerelax.frontends.onnx.broadcasting import broadcast_call
from edgerelax.frontends.onnx.microsoft import Embedded, embed_layer_norm
from edgerelax.frontends.onnx.nn import average_pool, channels_first, channels_last, max_pool
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.quantization import (
    matmul_integer,
    one,
    qlinear_conv,
    requantized,
    scaled,
)
from edgerelax.frontends.onnx.reduction import flat_softmax
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value


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
    return requantized(node, node.emit(op, a, b), *_result_scale(node, 6))


@importer("QLinearSigmoid", "QLinearLeakyRelu", domain="com.microsoft")
def _qlinear_unary(node: Node) -> Result:
    x = _dequantized(node, 0)
    if node.op == "QLinearSigmoid":
        y = node.emit("sigmoid", x)
    else:
        y = node.emit("leaky_relu", x, alpha=node.attr("alpha", 0.01))
    return requantized(node, y, *_result_scale(node, 3))


@importer("QLinearConv", domain="com.microsoft")
def _qlinear_conv(node: Node) -> Result:
    """The standard's, also of images with their channels last."""
    if not node.attr("channels_last", 0):
        return qlinear_conv(node, node.value(0))
    return channels_last(node, qlinear_conv(node, channels_first(node, node.value(0))))


@importer("NhwcMaxPool", domain="com.microsoft")
def _nhwc_max_pool(node: Node) -> Result:
    return channels_last(node, max_pool(node, channels_first(node, node.value(0))))


@importer("QLinearGlobalAveragePool", domain="com.microsoft")
def _qlinear_global_average_pool(node: Node) -> Result:
    x = _dequantized(node, 0)
    space = range(1, node.rank(x) - 1) if node.attr("channels_last", 0) else range(2, node.rank(x))
    mean = node.emit("reduce_mean", x, axes=tuple(space), keepdims=True)
    return requantized(node, mean, *_result_scale(node, 3))


@importer("QLinearReduceMean", domain="com.microsoft")
def _qlinear_reduce_mean(node: Node) -> Result:
    x = _dequantized(node, 0)
    axes = tuple(node.axis(x, a) for a in node.attr("axes"))
    mean = node.emit("reduce_mean", x, axes=axes, keepdims=bool(node.attr("keepdims", 1)))
    return requantized(node, mean, *_result_scale(node, 3))


@importer("QLinearWhere", domain="com.microsoft")
def _qlinear_where(node: Node) -> Result:
    """Each side is brought to the result's scale before one of them is chosen."""
    sides = (requantized(node, _dequantized(node, k), *_result_scale(node, 7)) for k in (1, 4))
    return broadcast_call(node, "where", node.value(0), *sides)


@importer("QLinearAveragePool", domain="com.microsoft")
def _qlinear_average_pool(node: Node) -> Result:
    x, last = _dequantized(node, 0), bool(node.attr("channels_last", 0))
    pooled = average_pool(node, channels_first(node, x) if last else x)
    pooled = channels_last(node, pooled) if last else pooled
    return requantized(node, pooled, *_result_scale(node, 3))


@importer("QLinearSoftmax", domain="com.microsoft")
def _qlinear_softmax(node: Node) -> Result:
    """The attribute `opset` says which Softmax is meant."""
    x, axis, opset = _dequantized(node, 0), node.attr("axis", -1), node.attr("opset")
    if opset >= 13:
        y = node.emit("softmax", x, axis=axis)
    else:
        y = flat_softmax(node, "softmax", x, axis)
    return requantized(node, y, *_result_scale(node, 3))


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
    return found if node.input(7) is None else requantized(node, found, *_result_scale(node, 7))


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
    return requantized(node, joined, node.value(0), node.value(1))


@importer("QEmbedLayerNormalization", domain="com.microsoft")
def _qembed_layer_norm(node: Node) -> Result:
    """Embeddings and the weights of the norm in 8 bits: operands 2 to 6, each by its own scale."""
    tables = [
        None if node.input(2 + k) is None else node.emit(
            "dequantize_linear", node.value(2 + k), one(node, node.value(8 + k)),
            one(node, node.input(13 + k)),
        )
        for k in range(5)
    ]  # fmt: skip
    words, positions, segments, gamma, beta = tables
    assert words is not None and positions is not None and gamma is not None and beta is not None
    embedded = Embedded(words, positions, segments, gamma, beta)
    return embed_layer_norm(node, embedded, node.input(7), None)


def _dequantized(node: Node, k: int) -> Value:
    """Operands k to k + 2 (value, scale, zero point) as floats."""
    zero = one(node, node.input(k + 2))
    return node.emit("dequantize_linear", node.value(k), one(node, node.value(k + 1)), zero)
