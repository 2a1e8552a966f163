"""Importers of onnxruntime's contributed operators (com.microsoft)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgerelax.frontends.onnx.broadcasting import broadcast_call
from edgerelax.frontends.onnx.nn import channels_first, channels_last, conv, matmul
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.normalisation import group_norm, layer_norm, over_trailing, rms_norm
from edgerelax.frontends.onnx.reduction import flat_softmax
from edgerelax.frontends.onnx.registry import Item, Result, importer
from edgerelax.ir.dtypes import I32
from edgerelax.ir.graph import Value

MICROSOFT = "com.microsoft"


@importer("Gelu", domain=MICROSOFT)
def _gelu(node: Node) -> Result:
    return node.emit("gelu", node.value(0), approximate="none")


@importer("BiasGelu", domain=MICROSOFT)
def _bias_gelu(node: Node) -> Result:
    return node.emit("gelu", _biased(node), approximate="none")


@importer("FastGelu", domain=MICROSOFT)
def _fast_gelu(node: Node) -> Result:
    return node.emit("gelu", _biased(node), approximate="tanh")


def _biased(node: Node) -> Value:
    x, bias = node.value(0), node.input(1)
    return x if bias is None else node.emit("add", x, over_trailing(node, x, bias))


@importer("QuickGelu", domain=MICROSOFT)
def _quick_gelu(node: Node) -> Result:
    return node.emit("swish", node.value(0), alpha=node.attr("alpha", 1.702))


@importer("BiasAdd", domain=MICROSOFT)
def _bias_add(node: Node) -> Result:
    x, bias, skip = node.values()
    return broadcast_call(node, "add", broadcast_call(node, "add", x, bias), skip)


@importer("BiasSplitGelu", domain=MICROSOFT)
def _bias_split_gelu(node: Node) -> Result:
    x = _biased(node)
    half = node.dims(x)[-1] // 2
    value, gate = node.emit_all("split", x, sizes=(half, half), axis=node.rank(x) - 1)
    return node.emit("mul", value, node.emit("gelu", gate, approximate="none"))


@importer("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _fused_matmul(node: Node) -> Result:
    a, b = (_rows_inside(node, node.value(k), f"transBatch{'AB'[k]}") for k in (0, 1))
    transposes = (bool(node.attr(name, 0)) for name in ("transA", "transB"))
    return _times(node, matmul(node, a, b, *transposes), node.attr("alpha", 1.0))


def _rows_inside(node: Node, x: Value, flag: str) -> Value:
    """The operand with its first axis as its last but one, if the flag says so."""
    rank = node.rank(x)
    if not node.attr(flag, 0) or rank < 3:
        return x
    return node.transpose(x, (*range(1, rank - 1), 0, rank - 1))


@importer("FusedMatMulActivation", domain=MICROSOFT)
def _fused_matmul_activation(node: Node) -> Result:
    product = _fused_matmul(node)
    assert not isinstance(product, Sequence)
    if node.attr("activation") == "Softmax":
        return node.emit("softmax", product, axis=node.attr("activation_axis", -1))
    return _activated(node, product)


@importer("GemmFastGelu", domain=MICROSOFT)
def _gemm_fast_gelu(node: Node) -> Result:
    x, bias = matmul(node, node.value(0), node.value(1)), node.input(2)
    x = x if bias is None else node.emit("add", x, over_trailing(node, x, bias))
    return node.emit("gelu", x, approximate="tanh")


@importer("BiasSoftmax", domain=MICROSOFT)
def _bias_softmax(node: Node) -> Result:
    """The bias lacks leading dims, or has ones in the place of those before the softmax's axis."""
    x, bias = node.value(0), node.value(1)
    axis = node.axis(x, node.attr("axis", 1))
    if node.attr("is_inner_broadcast") and node.rank(bias) < node.rank(x):
        missing = node.rank(x) - node.rank(bias)
        dims = node.dims(bias)
        kept = node.rank(bias) - (node.rank(x) - axis)
        bias = node.reshape(bias, (*dims[:kept], *[1] * missing, *dims[kept:]))
    return flat_softmax(node, "softmax", broadcast_call(node, "add", x, bias), axis)


@importer("BiasDropout", domain=MICROSOFT)
def _bias_dropout(node: Node) -> Result:
    """As in inference: nothing is dropped."""
    training = node.input(4)
    if node.wants(1) or (training is not None and node.constant(training) != np.array(False)):
        raise node.unsupported("training, or the mask as an output")
    x, residual = _biased(node), node.input(2)
    return x if residual is None else node.emit("add", x, residual)


@importer("FusedGemm", domain=MICROSOFT)
def _fused_gemm(node: Node) -> Result:
    a, b, c = node.value(0), node.value(1), node.input(2)
    result = matmul(node, a, b, bool(node.attr("transA", 0)), bool(node.attr("transB", 0)))
    result = _times(node, result, node.attr("alpha", 1.0))
    if c is not None and node.attr("beta", 1.0) != 0:
        result = broadcast_call(node, "add", result, _times(node, c, node.attr("beta", 1.0)))
    return _activated(node, result)


def _times(node: Node, value: Value, factor: float) -> Value:
    return value if factor == 1 else node.emit("mul", value, node.scalar(factor, node.dtype(value)))


def _activated(node: Node, value: Value) -> Value:
    """The activation that is fused into a node."""
    name = node.attr("activation", "")
    params = tuple(node.attr("activation_params", ()))
    alpha = node.attr("activation_alpha", node.attr("leaky_relu_alpha", 0.01))
    match name:
        case "":
            return value
        case "Relu" | "Sigmoid" | "Tanh":
            return node.emit(name.lower(), value)
        case "LeakyRelu":
            return node.emit("leaky_relu", value, alpha=params[0] if params else alpha)
        case "HardSigmoid" if len(params) == 2:
            return node.emit("hard_sigmoid", value, alpha=params[0], beta=params[1])
        case "Clip" if len(params) == 2:
            limits = (node.scalar(p, node.dtype(value)) for p in params)
            return node.emit("clip", value, *limits)
    raise node.unsupported(f"activation {name!r} with parameters {list(params)}")


@importer("FusedConv", domain=MICROSOFT)
def _fused_conv(node: Node) -> Result:
    result = conv(node, node.value(0), node.value(1), node.input(2))
    residual = node.input(3)
    if residual is not None:
        result = broadcast_call(node, "add", result, residual)
    return _activated(node, result)


@importer("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def _nhwc_conv(node: Node) -> Result:
    """Images with their channels last; weights are as elsewhere."""
    result = conv(node, channels_first(node, node.value(0)), node.value(1), node.input(2))
    if node.op == "NhwcConv":
        return channels_last(node, result)
    residual = node.input(3)
    if residual is not None:
        result = node.emit("add", result, channels_first(node, residual))
    return channels_last(node, _activated(node, result))


# Normalisations


@importer("GroupNorm", domain=MICROSOFT)
def _group_norm(node: Node) -> Result:
    return _activated_groups(node, node.value(0))


@importer("SkipGroupNorm", domain=MICROSOFT)
def _skip_group_norm(node: Node) -> Result:
    """x + skip + bias, where a skip may be of channels only, and its groups normalised."""
    x, skip, bias = node.value(0), node.value(3), node.input(4)
    last = bool(node.attr("channels_last", 1))
    dims = node.dims(skip)
    if len(dims) == 2:
        skip = node.reshape(skip, (dims[0], 1, 1, dims[1]) if last else (*dims, 1, 1))
    total = broadcast_call(node, "add", x, skip)
    if bias is not None:
        bias = bias if last else node.reshape(bias, (*node.dims(bias), 1, 1))
        total = broadcast_call(node, "add", total, bias)
    return (_activated_groups(node, total), total)


def _activated_groups(node: Node, x: Value) -> Value:
    last, activation = bool(node.attr("channels_last", 1)), node.attr("activation")
    if activation not in (0, 1):
        raise node.unsupported(f"activation {activation}", hint="0 for none, 1 for SiLU")
    groups, own = node.attr("groups"), channels_first(node, x) if last else x
    scale, bias = (node.cast(node.value(k), node.dtype(x)) for k in (1, 2))
    y = group_norm(node, own, scale, bias, groups, node.attr("epsilon", 1e-5))
    y = node.emit("swish", y, alpha=1.0) if activation else y
    return channels_last(node, y) if last else y


@importer("SkipLayerNormalization", domain=MICROSOFT)
def _skip_layer_norm(node: Node) -> Result:
    total = _skipped(node, 4)
    results = layer_norm(node, total, node.value(2), node.input(3), 1e-5)
    return (results[0], *_rest(results), total)


def _skipped(node: Node, k: int) -> Value:
    """x + skip + bias, where the skip may lack the batch dim and the bias is operand k."""
    total = broadcast_call(node, "add", node.value(0), node.value(1))
    bias = node.input(k)
    return total if bias is None else node.emit("add", total, over_trailing(node, total, bias))


def _rest(results: tuple[Value, ...]) -> tuple[Item, Item]:
    return (results[1], results[2]) if len(results) > 1 else (None, None)


@importer("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def _skip_rms_norm(node: Node) -> Result:
    total = _skipped(node, 3)
    scale = over_trailing(node, total, node.value(2))
    _refuse_statistics(node)
    return (rms_norm(node, total, scale, node.attr("epsilon", 1e-5)), None, None, total)


@importer("SimplifiedLayerNormalization")
@importer("SimplifiedLayerNormalization", domain=MICROSOFT)
def _simplified_layer_norm(node: Node) -> Result:
    """onnxruntime registers it in the default domain as well."""
    x = node.value(0)
    _refuse_statistics(node)
    return rms_norm(node, x, over_trailing(node, x, node.value(1)), node.attr("epsilon", 1e-5))


def _refuse_statistics(node: Node) -> None:
    if node.wants(1) or (node.op.startswith("Skip") and node.wants(2)):
        raise node.unsupported("the inverse deviation as an output")


@importer("EmbedLayerNormalization", domain=MICROSOFT)
def _embed_layer_norm(node: Node) -> Result:
    tables = Embedded(node.value(2), node.value(3), node.input(4), node.value(5), node.value(6))
    return embed_layer_norm(node, tables, node.input(7), node.input(8))


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embeddings of words, positions and segments, and the weights of the norm over their sum."""

    words: Value
    positions: Value
    segments: Value | None
    gamma: Value
    beta: Value


def embed_layer_norm(
    node: Node, tables: Embedded, mask: Value | None, given: Value | None
) -> Result:
    """Rows of the tables, added and normalised; operands 0 and 1 are words and segments.

    `given` are the positions, if not 0, 1, … Results: normalised, lengths by the mask, the sum.
    """
    ids, segments = node.value(0), node.input(1)
    batch, length = node.dims(ids)
    total = node.emit("gather", tables.words, ids, axis=0)
    if given is None:
        cut = {"starts": (0,), "ends": (length,), "axes": (0,), "steps": None}
        own = node.with_dim(node.emit("slice", tables.positions, **cut), 0, length)
    else:
        own = node.emit("gather", tables.positions, given, axis=0)
    total = broadcast_call(node, "add", total, own)
    if segments is not None and tables.segments is not None:
        ids = node.with_dims(segments, (batch, length))
        total = node.emit("add", total, node.emit("gather", tables.segments, ids, axis=0))
    attrs = {"axis": -1, "epsilon": node.attr("epsilon", 1e-12)}
    result = node.emit("layer_norm", total, tables.gamma, tables.beta, **attrs)
    return (result, _mask_lengths(node, mask), total)


def _mask_lengths(node: Node, mask: Value | None) -> Item:
    """How many tokens of each row are real, where it is asked for; 0 without a mask."""
    if not node.wants(1):
        return None
    if mask is None:
        return node.emit("full", dims=node.dims(node.value(0))[:1], value=0, dtype=I32)
    return node.emit("reduce_sum", mask, axes=(1,), keepdims=False)


@importer("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch", domain=MICROSOFT)
def _generation(node: Node) -> Result:
    raise node.unsupported(
        "a whole loop of generation", hint="export the decoder inside it: tokens are drawn here"
    )
