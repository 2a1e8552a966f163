"""Importers of onnxruntime's contributed operators (com.microsoft)."""

from edgerelax.frontends.onnx.broadcasting import broadcast_call
from edgerelax.frontends.onnx.nn import conv, matmul
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.normalisation import layer_norm, over_trailing, rms_norm
from edgerelax.frontends.onnx.registry import Item, Result, importer
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
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        raise node.unsupported("transBatchA or transBatchB")
    transposes = (bool(node.attr(name, 0)) for name in ("transA", "transB"))
    result = matmul(node, node.value(0), node.value(1), *transposes)
    alpha = node.attr("alpha", 1.0)
    return (
        result if alpha == 1 else node.emit("mul", result, node.scalar(alpha, node.dtype(result)))
    )


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


# Normalisations


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
    """Word, position and segment embeddings, added and normalised."""
    ids, segments = node.value(0), node.input(1)
    words, positions, segment_rows = node.value(2), node.value(3), node.input(4)
    gamma, beta, mask, given = node.value(5), node.value(6), node.input(7), node.input(8)
    batch, length = node.dims(ids)
    total = node.emit("gather", words, ids, axis=0)
    if given is None:
        own = node.emit("slice", positions, starts=(0,), ends=(length,), axes=(0,), steps=None)
        own = node.with_dim(own, 0, length)
    else:
        own = node.emit("gather", positions, given, axis=0)
    total = broadcast_call(node, "add", total, own)
    if segments is not None and segment_rows is not None:
        rows = node.emit("gather", segment_rows, node.with_dims(segments, (batch, length)), axis=0)
        total = node.emit("add", total, rows)
    attrs = {"axis": -1, "epsilon": node.attr("epsilon", 1e-12)}
    result = node.emit("layer_norm", total, gamma, beta, **attrs)
    return (result, _mask_lengths(node, mask), total)


def _mask_lengths(node: Node, mask: Value | None) -> Item:
    """How many tokens of each row are real, where it is asked for."""
    if mask is None or not node.wants(1):
        return None
    return node.emit("reduce_sum", mask, axes=(1,), keepdims=False)
