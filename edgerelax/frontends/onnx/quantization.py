"""Importers of the standard's quantised operators, by exact integer products."""

from edgerelax.frontends.onnx.broadcasting import settled
from edgerelax.frontends.onnx.nn import conv_integer, fitted
from edgerelax.frontends.onnx.node import Node
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
    return requantized(node, found, y_scale, y_zero)


def scaled(node: Node, total: Value, *scales: Value | None) -> Value:
    """An integer sum times scales, in f32."""
    factor: Value | None = None
    for scale in scales:
        if scale is not None:
            own = node.cast(scale, F32)
            factor = own if factor is None else node.emit("mul", factor, own)
    value = node.cast(total, F32)
    return value if factor is None else node.emit("mul", value, factor)


def requantized(node: Node, value: Value, scale: Value, zero: Value) -> Value:
    """round(value / scale) + zero, saturated to the zero point's type."""
    scale = one(node, node.cast(scale, F32)) or scale
    return node.emit(
        "quantize_linear", value, scale, one(node, zero), dtype=node.dtype(zero), saturate=True
    )


@importer("QLinearConv")
def _qlinear_conv(node: Node) -> Result:
    return qlinear_conv(node, node.value(0))


def qlinear_conv(node: Node, x: Value) -> Value:
    """The node's convolution of x, channels first."""
    _, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.value(k) for k in range(8))
    total = conv_integer(node, x, w, one(node, x_zero), one(node, w_zero))
    rank, bias = node.rank(x), node.input(8)
    if bias is not None:
        column = node.reshape(bias, [node.dims(w)[0], *[1] * (rank - 2)])
        total = node.emit("add", total, column)
    if node.rank(w_scale) == 1 and not node.is_single(w_scale):
        w_scale = node.reshape(w_scale, [*node.dims(w_scale), *[1] * (rank - 2)])
    found = scaled(node, total, one(node, x_scale), one(node, w_scale))
    return requantized(node, found, y_scale, y_zero)
