"""Reductions over axes: one stage each; what is done before and after is its body and epilogue.

Over nothing they give the identity: 0, 1, -inf (or the least value of an integer type), inf; the
mean is NaN, of integers 0.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import F64, DType, from_numpy
from edgerelax.ir.loop import Combiner, LoopFunc, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, Load, Scalar, Value, cast, compare, constant, op, select
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.elementwise import SPECIAL
from edgerelax.ops.lowering import (
    count_of,
    load_reduced,
    reduce_stage,
    wide,
    without,
)
from edgerelax.ops.maps import (
    Dims,
    exprs,
    inputs_of,
    ints_of,
    loop_func,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.rules import (
    ANY,
    BOOLS,
    NUMERIC,
    Kinds,
    allowed,
    reduce_dims,
    reduced_axes,
    tracked,
)
from edgerelax.sym import Expr, maximum, minimum

Axes = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Rule:
    """How a reduction works: `before` elements, `after` on the result and their number."""

    combiner: Combiner
    meaning: Callable[..., Array]
    before: Callable[[Scalar], Scalar] = lambda x: x
    after: Callable[[Scalar, Value], Scalar] | None = None
    kinds: Kinds = NUMERIC
    fold: Callable[[Expr, Expr], Expr] | None = None
    real: bool = False
    """Whether integers are computed as f64 (roots and logarithms)."""

    def compute(self, dtype: DType) -> DType:
        return F64 if self.real and dtype.is_integer else wide(dtype)


def _infer(site: CallSite, rule: Rule) -> Annotation:
    x, keepdims = tensor_of(site, 0), bool(site.attrs["keepdims"])
    dtype = None if x.dtype is None else allowed(site, x.dtype, rule.kinds)
    if x.rank is None:
        whole = site.attrs["axes"] is None and not keepdims
        return Tensor(() if whole else None, dtype)
    reduced = reduced_axes(site, x.rank)
    ints = ints_of(site, 0)
    if ints is not None and rule.fold is not None and ints.values and dtype is not None:
        values = (reduce(rule.fold, ints.values),) if reduced else ints.values
        rank = 0 if reduced and not keepdims else ints.rank
        found = tracked(values, rank, dtype)
        if found is not None:
            return found
    if x.dims is None:
        return Tensor(None, dtype, x.rank if keepdims else x.rank - len(reduced))
    return Tensor(reduce_dims(x.dims, reduced, keepdims), dtype)


def _lower(site: CallSite, rule: Rule) -> LoopFunc:
    x, out = inputs_of(site)[0], outputs_of_site(site)[0]
    assert x is not None
    reduced = reduced_axes(site, x.rank)
    count = count_of(x.dims, reduced, rule.compute(x.dtype))
    after = rule.after
    stage = reduce_stage(
        out,
        x.dims,
        reduced,
        lambda at: rule.before(cast(x[at], rule.compute(x.dtype))),
        _combiner(rule.combiner, x.dtype),
        None if after is None else lambda acc: after(acc, count),
    )
    return loop_func(site, [stage])


def _combiner(combiner: Combiner, dtype: DType) -> Combiner:
    if dtype.kind != "bool":
        return combiner
    bools: dict[Combiner, Combiner] = {"max": "any", "min": "all"}
    return bools.get(combiner, combiner)


def _reduction(name: str, rule: Rule) -> Operator:
    def reference(x: Array, axes: Axes = None, keepdims: bool = True) -> Array:
        with np.errstate(all="ignore"):
            compute = rule.compute(from_numpy(x.dtype)).numpy
            found = rule.meaning(x.astype(compute), _every(axes, x.ndim), bool(keepdims))
            return np.asarray(found).astype(x.dtype)

    return Operator(
        name,
        ("x",),
        lambda site: _infer(site, rule),
        reference,
        lambda site: _lower(site, rule),
        attrs={"axes": None, "keepdims": True},
        samples=_samples(rule.kinds),
    )


def _every(axes: Axes, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)) if axes is None else tuple(axes)


_SETTINGS: tuple[dict[str, Any], ...] = (
    {"axes": (1,), "keepdims": False},
    {"axes": (-1, 0), "keepdims": True},
    {"axes": None, "keepdims": False},
    {"axes": (), "keepdims": True},
)


def _samples(kinds: Kinds) -> tuple[Sample, ...]:
    bits = np.array([[True, False, True], [True, True, True]])
    found = []
    if "float" in kinds:
        found += [Sample((normal(2, 3, 5),), s) for s in _SETTINGS]
        found += [Sample((normal(2, 0, 3),), s) for s in _SETTINGS]
        found += [
            Sample((normal(0, 3),), {"axes": (1,)}),
            Sample((normal(),), {"axes": None}),
            Sample((SPECIAL,), {"axes": (0,)}),
            Sample((SPECIAL[1:2],), {"axes": (0,)}),
            Sample((SPECIAL[2:3],), {"axes": (0,)}),
            Sample((normal(3, 65, dtype="float16"),), {"axes": (-1,)}),
            Sample((np.arange(1, 13, dtype=np.int32).reshape(3, 4),), _SETTINGS[0]),
            Sample((np.arange(1, 7).reshape(3, 2),), _SETTINGS[2]),
        ]
    if "bool" in kinds:
        found += [Sample((bits,), s) for s in _SETTINGS[:3]]
        found += [Sample((bits[:, :0],), s) for s in _SETTINGS[:3]]
    return tuple(found)


def _share(total: Scalar, count: Value) -> Scalar:
    """NaN of nothing, said outright: a GPU may make anything of 0 / 0."""
    if not count.dtype.is_float:
        return total / count
    some = compare("ge", count.expr, 1)
    return select(some, total / count, constant(float("nan"), count.dtype))


def _minmax(fn: Any, end: float) -> Callable[..., Array]:
    """The largest or least, of nothing the identity of the dtype."""

    def meaning(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
        if x.dtype.kind == "f":
            first = np.array(end, x.dtype)
        else:
            least, greatest = from_numpy(x.dtype).int_range
            first = np.array(least if end < 0 else greatest, x.dtype)
        return np.asarray(fn.reduce(x, axis=axes, keepdims=keepdims, initial=first))

    return meaning


def _mean(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    total = np.sum(x, axes, dtype=x.dtype, keepdims=keepdims)
    count = np.prod([x.shape[a] for a in axes], dtype=np.int64)
    if x.dtype.kind == "f":
        return np.asarray(total / x.dtype.type(count))
    return np.asarray(np.trunc(total / max(count, 1)).astype(x.dtype))


def _sum(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.sum(x, axes, dtype=x.dtype, keepdims=keepdims))


def _any(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.any(x, axes, keepdims=keepdims))


def _all(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    return np.asarray(np.all(x, axes, keepdims=keepdims))


def _square(x: Scalar) -> Scalar:
    return x * x


# log_sum_exp: the largest is taken out first, unless it is infinite.


def _finite(peak: Load) -> Scalar:
    return select(op("isinf", peak), constant(0, peak.dtype), peak)


def _lower_log_sum_exp(site: CallSite) -> LoopFunc:
    x, out = inputs_of(site)[0], outputs_of_site(site)[0]
    assert x is not None
    reduced = reduced_axes(site, x.rank)
    dtype = _LOG_SUM_EXP.compute(x.dtype)

    def element(at: Dims) -> Scalar:
        return cast(x[at], dtype)

    peak = Buffer("peak", dtype, without(x.dims, reduced))
    largest = reduce_stage(peak, x.dims, reduced, element, "max")
    at_out = _statistic_at(out, x.rank, reduced)
    total = reduce_stage(
        out,
        x.dims,
        reduced,
        lambda at: op("exp", element(at) - _finite(load_reduced(peak, at, reduced))),
        "sum",
        lambda acc: op("log", acc) + _finite(peak[at_out]),
    )
    return loop_func(site, [largest, total])


def _statistic_at(out: Buffer, rank: int, reduced: tuple[int, ...]) -> Dims:
    """Where a statistic without the reduced axes is for points of `out`, which may keep them."""
    at = exprs(grid(out))
    return without(at, reduced) if out.rank == rank else at


def _log_sum_exp(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    peak = _minmax(np.maximum, -np.inf)(x, axes, True)
    shift = np.where(np.isinf(peak), 0, peak)
    total = np.log(_sum(np.exp(x - shift), axes, True)) + shift
    return total if keepdims else np.asarray(total.reshape(np.sum(x, axes).shape))


_LOG_SUM_EXP = Rule("sum", _log_sum_exp, real=True)


def _log_sum_exp_operator() -> Operator:
    plain = _reduction("reduce_log_sum_exp", _LOG_SUM_EXP)
    return replace(plain, lower=_lower_log_sum_exp)


RULES: dict[str, Rule] = {
    "reduce_sum": Rule("sum", _sum, fold=lambda a, b: a + b),
    "reduce_prod": Rule(
        "prod",
        lambda x, axes, keep: np.prod(x, axes, dtype=x.dtype, keepdims=keep),
        fold=lambda a, b: a * b,
    ),
    "reduce_max": Rule("max", _minmax(np.maximum, -np.inf), kinds=ANY, fold=maximum),
    "reduce_min": Rule("min", _minmax(np.minimum, np.inf), kinds=ANY, fold=minimum),
    "reduce_mean": Rule("sum", _mean, after=_share),
    "reduce_l1": Rule(
        "sum",
        lambda x, axes, keep: _sum(np.abs(x), axes, keep),
        before=lambda x: op("abs", x),
    ),
    "reduce_l2": Rule(
        "sum",
        lambda x, axes, keep: np.sqrt(_sum(x * x, axes, keep)),
        before=_square,
        after=lambda acc, _: op("sqrt", acc),
        real=True,
    ),
    "reduce_log_sum": Rule(
        "sum",
        lambda x, axes, keep: np.log(_sum(x, axes, keep)),
        after=lambda acc, _: op("log", acc),
        real=True,
    ),
    "reduce_sum_square": Rule("sum", lambda x, axes, keep: _sum(x * x, axes, keep), before=_square),
    "reduce_any": Rule("any", _any, kinds=BOOLS),
    "reduce_all": Rule("all", _all, kinds=BOOLS),
}

OPERATORS = (*(_reduction(name, rule) for name, rule in RULES.items()), _log_sum_exp_operator())
