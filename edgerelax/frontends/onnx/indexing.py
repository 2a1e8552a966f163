"""Importers of operators that read or write by computed indices: Gather, Scatter, OneHot…"""

from edgerelax.frontends.onnx.broadcasting import same_dims
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.dtypes import I64
from edgerelax.ir.graph import Value
from edgerelax.sym import maximum, minimum, product, upper_bound


@importer("Gather")
def _gather(node: Node) -> Result:
    return node.emit("gather", node.value(0), node.value(1), axis=node.attr("axis"))


@importer("GatherElements")
def _gather_elements(node: Node) -> Result:
    data, indices = node.value(0), node.value(1)
    axis = node.axis(data, node.attr("axis"))
    if node.rank(data) != node.rank(indices):
        raise node.bad(f"data of rank {node.rank(data)}, indices of rank {node.rank(indices)}")
    pairs = enumerate(zip(node.dims(data), node.dims(indices), strict=True))
    data = node.with_dims(data, [d if k == axis else maximum(d, s) for k, (d, s) in pairs])
    return node.emit("gather_elements", data, indices, axis=axis)


@importer("GatherND")
@importer("GatherND", domain="com.microsoft")
def _gather_nd(node: Node) -> Result:
    batch, data, indices = node.attr("batch_dims", 0), node.value(0), node.value(1)
    if batch > min(node.rank(data), node.rank(indices)):
        raise node.bad(f"{batch} batch dims of {data.annotation} and {indices.annotation}")
    if node.dims(indices)[-1].as_int() is None:
        raise node.unsupported("indices whose last dim is not a known number")
    shared = tuple(range(batch))
    data, indices = same_dims(node, (data, indices), (shared, shared))
    return node.emit("gather_nd", data, indices, batch_dims=batch)


@importer("ScatterElements", "Scatter")
def _scatter_elements(node: Node) -> Result:
    data, indices, updates = node.value(0), node.value(1), node.value(2)
    axis = node.axis(data, node.attr("axis"))
    if not node.rank(data) == node.rank(indices) == node.rank(updates):
        raise node.bad("data, indices and updates of different ranks")
    pairs = enumerate(zip(node.dims(indices), node.dims(data), strict=True))
    sizes = [s if k == axis else minimum(s, d) for k, (s, d) in pairs]
    indices, updates = node.with_dims(indices, sizes), node.with_dims(updates, sizes)
    reduction = node.attr("reduction", "none")
    return node.emit("scatter_elements", data, indices, updates, axis=axis, reduction=reduction)


@importer("ScatterND")
def _scatter_nd(node: Node) -> Result:
    data, indices, updates = node.value(0), node.value(1), node.value(2)
    dims, places = node.dims(data), node.dims(indices)
    depth = places[-1].as_int() if places else None
    if depth is None:
        raise node.unsupported("indices whose last dim is not a known number")
    if not 0 <= depth <= len(dims):
        raise node.bad(f"index tuples of {depth} into a tensor of rank {len(dims)}")
    updates = node.with_dims(updates, (*places[:-1], *dims[depth:]))
    reduction = node.attr("reduction", "none")
    return node.emit("scatter_nd", data, indices, updates, reduction=reduction)


@importer("OneHot")
def _one_hot(node: Node) -> Result:
    given = node.cast(node.value(1), I64)
    depth = node.integers_of(given, lo=0, what="the depth")
    if len(depth) != 1:
        raise node.bad(f"depth has {len(depth)} elements, not 1")
    return node.emit(
        "one_hot", node.value(0), node.value(2), depth=depth[0], axis=node.attr("axis")
    )


@importer("Compress")
def _compress(node: Node) -> Result:
    """Gather at the places where the condition holds."""
    x, condition = node.value(0), node.value(1)
    if not node.has_attr("axis"):
        x = node.reshape(x, (node.count(x),))
    axis = node.axis(x, node.attr("axis", 0))
    x = node.with_dim(x, axis, maximum(node.dims(x)[axis], node.count(condition)))
    found = nonzero(node, condition)
    places = node.reshape(found, (node.dims(found)[1],))
    return node.emit("gather", x, places, axis=axis)


@importer("NonZero")
def _nonzero(node: Node) -> Result:
    return nonzero(node, node.value(0))


def nonzero(node: Node, x: Value) -> Value:
    """Places of the elements that are not 0, one per column; how many there are is read."""
    places, found = node.emit_all("nonzero", x)
    (kept,) = _first(node, [places], found, axis=1)
    return kept


def _first(node: Node, values: list[Value], found: Value, axis: int) -> list[Value]:
    """The first of the elements along an axis; how many are meant is read from `found`."""
    total = node.dims(values[0])[axis]
    (count,) = node.walk.read_ints(node, found, 1, 0, upper_bound(total))
    cut = {"starts": (0,), "ends": (count,), "axes": (axis,), "steps": None}
    return [node.with_dim(node.emit("slice", v, **cut), axis, count) for v in values]


@importer("Unique", domain="com.microsoft")
def _unique_elements(node: Node) -> Result:
    """In the order in which they first appear."""
    values, _, inverse, counts, found = node.emit_all("unique", node.value(0), sorted=False)
    values, counts = _first(node, [values, counts], found, axis=0)
    return (values, inverse, counts)


@importer("Unique")
def _unique(node: Node) -> Result:
    x = node.value(0)
    axis = node.axis(x, node.attr("axis")) if node.has_attr("axis") else None
    keys = x if axis is None or node.rank(x) == 1 else _ranks_along(node, x, axis)
    values, firsts, inverse, counts, found = node.emit_all(
        "unique", keys, sorted=bool(node.attr("sorted"))
    )
    values, firsts, counts = _first(node, [values, firsts, counts], found, axis=0)
    if keys is not x:
        values = node.emit("gather", x, firsts, axis=axis)
    return (values, firsts, inverse, counts)


def _ranks_along(node: Node, x: Value, axis: int) -> Value:
    """A number for each slice along an axis: greater for those that come later."""
    order = [axis, *(k for k in range(node.rank(x)) if k != axis)]
    first, *rest = node.dims(turned := node.transpose(x, order))
    return node.emit("row_ranks", node.reshape(turned, (first, product(rest))))


@importer("ArrayFeatureExtractor", domain="ai.onnx.ml")
def _array_feature_extractor(node: Node) -> Result:
    x, indices = node.value(0), node.value(1)
    if node.rank(x) == 1:
        x = node.reshape(x, (1, node.dims(x)[0]))
    places = node.reshape(node.cast(indices, I64), (node.count(indices),))
    return node.emit("gather", x, places, axis=node.rank(x) - 1)


@importer("TensorScatter")
def _tensor_scatter(node: Node) -> Result:
    """Writes updates into a cache at one position per batch entry, or at 0."""
    cache, update, written = node.value(0), node.value(1), node.input(2)
    axis = node.axis(cache, node.attr("axis"))
    mode = node.attr("mode")
    if axis == 0 or mode not in ("linear", "circular"):
        raise node.bad(f"axis {axis}, mode {mode!r}")
    dims = list(node.dims(cache))
    length, size = dims[axis], node.dims(update)[axis]
    size = minimum(size, length)
    update = node.with_dims(update, [*dims[:axis], size, *dims[axis + 1 :]])
    steps = node.emit("range", start=0, limit=size, delta=1, dtype=I64)
    rank = len(dims)
    places = node.reshape(steps, [size if k == axis else 1 for k in range(rank)])
    if written is not None:
        written = node.with_dims(node.cast(written, I64), (dims[0],))
        first = node.reshape(written, [dims[0] if k == 0 else 1 for k in range(rank)])
        places = node.emit("add", places, first)
    if mode == "circular":
        places = node.emit("mod", places, node.integers([length], I64, rank=0))
    indices = node.emit("expand", places, dims=node.dims(update))
    return node.emit("scatter_elements", cache, indices, update, axis=axis, reduction="none")
