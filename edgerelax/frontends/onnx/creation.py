"""Importers of operators that make tensors: Constant, ConstantOfShape, Range, EyeLike, windows."""

import numpy as np

from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.dtypes import I64, from_numpy
from edgerelax.ir.graph import Value
from edgerelax.sym import Expr, as_expr

CONSTANTS = {
    "value_int": np.int64, "value_ints": np.int64, "value_float": np.float32,
    "value_floats": np.float32, "value_string": np.object_, "value_strings": np.object_,
}  # fmt: skip


@importer("Constant")
def _constant(node: Node) -> Result:
    given = [name for name in node.attributes if name.startswith(("value", "sparse_value"))]
    if len(given) != 1:
        raise node.bad(f"{len(given)} values, not one")
    value, dtype = node.attr(given[0]), CONSTANTS.get(given[0])
    return node.array(value if dtype is None else np.array(value, dtype))


@importer("ConstantOfShape")
def _constant_of_shape(node: Node) -> Result:
    dims = node.ints(0, lo=0, what="the shape") or ()
    fill = node.attr("value") if node.has_attr("value") else np.zeros(1, np.float32)
    if fill.size != 1:
        raise node.bad(f"a value of {fill.size} elements, not 1")
    return node.emit("full", dims=dims, value=fill.item(), dtype=from_numpy(fill.dtype))


@importer("Range")
@importer("Range", domain="com.microsoft")
def _range(node: Node) -> Result:
    """onnxruntime's own may lack the step."""
    dtype = node.dtype(node.value(0))
    if dtype.is_integer:
        start, limit = _one(node, 0), _one(node, 1)
        delta = as_expr(1) if node.input(2) is None else _one(node, 2)
        return node.emit("range", start=start, limit=limit, delta=delta, dtype=dtype)
    return _float_range(node)


def _one(node: Node, k: int) -> Expr:
    found = node.ints(k, lo=-(1 << 31)) or ()
    if len(found) != 1:
        raise node.bad(f"input {k} has {len(found)} elements, not 1")
    return found[0]


def _float_range(node: Node) -> Value:
    """Only how many elements there are must be known."""
    values = (
        node.value(0),
        node.value(1),
        node.input(2) or node.scalar(1, node.dtype(node.value(0))),
    )
    arrays = [node.constant(v) for v in values]
    numbers = [float(a.item()) for a in arrays if a is not None and a.size == 1]
    count: Expr | None = None
    if len(numbers) == 3:
        first, limit, delta = numbers
        if delta == 0:
            raise node.bad("a step of 0")
        count = as_expr(max(0, int(np.ceil((limit - first) / delta))))
    else:
        count = _float_count(node, values)
    scalars = [node.reshape(values[k], ()) for k in (0, 2)]
    return node.emit("float_range", *scalars, count=count)


def _float_count(node: Node, values: tuple[Value, ...]) -> Expr:
    """ceil((limit - start) / delta), computed on the device and read; delta must not be 0."""
    start, limit, delta = (node.reshape(v, ()) for v in values)
    way = node.emit("sub", limit, start)
    steps = node.emit("ceil", node.emit("div", way, delta))
    whole = node.emit("cast", steps, dtype=I64, saturate=True)
    found = node.emit("max", whole, node.scalar(0, I64))
    zero = node.scalar(0, node.dtype(delta))
    is_zero = node.emit("cast", node.emit("eq", delta, zero), dtype=I64)
    both = node.emit("concat", *(node.reshape(v, (1,)) for v in (found, is_zero)), axis=0)
    count, stuck = node.walk.read_ints(node, both, 2, 0)
    node.walk.require(node, 1 - stuck, 1, "delta must not be 0")
    return count


@importer("EyeLike")
def _eye_like(node: Node) -> Result:
    x = node.value(0)
    dims = node.dims(x)
    if len(dims) != 2:
        raise node.bad(f"a tensor of rank {len(dims)}, not a matrix")
    dtype = node.dtype_attr("dtype") if node.has_attr("dtype") else node.dtype(x)
    return node.emit("eye", rows=dims[0], columns=dims[1], k=node.attr("k"), dtype=dtype)


@importer("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial")
def _random(node: Node) -> Result:
    raise node.unsupported(
        "random numbers", hint="make them outside and pass them as an input of the model"
    )


@importer("Bernoulli")
def _bernoulli(node: Node) -> Result:
    return _random(node)


@importer("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit")
def _outside(node: Node) -> Result:
    raise node.unsupported("text and encoded images", hint="do this before the model runs")
