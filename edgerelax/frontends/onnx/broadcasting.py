"""Shapes that must agree and are not known to: what is asserted, what is left to run time.

Two dims of one element-wise call that are not known to be equal are taken to be equal, and checked
when the program runs, if neither can be 1, or if they depend on a common symbol: then they are
sizes of the same thing that rounding keeps from being proven so. Else one of them may be 1: what
they broadcast to is a symbol that the program defines.
"""

from collections.abc import Sequence

from edgerelax.frontends.onnx.node import Node
from edgerelax.ir.graph import Value
from edgerelax.sym import Expr, as_expr, prove_eq


def broadcast_call(node: Node, op: str, *values: Value) -> Value:
    """An element-wise call of operands that broadcast."""
    fitted, sizes = aligned(node, values)
    return settled(node, node.emit(op, *fitted), sizes)


def aligned(
    node: Node, values: Sequence[Value], skip: int = 0
) -> tuple[tuple[Value, ...], dict[int, Expr]]:
    """Values that broadcast together, their dims made equal where they must be.

    Also the sizes, by dim of the result, that only the program decides: `settled` puts them in. The
    last `skip` dims are left alone.
    """
    shapes = [list(node.dims(v)) for v in values]
    rank = max(map(len, shapes), default=0)
    sizes: dict[int, Expr] = {}
    for back in range(1 + skip, rank + 1):
        places = [shape for shape in shapes if len(shape) >= back]
        wide = [shape for shape in places if prove_eq(shape[-back], 1) is not True]
        open_dims = _agree(wide, -back)
        if len(open_dims) > 1:
            sizes[rank - back] = broadcast_size(node, open_dims)
    fitted = (node.with_dims(v, s) for v, s in zip(values, shapes, strict=True))
    return tuple(fitted), sizes


def _agree(shapes: Sequence[list[Expr]], at: int) -> tuple[Expr, ...]:
    """Make the dims of one axis the plainest of them where they must agree; what is then left."""
    if len({shape[at] for shape in shapes}) < 2:
        return ()
    anchor = min((shape[at] for shape in shapes), key=plainness)
    for shape in shapes:
        if prove_eq(shape[at], anchor) is None and must_agree(shape[at], anchor):
            shape[at] = anchor
    left = (s[at] for s in shapes if prove_eq(s[at], anchor) is None)
    return tuple(dict.fromkeys((anchor, *left)))


def must_agree(a: Expr, b: Expr) -> bool:
    """Whether two dims that are not known to be equal are taken to be."""
    if prove_eq(a, 1) is False and prove_eq(b, 1) is False:
        return True
    return bool(a.symbols() & b.symbols())


def broadcast_size(node: Node, dims: Sequence[Expr]) -> Expr:
    """What dims broadcast to, as a symbol whose definition checks that they do."""
    size = dims[0]
    for dim in dims[1:]:
        size = node.walk.broadcast_size(node, size, dim)
    return size


def settled(node: Node, result: Value, sizes: dict[int, Expr]) -> Value:
    """The result with the sizes that `aligned` found."""
    if not sizes:
        return result
    dims = [sizes.get(k, dim) for k, dim in enumerate(node.dims(result))]
    return node.with_dims(result, dims)


def plainness(dim: Expr) -> tuple[int, int]:
    """Which of several dims says most: numbers, then short expressions."""
    return (0 if dim.as_int() is not None else 1, len(str(dim)))


def same_dims(
    node: Node, values: Sequence[Value], axes: Sequence[tuple[int, ...]]
) -> tuple[Value, ...]:
    """Values whose dims `axes[k][j]` are one size for all k, for each j; checked where unproven."""
    shapes = [list(node.dims(v)) for v in values]
    for j in range(len(axes[0])):
        places = [(shape, own[j]) for shape, own in zip(shapes, axes, strict=True)]
        anchor = min((shape[axis] for shape, axis in places), key=plainness)
        for shape, axis in places:
            if prove_eq(shape[axis], anchor) is None:
                shape[axis] = as_expr(anchor)
    return tuple(node.with_dims(v, s) for v, s in zip(values, shapes, strict=True))
