"""Shapes that must agree and are not known to: what is asserted, what is left to run time.

Two dims of one element-wise call that are not known to be equal are taken to be equal, and checked
when the program runs, if neither can be 1, or if they depend on a common symbol: then they are
sizes of the same thing that rounding keeps from being proven so. Else, and where one of them came
of a broadcast itself, one may be 1, and the program decides.
"""

from collections.abc import Sequence

from edgerelax.frontends.onnx.node import Node
from edgerelax.ir.graph import Value
from edgerelax.sym import Expr, Select, as_expr, eq, prove_eq, select


def aligned(node: Node, *values: Value, skip: int = 0) -> tuple[Value, ...]:
    """Values that broadcast together, their dims made equal where they must be.

    The last `skip` dims are left alone.
    """
    ranks = [node.rank(v) for v in values]
    shapes = [list(node.dims(v)) for v in values]
    for back in range(1 + skip, max(ranks, default=0) + 1):
        column = {k: shapes[k][-back] for k, rank in enumerate(ranks) if rank >= back}
        for k, dim in _agreed(node, column).items():
            shapes[k][-back] = dim
    return tuple(node.with_dims(v, s) for v, s in zip(values, shapes, strict=True))


def _agreed(node: Node, column: dict[int, Expr]) -> dict[int, Expr]:
    """New dims for one axis of the operands."""
    wide = {k: d for k, d in column.items() if prove_eq(d, 1) is not True}
    if len(set(wide.values())) < 2:
        return {}
    anchor = min(wide.values(), key=plainness)
    changed: dict[int, Expr] = {}
    for k, dim in wide.items():
        if prove_eq(dim, anchor) is not None:
            continue
        if must_agree(dim, anchor):
            changed[k] = anchor
        else:
            check_broadcast(node, dim, anchor)
    return changed


def must_agree(a: Expr, b: Expr) -> bool:
    """Whether two dims that are not known to be equal are taken to be."""
    if prove_eq(a, 1) is False and prove_eq(b, 1) is False:
        return True
    chosen = any(isinstance(atom, Select) for e in (a, b) for atom in e.atoms())
    return not chosen and bool(a.symbols() & b.symbols())


def check_broadcast(node: Node, a: Expr, b: Expr) -> None:
    """Equal, or one of them is 1."""
    wide = select(eq(a, 1), b, a)
    node.walk.check_equal(node, select(eq(b, 1), wide, b), wide)


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
