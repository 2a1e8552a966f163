"""Running sums and products along an axis, forward or reversed, with or without the own element."""

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerelax.ir.loop import LoopFunc, Stage, Template, axis, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, cast, compare
from edgerelax.ir.templates import TEMPLATES
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.lowering import narrow_reference, wide
from edgerelax.ops.maps import (
    exprs,
    fail,
    inputs_of,
    loop_func,
    map_stage,
    normal_axis,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.rules import NUMERIC, allowed
from edgerelax.sym import as_expr


def _infer(site: CallSite) -> Annotation:
    x = tensor_of(site, 0)
    if x.dtype is not None:
        allowed(site, x.dtype, NUMERIC)
    if x.rank is not None:
        if x.rank == 0:
            raise fail(site, "x is a scalar: there is no axis")
        normal_axis(site, site.attrs["axis"], x.rank)
    return Tensor(x.dims, x.dtype, x.rank)


def _lower_sum(site: CallSite) -> LoopFunc:
    """The template runs along the last axis; another one is moved there and back."""
    x, out = inputs_of(site)[0], outputs_of_site(site)[0]
    assert x is not None
    along = normal_axis(site, site.attrs["axis"], x.rank)
    params = {name: bool(site.attrs[name]) for name in ("exclusive", "reverse")}
    if along == x.rank - 1:
        return loop_func(site, [Template("cumsum", (x,), (out,), params)])
    turned = (*x.dims[:along], *x.dims[along + 1 :], x.dims[along])
    moved, sums = Buffer("moved", x.dtype, turned), Buffer("sums", x.dtype, turned)
    return loop_func(
        site,
        [
            map_stage(moved, lambda at: x[(*at[:along], at[-1], *at[along:-1])]),
            Template("cumsum", (moved,), (sums,), params),
            map_stage(out, lambda at: sums[(*at[:along], *at[along + 1 :], at[along])]),
        ],
    )


def _lower_product(site: CallSite) -> LoopFunc:
    """Each element multiplies those before it (or after): quadratic, but rare."""
    x, out = inputs_of(site)[0], outputs_of_site(site)[0]
    assert x is not None
    along = normal_axis(site, site.attrs["axis"], x.rank)
    axes, step = grid(out), axis("r", x.dims[along])
    at, k = exprs(axes), as_expr(step)
    low, high = (at[along], k) if site.attrs["reverse"] else (k, at[along])
    first = low + 1 if site.attrs["exclusive"] else low
    body = cast(x[(*at[:along], k, *at[along + 1 :])], wide(x.dtype))
    return loop_func(
        site, [Stage(out, axes, body, (step,), "prod", where=compare("ge", high, first))]
    )


def _sums(x: Array, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    last = np.moveaxis(x, axis, -1)
    found = TEMPLATES["cumsum"](last, exclusive=exclusive, reverse=reverse)
    return np.ascontiguousarray(np.moveaxis(found, -1, axis))


def _products(x: Array, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    turned = np.flip(x, axis) if reverse else x
    if exclusive:
        first = np.ones_like(np.take(turned, [0] * min(1, x.shape[axis]), axis))
        rest = np.take(turned, range(max(0, x.shape[axis] - 1)), axis)
        turned = np.concatenate([first, rest], axis)
    found = np.cumprod(turned, axis, dtype=x.dtype)
    return np.ascontiguousarray(np.flip(found, axis) if reverse else found)


_SAMPLES = (
    Sample((normal(2, 5, 3),), {"axis": 1}),
    Sample((normal(2, 5, 3),), {"axis": -1, "exclusive": True}),
    Sample((normal(2, 5, 3),), {"axis": 0, "reverse": True}),
    Sample((normal(7),), {"axis": 0, "exclusive": True, "reverse": True}),
    Sample((normal(3, 0),), {"axis": 1, "exclusive": True}),
    Sample((normal(0, 3),), {"axis": 1}),
    Sample((normal(4, 1),), {"axis": 1}),
    Sample((np.arange(1, 7, dtype=np.int32).reshape(2, 3),), {"axis": 0}),
    Sample((normal(9, dtype="float16"),), {"axis": 0}),
)


def _operator(
    name: str, lower: Callable[[CallSite], LoopFunc], reference: Callable[..., Array]
) -> Operator:
    attrs: dict[str, Any] = {"axis": 0, "exclusive": False, "reverse": False}
    reference = narrow_reference(reference)
    return Operator(name, ("x",), _infer, reference, lower, attrs=attrs, samples=_SAMPLES)


OPERATORS = (
    _operator("cumsum", _lower_sum, _sums),
    _operator("cumprod", _lower_product, _products),
)
