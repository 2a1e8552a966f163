"""Importers of onnxruntime's mixtures of experts; each token reads the experts that it chose."""

from dataclasses import dataclass

import numpy as np

from edgerelax.frontends.language.experts import Stack
from edgerelax.frontends.nn.module import Stored
from edgerelax.frontends.nn.tensor import Tensor
from edgerelax.frontends.onnx.attention import MICROSOFT
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.packed_weights import Blocks, constant, packed_rows, unpacked
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Value
from edgerelax.ir.op import Array
from edgerelax.sym import Expr, product

ACTIVATIONS = ("relu", "gelu", "silu", "identity", "swiglu")


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer for each expert, the rows of all one above the other, and their biases."""

    stack: Stack
    bias: Value | None


@importer("MoE", domain=MICROSOFT)
def _mixture(node: Node) -> Result:
    names = ("fc1", "fc2", "fc3")
    first, second, third = (
        _layer(node, _floats(node, 2 + 2 * k), node.input(3 + 2 * k), name)
        if node.input(2 + 2 * k) is not None else None
        for k, name in enumerate(names)
    )  # fmt: skip
    return _mixed(node, (first, second, third), None)


@importer("QMoE", domain=MICROSOFT)
def _quantised_mixture(node: Node) -> Result:
    """Weights of 2, 4 or 8 bits as they are stored, by rows or by blocks of them."""
    if node.attr("quant_type", "int") != "int" or node.attr("weights_prepacked", -1) == 1:
        raise node.unsupported("weights other than integers as they are, not laid out for a device")
    first, second, third = (
        _layer(node, _codes(node, k), node.input(4 + 3 * k), f"fc{k + 1}")
        if node.input(2 + 3 * k) is not None else None
        for k in range(3)
    )  # fmt: skip
    return _mixed(node, (first, second, third), node.input(14))


def _floats(node: Node, k: int) -> tuple[int, Array]:
    """How many experts, and their matrices one above the other."""
    data = constant(node, k, "weights of experts")
    return len(data), data.reshape(-1, data.shape[2]).astype(np.float32)


def _codes(node: Node, k: int) -> tuple[int, Stored]:
    """The same of layer k, in few bits."""
    data = constant(node, 2 + 3 * k, "weights of experts")
    bits = node.attr(f"fc{k + 1}_expert_weight_bits", node.attr("expert_weight_bits", 4))
    if bits not in (2, 4, 8):
        raise node.unsupported(f"weights of {bits} bits")
    experts, rows, stored = data.shape
    scales = constant(node, 3 + 3 * k, "scales")
    scales = scales.reshape(experts * rows, -1)
    zeros = np.full(scales.shape, 1 << (bits - 1), np.uint8)
    if node.input(11 + k) is not None:
        zeros = _zeros(node, constant(node, 11 + k, "zero points"), bits, (experts, rows, scales))
    columns = stored * 8 // bits
    codes = data.reshape(experts * rows, stored)
    return experts, Blocks(codes, columns, scales, zeros, bits).stored()


def _zeros(node: Node, data: Array, bits: int, sizes: tuple[int, int, Array]) -> Array:
    """Packed along blocks, or along rows where there is one block to a row."""
    experts, rows, scales = sizes
    blocks = scales.shape[1]
    dims = (experts, rows) if data.ndim == 2 else (experts, rows, blocks)
    return unpacked(packed_rows(node, data, bits, dims), bits, dims[-1]).reshape(scales.shape)


def _layer(node: Node, weights: tuple[int, Stored | Array], bias: Value | None, name: str) -> Layer:
    count, data = weights
    rows, columns = data.shape
    stack = Stack(count, columns, rows // count)
    stack.weight.name = f"{node.proto.output[0]}_{name}"
    stack.weight.load(data)
    return Layer(stack, bias)


def _mixed(
    node: Node, layers: tuple[Layer | None, Layer | None, Layer | None], shares: Value | None
) -> Value:
    """What the chosen experts make of each token, by shares of their own or by their scores."""
    first, second, third = layers
    assert first is not None and second is not None
    if node.attr("use_sparse_mixer", 0):
        raise node.unsupported("a sparse mixer")
    x = node.value(0)
    *lead, width = node.dims(x)
    tokens = node.cast(node.reshape(x, (product(lead), width)), F32)
    weights, chosen = _choice(node, product(lead), shares)
    inner = _outputs(node, first, tokens, chosen)
    gate = None if third is None else _outputs(node, third, tokens, chosen)
    inner = _activated(node, inner, gate)
    builder = node.walk.builder
    parts = (Tensor(builder, v) for v in (inner, chosen, weights))
    result = second.stack.total(*parts).value
    if second.bias is not None:
        biases = node.emit("gather", node.cast(second.bias, F32), chosen, axis=0)
        column = node.reshape(weights, (*node.dims(weights), 1))
        each = node.emit("mul", biases, column)
        result = node.emit("add", result, node.emit("reduce_sum", each, axes=(1,), keepdims=False))
    return node.cast(node.reshape(result, node.dims(x)), node.dtype(x))


def _choice(node: Node, count: Expr, shares: Value | None) -> tuple[Value, Value]:
    """Shares and experts [tokens, k]."""
    scores = node.cast(node.value(1), F32)
    scores = node.with_dim(scores, 0, count)
    probabilities = node.emit("softmax", scores, axis=1)
    k = {"k": node.attr("k", 1), "axis": 1, "largest": True, "sorted": True}
    best, chosen = node.emit_all("topk", probabilities, **k)
    if shares is not None:
        best = node.emit("gather_elements", node.cast(shares, F32), chosen, axis=1)
    if node.attr("normalize_routing_weights", 0):
        total = node.emit("reduce_sum", best, axes=(1,), keepdims=True)
        best = node.emit("div", best, total)
    return best, chosen


def _outputs(node: Node, layer: Layer, tokens: Value, chosen: Value) -> Value:
    """[tokens, k, outputs]."""
    parts = (Tensor(node.walk.builder, v) for v in (tokens, chosen))
    found = layer.stack.each(*parts).value
    if layer.bias is None:
        return found
    biases = node.emit("gather", node.cast(layer.bias, F32), chosen, axis=0)
    return node.emit("add", found, biases)


def _activated(node: Node, x: Value, gate: Value | None) -> Value:
    kind = node.attr("activation_type", "relu")
    if kind not in ACTIVATIONS or node.attr("swiglu_limit_after_activation", 0):
        raise node.unsupported(f"activation {kind!r}", f"supported are {', '.join(ACTIVATIONS)}")
    if kind == "swiglu":
        return _swiglu(node, *(_halves(node, x) if gate is None else (x, gate)))
    match kind:
        case "gelu":
            x = node.emit("gelu", x, approximate="tanh")  # as onnxruntime does, here
        case "silu":
            x = node.emit("swish", x, alpha=1.0)
        case "relu":
            x = node.emit("relu", x)
    return x if gate is None else node.emit("mul", x, gate)


def _halves(node: Node, x: Value) -> tuple[Value, Value]:
    """Gates and values, in turn or one behind the other."""
    tokens, k, width = node.dims(x)
    half = width // 2
    if node.attr("swiglu_fusion", 0) == 2:
        left, right = node.emit_all("split", x, sizes=(half, half), axis=2)
        return left, right
    pairs = node.reshape(x, (tokens, k, half, 2))
    left, right = (
        node.reshape(part, (tokens, k, half))
        for part in node.emit_all("split", pairs, sizes=(1, 1), axis=3)
    )
    return left, right


def _swiglu(node: Node, gate: Value, x: Value) -> Value:
    """gate · sigmoid(alpha · gate) · (x + beta), both within a limit, gates only from above."""
    if node.has_attr("swiglu_limit"):
        limit = node.attr("swiglu_limit")
        gate = node.emit("min", gate, node.scalar(limit, F32))
        x = node.emit("clip", x, node.scalar(-limit, F32), node.scalar(limit, F32))
    gate = node.emit("swish", gate, alpha=node.attr("activation_alpha", 1.0))
    beta = node.attr("activation_beta", 0.0)
    return node.emit("mul", gate, x if beta == 0 else node.emit("add", x, node.scalar(beta, F32)))
