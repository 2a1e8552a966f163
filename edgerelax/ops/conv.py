"""Convolution over 1 to 3 spatial dims, with groups, and its integer form.

One stage over (n, channel, positions…) that sums over (input channel, taps…); taps that look into
the padding contribute 0. Dims of the kernel that are 1 have no reduce axis: a pointwise convolution
is a plain contraction, a depthwise one sums over taps only.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from edgerelax.ir.dtypes import I32, DType
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Acc, Buffer, Scalar, cast, constant, select
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.lowering import broadcast_load, narrow_reference, wide
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
from edgerelax.ops.rules import FLOATS, INTEGERS, allowed, common_dtype
from edgerelax.ops.windows import all_of, windows_of
from edgerelax.sym import Axis, Expr, as_expr

Element = Callable[[Dims], Scalar]


# Annotations


def _infer_dims(site: CallSite) -> Tensor:
    """The output's shape as far as it is known."""
    x, w = tensor_of(site, 0), tensor_of(site, 1)
    ranks = {t.rank for t in (x, w) if t.rank is not None}
    if len(ranks) > 1 or any(r < 3 for r in ranks):
        raise fail(site, f"x has rank {x.rank}, w has rank {w.rank}", "both are 2 + spatial dims")
    if x.dims is None or w.dims is None:
        return Tensor(None, None, next(iter(ranks), None))
    group = site.attrs["group"]
    equal_dim(site, x.dims[1], w.dims[1] * group, f"channels of x and of w times {group} groups")
    channels = w.dims[0].as_int()
    if group < 1 or (channels is not None and channels % group):
        raise fail(site, f"{channels} output channels in {group} groups")
    counts = tuple(v.count for v in windows_of(site, x.dims[2:], w.dims[2:]))
    return Tensor((x.dims[0], w.dims[0], *counts))


def check_bias(site: CallSite, k: int, channels: Expr | None) -> None:
    """Operand k has one number per output channel."""
    bias = tensor_of(site, k) if k < len(site.args) else Tensor()
    if bias.rank not in (None, 1):
        raise fail(site, f"{site.op.operands[k]} has rank {bias.rank}, not 1")
    if bias.dims is not None and channels is not None:
        equal_dim(site, bias.dims[0], channels, f"{site.op.operands[k]} and output channels")


def _infer(site: CallSite) -> Annotation:
    found = _infer_dims(site)
    check_bias(site, 2, None if found.dims is None else found.dims[1])
    tensors = [tensor_of(site, k) for k in range(len(site.args))]
    return Tensor(found.dims, common_dtype(site, tensors, FLOATS), found.rank)


# Lowering


def conv_stage(
    site: CallSite,
    x: Buffer,
    w: Buffer,
    out: Buffer,
    dtype: DType,
    read_x: Element,
    read_w: Element,
) -> Stage:
    """The sum of products in `dtype`, of elements of x and w as the callbacks read them."""
    axes = grid(out)
    n, channel, *at = exprs(axes)
    group = site.attrs["group"]
    inner, steps = step_axis("c", w.dims[1])
    taps: list[Expr] = []
    for k, size in enumerate(w.dims[2:]):
        tap, own = step_axis(f"k{k}", size)
        taps.append(tap)
        steps = (*steps, *own)
    place = inner
    if group != 1:
        place = channel // (w.dims[0] // group) * w.dims[1] + inner
    windows = windows_of(site, x.dims[2:], w.dims[2:])
    slid = list(zip(windows, at, taps, strict=True))
    inside = all_of([v.inside(a, t) for v, a, t in slid])
    value = read_x((n, place, *(v.position(a, t) for v, a, t in slid)))
    padded = select(inside, value, constant(0, dtype))
    body = padded * read_w((channel, inner, *taps))
    return Stage(out, axes, body, steps, "sum")


def step_axis(name: str, size: Expr) -> tuple[Expr, tuple[Axis, ...]]:
    """A reduce axis as an index; index 0 and no axis for size 1."""
    if size.as_int() == 1:
        return as_expr(0), ()
    step = axis(name, size)
    return as_expr(step), (step,)


def add_bias(stage: Stage, bias: Buffer | None) -> Stage:
    """The stage with the bias of dim 1 added after the sum."""
    if bias is None:
        return stage
    dtype = stage.body.dtype
    total = Acc(dtype) + cast(bias[as_expr(stage.axes[1])], dtype)
    return replace(stage, epilogue=cast(total, stage.out.dtype))


def _lower(site: CallSite) -> LoopFunc:
    x, w, bias = (*inputs_of(site), None)[:3]
    assert x is not None and w is not None
    dtype = wide(x.dtype)
    out = outputs_of_site(site)[0]
    stage = conv_stage(
        site, x, w, out, dtype, lambda at: cast(x[at], dtype), lambda at: cast(w[at], dtype)
    )
    return loop_func(site, [add_bias(stage, bias)])


# The integer form: 8-bit operands less their zero points give i32; padding is the zero point.


def _infer_integer(site: CallSite) -> Annotation:
    for k in range(len(site.args)):
        dtype = tensor_of(site, k).dtype
        if dtype is not None:
            allowed(site, dtype, INTEGERS)
    found = _infer_dims(site)
    return Tensor(found.dims, I32, found.rank)


def _lower_integer(site: CallSite) -> LoopFunc:
    x, w, x_zero, w_zero = (*inputs_of(site), None, None)[:4]
    assert x is not None and w is not None

    def read_x(at: Dims) -> Scalar:
        value = cast(x[at], I32)
        return value if x_zero is None else value - cast(x_zero[(0,) * x_zero.rank], I32)

    def read_w(at: Dims) -> Scalar:
        value = cast(w[at], I32)
        if w_zero is None:
            return value
        return value - cast(broadcast_load(w_zero, at[: w_zero.rank], w.dims[: w_zero.rank]), I32)

    stage = conv_stage(site, x, w, outputs_of_site(site)[0], I32, read_x, read_w)
    return loop_func(site, [stage])


# References


def _convolve(
    x: Array,
    w: Array,
    bias: Array | None,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    group: int,
) -> Array:
    rank = x.ndim - 2
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    pads = pads or (0,) * (2 * rank)
    padded = _padded(x, pads)
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    sizes = padded.shape[2:]
    counts = [max(0, (n - s) // t + 1) for n, s, t in zip(sizes, spans, strides, strict=True)]
    out = np.zeros((x.shape[0], w.shape[0], *counts), x.dtype)
    per_group, wide_group = w.shape[1], w.shape[0] // group
    for taps in np.ndindex(*w.shape[2:]):
        cut = tuple(
            slice(t * d, t * d + (c - 1) * s + 1 if c else t * d, s)
            for t, d, c, s in zip(taps, dilations, counts, strides, strict=True)
        )
        view = padded[(slice(None), slice(None), *cut)]
        for g in range(group):
            part = view[:, g * per_group : (g + 1) * per_group]
            own = w[(slice(g * wide_group, (g + 1) * wide_group), slice(None), *taps)]
            added = np.einsum("nc...,oc->no...", part, own)
            out[:, g * wide_group : (g + 1) * wide_group] += added.astype(x.dtype)
    return out if bias is None else out + bias.reshape(-1, *[1] * rank)


def _padded(x: Array, pads: tuple[int, ...]) -> Array:
    """With zeros around the spatial dims, or less of them where pads are negative."""
    rank = x.ndim - 2
    ends = list(zip(pads[:rank], pads[rank:], strict=True))
    around = np.pad(x, [(0, 0), (0, 0), *((max(0, a), max(0, b)) for a, b in ends)])
    cut = (
        slice(max(0, -a), n - max(0, -b)) for (a, b), n in zip(ends, around.shape[2:], strict=True)
    )
    return np.asarray(around[(slice(None), slice(None), *cut)])


def _reference(
    x: Array,
    w: Array,
    bias: Array | None = None,
    strides: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (),
    group: int = 1,
) -> Array:
    return _convolve(x, w, bias, strides, pads, dilations, group)


def _reference_integer(
    x: Array,
    w: Array,
    x_zero: Array | None = None,
    w_zero: Array | None = None,
    strides: tuple[int, ...] = (),
    pads: tuple[int, ...] = (),
    dilations: tuple[int, ...] = (),
    group: int = 1,
) -> Array:
    values, kernel = x.astype(np.int32), w.astype(np.int32)
    if x_zero is not None:
        values = values - x_zero.astype(np.int32).reshape(())
    if w_zero is not None:
        kernel = kernel - w_zero.astype(np.int32).reshape(-1, *[1] * (w.ndim - 1))
    return _convolve(values, kernel, None, strides, pads, dilations, group)


WINDOW_ATTRS = {"strides": (), "pads": (), "dilations": (), "group": 1}


def _bytes(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape).astype(np.uint8)


def _half(*shape: int) -> Array:
    return normal(*shape, dtype="float16")


OPERATORS = (
    Operator(
        "conv",
        ("x", "w", "bias"),
        _infer,
        narrow_reference(_reference),
        _lower,
        attrs=WINDOW_ATTRS,
        optional=1,
        samples=(
            Sample((normal(2, 3, 5, 7), normal(4, 3, 3, 3), normal(4)), {"pads": (1, 1, 1, 1)}),
            Sample((normal(1, 3, 5, 7), normal(4, 3, 1, 1), None)),
            Sample((normal(1, 4, 9), normal(6, 2, 3), normal(6)), {"strides": (2,), "group": 2}),
            Sample(
                (normal(1, 4, 6, 6), normal(4, 1, 3, 3), None), {"pads": (0, 1, 2, 1), "group": 4}
            ),
            Sample(
                (normal(1, 2, 6, 6), normal(4, 1, 2, 3), None), {"dilations": (2, 1), "group": 2}
            ),
            Sample((normal(1, 2, 3, 4, 5), normal(2, 2, 2, 3, 1), None), {"strides": (1, 2, 3)}),
            Sample((normal(0, 3, 5, 5), normal(4, 3, 3, 3), None)),
            Sample((normal(1, 3, 0, 5), normal(4, 3, 3, 3), normal(4)), {"pads": (1, 0, 0, 0)}),
            Sample((normal(1, 3, 0, 5), normal(4, 3, 1, 1), None), {"pads": (1, 0, 2, 0)}),
            Sample((normal(1, 3, 6), normal(4, 3, 2), None), {"pads": (-1, 2)}),
            Sample((_half(1, 2, 5), _half(3, 2, 3), _half(3))),
        ),
    ),
    Operator(
        "conv_integer",
        ("x", "w", "x_zero", "w_zero"),
        _infer_integer,
        _reference_integer,
        _lower_integer,
        attrs=WINDOW_ATTRS,
        optional=2,
        samples=(
            Sample((_bytes(1, 2, 5, 5), _bytes(3, 2, 3, 3), None, None), {"pads": (1, 1, 1, 1)}),
            Sample(
                (_bytes(1, 2, 5), _bytes(3, 2, 3), np.array(9, np.uint8), _bytes(3)),
                {"pads": (1, 0)},
            ),
            Sample((_bytes(1, 2, 5), _bytes(2, 1, 2), None, np.array(7, np.uint8)), {"group": 2}),
            Sample((_bytes(0, 2, 5), _bytes(3, 2, 3), np.array([3], np.uint8), None)),
        ),
    ),
)
