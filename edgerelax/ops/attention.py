"""Attention: softmax(f(q kᵀ)) v in one operator, whose kernels store no scores.

Passes form it from written-out attention. Its attributes are those of the template (see
ir/attention.py): operands are seen through strided views of flat buffers. Scores are f32.
"""

import math
from typing import Any

import numpy as np

from edgerelax.ir.attention import Step, attention
from edgerelax.ir.dtypes import BF16, BOOL, F16, F32, I8
from edgerelax.ir.functions import FUNCTIONS
from edgerelax.ir.loop import LoopFunc, Template
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.maps import (
    exprs,
    fail,
    inputs_of,
    loop_func,
    outputs_of_site,
    present,
    tensor_of,
)
from edgerelax.ops.rules import INTEGERS, allowed

CHOICES = ("where", "unless")
"""Steps whose operand is a condition."""
STORED = (F16, BF16, I8)
"""What keys and values may be beside the queries' own type."""


def _infer(site: CallSite) -> Annotation:
    attrs, count = site.attrs, len(site.args)
    dtype = tensor_of(site, 0).dtype
    if dtype is not None and dtype not in (F16, BF16, F32):
        raise fail(site, f"not defined for {dtype}", "it takes f16, bf16 and f32")
    for k in (1, 2):
        stored = tensor_of(site, k).dtype
        if None not in (stored, dtype) and stored not in (dtype, *STORED):
            raise fail(site, f"keys and values of {stored}", f"they are {dtype}, or "
                       + ", ".join(map(str, STORED)))  # fmt: skip
    axes = len(attrs["batch"]) + 2
    if len(attrs["sizes"]) != 4 or len(attrs["views"]) != count + 1:
        raise fail(site, f"{len(attrs['sizes'])} sizes, {len(attrs['views'])} views", "4 and one "
                   "for each operand and the result")  # fmt: skip
    if any(len(view) != axes + 1 for view in attrs["views"]):
        raise fail(site, f"a view is an offset and {axes} strides")
    if attrs["hidden"] >= 0:
        _check_step(site, ("where", attrs["hidden"], 0.0))
    for step in attrs["steps"]:
        _check_step(site, step)
    for table in attrs["tables"]:
        _check_table(site, table)
    for scale in attrs["scales"]:
        if scale and not 0 <= scale[0] < count - 3:
            raise fail(site, f"a scale that is operand {scale[0] + 3}")
        _check_table(site, scale[1:])
    return Tensor(exprs(attrs["dims"]), dtype)


def _check_step(site: CallSite, step: Step) -> None:
    function, operand, _ = step
    choice = function in CHOICES
    if not choice and function not in FUNCTIONS:
        raise fail(site, f"no function {function}")
    if not (0 if choice else -1) <= operand < len(site.args) - 3:
        raise fail(site, f"{function} has no operand {operand}")
    found = tensor_of(site, operand + 3).dtype if operand >= 0 else None
    if found is not None and (found == BOOL) != choice:
        raise fail(site, f"{function} with an operand of {found}")


def _check_table(site: CallSite, table: tuple[int, ...]) -> None:
    if not table:
        return
    number, size = table
    if not 0 <= number < len(site.args) - 3 or size < 1:
        raise fail(site, f"a table that is operand {number + 3}, of rows of {size}")
    dtype = tensor_of(site, number + 3).dtype
    if dtype is not None:
        allowed(site, dtype, INTEGERS)


def _lower(site: CallSite) -> LoopFunc:
    """One template; its parameters are the attributes, integers as expressions."""
    attrs = site.attrs
    params: dict[str, Any] = {
        "batch": exprs(attrs["batch"]),
        "sizes": exprs(attrs["sizes"]),
        "views": tuple(exprs(view) for view in attrs["views"]),
        "steps": attrs["steps"],
        "dims": exprs(attrs["dims"]),
        "nan_to_zero": bool(attrs["nan_to_zero"]),
        "hidden": attrs["hidden"],
        "tables": tuple(attrs["tables"]),
        "scales": tuple(attrs["scales"]),
    }
    inputs = present(inputs_of(site))
    return loop_func(site, [Template("attention", inputs, outputs_of_site(site), params)])


def _attrs(
    sizes: tuple[int, int, int, int], steps: tuple[Step, ...] = (), *others: tuple[int, ...]
) -> dict[str, Any]:
    """Two heads, operands in row-major order, the others of these dims."""
    queries, keys, width, depth = sizes
    spans = ((queries, width), (keys, width), (keys, depth))
    dims = (2, queries, depth)
    shapes = (*((2, *span) for span in spans), *others, dims)
    views = tuple((0, *_strides(shape)) for shape in shapes)
    return {"batch": (2,), "sizes": sizes, "views": views, "steps": steps, "dims": dims}


def _strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major; 0 along dims of 1, which broadcast."""
    return tuple(0 if n == 1 else math.prod(dims[k + 1 :]) for k, n in enumerate(dims))


def _sample(
    queries: int, keys: int, width: int, depth: int, dtype: str = "float32", **more: Any
) -> Sample:
    spans = ((queries, width), (keys, width), (keys, depth))
    arrays = tuple(normal(2, *span, dtype=dtype, seed=k) for k, span in enumerate(spans))
    return Sample(arrays, {**_attrs((queries, keys, width, depth)), **more})


def _masked(other: Array, steps: tuple[Step, ...], **more: Any) -> Sample:
    plain = _sample(3, 5, 4, 6)
    return Sample((*plain.args, other), {**_attrs((3, 5, 4, 6), steps, other.shape), **more})


def _paged(count: int, keys: int, **more: Any) -> Sample:
    """Keys and values [slots, heads, width] of a cache, in rows that one table names."""
    q = normal(2, 3, 8)
    k, v = normal(count, 2, 8, seed=1), normal(count, 2, 4, seed=2)
    table = np.random.default_rng(3).integers(-count, count + 2, (keys,)).astype(np.int32)
    views = ((0, 24, 8, 1), (0, 8, 0, 1), (0, 4, 0, 1), (0, 0, 0, 1), (0, 12, 4, 1))
    attrs = _attrs((3, keys, 8, 4), (), (1, 1, keys))
    attrs |= {"views": views, "tables": ((0, 16), (0, 8)), **more}
    return Sample((q, k, v, table), attrs)


def _stored(dtype: str, scaled: bool, count: int = 7, keys: int = 5) -> Sample:
    """As `_paged`, of keys and values of another type, which scales [slots, heads] multiply."""
    paged = _paged(count, keys)
    q, k, v, table = paged.args
    assert k is not None and v is not None
    times = 1 if dtype == "float16" else 20
    codes = [np.clip(x * times, -127, 127).astype(dtype) for x in (k, v)]
    if not scaled:
        return Sample((q, *codes, table), paged.attrs)
    scales = [np.abs(normal(count, 2, seed=s)) / times for s in (4, 5)]
    *views, out = paged.attrs["views"]
    views += [(0, 1, 0, 0), (0, 1, 0, 0), out]
    more = {"views": tuple(views), "scales": ((1, 0, 2), (2, 0, 2))}
    return Sample((q, *codes, table, *scales), {**paged.attrs, **more})


def _scaled_rows() -> Sample:
    """Codes in no pages, a scale for each key."""
    plain = _sample(3, 5, 4, 6)
    q, k, v = plain.args
    assert k is not None and v is not None
    codes = [np.clip(x * 20, -127, 127).astype(np.int8) for x in (k, v)]
    others = [np.abs(normal(2, 1, 5, seed=s)) for s in (4, 5)]
    attrs = _attrs((3, 5, 4, 6), (), *(x.shape for x in others))
    return Sample((q, *codes, *others), {**attrs, "scales": ((0,), (1,))})


_SHOWN = np.array([[True] * 5, [False] * 5, [True, False, True, True, False]])[None]

OPERATORS = (
    Operator(
        "attention",
        ("q", "k", "v", "others"),
        _infer,
        attention,
        _lower,
        attrs={
            "batch": (),
            "sizes": (),
            "views": (),
            "steps": (),
            "dims": (),
            "nan_to_zero": False,
            "hidden": -1,
            "tables": ((), ()),
            "scales": ((), ()),
        },
        variadic=True,
        samples=(
            _sample(3, 5, 4, 6),
            _sample(1, 1, 1, 1),
            _sample(4, 0, 3, 2),
            _sample(3, 5, 4, 6, dtype="float16"),
            _sample(3, 5, 4, 6, steps=(("mul", -1, 0.5), ("tanh", -1, 0.0))),
            _masked(_SHOWN, (("where", 0, float("-inf")),)),
            _masked(_SHOWN, (("where", 0, float("-inf")),), nan_to_zero=True),
            _masked(_SHOWN, (("unless", 0, -1e4),)),
            _masked(_SHOWN[:, :, :1], (), hidden=0),
            _masked(normal(2, 1, 5), (("mul", -1, 2.0), ("add", 0, 0.0))),
            _paged(7, 5),
            _paged(3, 1),
            _paged(3, 0),
            _paged(40, 130, steps=(("mul", -1, 0.5),)),
            _stored("float16", scaled=False),
            _stored("int8", scaled=True),
            _stored("int8", scaled=True, count=40, keys=130),
            _scaled_rows(),
        ),
    ),
)
