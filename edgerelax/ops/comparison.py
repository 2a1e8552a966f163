"""Operators that give or take bools: comparisons, logic, where, isnan, isinf."""

from collections.abc import Callable

import numpy as np

from edgerelax.ir.dtypes import BOOL
from edgerelax.ir.functions import FUNCTIONS
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Scalar, constant, op, select
from edgerelax.ir.types import Annotation
from edgerelax.ops import folding
from edgerelax.ops.elementwise import SPECIAL
from edgerelax.ops.lowering import lower_elementwise
from edgerelax.ops.maps import tensor_of
from edgerelax.ops.rules import (
    ANY,
    BOOLS,
    FLOATS,
    NUMERIC,
    Fold,
    Kinds,
    allowed,
    elementwise,
)
from edgerelax.sym import maximum


def _predicate(
    name: str,
    operand_names: tuple[str, ...],
    kinds: Kinds,
    samples: tuple[Sample, ...],
    fold: Fold | None = None,
) -> Operator:
    def infer(site: CallSite) -> Annotation:
        return elementwise(site, kinds, fold, BOOL)

    def lower(site: CallSite) -> LoopFunc:
        return lower_elementwise(site, lambda *elements: op(name, *elements))

    return Operator(name, operand_names, infer, FUNCTIONS[name].meaning, lower, samples=samples)


def _comparison(name: str, fold: Fold, kinds: Kinds = NUMERIC) -> Operator:
    samples = (
        Sample((normal(2, 1, 3).round(), normal(4, 1).round())),
        Sample((SPECIAL, SPECIAL[:, None])),
        Sample((normal(0, 2), normal(2))),
        Sample((np.arange(5), np.array(2))),
        Sample((np.arange(5, dtype=np.uint8), np.full(5, 3, np.uint8))),
    )
    return _predicate(name, ("a", "b"), kinds, samples, fold)


_BITS = np.array([False, True])


def _logic(name: str, fold: Fold) -> Operator:
    samples = (
        Sample((_BITS, _BITS[:, None])),
        Sample((_BITS[:0], _BITS[:1])),
        Sample((_BITS[1], _BITS)),
    )
    return _predicate(name, ("a", "b"), BOOLS, samples, fold)


def _infer_where(site: CallSite) -> Annotation:
    cond = tensor_of(site, 0)
    if cond.dtype is not None:
        allowed(site, cond.dtype, BOOLS)
    return elementwise(site, ANY, folding.choice, names=(1, 2))


def _lower_where(site: CallSite) -> LoopFunc:
    return lower_elementwise(site, select)


_WHERE = Operator(
    "where",
    ("cond", "a", "b"),
    _infer_where,
    lambda cond, a, b: np.where(cond, a, b),
    _lower_where,
    samples=(
        Sample((_BITS, normal(3, 2), normal(3, 1))),
        Sample((_BITS[:, None], SPECIAL, normal())),
        Sample((_BITS[:0], normal(1), normal(0))),
        Sample((_BITS, np.arange(2), np.array(7))),
        Sample((_BITS, _BITS, _BITS[::-1].copy())),
    ),
)


def _infer_isinf(site: CallSite) -> Annotation:
    return elementwise(site, FLOATS, None, BOOL)


def _lower_isinf(site: CallSite) -> LoopFunc:
    sides: dict[tuple[bool, bool], Callable[[Scalar], Scalar]] = {
        (True, True): lambda x: op("isinf", x),
        (True, False): lambda x: op("and", op("isinf", x), op("lt", x, 0)),
        (False, True): lambda x: op("and", op("isinf", x), op("gt", x, 0)),
        (False, False): lambda x: constant(False, BOOL),
    }
    attrs = site.attrs
    chosen = sides[bool(attrs["detect_negative"]), bool(attrs["detect_positive"])]
    return lower_elementwise(site, chosen)


def _reference_isinf(x: Array, detect_negative: bool = True, detect_positive: bool = True) -> Array:
    found = np.zeros(x.shape, bool)
    if detect_negative:
        found |= np.isneginf(x)
    if detect_positive:
        found |= np.isposinf(x)
    return found


_ISINF = Operator(
    "isinf",
    ("x",),
    _infer_isinf,
    _reference_isinf,
    _lower_isinf,
    attrs={"detect_negative": True, "detect_positive": True},
    samples=tuple(
        Sample((SPECIAL,), {"detect_negative": low, "detect_positive": high})
        for low in (True, False)
        for high in (True, False)
    ),
)


OPERATORS = (
    _comparison("eq", folding.equal, ANY),
    _comparison("ne", lambda a, b: 1 - folding.equal(a, b), ANY),
    _comparison("lt", folding.less),
    _comparison("le", lambda a, b: 1 - folding.less(b, a)),
    _comparison("gt", lambda a, b: folding.less(b, a)),
    _comparison("ge", lambda a, b: 1 - folding.less(a, b)),
    _logic("and", lambda a, b: a * b),
    _logic("or", maximum),
    _logic("xor", lambda a, b: 1 - folding.equal(a, b)),
    _predicate("not", ("x",), BOOLS, (Sample((_BITS,)), Sample((_BITS[:0],))), lambda a: 1 - a),
    _WHERE,
    _predicate("isnan", ("x",), FLOATS, (Sample((SPECIAL,)), Sample((normal(0, 2),)))),
    _ISINF,
)
