"""The importer of NonMaxSuppression."""

import numpy as np

from edgerelax.frontends.onnx.indexing import nonzero
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.dtypes import I64
from edgerelax.ir.graph import Value
from edgerelax.sym import Expr, as_expr, maximum, minimum


@importer("NonMaxSuppression")
def _non_max_suppression(node: Node) -> Result:
    """The chosen boxes as (image, class, box); how many there are is read."""
    boxes, scores = node.value(0), node.value(1)
    for value in (boxes, scores):
        if node.rank(value) != 3:
            raise node.bad(f"{value.annotation} is not of rank 3")
    images, count, _ = node.dims(boxes)
    boxes = node.with_dim(boxes, 2, as_expr(4))
    scores = node.with_dims(scores, (images, node.dims(scores)[1], count))
    chosen = node.emit(
        "suppress", boxes, scores, _bound(node, 3, 0.0), _bound(node, 4, -np.inf),
        limit=minimum(_limit(node), count), centres=bool(node.attr("center_point_box")),
    )  # fmt: skip
    zero = node.integers([0], I64, rank=0)
    found = node.emit("transpose", nonzero(node, node.emit("ge", chosen, zero)), perm=(1, 0))
    total = node.dims(found)[0]
    picked = node.reshape(node.emit("gather_nd", chosen, found), (total, 1))
    where = node.emit("slice", found, starts=(0,), ends=(2,), axes=(1,), steps=None)
    return node.emit("concat", where, picked, axis=1)


def _limit(node: Node) -> Expr:
    """How many boxes of a class are wanted; none where that is not said."""
    given = node.input(2)
    if given is None:
        return as_expr(0)
    if node.rank(given) == 1:
        given = node.with_dims(given, (as_expr(1),))
    (limit,) = node.integers_of(given, lo=None, what="the limit")
    return maximum(limit, 0)


def _bound(node: Node, k: int, otherwise: float) -> Value:
    """A threshold [1]."""
    given = node.input(k)
    if given is None:
        return node.array(np.array([otherwise], np.float32))
    return node.reshape(given, (1,))
