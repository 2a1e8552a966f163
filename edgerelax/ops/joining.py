"""Operators that join and part tensors along an axis: concat, split."""

from collections.abc import Sequence

import numpy as np

from edgerelax.ir.assumptions import agree
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, Load, Scalar, compare, select
from edgerelax.ir.types import Annotation, IntTensor, Tensor, Tuple
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
    present,
    tensor_of,
)
from edgerelax.ops.rules import known_ints
from edgerelax.sym import Expr, as_expr

MAX_SELECTED = 6
"""A concat of more operands than this writes each at its offset instead of choosing per element."""


# concat


def _infer_concat(site: CallSite) -> Annotation:
    parts = [tensor_of(site, k) for k in range(len(site.args))]
    dtype = next((p.dtype for p in parts if p.dtype is not None), None)
    ranks = {p.rank for p in parts if p.rank is not None}
    if len(ranks) > 1:
        raise fail(site, f"operands of ranks {', '.join(map(str, sorted(ranks)))}")
    ints = [known_ints(site, k) for k in range(len(site.args))]
    if all(i is not None and i.rank == 1 for i in ints):
        known = [i for i in ints if i is not None]
        return IntTensor(tuple(v for i in known for v in i.values), 1, known[0].dtype)
    shapes = [p.dims for p in parts]
    if any(s is None for s in shapes):
        return Tensor(None, dtype, ranks.pop() if ranks else None)
    return Tensor(_joined(site, [s for s in shapes if s is not None]), dtype)


def _joined(site: CallSite, shapes: Sequence[Dims]) -> Dims:
    rank = len(shapes[0])
    axis = normal_axis(site, site.attrs["axis"], rank)
    dims = list(shapes[0])
    for k in range(rank):
        for shape in shapes[1:]:
            if k == axis:
                dims[k] = dims[k] + shape[k]
            else:
                dims[k] = equal_dim(site, dims[k], shape[k], f"dim {k} of the operands")
    return tuple(dims)


def _lower_concat(site: CallSite) -> LoopFunc:
    parts = present(inputs_of(site))
    out = outputs_of_site(site)[0]
    axis = normal_axis(site, site.attrs["axis"], out.rank)
    starts = _offsets([p.dims[axis] for p in parts])
    kept = [(p, s) for p, s in zip(parts, starts, strict=True) if p.dims[axis].as_int() != 0]
    if not kept:
        kept = [(parts[0], starts[0])]
    if len(kept) > MAX_SELECTED:
        return loop_func(site, [_write_at(out, part, axis, start) for part, start in kept])

    def body(at: Dims) -> Scalar:
        chosen: Scalar = _load_from(kept[-1][0], at, axis, kept[-1][1])
        for part, start in reversed(kept[:-1]):
            inside = compare("lt", at[axis], start + part.dims[axis])
            chosen = select(inside, _load_from(part, at, axis, start), chosen)
        return chosen

    return loop_func(site, [map_stage(out, body)])


def _offsets(sizes: Sequence[Expr]) -> Dims:
    """Where each part begins."""
    starts = [as_expr(0)]
    for size in sizes[:-1]:
        starts.append(starts[-1] + size)
    return tuple(starts)


def _load_from(part: Buffer, at: Dims, axis: int, start: Expr) -> Load:
    return part[(*at[:axis], at[axis] - start, *at[axis + 1 :])]


def _write_at(out: Buffer, part: Buffer, axis: int, start: Expr) -> Stage:
    axes = grid(part)
    at = exprs(axes)
    index = (*at[:axis], at[axis] + start, *at[axis + 1 :])
    return Stage(out, axes, part[at], index=index)


def _reference_concat(*parts: Array, axis: int) -> Array:
    return np.concatenate(parts, axis)


# split


def even_split(dim: Expr, count: int) -> Dims:
    """ONNX Split without sizes: equal parts, the last one smaller where `count` does not divide."""
    size = (dim + (count - 1)) // count
    return (*[size] * (count - 1), dim - size * (count - 1))


def _infer_split(site: CallSite) -> Annotation:
    source, sizes = tensor_of(site, 0), exprs(site.attrs["sizes"])
    if source.rank is None:
        return Tuple(tuple(Tensor(None, source.dtype) for _ in sizes))
    axis = normal_axis(site, site.attrs["axis"], source.rank)
    if source.dims is None:
        return Tuple(tuple(Tensor(None, source.dtype, source.rank) for _ in sizes))
    total = sum(sizes, as_expr(0))
    if not agree(source.dims[axis], total):
        raise fail(site, f"sizes add up to {total}, dim {axis} is {source.dims[axis]}")
    ints, numbers = known_ints(site, 0), [s.as_int() for s in sizes]
    if ints is not None and all(n is not None for n in numbers):
        return Tuple(_split_ints(ints, [n for n in numbers if n is not None]))
    dims = source.dims
    return Tuple(tuple(Tensor((*dims[:axis], s, *dims[axis + 1 :]), source.dtype) for s in sizes))


def _split_ints(ints: IntTensor, sizes: Sequence[int]) -> tuple[IntTensor, ...]:
    parts, start = [], 0
    for size in sizes:
        parts.append(IntTensor(ints.values[start : start + size], 1, ints.dtype))
        start += size
    return tuple(parts)


def _lower_split(site: CallSite) -> LoopFunc:
    source = inputs_of(site)[0]
    assert source is not None
    outs = outputs_of_site(site)
    axis = normal_axis(site, site.attrs["axis"], source.rank)
    starts = _offsets(exprs(site.attrs["sizes"]))
    stages = []
    for out, start in zip(outs, starts, strict=True):
        axes = grid(out)
        at = exprs(axes)
        stages.append(Stage(out, axes, source[(*at[:axis], at[axis] + start, *at[axis + 1 :])]))
    return loop_func(site, stages)


def _reference_split(x: Array, sizes: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    return tuple(p.copy() for p in np.split(x, np.cumsum(sizes)[:-1], axis))


OPERATORS = (
    Operator(
        "concat",
        ("x",),
        _infer_concat,
        _reference_concat,
        _lower_concat,
        attrs={"axis": 0},
        variadic=True,
        samples=(
            Sample((normal(2, 3), normal(4, 3)), {"axis": 0}),
            Sample((normal(2, 3), normal(2, 0), normal(2, 1)), {"axis": -1}),
            Sample((normal(3),), {"axis": 0}),
            Sample(tuple(normal(2, k, 3) for k in range(8)), {"axis": 1}),
            Sample((normal(2, 0), normal(2, 0)), {"axis": 1}),
            Sample((np.arange(3), np.arange(5)), {"axis": 0}),
        ),
    ),
    Operator(
        "split",
        ("x",),
        _infer_split,
        _reference_split,
        _lower_split,
        attrs={"sizes": (), "axis": 0},
        samples=(
            Sample((normal(6, 2),), {"sizes": (1, 0, 5), "axis": 0}),
            Sample((normal(2, 6),), {"sizes": (3, 3), "axis": -1}),
            Sample((np.arange(7),), {"sizes": (3, 4)}),
            Sample((normal(2, 6, 2),), {"sizes": (6,), "axis": 1}),
        ),
    ),
)
