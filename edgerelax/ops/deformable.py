"""deform_columns: what the taps of a deformable convolution see, its taps moved by data.

x [batch, channels, height, width], offset [batch, groups · taps · 2, rows, columns] (down, then
right), mask [batch, groups · taps, rows, columns] or absent; channels in that many groups of
neighbours share offsets. Result [batch, channels, taps, rows, columns], read between pixels
linearly, 0 outside. Source: arXiv 1703.06211, 1811.11168.
"""

from functools import partial, reduce

import numpy as np

from edgerelax.ir.dtypes import F32, F64, I32
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Scalar, Value, cast
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.maps import Dims, equal_dim, exprs, fail, inputs_of, map_func, tensor_of
from edgerelax.ops.rules import FLOATS, common_dtype
from edgerelax.ops.sampling import pixel, taps_around
from edgerelax.sym import Expr


def _infer(site: CallSite) -> Annotation:
    tensors = [tensor_of(site, k) for k in range(len(site.args)) if site.args[k] is not None]
    dtype = common_dtype(site, tensors, FLOATS)
    for name, tensor in zip(site.op.operands, tensors, strict=False):
        if tensor.rank not in (None, 4):
            raise fail(site, f"{name} has rank {tensor.rank}, not 4")
    x, offset = tensors[:2]
    if x.dims is None or offset.dims is None:
        return Tensor(None, dtype, 5)
    height, width = site.attrs["kernel"]
    taps = height * width
    wanted = taps * site.attrs["groups"]
    batch = equal_dim(site, x.dims[0], offset.dims[0], "batches of x and offset")
    equal_dim(site, offset.dims[1], exprs((2 * wanted,))[0], "offsets and two for each tap")
    if len(tensors) > 2 and tensors[2].dims is not None:
        equal_dim(site, tensors[2].dims[1], exprs((wanted,))[0], "masks and one for each tap")
    return Tensor((batch, x.dims[1], *exprs((taps,)), *offset.dims[2:]), dtype)


def _lower(site: CallSite) -> LoopFunc:
    x, offset, mask = (*inputs_of(site), None)[:3]
    assert x is not None and offset is not None
    work = F64 if x.dtype == F64 else F32
    _, width = site.attrs["kernel"]
    taps = site.attrs["kernel"][0] * width
    each = x.dims[1] // site.attrs["groups"]

    def body(at: Dims) -> Scalar:
        batch, channel, tap, *place = at
        number = channel // each * taps + tap

        def around(k: int) -> list[tuple[Expr, Scalar]]:
            inside = (tap // width, tap % width)[k] * site.attrs["dilations"][k]
            start = place[k] * site.attrs["strides"][k] - site.attrs["pads"][k] + inside
            moved = cast(offset[(batch, number * 2 + k, *place)], work)
            spot = cast(Value(start, I32), work) + moved
            return [(p, w) for p, w in taps_around("linear", spot, x.dims[2 + k]) if w is not None]

        def element(row: Expr, column: Expr) -> Scalar:
            return cast(x[batch, channel, row, column], work)

        def in_row(row: Expr, column: Expr) -> Scalar:
            return pixel(column, x.dims[3], "zeros", False, partial(element, row))

        terms = [
            pixel(row, x.dims[2], "zeros", False, partial(in_row, column=column)) * (high * wide)
            for row, high in around(0)
            for column, wide in around(1)
        ]
        total = reduce(lambda a, b: a + b, terms)
        if mask is not None:
            total = total * cast(mask[(batch, number, *place)], work)
        return cast(total, x.dtype)

    return map_func(site, body)


def _reference(
    x: Array,
    offset: Array,
    mask: Array | None = None,
    *,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int],
    groups: int,
) -> Array:
    batch, channels, *size = x.shape
    work = np.float64 if x.dtype == np.float64 else np.float32
    taps, place = kernel[0] * kernel[1], offset.shape[2:]
    moved: Array = offset.reshape(batch, groups, taps, 2, *place).astype(work)
    inside: Array = np.indices(kernel).reshape(2, taps)
    spots = [
        moved[:, :, :, k]
        + (np.arange(place[k]) * strides[k] - pads[k]).reshape((-1, 1) if k == 0 else (1, -1))
        + (inside[k] * dilations[k]).reshape(taps, 1, 1)
        for k in (0, 1)
    ]
    own = np.arange(channels) // max(1, channels // groups)
    y, z = (s.astype(work)[:, own] for s in spots)
    total = np.zeros((batch, channels, taps, *place), work)
    images, planes = np.ogrid[:batch, :channels]
    images, planes = (a.reshape(*a.shape, 1, 1, 1) for a in (images, planes))
    for down in (0, 1):
        for right in (0, 1):
            rows, columns = (np.floor(s).astype(np.int64) + d for s, d in ((y, down), (z, right)))
            weight = (1 - np.abs(y - rows)) * (1 - np.abs(z - columns))
            seen = (rows >= 0) & (rows < size[0]) & (columns >= 0) & (columns < size[1])
            if seen.any():
                held = np.clip(rows, 0, size[0] - 1), np.clip(columns, 0, size[1] - 1)
                total += np.where(seen, weight * x[images, planes, *held], 0)
    if mask is not None:
        total *= mask.reshape(batch, groups, taps, *place)[:, own]
    return total.astype(x.dtype)


def _sample(groups: int, kernel: tuple[int, int], masked: bool, dtype: str = "float32") -> Sample:
    count, place = groups * kernel[0] * kernel[1], (3, 2)
    attrs = {"kernel": kernel, "groups": groups, "strides": (2, 1), "pads": (1, 0)}
    offset = normal(2, 2 * count, *place, dtype=dtype, seed=1)
    mask = normal(2, count, *place, dtype=dtype, seed=2) if masked else None
    return Sample((normal(2, 4, 5, 3, dtype=dtype), offset, mask), attrs)


OPERATORS = (
    Operator(
        "deform_columns",
        ("x", "offset", "mask"),
        _infer,
        _reference,
        _lower,
        attrs={
            "kernel": (1, 1),
            "strides": (1, 1),
            "dilations": (1, 1),
            "pads": (0, 0),
            "groups": 1,
        },
        optional=1,
        samples=(
            _sample(1, (2, 2), masked=False),
            _sample(2, (3, 1), masked=True),
            _sample(4, (1, 1), masked=True),
            _sample(2, (2, 3), masked=False, dtype="float16"),
        ),
    ),
)
