"""Resize: nearest, linear and cubic, with every coordinate rule of ONNX, exact in integers.

A scale is a ratio of integers (output size over input size, or the simplest fraction that rounds to
the float of the model), so a source coordinate is a ratio of integer expressions: which elements an
output reads is decided exactly, for symbolic sizes too, and only weights are floats.
`interpolation` resolves ONNX's parameters for importers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import ceil, floor, lcm
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import F32, F64, I32, DType, from_numpy
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Acc, Buffer, Scalar, Value, cast, constant, in_range, op, select
from edgerelax.ir.types import Annotation, Tensor, tensor
from edgerelax.ops.interpolation import cubic_far, cubic_near, simplest_fraction
from edgerelax.ops.maps import (
    Dims,
    exprs,
    fail,
    inputs_of,
    loop_func,
    map_stage,
    normal_axis,
    outputs_of_site,
    tensor_of,
)
from edgerelax.sym import Axis, Cond, Expr, as_expr, ceildiv, eq, maximum, minimum, prove_eq
from edgerelax.sym import select as choose

# coordinates


WHOLE = (Fraction(0), Fraction(1))
"""The region of interest that is all of an axis."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """One resized axis: sizes, scale = up / down, and its part of the region of interest."""

    index: int
    dim: Expr
    size: Expr
    up: Expr
    down: Expr
    roi: tuple[Fraction, Fraction]

    @property
    def is_exact(self) -> bool:
        """Whether size is dim times scale, with nothing rounded off."""
        return prove_eq(self.size * self.down, self.dim * self.up) is True

    @property
    def is_identity(self) -> bool:
        unscaled = prove_eq(self.up, self.down) is True and prove_eq(self.dim, self.size) is True
        return unscaled and self.roi == WHOLE


@dataclass(frozen=True, slots=True)
class _Ratio:
    """A source coordinate as a fraction of integers, `below` > 0."""

    above: Expr
    below: Expr

    @property
    def floor(self) -> Expr:
        return self.above // self.below


def _coordinate(mode: str, ax: _Axis, at: Expr) -> _Ratio:
    """The source coordinate of output index `at`."""
    up, down, dim = ax.up, ax.down, ax.dim
    half_pixel = _Ratio((2 * at + 1) * down - up, 2 * up)
    match mode:
        case "half_pixel":
            return half_pixel
        case "pytorch_half_pixel":
            zero = _Ratio(as_expr(0), as_expr(1))
            return _choose(eq(ax.size, 1), zero, half_pixel)
        case "half_pixel_symmetric":
            return _Ratio(half_pixel.above + dim * up - ax.size * down, half_pixel.below)
        case "tf_half_pixel_for_nn":
            return _Ratio((2 * at + 1) * down, 2 * up)
        case "asymmetric":
            return _Ratio(at * down, up)
        case "align_corners":
            return _spread(ax, *WHOLE, at)
        case "tf_crop_and_resize":
            start, end = ax.roi
            middle = (start + end) / 2
            centre = _Ratio((dim - 1) * middle.numerator, as_expr(middle.denominator))
            return _choose(_is_one(ax), centre, _spread(ax, start, end, at))
    raise ValueError(f"coordinate mode {mode!r}")


def _spread(ax: _Axis, start: Fraction, end: Fraction, at: Expr) -> _Ratio:
    """Output indices spread evenly from start to end, as parts of the input's length - 1."""
    unit = lcm(start.denominator, end.denominator)
    first, last = int(start * unit), int(end * unit)
    whole = (ax.size - 1, as_expr(1))
    length, step = whole if ax.is_exact else (ax.dim * ax.up - ax.down, ax.down)
    above = (ax.dim - 1) * (first * length + at * (last - first) * step)
    return _Ratio(above, maximum(1, length) * unit)


def _is_one(ax: _Axis) -> Cond:
    """Whether the output is 1 long, before that is rounded."""
    return eq(ax.size, 1) if ax.is_exact else eq(ax.dim * ax.up, ax.down)


def _choose(cond: Cond, then: _Ratio, other: _Ratio) -> _Ratio:
    return _Ratio(choose(cond, then.above, other.above), choose(cond, then.below, other.below))


def _nearest(mode: str, x: _Ratio) -> Expr:
    match mode:
        case "floor":
            return x.floor
        case "ceil":
            return ceildiv(x.above, x.below)
        case "round_prefer_floor":
            return ceildiv(2 * x.above - x.below, 2 * x.below)
        case "round_prefer_ceil":
            return (2 * x.above + x.below) // (2 * x.below)
    raise ValueError(f"nearest mode {mode!r}")


# weights


@dataclass(frozen=True, slots=True)
class _Rule:
    """The attributes that decide coordinates and weights."""

    mode: str
    coordinates: str
    nearest: str
    cubic_a: float
    antialias: bool
    exclude_outside: bool
    extrapolation: float

    @property
    def radius(self) -> int:
        return 2 if self.mode == "cubic" else 1


def _rule(attrs: Mapping[str, Any]) -> _Rule:
    smooth = attrs["mode"] != "nearest"
    return _Rule(
        attrs["mode"],
        attrs["coordinates"],
        attrs["nearest"],
        attrs["cubic_a"],
        bool(attrs["antialias"]) and smooth,
        bool(attrs["exclude_outside"]) and smooth,
        attrs["extrapolation"],
    )


def _tap_weights(rule: _Rule, x: _Ratio, dtype: DType) -> list[Scalar]:
    """Weights of the positions around x, from floor(x) - radius + 1 on."""
    t = _float(x.above % x.below, dtype) / _float(x.below, dtype)
    if rule.mode == "linear":
        return [1 - t, t]
    a = rule.cubic_a
    return [cubic_far(t + 1, a), cubic_near(t, a), cubic_near(1 - t, a), cubic_far(2 - t, a)]


def _spread_weight(rule: _Rule, ax: _Axis, x: _Ratio, position: Expr, dtype: DType) -> Scalar:
    """The weight of a position under a kernel widened by the scale (antialias), not normalised."""
    away = op("abs", _float(position * x.below - x.above, dtype)) / _float(x.below, dtype)
    distance = away * (_float(minimum(ax.up, ax.down), dtype) / _float(ax.down, dtype))
    if rule.mode == "linear":
        return op("max", 1 - distance, 0)
    near, far = cubic_near(distance, rule.cubic_a), cubic_far(distance, rule.cubic_a)
    beyond = select(op("lt", distance, 2), far, constant(0, dtype))
    return select(op("le", distance, 1), near, beyond)


def _float(expr: Expr, dtype: DType) -> Scalar:
    number = expr.as_int()
    return cast(Value(expr, I32), dtype) if number is None else constant(number, dtype)


def _masked(weight: Scalar, position: Expr, dim: Expr) -> Scalar:
    """The weight, 0 outside the input."""
    return select(in_range(position, 0, dim), weight, constant(0, weight.dtype))


def _clamp(position: Expr, dim: Expr) -> Expr:
    return maximum(0, minimum(position, dim - 1))


# the operator


def _axes(site: CallSite, dims: Dims) -> list[_Axis]:
    attrs = site.attrs
    named = range(len(dims)) if attrs["axes"] is None else attrs["axes"]
    axes = [normal_axis(site, a, len(dims)) for a in named]
    columns = [exprs(attrs[name]) for name in ("sizes", "numerators", "denominators")]
    if any(len(c) != len(axes) for c in columns):
        raise fail(
            site, f"{len(axes)} axes, but {' and '.join(str(len(c)) for c in columns)} sizes"
        )
    roi = attrs["roi"]
    regions = [WHOLE] * len(axes)
    if roi is not None and attrs["coordinates"] == "tf_crop_and_resize":
        edges = [_edge(r) for r in roi]
        regions = list(zip(edges[: len(axes)], edges[len(axes) :], strict=True))
    rows = zip(axes, *columns, regions, strict=True)
    return [
        _Axis(k, dims[k], size, _divisor(up), _divisor(down), region)
        for k, size, up, down, region in rows
    ]


def _divisor(scale: Expr) -> Expr:
    """A part of a scale, 1 where it is 0: then there are no elements to compute."""
    return as_expr(1) if scale.as_int() == 0 else scale


def _edge(number: float) -> Fraction:
    return -simplest_fraction(-number) if number < 0 else simplest_fraction(number)


def _infer_resize(site: CallSite) -> Annotation:
    source = tensor_of(site, 0)
    if source.dims is None:
        return Tensor(None, source.dtype, source.rank)
    dims = list(source.dims)
    for ax in _axes(site, source.dims):
        dims[ax.index] = ax.size
    return Tensor(tuple(dims), source.dtype)


def _lower_resize(site: CallSite) -> LoopFunc:
    source, out = inputs_of(site)[0], outputs_of_site(site)[0]
    assert source is not None
    rule = _rule(site.attrs)
    axes = [ax for ax in _axes(site, source.dims) if not ax.is_identity]
    if rule.antialias and axes:
        return loop_func(site, _antialias_stages(rule, axes, source, out))

    def body(at: Dims) -> Scalar:
        found = {ax.index: _coordinate(rule.coordinates, ax, at[ax.index]) for ax in axes}
        if rule.mode == "nearest":
            index = list(at)
            for ax in axes:
                index[ax.index] = _clamp(_nearest(rule.nearest, found[ax.index]), ax.dim)
            value: Scalar = source[tuple(index)]
        else:
            value = _interpolated(rule, axes, source, at, found)
        return _or_extrapolated(rule, axes, found, value)

    return loop_func(site, [map_stage(out, body)])


def _interpolated(
    rule: _Rule, axes: Sequence[_Axis], source: Buffer, at: Dims, found: Mapping[int, _Ratio]
) -> Scalar:
    """The weighted sum over the taps of all axes, one axis after the other."""
    work = _work_dtype(source.dtype)

    def along(rest: Sequence[_Axis], index: Dims) -> Scalar:
        if not rest:
            return cast(source[index], work)
        ax, x = rest[0], found[rest[0].index]
        first = x.floor - (rule.radius - 1)
        weights = _tap_weights(rule, x, work)
        if rule.exclude_outside:
            weights = [_masked(w, first + k, ax.dim) for k, w in enumerate(weights)]
            total = _sum(weights)
            weights = [_share(w, total) for w in weights]
        terms = []
        for k, weight in enumerate(weights):
            position = _clamp(first + k, ax.dim)
            terms.append(along(rest[1:], _at(index, ax.index, position)) * weight)
        return _sum(terms)

    return _narrowed(along(axes, at), source.dtype)


def _at(index: Dims, axis: int, position: Expr) -> Dims:
    return (*index[:axis], position, *index[axis + 1 :])


def _share(part: Scalar, total: Scalar) -> Scalar:
    """part / total; 0 where no tap is within the image, as the ONNX reference has it."""
    zero = constant(0, total.dtype)
    return select(op("eq", total, zero), zero, part / total)


def _sum(terms: Sequence[Scalar]) -> Scalar:
    return reduce(lambda a, b: a + b, terms)


def _work_dtype(dtype: DType) -> DType:
    return F64 if dtype == F64 else F32


def _narrowed(value: Scalar, dtype: DType) -> Scalar:
    """Back to the operand's dtype; integers are rounded, half to even, and saturate."""
    return cast(value if dtype.is_float else op("round", value), dtype)


def _or_extrapolated(
    rule: _Rule, axes: Sequence[_Axis], found: Mapping[int, _Ratio], value: Scalar
) -> Scalar:
    """tf_crop_and_resize gives a fixed value wherever a coordinate leaves the input."""
    if rule.coordinates != "tf_crop_and_resize":
        return value
    outside = constant(rule.extrapolation, value.dtype)
    for ax in axes:
        x = found[ax.index]
        value = select(in_range(x.above, 0, (ax.dim - 1) * x.below + 1), value, outside)
    return value


def _antialias_stages(
    rule: _Rule, axes: Sequence[_Axis], source: Buffer, out: Buffer
) -> list[Stage]:
    """Per axis a sum of weights and a weighted sum over it, a window as wide as the scale asks."""
    work = _work_dtype(source.dtype)
    stages: list[Stage] = []
    for k, ax in enumerate(axes):
        last = k == len(axes) - 1
        dims = _at(source.dims, ax.index, ax.size)
        sums = Buffer(f"weights{k}", work, (ax.size,))
        target = out if last else Buffer(f"pass{k}", work, dims)
        stages.append(_weight_sums(rule, ax, sums))
        points = grid(target)
        tap, position, weight = _tap(rule, ax, as_expr(points[ax.index]), work)
        element = source[_at(exprs(points), ax.index, _clamp(position, ax.dim))]
        value = _share(Acc(work), sums[points[ax.index]])
        if last:
            found = {
                a.index: _coordinate(rule.coordinates, a, as_expr(points[a.index])) for a in axes
            }
            value = _or_extrapolated(rule, axes, found, _narrowed(value, out.dtype))
        body = cast(element, work) * weight
        stages.append(Stage(target, points, body, (tap,), "sum", epilogue=value))
        source = target
    return stages


def _weight_sums(rule: _Rule, ax: _Axis, sums: Buffer) -> Stage:
    points = grid(sums)
    tap, _, weight = _tap(rule, ax, as_expr(points[0]), sums.dtype)
    return Stage(sums, points, weight, (tap,), "sum")


def _tap(rule: _Rule, ax: _Axis, at: Expr, dtype: DType) -> tuple[Axis, Expr, Scalar]:
    """The reduce axis over a widened kernel's taps, a tap's position and its weight."""
    x = _coordinate(rule.coordinates, ax, at)
    reach = ceildiv(maximum(ax.up, ax.down) * rule.radius, ax.up)
    tap = axis("tap", 2 * reach)
    position = x.floor + 1 - reach + tap
    weight = _spread_weight(rule, ax, x, position, dtype)
    return tap, position, _masked(weight, position, ax.dim) if rule.exclude_outside else weight


# the reference


def _reference_resize(x: Array, **attrs: Any) -> Array:
    rule, result = _rule(attrs), x.astype(np.float64)
    site = CallSite(RESIZE, (tensor(x.shape, from_numpy(x.dtype)),), attrs, (x,))
    outside = np.zeros(x.shape, bool)
    for ax in _axes(site, exprs(x.shape)):
        if ax.is_identity:
            continue
        count = ax.size.as_int() or 0
        found = [_coordinate(rule.coordinates, ax, as_expr(k)) for k in range(count)]
        spots = [Fraction(_int(f.above), _int(f.below)) for f in found]
        result = _resampled(rule, result, ax, spots)
        far = np.array([not 0 <= s <= _int(ax.dim) - 1 for s in spots], bool)
        shape = [1] * x.ndim
        shape[ax.index] = count
        outside = np.take(outside, [0] * count, ax.index) | far.reshape(shape)
    if rule.coordinates == "tf_crop_and_resize":
        result = np.where(outside, rule.extrapolation, result)
    return _saturated(result, x.dtype)


def _int(expr: Expr) -> int:
    number = expr.as_int()
    assert number is not None
    return number


def _resampled(rule: _Rule, x: Array, ax: _Axis, spots: Sequence[Fraction]) -> Array:
    """One axis resampled at these source coordinates."""
    dim, scale = x.shape[ax.index], Fraction(_int(ax.up), _int(ax.down))
    if rule.mode == "nearest":
        exact = [_Ratio(as_expr(s.numerator), as_expr(s.denominator)) for s in spots]
        chosen = [min(max(_int(_nearest(rule.nearest, e)), 0), dim - 1) for e in exact]
        return np.take(x, chosen, ax.index)
    shrink = min(scale, Fraction(1)) if rule.antialias else Fraction(1)
    reach = ceil(rule.radius / shrink)
    taps = np.arange(1 - reach, reach + 1)
    rows = np.array([[floor(s)] for s in spots], int).reshape(-1, 1) + taps
    centres = np.array([[float(s)] for s in spots]).reshape(-1, 1)
    distance = np.abs(rows - centres) * float(shrink)
    weights = _kernel(rule, distance)
    if rule.exclude_outside:
        weights = np.where((rows < 0) | (rows >= dim), 0, weights)
    totals = weights.sum(1, keepdims=True)
    weights = weights / np.where(totals == 0, 1, totals)
    picked = np.moveaxis(np.take(x, np.clip(rows, 0, dim - 1), ax.index), ax.index + 1, -1)
    shape = [1] * picked.ndim
    shape[ax.index], shape[-1] = weights.shape
    return np.asarray((picked * weights.reshape(shape)).sum(-1))


def _kernel(rule: _Rule, distance: Array) -> Array:
    if rule.mode == "linear":
        return np.asarray(np.maximum(0, 1 - distance))
    a, d = rule.cubic_a, distance
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _saturated(x: Array, dtype: Any) -> Array:
    if dtype.kind not in "iu":
        return x.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x), limits.min, limits.max).astype(dtype)


def _sized(*sizes: int, dims: tuple[int, ...], **attrs: Any) -> dict[str, Any]:
    """Sample attributes for a resize of `dims` to `sizes`."""
    return {"sizes": sizes, "numerators": sizes, "denominators": dims, **attrs}


RESIZE = Operator(
    "resize",
    ("x",),
    _infer_resize,
    _reference_resize,
    _lower_resize,
    attrs={
        "axes": None,
        "sizes": (),
        "numerators": (),
        "denominators": (),
        "mode": "nearest",
        "coordinates": "half_pixel",
        "nearest": "round_prefer_floor",
        "cubic_a": -0.75,
        "antialias": False,
        "exclude_outside": False,
        "extrapolation": 0.0,
        "roi": None,
    },
    samples=(
        Sample((normal(1, 2, 3, 4),), _sized(1, 2, 6, 8, dims=(1, 2, 3, 4))),
        Sample(
            (normal(2, 5),),
            _sized(3, dims=(5,), axes=(1,), coordinates="asymmetric", nearest="floor"),
        ),
        Sample((normal(2, 3, 4),), _sized(7, 5, dims=(3, 4), axes=(1, 2), mode="linear")),
        Sample(
            (normal(2, 6),),
            _sized(4, dims=(6,), axes=(-1,), mode="cubic", exclude_outside=True),
        ),
        Sample(
            (normal(2, 9),),
            _sized(4, dims=(9,), axes=(1,), mode="linear", antialias=True),
        ),
        Sample(
            (normal(7, 9),),
            _sized(3, 12, dims=(7, 9), mode="cubic", antialias=True),
        ),
        Sample(
            (normal(4, 4),),
            _sized(
                3, 3, dims=(4, 4), mode="linear", coordinates="tf_crop_and_resize",
                roi=(0.4, 0.6, 0.6, 1.25), extrapolation=10.0,
            ),
        ),
        Sample(
            (np.arange(12, dtype=np.uint8).reshape(3, 4),),
            _sized(5, 2, dims=(3, 4), mode="linear", coordinates="align_corners"),
        ),
        Sample((normal(2, 0),), _sized(4, dims=(2,), axes=(0,), mode="linear")),
        Sample((normal(3, 2),), _sized(0, dims=(3,), axes=(0,))),
    ),
)  # fmt: skip

OPERATORS = (RESIZE,)
