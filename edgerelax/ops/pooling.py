"""Pooling over sliding windows, one reduce stage each (over all spatial dims it is a reduction).

Taps in the padding are no candidates for the largest; whether an average counts them is asked for.
"""

import math
from collections.abc import Callable, Sequence
from itertools import product as all_pairs
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import I64, DType
from edgerelax.ir.loop import Combiner, LoopFunc, Stage, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import (
    Acc,
    Buffer,
    Const,
    Scalar,
    Value,
    cast,
    constant,
    op,
    select,
)
from edgerelax.ir.types import Annotation, Tensor, Tuple
from edgerelax.ops.conv import step_axis
from edgerelax.ops.lowering import narrow_reference, wide
from edgerelax.ops.maps import (
    exprs,
    fail,
    inputs_of,
    loop_func,
    outputs_of_site,
    product,
    tensor_of,
)
from edgerelax.ops.rules import FLOATS, NUMERIC, Kinds, allowed
from edgerelax.ops.windows import Window, all_of, windows_of
from edgerelax.sym import Axis, Expr

POOL_ATTRS: dict[str, Any] = {
    "kernel": (),
    "strides": (),
    "pads": (),
    "dilations": (),
    "ceil_mode": False,
}


def _infer(site: CallSite, kinds: Kinds = FLOATS) -> Tensor:
    x, kernel = tensor_of(site, 0), exprs(site.attrs["kernel"])
    dtype = None if x.dtype is None else allowed(site, x.dtype, kinds)
    if x.rank is not None and x.rank != len(kernel) + 2:
        raise fail(site, f"x has rank {x.rank}", f"a kernel of {len(kernel)} dims takes 2 more")
    if x.dims is None:
        return Tensor(None, dtype, len(kernel) + 2)
    counts = tuple(w.count for w in windows_of(site, x.dims[2:], kernel))
    return Tensor((*x.dims[:2], *counts), dtype)


class _Slide:
    """The windows of a call, its axes, and where each step of the reduction looks."""

    def __init__(self, site: CallSite, out: Buffer) -> None:
        x = inputs_of(site)[0]
        assert x is not None
        kernel = exprs(site.attrs["kernel"])
        self.x = x
        self.windows: tuple[Window, ...] = windows_of(site, x.dims[2:], kernel)
        self.axes = grid(out)
        self.places = exprs(self.axes)[2:]
        taps: list[Expr] = []
        steps: list[Axis] = []
        for k, size in enumerate(kernel):
            tap, own = step_axis(f"k{k}", size)
            taps.append(tap)
            steps += own
        self.steps = tuple(steps)
        slid = list(zip(self.windows, self.places, taps, strict=True))
        self.inside = all_of([w.inside(at, tap) for w, at, tap in slid])
        self.positions = tuple(w.position(at, tap) for w, at, tap in slid)

    @property
    def element(self) -> Scalar:
        outer = exprs(self.axes[:2])
        return self.x[(*outer, *self.positions)]

    def reduce(self, out: Buffer, body: Scalar, combiner: Combiner, result: Scalar) -> Stage:
        """A stage over the windows; a kernel of one tap is a reduction over nothing but it."""
        epilogue = cast(result, out.dtype)
        return Stage(out, self.axes, body, self.steps, combiner, epilogue=epilogue)


# max_pool


def _infer_max(site: CallSite) -> Annotation:
    found = _infer(site, NUMERIC)
    if not site.attrs["indices"]:
        return found
    return Tuple((found, Tensor(found.dims, I64, found.rank)))


def _lower_max(site: CallSite) -> LoopFunc:
    outs = outputs_of_site(site)
    slide = _Slide(site, outs[0])
    dtype = slide.x.dtype
    padded = select(slide.inside, slide.element, _least(dtype))
    stages = [slide.reduce(outs[0], padded, "max", Acc(dtype))]
    if len(outs) > 1:
        where = None if isinstance(slide.inside, Const) else slide.inside
        place = _flat_place(slide, bool(site.attrs["column_major"]))
        stage = slide.reduce(outs[1], slide.element, "argmax", place)
        stages.append(Stage(
            stage.out, stage.axes, stage.body, stage.reduce, "argmax",
            where=where, epilogue=stage.epilogue,
        ))  # fmt: skip
    return loop_func(site, stages)


def _least(dtype: DType) -> Const:
    return constant(-np.inf if dtype.is_float else dtype.int_range[0], dtype)


def _flat_place(slide: _Slide, column_major: bool) -> Scalar:
    """The flat index in x of the tap that was found, from its number in the window."""
    tap: Scalar = Acc(I64, 1)
    found: list[Scalar] = []
    for window, at in reversed(list(zip(slide.windows, slide.places, strict=True))):
        kernel = Value(window.kernel)
        own = op("mod", tap, kernel)
        tap = op("div", tap, kernel)
        found.append(own * window.dilation + Value(window.position(at, 0)))
    spatial = list(zip(reversed(found), (w.size for w in slide.windows), strict=True))
    if column_major:
        spatial.reverse()
    n, channel = exprs(slide.axes[:2])
    place: Scalar = Value(n * slide.x.dims[1] + channel)
    for own, size in spatial:
        place = place * Value(size) + own
    return place


# average_pool and lp_pool


def _lower_average(site: CallSite) -> LoopFunc:
    out = outputs_of_site(site)[0]
    slide = _Slide(site, out)
    dtype = wide(out.dtype)
    count_pads = bool(site.attrs["count_include_pad"])
    taps = (w.taps(at, count_pads) for w, at in zip(slide.windows, slide.places, strict=True))
    body = select(slide.inside, cast(slide.element, dtype), constant(0, dtype))
    return loop_func(
        site, [slide.reduce(out, body, "sum", Acc(dtype) / Value(product(list(taps)), dtype))]
    )


def _lower_lp(site: CallSite) -> LoopFunc:
    out = outputs_of_site(site)[0]
    slide = _Slide(site, out)
    dtype, p = wide(out.dtype), site.attrs["p"]
    body = select(slide.inside, _powered(cast(slide.element, dtype), p), constant(0, dtype))
    return loop_func(site, [slide.reduce(out, body, "sum", _rooted(Acc(dtype), p))])


def _powered(x: Scalar, p: int) -> Scalar:
    """|x| to the p."""
    match p:
        case 1:
            return op("abs", x)
        case 2:
            return x * x
    return op("pow", op("abs", x), p)


def _rooted(x: Scalar, p: int) -> Scalar:
    match p:
        case 1:
            return x
        case 2:
            return op("sqrt", x)
    return op("pow", x, 1 / p)


# References: the taps of each window, NaN (or the least) where there is none.


def _windows_of_array(
    x: Array,
    fill: Any,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: bool,
) -> tuple[Array, Array, Array]:
    """Taps by window along a last axis: values, whether in x, whether in x or its padding."""
    rank = x.ndim - 2
    strides, dilations = tuple(strides) or (1,) * rank, tuple(dilations) or (1,) * rank
    pads = tuple(pads) or (0,) * (2 * rank)
    along = []
    for k in range(rank):
        size, begin, end = x.shape[2 + k], pads[k], pads[rank + k]
        reach = (kernel[k] - 1) * dilations[k] + 1
        room = size + begin + end - reach
        count = max(0, room // strides[k] + 1)
        if ceil_mode:
            starts = -(-(size + begin) // strides[k])
            count = max(0, min(-(-room // strides[k]) + 1, starts))
        taps = np.arange(kernel[k]) * dilations[k]
        along.append(np.arange(count)[:, None] * strides[k] - begin + taps)
    counts, taps_each = [a.shape[0] for a in along], list(kernel)
    grid_index: list[Any] = [slice(None), slice(None)]
    in_input, in_padding = np.asarray(True), np.asarray(True)
    for k, position in enumerate(along):
        shape = [1] * (2 * rank)
        shape[k], shape[rank + k] = position.shape
        spread = position.reshape(shape)
        size = x.shape[2 + k]
        in_input = in_input & (spread >= 0) & (spread < size)
        in_padding = in_padding & (spread < size + pads[rank + k])
        grid_index.append(np.clip(spread, 0, max(0, size - 1)))
    whole, flat = (*counts, *taps_each), (*counts, math.prod(taps_each))
    in_input = np.broadcast_to(in_input, whole).reshape(flat)
    in_padding = np.broadcast_to(in_padding, whole).reshape(flat)
    if 0 in x.shape:
        values = np.full((*x.shape[:2], *in_input.shape), fill, x.dtype)
    else:
        values = np.broadcast_to(x[tuple(grid_index)], (*x.shape[:2], *whole))
        values = values.reshape(*x.shape[:2], *in_input.shape)
    return np.where(in_input, values, np.asarray(fill, x.dtype)), in_input, in_padding


def _max_pool(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    ceil_mode: bool = False,
    indices: bool = False,
    column_major: bool = False,
) -> Any:
    least = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    sliding = (kernel, strides, pads, dilations, ceil_mode)
    values = _windows_of_array(x, least, *sliding)[0]
    if not indices:
        return values.max(-1)
    order = np.arange(x.size).reshape(x.shape)
    if column_major:
        turned = (*x.shape[:2], *x.shape[:1:-1])
        axes = (0, 1, *range(x.ndim - 1, 1, -1))
        order = np.arange(x.size).reshape(turned).transpose(axes)
    places = _windows_of_array(order, -1, *sliding)[0]
    hits = (values == values.max(-1, keepdims=True)) & (places >= 0)
    best = np.argmax(hits, -1)
    return values.max(-1), np.take_along_axis(places, best[..., None], -1)[..., 0]


def _average_pool(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> Array:
    values, inside, padded = _windows_of_array(x, 0, kernel, strides, pads, dilations, ceil_mode)
    with np.errstate(invalid="ignore"):
        count = (padded if count_include_pad else inside).sum(-1)
        return np.asarray(values.sum(-1) / count.astype(x.dtype))


def _lp_pool(
    x: Array,
    kernel: Sequence[int],
    strides: Sequence[int] = (),
    pads: Sequence[int] = (),
    dilations: Sequence[int] = (),
    ceil_mode: bool = False,
    p: int = 2,
) -> Array:
    values = _windows_of_array(x, 0, kernel, strides, pads, dilations, ceil_mode)[0]
    return np.asarray((np.abs(values) ** p).sum(-1) ** (1 / p)).astype(x.dtype)


_IMAGE = normal(2, 3, 7, 8)
_SLIDES: tuple[dict[str, Any], ...] = (
    {"kernel": (3, 2)},
    {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"kernel": (3, 3), "strides": (2, 3), "pads": (0, 1, 1, 0), "ceil_mode": True},
    {"kernel": (2, 3), "dilations": (3, 2), "pads": (1, 0, 0, 2)},
    {"kernel": (1, 1), "strides": (3, 2)},
    {"kernel": (2, 2), "strides": (3, 3), "pads": (1, 1, 0, 0), "ceil_mode": True},
)


def _samples(*settings: dict[str, Any]) -> tuple[Sample, ...]:
    slides = [Sample((_IMAGE,), {**s, **own}) for s, own in all_pairs(_SLIDES, settings)]
    return (
        *slides,
        Sample((normal(2, 3, 9),), {"kernel": (4,), "strides": (2,)}),
        Sample((normal(1, 2, 4, 5, 3),), {"kernel": (2, 2, 2), "pads": (0, 0, 1, 0, 0, 1)}),
        Sample((normal(0, 2, 5),), {"kernel": (3,)}),
        Sample((normal(1, 2, 0),), {"kernel": (3,)}),
        Sample((normal(1, 2, 6, dtype="float16"),), {"kernel": (3,)}),
    )


def _pool(
    name: str,
    infer: Callable[[CallSite], Annotation],
    reference: Callable[..., Any],
    lower: Callable[[CallSite], LoopFunc],
    own_attrs: dict[str, Any],
    samples: tuple[Sample, ...],
) -> Operator:
    attrs = {**POOL_ATTRS, **own_attrs}
    return Operator(name, ("x",), infer, reference, lower, attrs=attrs, samples=samples)


OPERATORS = (
    _pool(
        "max_pool",
        _infer_max,
        _max_pool,
        _lower_max,
        {"indices": False, "column_major": False},
        (
            *_samples({}, {"indices": True}, {"indices": True, "column_major": True}),
            Sample((np.arange(-8, 8, dtype=np.int8).reshape(1, 1, 16),), {"kernel": (3,)}),
            Sample((np.full((1, 1, 4), -np.inf, np.float32),), {
                "kernel": (3,), "pads": (2, 1), "indices": True,
            }),
        ),
    ),
    _pool(
        "average_pool",
        _infer,
        narrow_reference(_average_pool),
        _lower_average,
        {"count_include_pad": False},
        _samples({}, {"count_include_pad": True}),
    ),
    _pool("lp_pool", _infer, narrow_reference(_lp_pool), _lower_lp, {"p": 2},
          _samples({}, {"p": 1}, {"p": 3})),
)  # fmt: skip
