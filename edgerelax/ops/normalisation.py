"""Normalisations: statistics in f32 (f64 for f64) in two passes, never E[x²] - E[x]²."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Acc, Buffer, Scalar, cast, constant, op, select
from edgerelax.ir.types import Annotation, Tensor, Tuple
from edgerelax.ops.lowering import (
    broadcast_load,
    count_of,
    load_reduced,
    narrow_reference,
    reduce_stage,
    wide,
    widened,
    without,
)
from edgerelax.ops.maps import (
    Dims,
    fail,
    inputs_of,
    loop_func,
    map_stage,
    normal_axis,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.rules import (
    FLOATS,
    allowed,
    broadcast_dims,
    reduce_dims,
    reduced_axes,
    show,
)

Element = Callable[[Dims], Scalar]


def infer_like_x(site: CallSite) -> Tensor:
    """The result is like the first operand, a tensor of floats."""
    x = tensor_of(site, 0)
    if x.dtype is not None:
        allowed(site, x.dtype, FLOATS)
    return Tensor(x.dims, x.dtype, x.rank)


def _given(site: CallSite, count: int) -> tuple[Buffer | None, ...]:
    buffers = inputs_of(site)
    return (*buffers, *[None] * (count - len(buffers)))


def _x_of(site: CallSite) -> Buffer:
    x = inputs_of(site)[0]
    assert x is not None
    return x


# Statistics


@dataclass(frozen=True, slots=True)
class Statistics:
    """The stages of the mean and of a measure of spread over some axes; elements made of them."""

    stages: tuple[Stage, ...]
    centred: Element
    spread: Element


def statistics(
    dims: Dims,
    reduced: Sequence[int],
    element: Element,
    mean: Buffer,
    spread: Buffer,
    finish: Callable[[Scalar], Scalar],
) -> Statistics:
    """`finish` takes the variance and gives what is stored in `spread`."""
    count = count_of(dims, reduced, mean.dtype)

    def centred(at: Dims) -> Scalar:
        return element(at) - load_reduced(mean, at, reduced)

    def square(at: Dims) -> Scalar:
        difference = centred(at)
        return difference * difference

    return Statistics(
        (
            reduce_stage(mean, dims, reduced, element, "sum", lambda acc: acc / count),
            reduce_stage(spread, dims, reduced, square, "sum", lambda acc: finish(acc / count)),
        ),
        centred,
        lambda at: load_reduced(spread, at, reduced),
    )


def inverse_deviation(epsilon: float) -> Callable[[Scalar], Scalar]:
    """1 / sqrt(variance + epsilon)"""
    return lambda variance: 1.0 / op("sqrt", variance + epsilon)


def temps(x: Buffer, dims: Dims) -> tuple[Buffer, Buffer]:
    """Where the mean and the spread of x are kept."""
    dtype = wide(x.dtype)
    return Buffer("mean", dtype, dims), Buffer("spread", dtype, dims)


def scaled(value: Scalar, scale: Scalar | None, bias: Scalar | None) -> Scalar:
    """value * scale + bias, in the dtype of the value."""
    if scale is not None:
        value = value * cast(scale, value.dtype)
    return value if bias is None else value + cast(bias, value.dtype)


# layer_norm and rms_norm: over the axes from `axis` on; scale and bias broadcast to x.


def _trailing(site: CallSite, rank: int) -> tuple[int, ...]:
    return tuple(range(normal_axis(site, site.attrs["axis"], rank), rank))


def _check_broadcasts(site: CallSite, operands: Sequence[int]) -> None:
    """Operands must broadcast to the first without making it larger."""
    x = tensor_of(site, 0)
    for k in operands:
        dims = tensor_of(site, k).dims if k < len(site.args) else None
        if dims is None or x.dims is None:
            continue
        if len(dims) > len(x.dims):
            raise fail(site, f"{site.op.operands[k]} {show(dims)} is larger than x {show(x.dims)}")
        broadcast_dims(site, (x.dims, dims))


def _infer_layer_norm(site: CallSite) -> Annotation:
    result = infer_like_x(site)
    _check_broadcasts(site, (1, 2))
    if not site.attrs["statistics"]:
        return result
    if result.dtype is None or result.rank is None:
        return Tuple((result, Tensor(), Tensor()))
    dtype = wide(result.dtype)
    statistic = Tensor(None, dtype, result.rank)
    if result.dims is not None:
        dims = reduce_dims(result.dims, _trailing(site, result.rank), True)
        statistic = Tensor(dims, dtype)
    return Tuple((result, statistic, statistic))


def _lower_layer_norm(site: CallSite) -> LoopFunc:
    x, scale, bias = _given(site, 3)
    assert x is not None
    reduced = _trailing(site, x.rank)
    outs = outputs_of_site(site)
    mean, spread = outs[1:] if len(outs) > 1 else temps(x, without(x.dims, reduced))
    parts = statistics(
        x.dims,
        reduced,
        lambda at: widened(x[at]),
        mean,
        spread,
        inverse_deviation(site.attrs["epsilon"]),
    )

    def result(at: Dims) -> Scalar:
        value = parts.centred(at) * parts.spread(at)
        return cast(_affine(value, at, x.dims, scale, bias), x.dtype)

    return loop_func(site, [*parts.stages, map_stage(outs[0], result)])


def _affine(
    value: Scalar, at: Dims, dims: Dims, scale: Buffer | None, bias: Buffer | None
) -> Scalar:
    """Scaled and shifted by operands that broadcast to the shape `dims`."""
    loads = [None if b is None else broadcast_load(b, at, dims) for b in (scale, bias)]
    return scaled(value, *loads)


def moments(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean and variance, summed in f64; NaN over nothing."""
    with np.errstate(invalid="ignore"):
        count = np.prod([x.shape[a] for a in axes], dtype=np.int64)
        mean = np.sum(x, axes, dtype=np.float64, keepdims=True) / count
        variance = np.sum((x - mean.astype(x.dtype)) ** 2, axes, np.float64, keepdims=True) / count
        return mean.astype(x.dtype), variance.astype(x.dtype)


def _layer_norm(
    x: Array,
    scale: Array | None = None,
    bias: Array | None = None,
    axis: int = -1,
    epsilon: float = 1e-5,
    statistics: bool = False,
) -> Array | tuple[Array, Array, Array]:
    values = x.astype(np.promote_types(x.dtype, np.float32))
    mean, variance = moments(values, tuple(range(axis % x.ndim, x.ndim)))
    inverse = 1 / np.sqrt(variance + epsilon).astype(values.dtype)
    result = affine_reference((values - mean) * inverse, scale, bias).astype(x.dtype)
    return (result, mean, inverse) if statistics else result


def affine_reference(x: Array, scale: Array | None, bias: Array | None) -> Array:
    """x * scale + bias, in the dtype of x."""
    scaled = x if scale is None else x * scale.astype(x.dtype)
    return np.asarray(scaled if bias is None else scaled + bias.astype(x.dtype))


def _lower_rms_norm(site: CallSite) -> LoopFunc:
    x, scale = _given(site, 2)
    assert x is not None
    reduced = _trailing(site, x.rank)
    _, spread = temps(x, without(x.dims, reduced))
    count = count_of(x.dims, reduced, spread.dtype)
    finish = inverse_deviation(site.attrs["epsilon"])

    def square(at: Dims) -> Scalar:
        return widened(x[at]) * widened(x[at])

    def result(at: Dims) -> Scalar:
        value = widened(x[at]) * load_reduced(spread, at, reduced)
        return cast(_affine(value, at, x.dims, scale, None), x.dtype)

    stage = reduce_stage(spread, x.dims, reduced, square, "sum", lambda acc: finish(acc / count))
    return loop_func(site, [stage, map_stage(outputs_of_site(site)[0], result)])


def _infer_rms_norm(site: CallSite) -> Annotation:
    result = infer_like_x(site)
    _check_broadcasts(site, (1,))
    if result.rank is not None:
        _trailing(site, result.rank)
    return result


def _rms_norm(x: Array, scale: Array | None = None, axis: int = -1, epsilon: float = 1e-5) -> Array:
    axes = tuple(range(axis % x.ndim, x.ndim))
    with np.errstate(invalid="ignore"):
        square = np.sum(x * x, axes, keepdims=True) / np.prod([x.shape[a] for a in axes])
    return affine_reference(x / np.sqrt(square + epsilon).astype(x.dtype), scale, None)


# mean_variance_norm, lp_norm


def _infer_over_axes(site: CallSite) -> Annotation:
    result = infer_like_x(site)
    if result.rank is not None:
        reduced_axes(site, result.rank)
    return result


def _lower_mean_variance_norm(site: CallSite) -> LoopFunc:
    x = _x_of(site)
    reduced = reduced_axes(site, x.rank)
    mean, spread = temps(x, without(x.dims, reduced))
    epsilon = site.attrs["epsilon"]
    parts = statistics(
        x.dims,
        reduced,
        lambda at: widened(x[at]),
        mean,
        spread,
        lambda variance: op("sqrt", variance) + epsilon,
    )

    def result(at: Dims) -> Scalar:
        return cast(parts.centred(at) / parts.spread(at), x.dtype)

    return loop_func(site, [*parts.stages, map_stage(outputs_of_site(site)[0], result)])


def _mean_variance_norm(
    x: Array, axes: tuple[int, ...] | None = (0, 2, 3), epsilon: float = 1e-9
) -> Array:
    mean, variance = moments(x, tuple(range(x.ndim)) if axes is None else tuple(axes))
    return np.asarray((x - mean) / (np.sqrt(variance) + x.dtype.type(epsilon)))


def _lower_lp_norm(site: CallSite) -> LoopFunc:
    x = _x_of(site)
    reduced = (normal_axis(site, site.attrs["axis"], x.rank),)
    _, size = temps(x, without(x.dims, reduced))
    is_euclidean = _order(site) == 2

    def part(at: Dims) -> Scalar:
        value = widened(x[at])
        return value * value if is_euclidean else op("abs", value)

    def finish(acc: Acc) -> Scalar:
        return op("sqrt", acc) if is_euclidean else acc

    def result(at: Dims) -> Scalar:
        norm = load_reduced(size, at, reduced)
        zero = constant(0, norm.dtype)
        return cast(select(op("eq", norm, zero), zero, widened(x[at]) / norm), x.dtype)

    stage = reduce_stage(size, x.dims, reduced, part, "sum", finish)
    return loop_func(site, [stage, map_stage(outputs_of_site(site)[0], result)])


def _order(site: CallSite) -> int:
    order: int = site.attrs["p"]
    if order not in (1, 2):
        raise fail(site, f"p is {order}", "1 and 2 are defined")
    return order


def _infer_lp_norm(site: CallSite) -> Annotation:
    result = infer_like_x(site)
    _order(site)
    if result.rank is not None:
        normal_axis(site, site.attrs["axis"], result.rank)
    return result


def _lp_norm(x: Array, axis: int = -1, p: int = 2) -> Array:
    norm = np.linalg.norm(x, p, axis, keepdims=True) if x.size else np.ones((), x.dtype)
    return np.where(norm == 0, x.dtype.type(0), x / np.where(norm == 0, x.dtype.type(1), norm))


_EPSILON = {"epsilon": 1e-5}
_FACES = normal(2, 6, 3, 5)


OPERATORS = (
    Operator(
        "layer_norm",
        ("x", "scale", "bias"),
        _infer_layer_norm,
        _layer_norm,
        _lower_layer_norm,
        attrs={"axis": -1, "epsilon": 1e-5, "statistics": False},
        optional=2,
        samples=(
            Sample((normal(2, 3, 5), normal(5), normal(5, seed=1))),
            Sample((normal(2, 3, 5) + 30, normal(5), None)),
            Sample((normal(2, 3, 5), normal(3, 5), normal(3, 5)), {"axis": 1}),
            Sample((normal(2, 3, 5), normal(1), None), {"axis": 0, "statistics": True}),
            Sample((normal(2, 3, 5), None, None), {"axis": -2, "statistics": True}),
            Sample((normal(0, 4), normal(4), None)),
            Sample((normal(2, 0), normal(0), normal(0))),
            Sample((normal(3, 17, dtype="float16"), normal(17, dtype="float16"), None)),
        ),
    ),
    Operator(
        "rms_norm",
        ("x", "scale"),
        _infer_rms_norm,
        narrow_reference(_rms_norm),
        _lower_rms_norm,
        attrs={"axis": -1, **_EPSILON},
        optional=1,
        samples=(
            Sample((normal(2, 3, 5), normal(5))),
            Sample((normal(2, 3, 5), normal(3, 5)), {"axis": 1}),
            Sample((normal(0, 5), normal(5))),
            Sample((normal(3, 17, dtype="float16"), normal(17, dtype="float16"))),
        ),
    ),
    Operator(
        "mean_variance_norm",
        ("x",),
        _infer_over_axes,
        narrow_reference(_mean_variance_norm),
        _lower_mean_variance_norm,
        attrs={"axes": (0, 2, 3), "epsilon": 1e-9},
        samples=(
            Sample((_FACES,)),
            Sample((normal(3, 5),), {"axes": (-1,)}),
            Sample((normal(0, 5),), {"axes": (1,)}),
        ),
    ),
    Operator(
        "lp_norm",
        ("x",),
        _infer_lp_norm,
        narrow_reference(_lp_norm),
        _lower_lp_norm,
        attrs={"axis": -1, "p": 2},
        samples=(
            Sample((normal(2, 3, 5),)),
            Sample((normal(2, 3, 5),), {"axis": 1, "p": 1}),
            Sample((np.zeros((2, 3), np.float32),)),
            Sample((normal(0, 3),)),
        ),
    ),
)
