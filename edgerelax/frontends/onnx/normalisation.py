"""Importers of normalisations."""

from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.dtypes import BF16, F16
from edgerelax.ir.graph import Value


@importer("BatchNormalization", since=7)
def _batch_norm(node: Node) -> Result:
    x = node.value(0)
    if node.attr("spatial", 1) != 1:
        raise node.unsupported("spatial 0: one number per element instead of one per channel")
    if node.attr("training_mode", 0) or any(node.wants(k) for k in range(1, 5)):
        raise node.unsupported("training mode", "export the model for inference")
    channels = node.dims(x)[1:2]
    numbers = (node.cast(node.value(k), node.dtype(x)) for k in range(1, 5))
    fitted = (node.with_dims(v, channels) for v in numbers)
    return node.emit("batch_norm", x, *fitted, epsilon=node.attr("epsilon"))


@importer("InstanceNormalization")
def _instance_norm(node: Node) -> Result:
    x = node.value(0)
    scale, bias = (node.with_dims(node.value(k), node.dims(x)[1:2]) for k in (1, 2))
    return node.emit("instance_norm", x, scale, bias, epsilon=node.attr("epsilon"))


@importer("GroupNormalization", since=18)
def _group_norm_by_group(node: Node) -> Result:
    """Scale and bias per group: each is repeated for the channels of its group."""
    x, groups = node.value(0), node.attr("num_groups")
    each = node.dims(x)[1] // groups

    def repeated(value: Value) -> Value:
        column = node.reshape(value, (groups, 1))
        wide = node.emit("expand", column, dims=(groups, each))
        return node.reshape(wide, (node.dims(x)[1],))

    scale, bias = (repeated(node.value(k)) for k in (1, 2))
    return group_norm(node, x, scale, bias, groups, node.attr("epsilon"))


@importer("GroupNormalization", since=21)
def _group_norm(node: Node) -> Result:
    x = node.value(0)
    scale, bias = (node.with_dims(node.value(k), node.dims(x)[1:2]) for k in (1, 2))
    return group_norm(node, x, scale, bias, node.attr("num_groups"), node.attr("epsilon"))


def group_norm(
    node: Node, x: Value, scale: Value, bias: Value, groups: int, epsilon: float
) -> Value:
    """Channels in axis 1 normalised by groups; scale and bias are of channels."""
    channels = node.dims(x)[1]
    if groups < 1:
        raise node.bad(f"{groups} groups")
    x = node.with_dim(x, 1, channels // groups * groups)
    return node.emit("group_norm", x, scale, bias, num_groups=groups, epsilon=epsilon)


@importer("LayerNormalization")
@importer("LayerNormalization", domain="com.microsoft")
def _layer_norm(node: Node) -> Result:
    return layer_norm(node, node.value(0), node.value(1), node.input(2), 1e-5)


def layer_norm(
    node: Node, x: Value, scale: Value, bias: Value | None, epsilon: float
) -> tuple[Value, ...]:
    """The normalised value, and where they are wanted mean and inverse deviation."""
    attrs = {"axis": node.attr("axis", -1), "epsilon": node.attr("epsilon", epsilon)}
    scale = over_trailing(node, x, scale)
    bias = None if bias is None else over_trailing(node, x, bias)
    if not (node.wants(1) or node.wants(2)):
        return (node.emit("layer_norm", x, scale, bias, **attrs),)
    results = node.emit_all("layer_norm", x, scale, bias, **attrs, statistics=True)
    if node.attr("stash_type", 1) == 1 or node.dtype(x) not in (F16, BF16):
        return results
    return (results[0], *(node.cast(r, node.dtype(x)) for r in results[1:]))


def over_trailing(node: Node, x: Value, value: Value) -> Value:
    """A scale or bias that broadcasts to the last dims of x; checked where unproven."""
    dims = node.dims(value)
    if len(dims) > node.rank(x):
        raise node.bad(f"{value.annotation} does not broadcast to {x.annotation}")
    own = node.dims(x)[node.rank(x) - len(dims) :]
    fitted = [d if d.as_int() == 1 else whole for d, whole in zip(dims, own, strict=True)]
    return node.with_dims(value, fitted)


@importer("RMSNormalization")
def _rms_norm(node: Node) -> Result:
    x = node.value(0)
    scale = over_trailing(node, x, node.value(1))
    return rms_norm(node, x, scale, node.attr("epsilon"))


def rms_norm(node: Node, x: Value, scale: Value, epsilon: float) -> Value:
    """Scaled by the inverse root mean square; a scale of another dtype decides the result's."""
    axis, dtype = node.attr("axis", -1), node.dtype(scale)
    if dtype == node.dtype(x):
        return node.emit("rms_norm", x, scale, axis=axis, epsilon=epsilon)
    normal = node.emit("rms_norm", x, None, axis=axis, epsilon=epsilon)
    return node.emit("mul", node.cast(normal, dtype), scale)


@importer("LpNormalization")
def _lp_norm(node: Node) -> Result:
    return node.emit("lp_norm", node.value(0), axis=node.attr("axis"), p=node.attr("p"))


@importer("LRN")
def _lrn(node: Node) -> Result:
    attrs = {name: node.attr(name) for name in ("alpha", "beta", "bias", "size")}
    return node.emit("lrn", node.value(0), **attrs)


@importer("MeanVarianceNormalization")
def _mean_variance_norm(node: Node) -> Result:
    axes = tuple(node.attr("axes", (0, 2, 3)))
    return node.emit("mean_variance_norm", node.value(0), axes=axes)
