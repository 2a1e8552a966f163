"""Importers of operators that ask for shapes or change them: Shape, Reshape, Transpose, Expand…"""

from collections.abc import Sequence

from edgerelax.frontends.onnx.broadcasting import broadcast_size, must_agree, settled
from edgerelax.frontends.onnx.node import Node, shape_text
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.dtypes import I64
from edgerelax.ir.graph import Value
from edgerelax.ops.shaping import flattened, resolve_reshape, squeezed, unsqueezed
from edgerelax.sym import Expr, as_expr, eq, maximum, product, prove_eq, proves_le, select


@importer("Shape")
def _shape(node: Node) -> Result:
    dims = node.dims(node.value(0))
    start, end = node.attr("start", 0), node.attr("end", len(dims))
    return node.integers(dims[start:end] if start < len(dims) else (), I64)


@importer("Size")
def _size(node: Node) -> Result:
    return node.integers([product(node.dims(node.value(0)))], I64, rank=0)


@importer("Reshape", since=5)
def _reshape(node: Node) -> Result:
    x = node.value(0)
    dims, target = node.dims(x), node.ints(1, lo=-1, what="the shape") or ()
    allow_zero = bool(node.attr("allowzero", 0))
    if all(t.as_int() is not None or proves_le(0, t) for t in target):
        return node.reshape(x, resolve_reshape(dims, target, allow_zero))
    return node.reshape(x, _decided_later(node, dims, target, allow_zero))


def _decided_later(
    node: Node, dims: tuple[Expr, ...], target: tuple[Expr, ...], allow_zero: bool
) -> tuple[Expr, ...]:
    """The same where only a run will tell which numbers are -1 and 0."""
    copied = node.walk.name_dims(
        node,
        [
            t if allow_zero or k >= len(dims) else select(eq(t, 0), dims[k], t)
            for k, t in enumerate(target)
        ],
        least=-1,
    )
    given = node.walk.name_dims(node, [select(eq(t, -1), 1, t) for t in copied])
    left = product(dims) // maximum(1, product(given))
    return node.walk.name_dims(node, [select(eq(t, -1), left, t) for t in copied])


@importer("Flatten")
def _flatten(node: Node) -> Result:
    x = node.value(0)
    return node.reshape(x, flattened(node.dims(x), node.attr("axis")))


def _axes(node: Node, k: int = 1) -> tuple[int, ...] | None:
    """Axes as an attribute (before opset 13) or as operand k."""
    if node.has_attr("axes"):
        return tuple(node.attr("axes"))
    return node.numbers(k, "the axes")


@importer("Squeeze")
def _squeeze(node: Node) -> Result:
    x, axes = node.value(0), _axes(node)
    dims = node.dims(x)
    if axes is None:
        unclear = [d for d in dims if prove_eq(d, 1) is None]
        if unclear:
            raise node.unsupported(
                f"no axes, and whether {', '.join(map(str, unclear))} of {shape_text(dims)} is 1 "
                "is not known",
                hint="give the size or its bounds with --dim",
            )
    return node.reshape(x, squeezed(dims, axes))


@importer("Unsqueeze")
def _unsqueeze(node: Node) -> Result:
    x, axes = node.value(0), _axes(node)
    return node.reshape(x, unsqueezed(node.dims(x), axes or ()))


@importer("ExpandDims", domain="com.microsoft")
def _expand_dims(node: Node) -> Result:
    return node.reshape(
        node.value(0), unsqueezed(node.dims(node.value(0)), node.numbers(1, "the axis") or ())
    )


@importer("Transpose")
def _transpose(node: Node) -> Result:
    x = node.value(0)
    perm = node.attr("perm", None) or tuple(reversed(range(node.rank(x))))
    if sorted(perm) != list(range(node.rank(x))):
        raise node.bad(f"perm {list(perm)} for a tensor of rank {node.rank(x)}")
    return node.transpose(x, perm)


@importer("Expand", since=8)
def _expand(node: Node) -> Result:
    return expand(node, node.value(0), node.ints(1, lo=0, what="the shape") or ())


def expand(node: Node, x: Value, wanted: Sequence[Expr]) -> Value:
    """Broadcast to at least these dims; that they fit is checked at run time where unproven."""
    rank = max(node.rank(x), len(wanted))
    x = node.reshape(x, [1] * (rank - node.rank(x)) + list(node.dims(x)))
    sizes: dict[int, Expr] = {}
    for k, want in enumerate(wanted, rank - len(wanted)):
        own = node.dims(x)[k]
        if prove_eq(own, want) is not None or 1 in (own.as_int(), want.as_int()):
            continue
        if must_agree(own, want):
            x = node.with_dim(x, k, want)
        else:
            sizes[k] = broadcast_size(node, (own, want))
    return settled(node, node.emit("expand", x, dims=tuple(wanted)), sizes)


@importer("Tile", since=6)
def _tile(node: Node) -> Result:
    x, repeats = node.value(0), node.ints(1, lo=0, what="the repeats")
    return node.emit("tile", x, repeats=repeats or ())


@importer("DepthToSpace")
def _depth_to_space(node: Node) -> Result:
    mode = node.attr("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise node.bad(f"mode {mode!r}, not DCR or CRD")
    return node.emit("depth_to_space", node.value(0), block=node.attr("blocksize"), mode=mode)


@importer("SpaceToDepth")
def _space_to_depth(node: Node) -> Result:
    block, mode = node.attr("blocksize"), node.attr("mode", "DCR")
    x = node.value(0)
    if mode == "DCR":
        return node.emit("space_to_depth", x, block=block)
    n, c, h, w = node.dims(x)
    cut = node.reshape(x, (n, c, h // block, block, w // block, block))
    turned = node.transpose(cut, (0, 1, 3, 5, 2, 4))
    return node.reshape(turned, (n, c * (block * block), h // block, w // block))


@importer("Trilu")
@importer("Trilu", domain="com.microsoft")
def _trilu(node: Node) -> Result:
    k = node.ints(1, what="k") or (as_expr(0),)
    return node.emit("trilu", node.value(0), upper=bool(node.attr("upper", 1)), k=k[0])


@importer("ReverseSequence")
def _reverse_sequence(node: Node) -> Result:
    x, lengths = node.value(0), node.value(1)
    batch, time = node.axis(x, node.attr("batch_axis")), node.axis(x, node.attr("time_axis"))
    lengths = node.with_dims(lengths, (node.dims(x)[batch],))
    return node.emit("reverse_sequence", x, lengths, batch_axis=batch, time_axis=time)
