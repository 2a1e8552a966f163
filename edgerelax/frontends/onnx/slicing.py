"""Importers of operators that cut, join and pad: Slice, Split, Concat, Pad, CenterCropPad."""

from edgerelax.frontends.onnx.broadcasting import same_dims
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value
from edgerelax.ops.joining import even_split
from edgerelax.ops.slicing import center_crop_pads
from edgerelax.sym import Expr, as_expr, maximum

LOWEST = -(1 << 31)
"""The least that an integer operand of which nothing is known is taken to be."""


@importer("Slice")
def _slice_attributes(node: Node) -> Result:
    starts, ends = node.attr("starts"), node.attr("ends")
    axes = node.attr("axes", tuple(range(len(starts))))
    return node.emit("slice", node.value(0), starts=starts, ends=ends, axes=axes, steps=None)


@importer("Slice", since=10)
def _slice(node: Node) -> Result:
    x = node.value(0)
    starts = node.ints(1, lo=LOWEST, what="the starts") or ()
    ends = node.ints(2, lo=LOWEST, what="the ends") or ()
    axes = node.numbers(3, "the axes")
    steps = node.ints(4, lo=LOWEST, what="the steps")
    if axes is None:
        axes = tuple(range(len(starts)))
    return node.emit("slice", x, starts=starts, ends=ends, axes=axes, steps=steps)


@importer("Split")
def _split_attribute(node: Node) -> Result:
    sizes = node.attr("split", None)
    return _split_at(node, None if sizes is None else tuple(as_expr(s) for s in sizes))


@importer("Split", since=13)
def _split(node: Node) -> Result:
    return _split_at(node, node.ints(1, lo=0, what="the sizes"))


def _split_at(node: Node, sizes: tuple[Expr, ...] | None) -> Result:
    x = node.value(0)
    axis = node.axis(x, node.attr("axis"))
    dim, count = node.dims(x)[axis], node.attr("num_outputs", node.output_count)
    if sizes is None:
        *most, last = even_split(dim, count)
        sizes = (*most, maximum(0, last))
    x = node.with_dim(x, axis, sum(sizes, as_expr(0)))
    return node.emit_all("split", x, sizes=sizes, axis=axis)


@importer("Concat")
def _concat(node: Node) -> Result:
    return concat(node, node.values(), node.attr("axis"))


def concat(node: Node, values: tuple[Value, ...], axis: int) -> Value:
    """Joined along an axis; that the other dims agree is checked at run time where unproven."""
    at = node.axis(values[0], axis)
    ranks = {node.rank(v) for v in values}
    if len(ranks) > 1:
        raise node.bad(f"operands of ranks {', '.join(map(str, sorted(ranks)))}")
    others = tuple(k for k in range(ranks.pop()) if k != at)
    return node.emit("concat", *same_dims(node, values, [others] * len(values)), axis=at)


@importer("Pad", since=2)
def _pad_attributes(node: Node) -> Result:
    x = node.value(0)
    value = node.attr("value", 0.0)
    fill = node.scalar(value, node.dtype(x)) if value else None
    return _pad_by(node, tuple(as_expr(p) for p in node.attr("pads")), fill, None)


@importer("Pad", since=11)
@importer("Pad", domain="com.microsoft")
def _pad(node: Node) -> Result:
    pads = node.ints(1, lo=LOWEST, what="the pads") or ()
    fill = node.input(2)
    fill = None if fill is None else node.reshape(fill, ())
    return _pad_by(node, pads, fill, node.numbers(3, "the axes"))


def _pad_by(
    node: Node, pads: tuple[Expr, ...], fill: Value | None, axes: tuple[int, ...] | None
) -> Result:
    mode = node.attr("mode", "constant")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise node.unsupported(f"mode {mode!r}")
    x = node.value(0)
    result = node.emit("pad", x, fill, pads=pads, axes=axes, mode=mode)
    return node.with_dims(result, [maximum(0, dim) for dim in node.dims(result)])


@importer("CenterCropPad")
def _center_crop_pad(node: Node) -> Result:
    x, wanted = node.value(0), node.ints(1, lo=0, what="the shape") or ()
    axes = tuple(node.axis(x, a) for a in node.attr("axes", tuple(range(node.rank(x)))))
    if len(wanted) != len(axes):
        raise node.bad(f"{len(wanted)} sizes for {len(axes)} axes")
    pads = center_crop_pads([node.dims(x)[a] for a in axes], wanted)
    return node.emit("pad", x, None, pads=pads, axes=axes, mode="constant")
