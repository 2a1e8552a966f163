"""Indices of the largest and the least along an axis, as i64; of equals the first or the last."""

from collections.abc import Callable
from typing import Any

import numpy as np

from edgerelax.ir.assumptions import nonzero
from edgerelax.ir.dtypes import I64
from edgerelax.ir.loop import Combiner, LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.lowering import reduce_stage
from edgerelax.ops.maps import (
    fail,
    inputs_of,
    loop_func,
    normal_axis,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.rules import NUMERIC, allowed, reduce_dims


def _infer(site: CallSite) -> Annotation:
    x, keepdims = tensor_of(site, 0), bool(site.attrs["keepdims"])
    if x.dtype is not None:
        allowed(site, x.dtype, NUMERIC)
    if x.rank is None:
        return Tensor(None, I64)
    along = normal_axis(site, site.attrs["axis"], x.rank)
    if x.dims is None:
        return Tensor(None, I64, x.rank if keepdims else x.rank - 1)
    if not nonzero(x.dims[along], f"dim {along} must not be empty: nothing to choose from"):
        raise fail(site, f"dim {along} is 0: nothing to choose from")
    return Tensor(reduce_dims(x.dims, (along,), keepdims), I64)


def _operator(name: str, forward: Combiner, last: Combiner, find: Callable[..., Any]) -> Operator:
    def lower(site: CallSite) -> LoopFunc:
        x = inputs_of(site)[0]
        assert x is not None
        along = normal_axis(site, site.attrs["axis"], x.rank)
        combiner = last if site.attrs["select_last_index"] else forward
        out = outputs_of_site(site)[0]
        return loop_func(site, [reduce_stage(out, x.dims, (along,), lambda at: x[at], combiner)])

    def reference(
        x: Array, axis: int = 0, keepdims: bool = True, select_last_index: bool = False
    ) -> Array:
        if select_last_index:
            found = x.shape[axis] - 1 - find(np.flip(x, axis), axis)
        else:
            found = find(x, axis)
        found = np.asarray(found, np.int64)
        return np.expand_dims(found, axis) if keepdims else found

    return Operator(
        name,
        ("x",),
        _infer,
        reference,
        lower,
        attrs={"axis": 0, "keepdims": True, "select_last_index": False},
        samples=_SAMPLES,
    )


_TIES = np.array([[1, 3, 3], [2, 2, 0]], np.int32)

_SAMPLES = (
    Sample((normal(2, 3, 5),), {"axis": 1}),
    Sample((normal(2, 3, 5),), {"axis": -1, "keepdims": False}),
    Sample((normal(7),), {"axis": 0, "keepdims": False}),
    Sample((normal(0, 3),), {"axis": 1}),
    Sample((normal(1, 1),), {"axis": 0}),
    Sample((_TIES,), {"axis": 1}),
    Sample((_TIES,), {"axis": 1, "select_last_index": True}),
    Sample((_TIES.astype(np.float32),), {"axis": 0, "select_last_index": True}),
)

OPERATORS = (
    _operator("argmax", "argmax", "argmax_last", np.argmax),
    _operator("argmin", "argmin", "argmin_last", np.argmin),
)
