"""Normalisations with a scale and a bias per channel, which is dim 1; and across channels (lrn)."""

import numpy as np

from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Acc, Scalar, cast, constant, in_range, op, select
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.lowering import narrow_reference, widened
from edgerelax.ops.maps import (
    Dims,
    equal_dim,
    exprs,
    fail,
    inputs_of,
    loop_func,
    map_func,
    map_stage,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.normalisation import (
    affine_reference,
    infer_like_x,
    inverse_deviation,
    moments,
    scaled,
    statistics,
    temps,
)
from edgerelax.sym import as_expr


def _infer_channels(site: CallSite) -> Annotation:
    """x of rank 2 or more; the others have one number per channel."""
    result = infer_like_x(site)
    if result.rank is not None and result.rank < 2:
        raise fail(site, f"x has rank {result.rank}", "dim 1 is the channel")
    for k in range(1, len(site.args)):
        own = tensor_of(site, k)
        if own.rank is not None and own.rank != 1:
            raise fail(site, f"{site.op.operands[k]} has rank {own.rank}, not 1")
        if own.dims is not None and result.dims is not None:
            equal_dim(site, own.dims[0], result.dims[1], f"{site.op.operands[k]} and channels")
    return result


def _lower_batch_norm(site: CallSite) -> LoopFunc:
    x, scale, bias, mean, variance = inputs_of(site)
    assert x and scale and bias and mean and variance
    finish = inverse_deviation(site.attrs["epsilon"])

    def result(at: Dims) -> Scalar:
        value = widened(x[at])
        inverse = finish(cast(variance[at[1]], value.dtype))
        centred = value - cast(mean[at[1]], value.dtype)
        return cast(scaled(centred * inverse, scale[at[1]], bias[at[1]]), x.dtype)

    return map_func(site, result)


def _channelwise(values: Array, rank: int) -> Array:
    return values.reshape(1, -1, *[1] * (rank - 2))


def _batch_norm(
    x: Array, scale: Array, bias: Array, mean: Array, variance: Array, epsilon: float = 1e-5
) -> Array:
    s, b, m, v = (_channelwise(a, x.ndim) for a in (scale, bias, mean, variance))
    return np.asarray((x - m) / np.sqrt(v + x.dtype.type(epsilon)) * s + b)


def _lower_instance_norm(site: CallSite) -> LoopFunc:
    x, scale, bias = inputs_of(site)
    assert x and scale and bias
    reduced = tuple(range(2, x.rank))
    mean, spread = temps(x, x.dims[:2])
    finish = inverse_deviation(site.attrs["epsilon"])
    parts = statistics(x.dims, reduced, lambda at: widened(x[at]), mean, spread, finish)

    def result(at: Dims) -> Scalar:
        value = parts.centred(at) * parts.spread(at)
        return cast(scaled(value, scale[at[1]], bias[at[1]]), x.dtype)

    return loop_func(site, [*parts.stages, map_stage(outputs_of_site(site)[0], result)])


def _instance_norm(x: Array, scale: Array, bias: Array, epsilon: float = 1e-5) -> Array:
    mean, variance = moments(x, tuple(range(2, x.ndim)))
    normal_x = (x - mean) / np.sqrt(variance + x.dtype.type(epsilon))
    return affine_reference(normal_x, _channelwise(scale, x.ndim), _channelwise(bias, x.ndim))


def _infer_group_norm(site: CallSite) -> Annotation:
    result = _infer_channels(site)
    assert isinstance(result, Tensor)
    groups = site.attrs["num_groups"]
    count = None if result.dims is None else result.dims[1].as_int()
    if groups < 1 or (count is not None and count % groups):
        raise fail(site, f"{count} channels in {groups} groups", "groups divide the channels")
    return result


def _lower_group_norm(site: CallSite) -> LoopFunc:
    x, scale, bias = inputs_of(site)
    assert x and scale and bias
    groups = site.attrs["num_groups"]
    size = x.dims[1] // groups
    dims = (x.dims[0], as_expr(groups), size, *x.dims[2:])
    mean, spread = temps(x, dims[:2])

    def element(at: Dims) -> Scalar:
        return widened(x[(at[0], at[1] * size + at[2], *at[3:])])

    finish = inverse_deviation(site.attrs["epsilon"])
    parts = statistics(dims, tuple(range(2, len(dims))), element, mean, spread, finish)

    def result(at: Dims) -> Scalar:
        group = at[1] // size
        value = (widened(x[at]) - mean[at[0], group]) * spread[at[0], group]
        return cast(scaled(value, scale[at[1]], bias[at[1]]), x.dtype)

    return loop_func(site, [*parts.stages, map_stage(outputs_of_site(site)[0], result)])


def _group_norm(
    x: Array, scale: Array, bias: Array, num_groups: int, epsilon: float = 1e-5
) -> Array:
    size = x.shape[1] // num_groups
    grouped = x.reshape(x.shape[0], num_groups, size, *x.shape[2:])
    mean, variance = moments(grouped, tuple(range(2, grouped.ndim)))
    normal_x = ((grouped - mean) / np.sqrt(variance + x.dtype.type(epsilon))).reshape(x.shape)
    return affine_reference(normal_x, _channelwise(scale, x.ndim), _channelwise(bias, x.ndim))


# lrn: x / (bias + alpha / size * sum of the squares of `size` neighbouring channels) ** beta


def _infer_lrn(site: CallSite) -> Annotation:
    result = infer_like_x(site)
    if result.rank is not None and result.rank < 2:
        raise fail(site, f"x has rank {result.rank}", "dim 1 is the channel")
    if site.attrs["size"] < 1:
        raise fail(site, f"size is {site.attrs['size']}, not at least 1")
    return result


def _lower_lrn(site: CallSite) -> LoopFunc:
    x = inputs_of(site)[0]
    assert x is not None
    out = outputs_of_site(site)[0]
    size, axes = site.attrs["size"], grid(out)
    at, near = exprs(axes), axis("r", size)
    channel = at[1] + near - (size - 1) // 2
    value = widened(x[(at[0], channel, *at[2:])])
    inside = in_range(channel, 0, x.dims[1])
    body = select(inside, value * value, constant(0, value.dtype))
    total = Acc(value.dtype) * (site.attrs["alpha"] / size) + site.attrs["bias"]
    result = cast(widened(x[at]) / op("pow", total, site.attrs["beta"]), out.dtype)
    return loop_func(site, [Stage(out, axes, body, (near,), "sum", epilogue=result)])


def _lrn(x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    before = (size - 1) // 2
    width = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = np.pad(x * x, width)
    total = sum(squares[:, k : k + x.shape[1]] for k in range(size))
    return np.asarray(x / (bias + alpha / size * total) ** beta).astype(x.dtype)


_EPSILON = {"epsilon": 1e-5}
_FACES = normal(2, 6, 3, 5)


def _per_channel(count: int, how_many: int) -> tuple[Array, ...]:
    return tuple(np.abs(normal(count, seed=k)) + 0.1 for k in range(how_many))


OPERATORS = (
    Operator(
        "batch_norm",
        ("x", "scale", "bias", "mean", "variance"),
        _infer_channels,
        narrow_reference(_batch_norm),
        _lower_batch_norm,
        attrs=_EPSILON,
        samples=(
            Sample((_FACES, *_per_channel(6, 4))),
            Sample((normal(3, 4), *_per_channel(4, 4)), {"epsilon": 0.1}),
            Sample((normal(0, 2, 4), *_per_channel(2, 4))),
        ),
    ),
    Operator(
        "instance_norm",
        ("x", "scale", "bias"),
        _infer_channels,
        narrow_reference(_instance_norm),
        _lower_instance_norm,
        attrs=_EPSILON,
        samples=(
            Sample((_FACES, *_per_channel(6, 2))),
            Sample((normal(1, 3, 7), *_per_channel(3, 2))),
            Sample((normal(0, 2, 4), *_per_channel(2, 2))),
        ),
    ),
    Operator(
        "group_norm",
        ("x", "scale", "bias"),
        _infer_group_norm,
        narrow_reference(_group_norm),
        _lower_group_norm,
        attrs={"num_groups": 1, **_EPSILON},
        samples=(
            Sample((_FACES, *_per_channel(6, 2)), {"num_groups": 2}),
            Sample((_FACES, *_per_channel(6, 2)), {"num_groups": 6}),
            Sample((normal(2, 4, 7), *_per_channel(4, 2)), {"num_groups": 1}),
            Sample((normal(0, 4, 7), *_per_channel(4, 2)), {"num_groups": 2}),
        ),
    ),
    Operator(
        "lrn",
        ("x",),
        _infer_lrn,
        narrow_reference(_lrn),
        _lower_lrn,
        attrs={"size": 1, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
        samples=(
            Sample((_FACES,), {"size": 3}),
            Sample((_FACES * 9,), {"size": 4, "alpha": 0.5, "beta": 0.3, "bias": 2.0}),
            Sample((normal(2, 3),), {"size": 9}),
            Sample((normal(0, 3, 2),), {"size": 3}),
        ),
    ),
)
