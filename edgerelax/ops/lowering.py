"""Lowering pieces that families share: broadcast loads, accumulation dtypes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import BF16, F16, F32, DType, from_numpy
from edgerelax.ir.loop import Combiner, LoopFunc, Stage, axis, grid
from edgerelax.ir.op import Array, CallSite
from edgerelax.ir.scalar import Acc, Buffer, Load, Scalar, Value, cast
from edgerelax.ops.maps import (
    Dims,
    exprs,
    inputs_of,
    map_func,
    outputs_of_site,
    present,
    product,
)
from edgerelax.sym import Axis, Expr, as_expr, eq, prove_eq, select


def wide(dtype: DType) -> DType:
    """The dtype to compute in: 16-bit floats are summed and put through functions as f32."""
    return F32 if dtype in (F16, BF16) else dtype


def widened(value: Scalar) -> Scalar:
    """A value in the dtype to compute in."""
    return cast(value, wide(value.dtype))


def narrow_reference(meaning: Callable[..., Array]) -> Callable[..., Array]:
    """A reference that computes 16-bit floats as f32 and rounds once, at the end."""

    def reference(*arrays: Array, **attrs: Any) -> Array:
        given = [a for a in arrays if a is not None]
        found = from_numpy(given[0].dtype)
        compute = wide(found)
        if compute == found:
            return np.asarray(meaning(*arrays, **attrs))
        widened_arrays = [a if a is None else a.astype(compute.numpy) for a in arrays]
        return np.asarray(meaning(*widened_arrays, **attrs)).astype(found.numpy)

    return reference


def broadcast_index(dims: Dims, index: Sequence[Expr], out: Sequence[Expr]) -> Dims:
    """Where an operand of shape `dims` is read for the element at `index` of the shape `out`."""
    skip = len(index) - len(dims)
    return tuple(
        broadcast_at(dim, at, size)
        for dim, at, size in zip(dims, index[skip:], out[skip:], strict=True)
    )


def broadcast_at(dim: Expr, at: Expr, size: Expr) -> Expr:
    """The index along one dim: 0 if it is 1 and the result's size is not."""
    if dim == size or prove_eq(dim, size) is True:
        return at
    is_one = prove_eq(dim, 1)
    if is_one is None:
        return select(eq(dim, 1), 0, at)
    return as_expr(0) if is_one else at


def broadcast_load(buffer: Buffer, index: Sequence[Expr], out: Sequence[Expr]) -> Load:
    """An operand's element for the element at `index` of a result of shape `out`."""
    return buffer[broadcast_index(buffer.dims, index, out)]


def lower_elementwise(site: CallSite, body: Callable[..., Scalar]) -> LoopFunc:
    """One stage: `body` of the present operands' elements, converted to the result's dtype."""
    buffers = present(inputs_of(site))
    out = outputs_of_site(site)[0]

    def element(at: Dims) -> Scalar:
        loads = (broadcast_load(b, at, out.dims) for b in buffers)
        return cast(body(*loads), out.dtype)

    return map_func(site, element)


def reduce_stage(
    out: Buffer,
    dims: Dims,
    reduced: Sequence[int],
    body: Callable[[Dims], Scalar],
    combiner: Combiner,
    epilogue: Callable[[Acc], Scalar] | None = None,
) -> Stage:
    """Reduce some axes of the shape `dims`. `out` keeps them as 1 or leaves them out.

    `epilogue` takes the reduced value in the dtype of the body; the result is converted to `out`'s.
    """
    axes = grid(out)
    kept = out.rank == len(dims)
    spatial = list(axes)
    at: list[Axis] = []
    steps: list[Axis] = []
    for k, dim in enumerate(dims):
        if k in reduced:
            steps.append(axis(f"r{k}", dim))
            at.append(steps[-1])
            if kept:
                spatial.pop(0)
        else:
            at.append(spatial.pop(0))
    value = body(exprs(at))
    final = None if epilogue is None else cast(epilogue(Acc(value.dtype)), out.dtype)
    return Stage(out, axes, value, tuple(steps), combiner, epilogue=final)


def without(dims: Sequence[Expr], reduced: Sequence[int]) -> Dims:
    """What is left of a shape or an index."""
    return tuple(d for k, d in enumerate(dims) if k not in reduced)


def load_reduced(statistic: Buffer, at: Dims, reduced: Sequence[int]) -> Load:
    """The reduced value that belongs to the element at `at`."""
    if statistic.rank == len(at):
        return statistic[tuple(as_expr(0) if k in reduced else a for k, a in enumerate(at))]
    return statistic[without(at, reduced)]


def count_of(dims: Dims, reduced: Sequence[int], dtype: DType) -> Value:
    """How many elements are reduced to one."""
    return Value(product([dims[k] for k in reduced]), dtype)
