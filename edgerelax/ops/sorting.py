"""Operators that order or select by value: topk, nonzero. A sort is a topk of the whole axis."""

from collections.abc import Callable, Sequence

import numpy as np

from edgerelax.ir.dtypes import I64
from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer
from edgerelax.ir.templates import TEMPLATES
from edgerelax.ir.types import Annotation, Tensor, Tuple
from edgerelax.ops.maps import (
    Dims,
    fail,
    inputs_of,
    loop_func,
    map_stage,
    normal_axis,
    outputs_of_site,
    product,
    tensor_of,
)
from edgerelax.ops.rules import NUMERIC, allowed
from edgerelax.ops.shaping import reshape_index
from edgerelax.sym import Expr, as_expr, prove_le

# topk


def _infer_topk(site: CallSite) -> Annotation:
    x, k = tensor_of(site, 0), as_expr(site.attrs["k"])
    if x.dtype is not None:
        allowed(site, x.dtype, NUMERIC)
    if x.rank is None:
        return Tuple((Tensor(None, x.dtype), Tensor(None, I64)))
    axis = normal_axis(site, site.attrs["axis"], x.rank)
    if x.dims is None:
        return Tuple((Tensor(None, x.dtype, x.rank), Tensor(None, I64, x.rank)))
    if prove_le(k, x.dims[axis]) is False:
        raise fail(site, f"the first {k} of {x.dims[axis]} elements along axis {axis}")
    dims = _with(x.dims, axis, k)
    return Tuple((Tensor(dims, x.dtype), Tensor(dims, I64)))


def _with(dims: Dims, axis: int, dim: Expr) -> Dims:
    return (*dims[:axis], dim, *dims[axis + 1 :])


def _lower_topk(site: CallSite) -> LoopFunc:
    """The template orders the rows of a matrix: other tensors are turned into one and back."""
    x, outs = inputs_of(site)[0], outputs_of_site(site)
    assert x is not None
    axis, k = normal_axis(site, site.attrs["axis"], x.rank), as_expr(site.attrs["k"])
    params = {"k": k, **{name: bool(site.attrs[name]) for name in ("largest", "sorted")}}
    if x.rank == 2 and axis == 1:
        return loop_func(site, [Template("topk", (x,), outs, params)])
    others = (*x.dims[:axis], *x.dims[axis + 1 :])
    rows = (product(others),)
    turned = Buffer("rows", x.dtype, (*rows, x.dims[axis]))
    found = tuple(
        Buffer(name, out.dtype, (*rows, k))
        for name, out in zip(("values", "places"), outs, strict=True)
    )

    def source(at: Dims) -> Dims:
        index = reshape_index(others, rows, at[:1])
        return (*index[:axis], at[1], *index[axis:])

    def row_of(at: Dims) -> Dims:
        return (*reshape_index(rows, others, (*at[:axis], *at[axis + 1 :])), at[axis])

    stages: list[Stage | Template] = [map_stage(turned, lambda at: x[source(at)])]
    stages.append(Template("topk", (turned,), found, params))
    for out, sorted_rows in zip(outs, found, strict=True):
        stages.append(_mapped(out, sorted_rows, row_of))
    return loop_func(site, stages)


def _mapped(out: Buffer, source: Buffer, index: Callable[[Dims], Dims]) -> Stage:
    return map_stage(out, lambda at: source[index(at)])


def _reference_topk(
    x: Array, k: int, axis: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Array, Array]:
    last = np.moveaxis(x, axis, -1)
    rows = last.reshape(int(np.prod(last.shape[:-1])), last.shape[-1])
    found: Sequence[Array] = TEMPLATES["topk"](rows, k=k, largest=largest, sorted=sorted)
    shape = (*last.shape[:-1], k)
    values, places = (np.moveaxis(f.reshape(shape), -1, axis).copy() for f in found)
    return values, places


# nonzero


def _infer_nonzero(site: CallSite) -> Annotation:
    """Places in the order of memory, as many as there are elements, and how many are meant."""
    x = tensor_of(site, 0)
    count = Tensor((as_expr(1),), I64)
    if x.dims is None:
        return Tuple((Tensor(None, I64, 2), count))
    return Tuple((Tensor((as_expr(len(x.dims)), product(x.dims)), I64), count))


def _lower_nonzero(site: CallSite) -> LoopFunc:
    x = inputs_of(site)[0]
    assert x is not None
    params = {"capacity": product(x.dims)}
    return loop_func(site, [Template("nonzero", (x,), outputs_of_site(site), params)])


def _reference_nonzero(x: Array) -> tuple[Array, Array]:
    places, count = TEMPLATES["nonzero"](x, capacity=x.size)
    return places, count


_TIES = np.array([[3, 1, 3, 2, 1], [0, 0, 0, 0, 0]], np.int32)

OPERATORS = (
    Operator(
        "topk",
        ("x",),
        _infer_topk,
        _reference_topk,
        _lower_topk,
        attrs={"k": 1, "axis": -1, "largest": True, "sorted": True},
        samples=(
            Sample((normal(3, 7),), {"k": 3}),
            Sample((normal(2, 5, 3),), {"k": 2, "axis": 1, "largest": False}),
            Sample((normal(2, 3, 4),), {"k": 4}),
            Sample((normal(9),), {"k": 1}),
            Sample((_TIES,), {"k": 3}),
            Sample((_TIES,), {"k": 5, "largest": False}),
            Sample((normal(2, 5),), {"k": 0}),
            Sample((normal(0, 5),), {"k": 2}),
            Sample((normal(4, 3, dtype="float16"),), {"k": 2, "axis": 0}),
        ),
    ),
    Operator(
        "nonzero",
        ("x",),
        _infer_nonzero,
        _reference_nonzero,
        _lower_nonzero,
        samples=(
            Sample((np.array([[1, 0, 2], [0, 0, 3]], np.float32),)),
            Sample((np.array([False, True, True]),)),
            Sample((np.zeros((2, 2, 2), np.int64),)),
            Sample((np.zeros((0, 3), np.float32),)),
            Sample((np.array(5, np.int64),)),
        ),
    ),
)
