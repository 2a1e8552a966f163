"""Importers of operators that ONNX only tried out, as models converted from Core ML have them."""

import numpy as np

from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value


def _affine(node: Node, x: Value, factor: float, offset: float) -> Value:
    dtype = node.dtype(x)
    x = x if factor == 1 else node.emit("mul", x, node.scalar(factor, dtype))
    return x if offset == 0 else node.emit("add", x, node.scalar(offset, dtype))


@importer("Affine")
def _affine_of(node: Node) -> Result:
    return _affine(node, node.value(0), node.attr("alpha", 1.0), node.attr("beta", 0.0))


@importer("Scale")
def _scale(node: Node) -> Result:
    return _affine(node, node.value(0), node.attr("scale", 1.0), 0)


@importer("ScaledTanh")
def _scaled_tanh(node: Node) -> Result:
    inner = _affine(node, node.value(0), node.attr("beta"), 0)
    return _affine(node, node.emit("tanh", inner), node.attr("alpha"), 0)


@importer("ParametricSoftplus")
def _parametric_softplus(node: Node) -> Result:
    inner = _affine(node, node.value(0), node.attr("beta"), 0)
    return _affine(node, node.emit("softplus", inner), node.attr("alpha"), 0)


@importer("ImageScaler")
def _image_scaler(node: Node) -> Result:
    """A factor for all, an offset for each channel of [batch, channels, height, width]."""
    x = _affine(node, node.value(0), node.attr("scale", 1.0), 0)
    bias = node.array(np.array(node.attr("bias"), node.dtype(x).numpy))
    column = node.reshape(node.with_dims(bias, node.dims(x)[1:2]), (node.dims(x)[1], 1, 1))
    return node.emit("add", x, column)


@importer("Crop")
def _crop(node: Node) -> Result:
    """Borders left, top, right, bottom go; with a scale, so much is left behind the first two."""
    x = node.value(0)
    left, top, right, bottom = node.attr("border")
    height, width = node.dims(x)[2:]
    ends = (height - bottom, width - right)
    if node.has_attr("scale"):
        ends = tuple(b + s for b, s in zip((top, left), node.attr("scale"), strict=True))
    cut = node.emit("slice", x, starts=(top, left), ends=ends, axes=(2, 3), steps=None)
    return node.with_dims(cut, (*node.dims(x)[:2], ends[0] - top, ends[1] - left))
