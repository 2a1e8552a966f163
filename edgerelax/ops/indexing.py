"""Operators that read by computed indices: gather, gather_elements, gather_nd, one_hot.

An index outside its dim has the meaning of `ir.scalar.gather` on every host: negative ones count
from the end, and what is still outside is clamped.
"""

import numpy as np

from edgerelax.ir.dtypes import I64
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, Scalar, Value, cast, op, select
from edgerelax.ir.scalar import gather as gathered
from edgerelax.ir.types import Annotation, IntTensor, Tensor
from edgerelax.ops.maps import (
    Dims,
    equal_dim,
    even_steps,
    fail,
    inputs_of,
    map_func,
    normal_axis,
    tensor_of,
)
from edgerelax.ops.rules import INTEGERS, allowed, known_ints
from edgerelax.sym import Expr, as_expr, ge, maximum, minimum, prove_le
from edgerelax.sym import select as choose


def check_indices(site: CallSite, k: int) -> Tensor:
    """Operand k, which must be integers."""
    indices = tensor_of(site, k)
    if indices.dtype is not None:
        allowed(site, indices.dtype, INTEGERS)
    return indices


def _wrapped(index: Expr, dim: Expr) -> Expr:
    """A known integer as an index, with the meaning of a gathered one."""
    counted = choose(ge(index, 0), index, index + dim)
    return maximum(0, minimum(counted, dim - 1))


def clamped_indices(indices: Array, dim: int) -> Array:
    """The same in numpy."""
    wide = indices.astype(np.int64)
    return np.maximum(0, np.minimum(np.where(wide < 0, wide + dim, wide), dim - 1))


# gather


def _infer_gather(site: CallSite) -> Annotation:
    data, indices = tensor_of(site, 0), check_indices(site, 1)
    if data.rank is None:
        return Tensor(None, data.dtype)
    axis = normal_axis(site, site.attrs["axis"], data.rank)
    if data.dims is None or indices.dims is None:
        rank = None if indices.rank is None else data.rank - 1 + indices.rank
        return Tensor(None, data.dtype, rank)
    return _gather_ints(site) or Tensor(
        (*data.dims[:axis], *indices.dims, *data.dims[axis + 1 :]), data.dtype
    )


def _gather_ints(site: CallSite) -> IntTensor | None:
    """The result where both operands are known and the indices are literals within the data."""
    data, indices = known_ints(site, 0), known_ints(site, 1)
    if data is None or indices is None:
        return None
    numbers = [v.as_int() for v in indices.values]
    size = len(data.values)
    if any(n is None or not -size <= n < size for n in numbers):
        return None
    return IntTensor(tuple(data.values[n or 0] for n in numbers), indices.rank, data.dtype)


def _lower_gather(site: CallSite) -> LoopFunc:
    data, indices = inputs_of(site)
    assert data is not None and indices is not None
    axis = normal_axis(site, site.attrs["axis"], data.rank)
    known = known_ints(site, 1)

    def body(at: Dims) -> Scalar:
        middle = at[axis : axis + indices.rank]
        position = None if known is None else _even_position(known, middle)
        dim = data.dims[axis]
        chosen = gathered(indices[middle], dim) if position is None else _wrapped(position, dim)
        return data[(*at[:axis], chosen, *at[axis + indices.rank :])]

    return map_func(site, body)


def _even_position(indices: IntTensor, at: Dims) -> Expr | None:
    """Known indices that step evenly, without wrapping midway, as an expression of the position."""
    values = indices.values
    if not values or (at and not _same_side(values[0], values[-1])):
        return None
    return even_steps(values, at[0] if at else 0)


def _same_side(first: Expr, last: Expr) -> bool:
    """Whether both are surely counted from the same end."""
    side = prove_le(0, first)
    return side is not None and side == prove_le(0, last)


def _reference_gather(data: Array, indices: Array, axis: int) -> Array:
    return np.take(data, clamped_indices(indices, data.shape[axis]), axis)


# gather_elements


def _infer_gather_elements(site: CallSite) -> Annotation:
    data, indices = tensor_of(site, 0), check_indices(site, 1)
    if data.rank is not None and indices.rank is not None:
        if data.rank != indices.rank:
            raise fail(site, f"data of rank {data.rank}, indices of rank {indices.rank}")
        normal_axis(site, site.attrs["axis"], data.rank)
    return Tensor(indices.dims, data.dtype, indices.rank)


def _lower_gather_elements(site: CallSite) -> LoopFunc:
    data, indices = inputs_of(site)
    assert data is not None and indices is not None
    axis = normal_axis(site, site.attrs["axis"], data.rank)

    def body(at: Dims) -> Scalar:
        return data[(*at[:axis], gathered(indices[at], data.dims[axis]), *at[axis + 1 :])]

    return map_func(site, body)


def _reference_gather_elements(data: Array, indices: Array, axis: int) -> Array:
    at: list[Array] = list(np.indices(indices.shape, sparse=True))
    at[axis] = clamped_indices(indices, data.shape[axis])
    return np.asarray(data[tuple(at)]).copy()


# gather_nd


def index_depth(site: CallSite, data: Tensor, indices: Tensor, batch: int) -> int:
    """How many dims of the data an index tuple of gather_nd or scatter_nd names."""
    assert indices.dims is not None and data.rank is not None
    depth = indices.dims[-1].as_int() if indices.dims else None
    if depth is None:
        raise fail(site, f"indices {indices}: the last dim must be a known number")
    if not 0 <= depth <= data.rank - batch:
        raise fail(site, f"index tuples of {depth} into a tensor of rank {data.rank}")
    return depth


def _infer_gather_nd(site: CallSite) -> Annotation:
    data, indices, batch = tensor_of(site, 0), check_indices(site, 1), site.attrs["batch_dims"]
    if data.dims is None or indices.dims is None:
        return Tensor(None, data.dtype)
    depth = index_depth(site, data, indices, batch)
    if len(indices.dims) <= batch:
        raise fail(site, f"{batch} batch dims of indices of rank {len(indices.dims)}")
    batches = zip(data.dims[:batch], indices.dims[:batch], strict=True)
    shared = tuple(equal_dim(site, a, b, "batch dims") for a, b in batches)
    dims = (*shared, *indices.dims[batch:-1], *data.dims[batch + depth :])
    return Tensor(dims, data.dtype)


def _lower_gather_nd(site: CallSite) -> LoopFunc:
    data, indices = inputs_of(site)
    assert data is not None and indices is not None
    batch, outer = site.attrs["batch_dims"], indices.rank - 1
    depth = index_depth(site, tensor_of(site, 0), tensor_of(site, 1), batch)

    def body(at: Dims) -> Scalar:
        index = tuple_index(indices, at[:outer], data.dims[batch : batch + depth])
        return data[(*at[:batch], *index, *at[outer:])]

    return map_func(site, body)


def tuple_index(indices: Buffer, at: Dims, dims: Dims) -> Dims:
    """The index tuple stored at `at`, into `dims`."""
    parts = (indices[(*at, as_expr(k))] for k in range(len(dims)))
    return tuple(gathered(part, dim) for part, dim in zip(parts, dims, strict=True))


def _reference_gather_nd(data: Array, indices: Array, batch_dims: int) -> Array:
    outer = indices.shape[:-1]
    batch = np.indices(outer, sparse=True)[:batch_dims]
    index = tuple(
        clamped_indices(indices[..., k], data.shape[batch_dims + k])
        for k in range(indices.shape[-1])
    )
    at = (*batch, *index)
    if not at:
        return np.broadcast_to(data, outer + data.shape).copy()
    picked = data[at]
    return np.broadcast_to(
        picked, outer + picked.shape[len(np.broadcast_shapes(*map(np.shape, at))) :]
    ).copy()


# one_hot


def _one_hot_axis(site: CallSite, rank: int) -> int:
    return normal_axis(site, site.attrs["axis"], rank + 1)


def _infer_one_hot(site: CallSite) -> Annotation:
    indices, values = tensor_of(site, 0), tensor_of(site, 1)
    if indices.dims is None:
        rank = None if indices.rank is None else indices.rank + 1
        return Tensor(None, values.dtype, rank)
    axis = _one_hot_axis(site, len(indices.dims))
    depth = as_expr(site.attrs["depth"])
    return Tensor((*indices.dims[:axis], depth, *indices.dims[axis:]), values.dtype)


def _lower_one_hot(site: CallSite) -> LoopFunc:
    indices, values = inputs_of(site)
    assert indices is not None and values is not None
    axis, depth = _one_hot_axis(site, indices.rank), as_expr(site.attrs["depth"])

    def body(at: Dims) -> Scalar:
        index = cast(indices[(*at[:axis], *at[axis + 1 :])], I64)
        counted = op("add", index, Value(depth))
        hot = op("or", op("eq", index, Value(at[axis])), op("eq", counted, Value(at[axis])))
        return select(hot, values[1], values[0])

    return map_func(site, body)


def _reference_one_hot(indices: Array, values: Array, depth: int, axis: int) -> Array:
    wide = indices.astype(np.int64)
    counted = np.expand_dims(np.where(wide < 0, wide + depth, wide), axis)
    shape = [1] * counted.ndim
    shape[axis] = depth
    hot = counted == np.arange(depth).reshape(shape)
    return np.asarray(np.where(hot, values[1], values[0]))


def _ints(*values: object, dtype: type = np.int64) -> Array:
    return np.array(values, dtype)


OPERATORS = (
    Operator(
        "gather",
        ("data", "indices"),
        _infer_gather,
        _reference_gather,
        _lower_gather,
        attrs={"axis": 0},
        samples=(
            Sample((normal(5, 3), _ints(4, 0, -1, 2))),
            Sample((normal(5, 3), _ints([1, -3], [0, 7], dtype=np.int32)), {"axis": 1}),
            Sample((normal(5, 3), np.array(-2)), {"axis": 0}),
            Sample((normal(5, 3), _ints(-3, -2, -1)), {"axis": -1}),
            Sample((normal(5, 3), np.zeros((0, 2), np.int64)), {"axis": 0}),
            Sample((np.arange(6), _ints(1, 3, 5))),
            Sample((np.arange(6), np.array(4))),
            Sample((np.arange(6, dtype=np.uint8), _ints(3, 1, dtype=np.uint8))),
        ),
    ),
    Operator(
        "gather_elements",
        ("data", "indices"),
        _infer_gather_elements,
        _reference_gather_elements,
        _lower_gather_elements,
        attrs={"axis": 0},
        samples=(
            Sample((normal(3, 3), _ints([1, 2, 0], [2, 0, -1]))),
            Sample((normal(2, 4), _ints([0, 9, 1], [-1, -9, 2])), {"axis": -1}),
            Sample((normal(4), np.zeros(0, np.int64))),
        ),
    ),
    Operator(
        "gather_nd",
        ("data", "indices"),
        _infer_gather_nd,
        _reference_gather_nd,
        _lower_gather_nd,
        attrs={"batch_dims": 0},
        samples=(
            Sample((normal(3, 4), _ints([0, 1], [2, -1]))),
            Sample((normal(3, 4), _ints([0], [2], [1]))),
            Sample((normal(2, 3, 4), _ints([[1], [0]])), {"batch_dims": 0}),
            Sample((normal(2, 3, 4), _ints([1], [0])), {"batch_dims": 1}),
            Sample((normal(2, 3, 4), _ints([[1, 3]], [[0, 2]])), {"batch_dims": 1}),
            Sample((normal(3, 4), np.zeros((2, 0), np.int64))),
        ),
    ),
    Operator(
        "one_hot",
        ("indices", "values"),
        _infer_one_hot,
        _reference_one_hot,
        _lower_one_hot,
        attrs={"depth": 1, "axis": -1},
        samples=(
            Sample((_ints(0, 2, -1, 9), np.array([0, 1], np.float32)), {"depth": 4}),
            Sample((_ints([1, 0], [3, 2]), np.array([2, 5])), {"depth": 3, "axis": 0}),
            Sample((np.array(1.0), np.array([False, True])), {"depth": 2}),
        ),
    ),
)
