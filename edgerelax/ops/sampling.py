"""Operators that sample images at coordinates which are data: grid_sample, roi_align."""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import product
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import F32, F64, I32, I64, DType
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import (
    Acc,
    Scalar,
    Value,
    cast,
    constant,
    gather,
    in_range,
    op,
    select,
)
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.indexing import clamped_indices
from edgerelax.ops.interpolation import cubic_far, cubic_near
from edgerelax.ops.maps import (
    Dims,
    equal_dim,
    exprs,
    fail,
    inputs_of,
    loop_func,
    map_func,
    outputs_of_site,
    tensor_of,
)
from edgerelax.sym import Expr, Opaque, as_expr, maximum, minimum

CUBIC_A = -0.75
REACH = 4
"""So far outside the image no tap of any kernel touches it."""

# grid_sample


def _infer_grid_sample(site: CallSite) -> Annotation:
    x, points = tensor_of(site, 0), tensor_of(site, 1)
    if x.dims is None or points.dims is None:
        return Tensor(None, x.dtype, x.rank)
    if len(x.dims) < 3 or len(x.dims) != len(points.dims):
        raise fail(site, f"an image of rank {len(x.dims)} and a grid of rank {len(points.dims)}")
    equal_dim(site, points.dims[-1], as_expr(len(x.dims) - 2), "coordinates and spatial dims")
    batch = equal_dim(site, x.dims[0], points.dims[0], "batches of image and grid")
    return Tensor((batch, x.dims[1], *points.dims[1:-1]), x.dtype)


def _lower_grid_sample(site: CallSite) -> LoopFunc:
    x, points = inputs_of(site)
    assert x is not None and points is not None
    work = F64 if x.dtype == F64 else F32
    mode, padding, corners = (site.attrs[k] for k in ("mode", "padding", "align_corners"))
    spatial = x.rank - 2

    def coordinate(at: Dims, k: int) -> Scalar:
        raw = cast(points[(at[0], *at[2:], as_expr(spatial - 1 - k))], work)
        dim = cast(Value(x.dims[2 + k], I32), work)
        found = _denormalized(raw, dim, corners)
        if mode == "nearest":
            found = op("round", found)
        return _padded(found, dim, padding, corners)

    def body(at: Dims) -> Scalar:
        taps = [taps_around(mode, coordinate(at, k), x.dims[2 + k]) for k in range(spatial)]

        def along(k: int, index: Dims) -> Scalar:
            if k == spatial:
                return cast(x[(*at[:2], *index)], work)
            terms = []
            for position, weight in taps[k]:
                load = partial(lambda p, k, index: along(k + 1, (*index, p)), k=k, index=index)
                value = pixel(position, x.dims[2 + k], padding, corners, load)
                terms.append(value if weight is None else value * weight)
            return reduce(lambda a, b: a + b, terms)

        return cast(along(0, ()), x.dtype)

    return map_func(site, body)


def _denormalized(raw: Scalar, dim: Scalar, corners: bool) -> Scalar:
    """A coordinate in [-1, 1] as one of pixels, whose centres or corners are the ends."""
    if corners:
        return (raw + 1) / 2 * (dim - 1)
    return ((raw + 1) * dim - 1) / 2


def _padded(x: Scalar, dim: Scalar, padding: str, corners: bool) -> Scalar:
    """A coordinate outside the image brought inside, where the padding does that."""
    if padding == "zeros":
        return x
    low = constant(0 if corners else -0.5, x.dtype)
    high = dim - (1 if corners else 0.5)
    inside = op("and", op("ge", x, low), op("le", x, high))
    if padding == "border":
        return select(inside, x, op("max", op("min", x, dim - 1), 0))
    span = high - low
    phase = op("mod", x - low, op("max", span * 2, 1e-6))
    return select(inside, x, low + (span - op("abs", phase - span)))


def taps_around(mode: str, x: Scalar, dim: Expr) -> list[tuple[Expr, Scalar | None]]:
    """Pixels around a coordinate and their weights."""
    if mode == "nearest":
        return [(_position(x, dim), None)]
    below = op("floor", x)
    first, t = _position(below, dim), x - below
    if mode == "linear":
        return [(first, 1 - t), (first + 1, t)]
    weights = (
        cubic_far(t + 1, CUBIC_A), cubic_near(t, CUBIC_A),
        cubic_near(1 - t, CUBIC_A), cubic_far(2 - t, CUBIC_A),
    )  # fmt: skip
    return [(first + (k - 1), w) for k, w in enumerate(weights)]


def _position(x: Scalar, dim: Expr) -> Expr:
    """A whole float as an index, kept within reach of the image so that it fits one."""
    held = op("max", op("min", x, _number(dim, x.dtype) + REACH), -REACH)
    return as_expr(Opaque(cast(held, I64), -REACH, dim + REACH))


def pixel(
    position: Expr, dim: Expr, padding: str, corners: bool, load: Callable[[Expr], Scalar]
) -> Scalar:
    """The value at a pixel that may lie outside the image."""
    clamped = maximum(0, minimum(position, dim - 1))
    if padding == "border":
        return load(clamped)
    if padding == "zeros":
        value = load(clamped)
        return select(in_range(position, 0, dim), value, constant(0, value.dtype))
    period = maximum(1, (dim - 1) * 2) if corners else dim * 2
    phase = position % period
    mirrored = period - phase if corners else period - 1 - phase
    return load(minimum(phase, mirrored))


def _reference_grid_sample(
    x: Array, points: Array, mode: str, padding: str, align_corners: bool
) -> Array:
    work = np.float64 if x.dtype == np.float64 else np.float32
    spatial = x.ndim - 2
    taps = []
    for k in range(spatial):
        dim = x.shape[2 + k]
        raw: Array = points[..., spatial - 1 - k].astype(work)
        spot = (raw + 1) / 2 * (dim - 1) if align_corners else ((raw + 1) * dim - 1) / 2
        taps.append(_reference_taps(spot, dim, mode, padding, align_corners))
    shape = (x.shape[0], *points.shape[1:-1])
    total = np.zeros((x.shape[0], x.shape[1], *shape[1:]), work)
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    for combination in product(*taps):
        index: tuple[Any, ...] = (batch, slice(None), *(i for i, _ in combination))
        weight = reduce(np.multiply, [w for _, w in combination])
        picked = np.moveaxis(x[index], -1, 1)
        total += picked * np.expand_dims(weight, 1)
    return total.astype(x.dtype)


def _reference_taps(
    spot: Array, dim: int, mode: str, padding: str, corners: bool
) -> list[tuple[Array, Array]]:
    low, high = (0.0, dim - 1.0) if corners else (-0.5, dim - 0.5)
    if mode == "nearest":
        spot = np.rint(spot)
    if padding != "zeros":
        span = high - low
        phase = np.mod(spot - low, max(2 * span, 1e-6))
        folded = low + span - np.abs(phase - span)
        brought = np.clip(spot, 0, dim - 1) if padding == "border" else folded
        spot = np.where((spot >= low) & (spot <= high), spot, brought).astype(spot.dtype)
    below = np.floor(spot)
    t = spot - below
    first = below.astype(np.int64)
    match mode:
        case "nearest":
            taps = [(first, np.ones_like(t))]
        case "linear":
            taps = [(first, 1 - t), (first + 1, t)]
        case _:
            a = CUBIC_A
            near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)]
            far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (1 + t, 2 - t)]
            weights = (far[0], near[0], near[1], far[1])
            taps = [(first + k - 1, w) for k, w in enumerate(weights)]
    return [_reference_pixel(i, w, dim, padding, corners) for i, w in taps]


def _reference_pixel(
    index: Array, weight: Array, dim: int, padding: str, corners: bool
) -> tuple[Array, Array]:
    if padding == "reflection":
        period = max(1, 2 * (dim - 1)) if corners else 2 * dim
        phase = index % period
        return np.minimum(phase, period - phase - (0 if corners else 1)), weight
    inside = (index >= 0) & (index < dim)
    kept = np.where(inside, weight, 0) if padding == "zeros" else weight
    return np.clip(index, 0, dim - 1), kept


# roi_align


def _infer_roi_align(site: CallSite) -> Annotation:
    x, rois, batches = (tensor_of(site, k) for k in range(3))
    if site.attrs["samples"] < 1:
        raise fail(
            site,
            "the number of samples per bin depends on the regions (sampling_ratio 0)",
            "export the model with a fixed sampling_ratio",
        )
    if x.dims is None or rois.dims is None:
        return Tensor(None, x.dtype, 4)
    if len(x.dims) != 4 or len(rois.dims) != 2:
        raise fail(site, f"an image of rank {len(x.dims)}, regions of rank {len(rois.dims)}")
    count = rois.dims[0]
    if batches.dims is not None:
        count = equal_dim(site, count, batches.dims[0], "regions and batch indices")
    size = exprs((site.attrs["height"], site.attrs["width"]))
    return Tensor((count, x.dims[1], *size), x.dtype)


def _lower_roi_align(site: CallSite) -> LoopFunc:
    x, rois, batches = inputs_of(site)
    assert x is not None and rois is not None and batches is not None
    out = outputs_of_site(site)[0]
    work = F64 if x.dtype == F64 else F32
    points = grid(out)
    samples = site.attrs["samples"]
    steps = (axis("sy", samples), axis("sx", samples))
    region, channel = exprs(points[:2])
    image = gather(batches[region], x.dims[0])
    sides = []
    for k in (0, 1):  # rows, then columns; a region is x1, y1, x2, y2
        ends = [cast(rois[region, as_expr(1 - k + j)], work) for j in (0, 2)]
        spot = _roi_spot(site, ends, out.dims[2 + k], as_expr(points[2 + k]), as_expr(steps[k]))
        sides.append(_roi_taps(spot, x.dims[2 + k]))
    terms = [
        cast(x[image, channel, row, column], work) * (high * wide)
        for row, high in sides[0][0]
        for column, wide in sides[1][0]
    ]
    fn = "add" if site.attrs["mode"] == "avg" else "max"
    inside = op("and", sides[0][1], sides[1][1])
    body = select(inside, reduce(lambda a, b: op(fn, a, b), terms), constant(0, work))
    if fn == "max":
        return loop_func(site, [Stage(out, points, body, steps, "max")])
    mean = cast(Acc(work) / (samples * samples), out.dtype)
    return loop_func(site, [Stage(out, points, body, steps, "sum", epilogue=mean)])


def _roi_spot(site: CallSite, ends: Sequence[Scalar], bins: Expr, at: Expr, step: Expr) -> Scalar:
    """The coordinate of one sample along one side of a region."""
    half, scale = bool(site.attrs["half_pixel"]), float(site.attrs["scale"])
    start, end = (e * scale - (0.5 if half else 0.0) for e in ends)
    length = end - start
    if not half:
        length = op("max", length, 1)
    bin_size = length / _number(bins, start.dtype)
    offset = (_number(step, start.dtype) + 0.5) * bin_size / int(site.attrs["samples"])
    return start + _number(at, start.dtype) * bin_size + offset


def _number(expr: Expr, dtype: DType) -> Scalar:
    return cast(Value(expr, I32), dtype)


def _roi_taps(spot: Scalar, dim: Expr) -> tuple[list[tuple[Expr, Scalar]], Scalar]:
    """The two pixels around a sample with their weights, and whether it counts at all."""
    size = _number(dim, spot.dtype)
    inside = op("and", op("ge", spot, -1), op("le", spot, size))
    held = op("min", op("max", spot, 0), size - 1)
    below = op("floor", held)
    t = held - below
    first = maximum(0, minimum(_position(below, dim), dim - 1))
    return [(first, 1 - t), (minimum(first + 1, dim - 1), t)], inside


def _reference_roi_align(
    x: Array,
    rois: Array,
    batches: Array,
    height: int,
    width: int,
    samples: int,
    scale: float,
    half_pixel: bool,
    mode: str,
) -> Array:
    work = np.float64 if x.dtype == np.float64 else np.float32
    corners: Any = rois.astype(work)
    corners = corners * work(scale) - work(0.5 * half_pixel)
    sides = []
    for k, bins in ((0, height), (1, width)):
        start, length = corners[:, 1 - k, None], (corners[:, 3 - k] - corners[:, 1 - k])[:, None]
        length = length if half_pixel else np.maximum(length, 1)
        parts = (np.arange(bins * samples) + 0.5) / (bins * samples)
        sides.append(_reference_roi_side(start + parts * length, x.shape[2 + k]))
    images = clamped_indices(batches, x.shape[0])[:, None, None]
    found = []
    for (row, high), (column, wide) in product(*sides):
        picked = x[images, :, row[:, :, None], column[:, None, :]]
        weights = high[:, :, None] * wide[:, None, :]
        found.append(np.moveaxis(picked * weights[..., None], -1, 1))
    terms: Array = np.sum(found, 0) if mode == "avg" else np.max(found, 0)
    cells = terms.reshape(len(rois), x.shape[1], height, samples, width, samples)
    pooled = cells.mean((3, 5)) if mode == "avg" else cells.max((3, 5))
    return np.asarray(pooled, x.dtype)


def _reference_roi_side(spots: Array, dim: int) -> list[tuple[Array, Array]]:
    """Pixels along one side and their weights, 0 for samples too far outside."""
    held = np.clip(spots, 0, dim - 1)
    first = np.floor(held).astype(np.int64)
    t, inside = held - first, (spots >= -1) & (spots <= dim)
    return [(first, (1 - t) * inside), (np.minimum(first + 1, dim - 1), t * inside)]


_POINTS = (normal(2, 3, 5, 2) * 0.9).astype(np.float32)
_ROIS = np.array([[0, 0, 4, 4], [1, 2, 3.5, 6], [-1, 0, 9, 3]], np.float32)


OPERATORS = (
    Operator(
        "grid_sample",
        ("x", "grid"),
        _infer_grid_sample,
        _reference_grid_sample,
        _lower_grid_sample,
        attrs={"mode": "linear", "padding": "zeros", "align_corners": False},
        samples=(
            Sample((normal(2, 3, 4, 5), _POINTS)),
            Sample((normal(2, 3, 4, 5), _POINTS), {"mode": "nearest", "padding": "border"}),
            Sample(
                (normal(2, 1, 4, 5), _POINTS * 2),
                {"mode": "linear", "padding": "reflection", "align_corners": True},
            ),
            Sample((normal(2, 1, 4, 5), _POINTS), {"mode": "cubic", "padding": "border"}),
            Sample((normal(1, 2, 3, 4, 2), normal(1, 2, 2, 3, 3) * 0.5)),
        ),
    ),
    Operator(
        "roi_align",
        ("x", "rois", "batch_indices"),
        _infer_roi_align,
        _reference_roi_align,
        _lower_roi_align,
        attrs={
            "height": 1, "width": 1, "samples": 1, "scale": 1.0, "half_pixel": True, "mode": "avg",
        },
        samples=(
            Sample(
                (normal(2, 3, 7, 8), _ROIS, np.array([0, 1, 0])),
                {"height": 2, "width": 3, "samples": 2},
            ),
            Sample(
                (normal(2, 1, 7, 8), _ROIS, np.array([1, 1, 0])),
                {"height": 2, "width": 2, "samples": 1, "scale": 0.5, "half_pixel": False},
            ),
            Sample(
                (normal(1, 2, 7, 8), _ROIS, np.array([0, 0, 0])),
                {"height": 3, "width": 2, "samples": 2, "mode": "max"},
            ),
        ),
    ),
)  # fmt: skip
