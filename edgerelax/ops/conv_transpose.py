"""Transposed convolution, as a gather: which elements of x reach an output position by which tap.

One stage over (n, channel, positions…) that sums over (input channel, taps…): a tap reaches
position p from (p + begin - tap * dilation) / stride, if that is an integer inside x.
"""

import numpy as np

from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Scalar, cast, compare, constant, in_range, select
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.conv import WINDOW_ATTRS, add_bias, check_bias, step_axis
from edgerelax.ops.lowering import narrow_reference, wide
from edgerelax.ops.maps import (
    Dims,
    equal_dim,
    exprs,
    fail,
    inputs_of,
    loop_func,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.rules import FLOATS, common_dtype
from edgerelax.ops.windows import all_of, pads_of, per_dim, transposed_size
from edgerelax.sym import Axis, Expr, maximum, proves_lt


def _sizes(site: CallSite, x: Dims, w: Dims) -> Dims:
    """The output's spatial dims."""
    rank = len(x) - 2
    strides, dilations = per_dim(site, "strides", rank, 1), per_dim(site, "dilations", rank, 1)
    extra, pads = per_dim(site, "output_padding", rank, 0), pads_of(site, rank)
    found = tuple(
        transposed_size(
            x[2 + k], w[2 + k], strides[k], dilations[k], pads[k], pads[rank + k], extra[k]
        )
        for k in range(rank)
    )
    for k, size in enumerate(found):
        if proves_lt(size, 0) and proves_lt(0, x[2 + k]):
            raise fail(site, f"spatial dim {k} of the result would be {size}", "less padding")
    return tuple(maximum(0, size) for size in found)


def _infer(site: CallSite) -> Annotation:
    x, w = tensor_of(site, 0), tensor_of(site, 1)
    dtype = common_dtype(site, [tensor_of(site, k) for k in range(len(site.args))], FLOATS)
    ranks = {t.rank for t in (x, w) if t.rank is not None}
    if len(ranks) > 1 or any(r < 3 for r in ranks):
        raise fail(site, f"x has rank {x.rank}, w has rank {w.rank}", "both are 2 + spatial dims")
    if x.dims is None or w.dims is None:
        return Tensor(None, dtype, next(iter(ranks), None))
    equal_dim(site, x.dims[1], w.dims[0], "channels of x and of w")
    group = site.attrs["group"]
    channels = x.dims[1].as_int()
    if group < 1 or (channels is not None and channels % group):
        raise fail(site, f"{channels} input channels in {group} groups")
    check_bias(site, 2, w.dims[1] * group)
    return Tensor((x.dims[0], w.dims[1] * group, *_sizes(site, x.dims, w.dims)), dtype)


def _lower(site: CallSite) -> LoopFunc:
    x, w, bias = (*inputs_of(site), None)[:3]
    assert x is not None and w is not None
    out = outputs_of_site(site)[0]
    rank, dtype = x.rank - 2, wide(x.dtype)
    strides, dilations = per_dim(site, "strides", rank, 1), per_dim(site, "dilations", rank, 1)
    pads, group = pads_of(site, rank), site.attrs["group"]
    axes = grid(out)
    n, channel, *at = exprs(axes)
    inner, own = step_axis("c", w.dims[0] // group)
    steps: list[Axis] = list(own)
    taps: list[Expr] = []
    places: list[Expr] = []
    conditions: list[Scalar] = []
    for k in range(rank):
        tap, own = step_axis(f"k{k}", w.dims[2 + k])
        steps += own
        taps.append(tap)
        reach = at[k] + pads[k] - tap * dilations[k]
        place = reach // strides[k]
        places.append(place)
        conditions += [
            compare("eq", reach % strides[k], 0),
            in_range(place, 0, x.dims[2 + k]),
        ]
    source, target = inner, channel
    if group != 1:
        source = channel // w.dims[1] * (w.dims[0] // group) + inner
        target = channel % w.dims[1]
    value = select(all_of(conditions), cast(x[(n, source, *places)], dtype), constant(0, dtype))
    body = value * cast(w[(source, target, *taps)], dtype)
    return loop_func(site, [add_bias(Stage(out, axes, body, tuple(steps), "sum"), bias)])


def _reference(
    x: Array,
    w: Array,
    bias: Array | None = None,
    strides: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (),
    output_padding: tuple[int, ...] = (),
    group: int = 1,
) -> Array:
    rank = x.ndim - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    pads, extra = pads or (0,) * (2 * rank), output_padding or (0,) * rank
    wide_group, narrow_group = w.shape[1], w.shape[0] // group
    sizes = [
        max(0, (n - 1) * s + (k - 1) * d + 1 + e)
        for n, s, k, d, e in zip(x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True)
    ]
    ends = [max(n, n + max(0, -pads[rank + k])) for k, n in enumerate(sizes)]
    full = np.zeros((x.shape[0], wide_group * group, *ends), x.dtype)
    for taps in np.ndindex(*w.shape[2:]) if x.size else ():
        cut = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(taps, dilations, x.shape[2:], strides, strict=True)
        )
        for g in range(group):
            source = slice(g * narrow_group, (g + 1) * narrow_group)
            target = slice(g * wide_group, (g + 1) * wide_group)
            kernel = w[(source, slice(None), *taps)]
            added = np.einsum("nc...,co->no...", x[:, source], kernel)
            full[(slice(None), target, *cut)] += added.astype(x.dtype)
    crop = tuple(slice(pads[k], max(pads[k], sizes[k] - pads[rank + k])) for k in range(rank))
    out = full[(slice(None), slice(None), *crop)]
    return out.copy() if bias is None else out + bias.reshape(-1, *[1] * rank)


OPERATORS = (
    Operator(
        "conv_transpose",
        ("x", "w", "bias"),
        _infer,
        narrow_reference(_reference),
        _lower,
        attrs={**WINDOW_ATTRS, "output_padding": ()},
        optional=1,
        samples=(
            Sample((normal(2, 3, 4, 5), normal(3, 4, 3, 3), normal(4))),
            Sample(
                (normal(1, 4, 3, 4), normal(4, 2, 3, 2), None),
                {"strides": (2, 3), "pads": (1, 0, 1, 1), "output_padding": (1, 0), "group": 2},
            ),
            Sample((normal(1, 2, 5), normal(2, 3, 3), None), {"dilations": (2,), "strides": (2,)}),
            Sample((normal(1, 4, 5), normal(4, 1, 2), normal(4)), {"strides": (2,), "group": 4}),
            Sample((normal(1, 2, 3, 2, 3), normal(2, 1, 2, 2, 1), None), {"strides": (2, 1, 2)}),
            Sample((normal(0, 2, 5), normal(2, 3, 3), None)),
            Sample((normal(1, 2, 3, dtype="float16"), normal(2, 2, 2, dtype="float16"), None)),
        ),
    ),
)
