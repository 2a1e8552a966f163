"""Operators that cut, pad and repeat along axes: slice, pad, tile.

`slice_bounds` and `center_crop_pads` resolve ONNX's parameters for importers. Flip is a slice.
"""

from collections.abc import Callable, Sequence

import numpy as np

from edgerelax.ir.assumptions import agree, nonzero
from edgerelax.ir.dtypes import BOOL
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, Const, Scalar, constant, in_range, op, select
from edgerelax.ir.types import Annotation, IntTensor, Tensor
from edgerelax.ops.maps import (
    MAX_INTS,
    Dims,
    exprs,
    fail,
    inputs_of,
    map_func,
    normal_axis,
    range_count,
    tensor_of,
)
from edgerelax.ops.rules import known_ints
from edgerelax.sym import (
    Expr,
    ExprLike,
    as_expr,
    ge,
    maximum,
    minimum,
    proves_le,
)
from edgerelax.sym import select as choose

FAR = 2**31 - 1
"""Literal bounds this far out mean the end of the dim, however large it is."""
FAR_ENOUGH = 10**9
"""Some exporters write this for it: taken as the end too; a run checks that no dim is longer."""


# slice


def slice_bounds(
    dim: ExprLike, start: ExprLike, end: ExprLike, step: ExprLike
) -> tuple[Expr, Expr]:
    """First index and number of elements of an ONNX Slice along one dim.

    Negative bounds count from the end; all are clamped: to [0, dim] for forward steps, start to
    [0, dim - 1] and end to [-1, dim - 1] for backward ones.
    """
    size, begin, stop, stride = as_expr(dim), as_expr(start), as_expr(end), as_expr(step)
    if proves_le(1, stride):
        return _forward(size, begin, stop, stride)
    if proves_le(stride, -1):
        return _backward(size, begin, stop, stride)
    ahead = _forward(size, begin, stop, maximum(1, stride))
    back = _backward(size, begin, stop, minimum(-1, stride))
    is_ahead = ge(stride, 1)
    return choose(is_ahead, ahead[0], back[0]), choose(is_ahead, ahead[1], back[1])


def _forward(size: Expr, start: Expr, end: Expr, step: Expr) -> tuple[Expr, Expr]:
    first = _clamped(start, size, as_expr(0), size)
    last = _clamped(end, size, as_expr(0), size)
    return first, range_count(first, last, step)


def _backward(size: Expr, start: Expr, end: Expr, step: Expr) -> tuple[Expr, Expr]:
    first = _clamped(start, size, as_expr(0), size - 1)
    last = _clamped(end, size, as_expr(-1), size - 1)
    return first, range_count(first, last, step)


def _clamped(bound: Expr, size: Expr, low: Expr, high: Expr) -> Expr:
    """A bound counted from the front and clamped; an empty dim's `high` is below `low` and wins."""
    literal = bound.as_int()
    if literal is not None and abs(literal) >= FAR:
        return high if literal > 0 else minimum(low, high)
    if literal is not None and literal >= FAR_ENOUGH:
        need = f"{size} must be at most {literal}, which stands for the end"
        return high if agree(minimum(size, literal), size, need) else as_expr(literal)
    counted = choose(ge(bound, 0), bound, bound + size)
    return minimum(maximum(counted, low), high)


def _axes(site: CallSite, rank: int) -> tuple[int, ...]:
    axes = site.attrs["axes"]
    found = tuple(normal_axis(site, a, rank) for a in (range(rank) if axes is None else axes))
    if len(set(found)) != len(found):
        raise fail(site, f"axes {tuple(axes)} name one twice")
    return found


def _cuts(site: CallSite, dims: Dims) -> dict[int, tuple[Expr, Expr, Expr]]:
    """(first, count, step) of each sliced axis."""
    starts, ends = exprs(site.attrs["starts"]), exprs(site.attrs["ends"])
    steps = exprs(site.attrs["steps"] or [1] * len(starts))
    axes = site.attrs["axes"]
    named = _axes(site, len(dims)) if axes is not None else tuple(range(len(starts)))
    if not len(starts) == len(ends) == len(steps) == len(named) <= len(dims):
        raise fail(
            site,
            f"{len(starts)} starts, {len(ends)} ends, {len(steps)} steps, {len(named)} axes "
            f"for a tensor of rank {len(dims)}",
        )
    cuts = {}
    for axis, start, end, step in zip(named, starts, ends, steps, strict=True):
        if not nonzero(step, f"the step along axis {axis} must not be 0"):
            raise fail(site, f"step 0 along axis {axis}")
        cuts[axis] = (*slice_bounds(dims[axis], start, end, step), step)
    return cuts


def _infer_slice(site: CallSite) -> Annotation:
    source = tensor_of(site, 0)
    if source.dims is None:
        return Tensor(None, source.dtype, source.rank)
    cuts = _cuts(site, source.dims)
    ints = known_ints(site, 0)
    if ints is not None and 0 in cuts:
        numbers = [e.as_int() for e in cuts[0]]
        if all(n is not None for n in numbers):
            first, count, step = (n or 0 for n in numbers)
            picked = tuple(ints.values[first + k * step] for k in range(count))
            return IntTensor(picked, 1, ints.dtype)
    dims = tuple(cuts[k][1] if k in cuts else d for k, d in enumerate(source.dims))
    return Tensor(dims, source.dtype)


def _lower_slice(site: CallSite) -> LoopFunc:
    source = inputs_of(site)[0]
    assert source is not None
    cuts = _cuts(site, source.dims)

    def along(axis: int, at: Expr) -> Expr:
        if axis not in cuts:
            return at
        first, _, step = cuts[axis]
        return first + at * step

    return map_func(site, lambda at: source[tuple(along(k, a) for k, a in enumerate(at))])


def _reference_slice(
    x: Array,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Array:
    named = range(len(starts)) if axes is None else axes
    for axis, start, end, step in zip(named, starts, ends, steps or [1] * len(starts), strict=True):
        first, count = slice_bounds(x.shape[axis], int(start), int(end), int(step))
        picked = (first.as_int() or 0) + np.arange(count.as_int() or 0) * int(step)
        x = np.take(x, picked, axis)
    return x


# pad


def center_crop_pads(dims: Sequence[ExprLike], target: Sequence[ExprLike]) -> Dims:
    """Pads (befores, then afters; negative where it crops) of ONNX CenterCropPad.

    Half of the difference on each side; the side after the tensor takes the odd one.
    """
    before, after = [], []
    for dim, want in zip(exprs(dims), exprs(target), strict=True):
        half = choose(ge(want, dim), (want - dim) // 2, -((dim - want) // 2))
        before.append(half)
        after.append(want - dim - half)
    return (*before, *after)


def _pads(site: CallSite, rank: int) -> dict[int, tuple[Expr, Expr]]:
    """(before, after) of each axis that is padded or cropped."""
    pads, axes = exprs(site.attrs["pads"]), _axes(site, rank)
    if len(pads) != 2 * len(axes):
        raise fail(site, f"{len(pads)} pads for {len(axes)} axes", "two per axis: befores, afters")
    both = zip(pads[: len(axes)], pads[len(axes) :], strict=True)
    zero = as_expr(0)
    return {a: pair for a, pair in zip(axes, both, strict=True) if pair != (zero, zero)}


def _infer_pad(site: CallSite) -> Annotation:
    source = tensor_of(site, 0)
    if source.dims is None:
        return Tensor(None, source.dtype, source.rank)
    dims = list(source.dims)
    for axis, (before, after) in _pads(site, len(dims)).items():
        dims[axis] = dims[axis] + before + after
        if proves_le(dims[axis], -1):
            raise fail(
                site, f"pads {before} and {after} take more than dim {axis}, {source.dims[axis]}"
            )
    return Tensor(tuple(dims), source.dtype)


def _lower_pad(site: CallSite) -> LoopFunc:
    buffers = inputs_of(site)
    source = buffers[0]
    assert source is not None
    pads = _pads(site, source.rank)
    mode = site.attrs["mode"]
    if mode == "constant":
        value = buffers[1] if len(buffers) > 1 else None
        fill = constant(0, source.dtype) if value is None else value[(0,) * value.rank]
        return map_func(site, lambda at: _within(source, pads, at, fill))

    def along(axis: int, at: Expr) -> Expr:
        return _place(mode, at, source.dims[axis], *pads[axis]) if axis in pads else at

    return map_func(site, lambda at: source[tuple(along(k, a) for k, a in enumerate(at))])


def _within(source: Buffer, pads: dict[int, tuple[Expr, Expr]], at: Dims, fill: Scalar) -> Scalar:
    """The element, or `fill` outside the source."""
    index = tuple(a - pads[k][0] if k in pads else a for k, a in enumerate(at))
    inside: Scalar = constant(True, BOOL)
    for axis in pads:
        bound = in_range(index[axis], 0, source.dims[axis])
        inside = bound if isinstance(inside, Const) and inside.value else op("and", inside, bound)
    return select(inside, source[index], fill)


def _place(mode: str, at: Expr, dim: Expr, before: Expr, after: Expr) -> Expr:
    """The source index for position `at`. Negative pads crop first; the rest is then padded."""
    cropped = maximum(0, -before)
    size = dim - cropped - maximum(0, -after)
    before, after = maximum(0, before), maximum(0, after)
    inner = at - before
    last = size - 1
    match mode:
        case "edge":
            found = maximum(0, minimum(inner, last))
        case "wrap":
            found = inner % maximum(1, size)
        case "reflect" if proves_le(before, last) and proves_le(after, last):
            folded = maximum(inner, -inner)
            found = minimum(folded, last * 2 - folded)
        case "reflect":
            period = maximum(1, last * 2)
            phase = inner % period
            found = minimum(phase, period - phase)
        case _:
            raise ValueError(f"pad mode {mode!r}")
    return cropped + found


_numpy_pad: Callable[..., Array] = np.pad


def _reference_pad(
    x: Array,
    value: Array | None = None,
    *,
    pads: Sequence[int],
    axes: Sequence[int] | None,
    mode: str,
) -> Array:
    named = list(range(x.ndim)) if axes is None else [a % x.ndim for a in axes]
    width, cut = [(0, 0)] * x.ndim, [(0, 0)] * x.ndim
    for k, axis in enumerate(named):
        before, after = pads[k], pads[k + len(named)]
        width[axis] = (max(0, before), max(0, after))
        cut[axis] = (max(0, -before), max(0, -after))
    if mode != "constant":
        return _numpy_pad(_cropped(x, cut), width, mode=mode)
    fill = np.zeros((), x.dtype) if value is None else value.reshape(())
    return _cropped(_numpy_pad(x, width, constant_values=fill), cut)


def _cropped(x: Array, cut: Sequence[tuple[int, int]]) -> Array:
    return x[tuple(slice(a, max(a, n - b)) for n, (a, b) in zip(x.shape, cut, strict=True))]


# tile


def _repeats(site: CallSite, rank: int) -> Dims:
    repeats = exprs(site.attrs["repeats"])
    if len(repeats) != rank:
        raise fail(site, f"{len(repeats)} repeats for a tensor of rank {rank}")
    return repeats


def _infer_tile(site: CallSite) -> Annotation:
    source = tensor_of(site, 0)
    if source.dims is None:
        return Tensor(None, source.dtype, source.rank)
    repeats = _repeats(site, len(source.dims))
    ints, count = known_ints(site, 0), repeats[0].as_int() if repeats else 1
    if ints is not None and count is not None and count * len(ints.values) <= MAX_INTS:
        return IntTensor(ints.values * count, ints.rank, ints.dtype)
    return Tensor(tuple(d * r for d, r in zip(source.dims, repeats, strict=True)), source.dtype)


def _lower_tile(site: CallSite) -> LoopFunc:
    source = inputs_of(site)[0]
    assert source is not None
    repeats = _repeats(site, source.rank)

    def along(axis: int, at: Expr) -> Expr:
        if repeats[axis].as_int() in (0, 1):
            return at
        return at % maximum(1, source.dims[axis])

    return map_func(site, lambda at: source[tuple(along(k, a) for k, a in enumerate(at))])


OPERATORS = (
    Operator(
        "slice",
        ("x",),
        _infer_slice,
        _reference_slice,
        _lower_slice,
        attrs={"starts": (), "ends": (), "axes": None, "steps": None},
        samples=(
            Sample((normal(10, 5),), {"starts": (1, 0), "ends": (7, 3)}),
            Sample((normal(10, 5),), {"starts": (-3,), "ends": (FAR,), "axes": (0,)}),
            Sample(
                (normal(10, 5),),
                {"starts": (-1, 20), "ends": (-FAR - 1, -20), "axes": (0, -1), "steps": (-1, -2)},
            ),
            Sample((normal(7),), {"starts": (1,), "ends": (100,), "steps": (3,)}),
            Sample((normal(7),), {"starts": (5,), "ends": (2,)}),
            Sample((normal(0, 3),), {"starts": (5,), "ends": (-9,), "steps": (-1,)}),
            Sample((np.arange(6),), {"starts": (4,), "ends": (0,), "steps": (-2,)}),
        ),
    ),
    Operator(
        "pad",
        ("x", "value"),
        _infer_pad,
        _reference_pad,
        _lower_pad,
        attrs={"pads": (), "axes": None, "mode": "constant"},
        optional=1,
        samples=(
            Sample((normal(3, 4), None), {"pads": (1, 0, 2, 3)}),
            Sample((normal(3, 4), np.array(7.5, np.float32)), {"pads": (2, -1), "axes": (-1,)}),
            Sample((normal(3, 4), None), {"pads": (1, 3, 2, 2), "mode": "edge"}),
            Sample((normal(3, 4), None), {"pads": (2, 3, 1, 0), "mode": "reflect"}),
            Sample((normal(3, 4), None), {"pads": (5, 9), "axes": (1,), "mode": "reflect"}),
            Sample((normal(1, 4), None), {"pads": (2, 1), "axes": (0,), "mode": "reflect"}),
            Sample((normal(3, 4), None), {"pads": (4, -2, 1, 5), "mode": "wrap"}),
            Sample((normal(0, 2), None), {"pads": (1, 0, 1, 0)}),
        ),
    ),
    Operator(
        "tile",
        ("x",),
        _infer_tile,
        lambda x, repeats: np.tile(x, repeats),
        _lower_tile,
        attrs={"repeats": ()},
        samples=(
            Sample((normal(2, 3),), {"repeats": (2, 3)}),
            Sample((normal(2, 1),), {"repeats": (1, 4)}),
            Sample((normal(2, 3),), {"repeats": (0, 1)}),
            Sample((normal(0, 3),), {"repeats": (2, 2)}),
            Sample((np.arange(3),), {"repeats": (2,)}),
        ),
    ),
)
