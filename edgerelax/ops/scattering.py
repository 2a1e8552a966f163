"""Operators that write at computed indices: scatter_elements, scatter_nd.

Negative indices count from the end; updates whose index is still outside are left out. Without a
reduction a copy of the data is overwritten in place, and which of several updates of one place
stays is open; reductions are templates.
"""

from collections.abc import Sequence

import numpy as np

from edgerelax.ir.dtypes import BOOL, I64
from edgerelax.ir.loop import LoopFunc, Stage, Template, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, Scalar, cast, constant, in_range, op
from edgerelax.ir.templates import TEMPLATES
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.indexing import check_indices, index_depth
from edgerelax.ops.maps import (
    Dims,
    equal_dim,
    exprs,
    fail,
    inputs_of,
    loop_func,
    map_stage,
    normal_axis,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.rules import known_ints
from edgerelax.sym import Expr, Opaque, as_expr, ge, select

REDUCTIONS = ("none", "add", "mul", "max", "min")


def _checked(site: CallSite) -> tuple[Tensor, Tensor, Tensor]:
    """Data, indices and updates, of dtypes that fit."""
    data, indices, updates = tensor_of(site, 0), check_indices(site, 1), tensor_of(site, 2)
    if data.dtype is not None and updates.dtype not in (None, data.dtype):
        raise fail(site, f"data of {data.dtype}, updates of {updates.dtype}")
    reduction = site.attrs["reduction"]
    if reduction not in REDUCTIONS:
        raise fail(site, f"reduction {reduction!r}", f"there are {', '.join(REDUCTIONS)}")
    if data.dtype == BOOL and reduction in ("add", "mul"):
        raise fail(site, f"reduction {reduction} of bool")
    return data, indices, updates


def _buffers(site: CallSite) -> tuple[Buffer, Buffer, Buffer, Buffer]:
    data, indices, updates = inputs_of(site)
    assert data is not None and indices is not None and updates is not None
    return data, indices, updates, outputs_of_site(site)[0]


def _loaded(index: Scalar) -> Expr:
    return as_expr(Opaque(cast(index, I64)))


def _place(raw: Expr, dim: Expr) -> tuple[Expr, Scalar]:
    """An integer counted from the front, and whether it lies in the dim."""
    place = select(ge(raw, 0), raw, raw + dim)
    return place, in_range(place, 0, dim)


def _all(conditions: Sequence[Scalar]) -> Scalar:
    total: Scalar = constant(True, BOOL)
    for k, condition in enumerate(conditions):
        total = condition if k == 0 else op("and", total, condition)
    return total


# scatter_elements


def _infer_elements(site: CallSite) -> Annotation:
    data, indices, updates = _checked(site)
    ranks = {t.rank for t in (data, indices, updates) if t.rank is not None}
    if len(ranks) > 1:
        raise fail(site, f"operands of ranks {', '.join(map(str, sorted(ranks)))}")
    if data.rank is not None:
        normal_axis(site, site.attrs["axis"], data.rank)
    if indices.dims is not None and updates.dims is not None:
        for k, (a, b) in enumerate(zip(indices.dims, updates.dims, strict=True)):
            equal_dim(site, a, b, f"dim {k} of indices and updates")
    return data


def _lower_elements(site: CallSite) -> LoopFunc:
    data, indices, updates, out = _buffers(site)
    axis, reduction = normal_axis(site, site.attrs["axis"], data.rank), site.attrs["reduction"]
    if reduction != "none":
        params = {"axis": axis, "reduction": reduction}
        return loop_func(site, [Template("scatter", (data, indices, updates), (out,), params)])
    axes = grid(indices)
    at = exprs(axes)
    place, inside = _place(_loaded(indices[at]), data.dims[axis])
    index = (*at[:axis], place, *at[axis + 1 :])
    store = Stage(out, axes, updates[at], where=inside, index=index)
    return loop_func(site, [map_stage(out, lambda i: data[i]), store])


def _reference_elements(
    data: Array, indices: Array, updates: Array, axis: int = 0, reduction: str = "none"
) -> Array:
    found: Array = TEMPLATES["scatter"](
        data, indices, updates, axis=axis % data.ndim, reduction=reduction
    )
    return found


# scatter_nd


def _infer_nd(site: CallSite) -> Annotation:
    data, indices, updates = _checked(site)
    if data.dims is None or indices.dims is None or updates.dims is None:
        return data
    depth = index_depth(site, data, indices, 0)
    wanted = (*indices.dims[:-1], *data.dims[depth:])
    if len(wanted) != len(updates.dims):
        raise fail(site, f"updates of rank {len(updates.dims)}, not {len(wanted)}")
    for k, (a, b) in enumerate(zip(wanted, updates.dims, strict=True)):
        equal_dim(site, a, b, f"dim {k} of the updates")
    return data


def _lower_nd(site: CallSite) -> LoopFunc:
    data, indices, updates, out = _buffers(site)
    reduction = site.attrs["reduction"]
    if reduction != "none":
        inputs, params = (data, indices, updates), {"reduction": reduction}
        return loop_func(site, [Template("scatter_nd", inputs, (out,), params)])
    depth, outer = index_depth(site, tensor_of(site, 0), tensor_of(site, 1), 0), indices.rank - 1
    axes = grid(updates)
    at = exprs(axes)
    known = known_ints(site, 1)
    raw = (
        [_loaded(indices[(*at[:outer], as_expr(k))]) for k in range(depth)]
        if known is None
        else known.values  # one place, as known integers have at most rank 1
    )
    found = [_place(i, dim) for i, dim in zip(raw, data.dims[:depth], strict=True)]
    index: Dims = (*(place for place, _ in found), *at[outer:])
    inside = _all([condition for _, condition in found]) if found else None
    store = Stage(out, axes, updates[at], where=inside, index=index)
    return loop_func(site, [map_stage(out, lambda i: data[i]), store])


def _reference_nd(data: Array, indices: Array, updates: Array, reduction: str = "none") -> Array:
    found: Array = TEMPLATES["scatter_nd"](data, indices, updates, reduction=reduction)
    return found


def _ints(*values: object, dtype: type = np.int64) -> Array:
    return np.array(values, dtype)


_COLUMNS = _ints([2, 0], [-1, 1], [0, 9])

OPERATORS = (
    Operator(
        "scatter_elements",
        ("data", "indices", "updates"),
        _infer_elements,
        _reference_elements,
        _lower_elements,
        attrs={"axis": 0, "reduction": "none"},
        samples=(
            Sample((normal(3, 4), _ints([1, 0, 2], [0, 2, -2]), normal(2, 3))),
            Sample((normal(3, 3), _COLUMNS, normal(3, 2)), {"axis": 1}),
            Sample((normal(3, 3), _COLUMNS, normal(3, 2)), {"axis": -1, "reduction": "add"}),
            Sample((normal(4), _ints(1, 1, -3), normal(3)), {"reduction": "max"}),
            Sample((np.arange(5), _ints(2, 2, dtype=np.int32), _ints(3, 5)), {"reduction": "mul"}),
            Sample((normal(4), np.zeros(0, np.int64), normal(0))),
            Sample((np.zeros(4, bool), _ints(3, 1), np.ones(2, bool))),
        ),
    ),
    Operator(
        "scatter_nd",
        ("data", "indices", "updates"),
        _infer_nd,
        _reference_nd,
        _lower_nd,
        attrs={"reduction": "none"},
        samples=(
            Sample((normal(8), _ints([4], [3], [1], [-1]), normal(4))),
            Sample((normal(4, 2, 3), _ints([[0], [2]]), normal(1, 2, 2, 3))),
            Sample((normal(3, 4), _ints([0, 1], [2, 9]), normal(2))),
            Sample((normal(3, 4), _ints([0], [2], [0]), normal(3, 4)), {"reduction": "add"}),
            Sample((normal(3, 4), _ints([0, 1], [0, 1]), normal(2)), {"reduction": "min"}),
            Sample((normal(3, 4), np.zeros((0, 1), np.int64), normal(0, 4))),
        ),
    ),
)
