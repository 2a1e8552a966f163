"""Operators that move or mask by position: depth to space and back, reverse_sequence, trilu."""

import numpy as np

from edgerelax.ir.assumptions import agree
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Scalar, compare, constant, select
from edgerelax.ir.scalar import gather as gathered
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.maps import Dims, equal_dim, fail, inputs_of, map_func, normal_axis, tensor_of
from edgerelax.ops.rules import INTEGERS, allowed
from edgerelax.sym import Expr, as_expr, ge, maximum, minimum
from edgerelax.sym import select as choose

# depth_to_space and space_to_depth


def _image(site: CallSite) -> Dims | None:
    """The operand's four dims (batch, channels, height, width)."""
    source = tensor_of(site, 0)
    if source.rank not in (None, 4):
        raise fail(site, f"a tensor of rank {source.rank}, not batch, channels, height, width")
    if site.attrs["block"] < 1:
        raise fail(site, f"blocks of {site.attrs['block']}")
    return source.dims


def _divided(site: CallSite, dim: Expr, by: int, what: str) -> Expr:
    if not agree(dim, (dim // by) * by):
        raise fail(site, f"{what} of {dim} do not divide by {by}")
    return dim // by


def _infer_depth_to_space(site: CallSite) -> Annotation:
    dims, block, dtype = _image(site), site.attrs["block"], tensor_of(site, 0).dtype
    if dims is None:
        return Tensor(None, dtype, 4)
    channels = _divided(site, dims[1], block * block, "channels")
    return Tensor((dims[0], channels, dims[2] * block, dims[3] * block), dtype)


def _lower_depth_to_space(site: CallSite) -> LoopFunc:
    source = inputs_of(site)[0]
    assert source is not None
    block, by_columns = site.attrs["block"], site.attrs["mode"] == "CRD"
    channels = source.dims[1] // (block * block)

    def body(at: Dims) -> Scalar:
        batch, channel, row, column = at
        offset = (row % block) * block + column % block
        depth = channel * (block * block) + offset if by_columns else offset * channels + channel
        return source[batch, depth, row // block, column // block]

    return map_func(site, body)


def _reference_depth_to_space(x: Array, block: int, mode: str) -> Array:
    n, c, h, w = x.shape
    part = c // (block * block)
    if mode == "CRD":
        cut = x.reshape(n, part, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        cut = x.reshape(n, block, block, part, h, w).transpose(0, 3, 4, 1, 5, 2)
    return cut.reshape(n, part, h * block, w * block)


def _infer_space_to_depth(site: CallSite) -> Annotation:
    dims, block, dtype = _image(site), site.attrs["block"], tensor_of(site, 0).dtype
    if dims is None:
        return Tensor(None, dtype, 4)
    rows, columns = (_divided(site, d, block, "rows or columns") for d in dims[2:])
    return Tensor((dims[0], dims[1] * (block * block), rows, columns), dtype)


def _lower_space_to_depth(site: CallSite) -> LoopFunc:
    source = inputs_of(site)[0]
    assert source is not None
    block, channels = site.attrs["block"], source.dims[1]

    def body(at: Dims) -> Scalar:
        batch, depth, row, column = at
        offset = depth // maximum(1, channels)
        inner = (row * block + offset // block, column * block + offset % block)
        return source[batch, depth - offset * channels, *inner]

    return map_func(site, body)


def _reference_space_to_depth(x: Array, block: int) -> Array:
    n, c, h, w = x.shape
    cut = x.reshape(n, c, h // block, block, w // block, block).transpose(0, 3, 5, 1, 2, 4)
    return cut.reshape(n, c * block * block, h // block, w // block)


# reverse_sequence


def _infer_reverse_sequence(site: CallSite) -> Annotation:
    source, lengths = tensor_of(site, 0), tensor_of(site, 1)
    if lengths.dtype is not None:
        allowed(site, lengths.dtype, INTEGERS)
    if source.dims is not None and lengths.dims is not None:
        batch = normal_axis(site, site.attrs["batch_axis"], len(source.dims))
        if len(lengths.dims) != 1:
            raise fail(site, f"lengths of rank {len(lengths.dims)}, not 1")
        equal_dim(site, source.dims[batch], lengths.dims[0], "batch and number of lengths")
    return source


def _lower_reverse_sequence(site: CallSite) -> LoopFunc:
    source, lengths = inputs_of(site)
    assert source is not None and lengths is not None
    batch = normal_axis(site, site.attrs["batch_axis"], source.rank)
    time = normal_axis(site, site.attrs["time_axis"], source.rank)
    steps = source.dims[time]

    def body(at: Dims) -> Scalar:
        last = gathered(lengths[at[batch]], steps + 1) - 1
        index = list(at)
        index[time] = choose(ge(last, at[time]), last - at[time], at[time])
        index[time] = maximum(0, minimum(index[time], steps - 1))
        return source[tuple(index)]

    return map_func(site, body)


def _reference_reverse_sequence(x: Array, lengths: Array, batch_axis: int, time_axis: int) -> Array:
    moved = np.moveaxis(x, (batch_axis, time_axis), (0, 1)).copy()
    for row, length in zip(moved, lengths, strict=True):
        row[:length] = row[:length][::-1].copy()
    return np.ascontiguousarray(np.moveaxis(moved, (0, 1), (batch_axis, time_axis)))


# trilu


def _infer_trilu(site: CallSite) -> Annotation:
    source = tensor_of(site, 0)
    if source.rank is not None and source.rank < 2:
        raise fail(site, f"a tensor of rank {source.rank}, not matrices")
    return source


def _lower_trilu(site: CallSite) -> LoopFunc:
    source = inputs_of(site)[0]
    assert source is not None
    k, zero = as_expr(site.attrs["k"]), constant(0, source.dtype)

    def body(at: Dims) -> Scalar:
        row, column = at[-2:]
        if site.attrs["upper"]:
            return select(compare("ge", column, row + k), source[at], zero)
        return select(compare("ge", row + k, column), source[at], zero)

    return map_func(site, body)


def _reference_trilu(x: Array, upper: bool, k: int) -> Array:
    return np.triu(x, k) if upper else np.tril(x, k)


OPERATORS = (
    Operator(
        "depth_to_space",
        ("x",),
        _infer_depth_to_space,
        _reference_depth_to_space,
        _lower_depth_to_space,
        attrs={"block": 1, "mode": "DCR"},
        samples=(
            Sample((normal(2, 8, 3, 2),), {"block": 2}),
            Sample((normal(2, 12, 3, 2),), {"block": 2, "mode": "CRD"}),
            Sample((normal(1, 9, 1, 5),), {"block": 3}),
            Sample((normal(0, 4, 2, 2),), {"block": 2}),
        ),
    ),
    Operator(
        "space_to_depth",
        ("x",),
        _infer_space_to_depth,
        _reference_space_to_depth,
        _lower_space_to_depth,
        attrs={"block": 1},
        samples=(
            Sample((normal(2, 3, 4, 6),), {"block": 2}),
            Sample((normal(1, 1, 9, 3),), {"block": 3}),
            Sample((normal(1, 0, 4, 4),), {"block": 2}),
        ),
    ),
    Operator(
        "reverse_sequence",
        ("x", "lengths"),
        _infer_reverse_sequence,
        _reference_reverse_sequence,
        _lower_reverse_sequence,
        attrs={"batch_axis": 1, "time_axis": 0},
        samples=(
            Sample((normal(4, 3), np.array([4, 1, 2]))),
            Sample(
                (normal(3, 4, 2), np.array([0, 3, 4], np.int32)),
                {"batch_axis": 0, "time_axis": 1},
            ),
        ),
    ),
    Operator(
        "trilu",
        ("x",),
        _infer_trilu,
        _reference_trilu,
        _lower_trilu,
        attrs={"upper": True, "k": 0},
        samples=(
            Sample((normal(4, 5),)),
            Sample((normal(2, 3, 3),), {"upper": False, "k": -1}),
            Sample((normal(3, 2),), {"k": 9}),
            Sample((np.ones((2, 3, 4), bool),), {"upper": False, "k": 1}),
            Sample((normal(0, 4),), {"k": 1}),
        ),
    ),
)
