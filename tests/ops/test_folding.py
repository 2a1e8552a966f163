"""Elementwise operators and reductions over known integers fold to known integers, rightly."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.dtypes import BOOL, I32, I64, U8
from edgerelax.ir.op import CallSite
from edgerelax.ir.types import Annotation, IntTensor, Tensor
from edgerelax.ops import OPS
from edgerelax.sym import Symbol, as_expr

BINARY = (
    "add", "sub", "mul", "div", "mod", "fmod", "min", "max",
    "eq", "ne", "lt", "le", "gt", "ge",
)  # fmt: skip
UNARY = ("neg", "abs", "sign", "identity")


def infer(
    name: str, *args: Annotation, constants: tuple[Any, ...] = (), **attrs: Any
) -> Annotation:
    op = OPS[name]
    known = constants or (None,) * len(args)
    return op.infer(CallSite(op, args, {**op.attrs, **attrs}, known, None, name))


def symbols(prefix: str, count: int, lo: int) -> tuple[Symbol, ...]:
    return tuple(Symbol(f"{prefix}{k}", lo) for k in range(count))


def check(name: str, arrays: list[Any], lo: int, must_fold: bool = False, **attrs: Any) -> None:
    """Fold with each element a symbol, then put the numbers in."""
    env: dict[Symbol, int] = {}
    args: list[Annotation] = []
    for k, array in enumerate(arrays):
        own = symbols(f"{name}{k}_", array.size, lo)
        env.update(zip(own, array.reshape(-1).tolist(), strict=True))
        args.append(IntTensor(tuple(s.expr for s in own), array.ndim, I64))
    found = infer(name, *args, **attrs)
    if not isinstance(found, IntTensor):
        assert not must_fold
        return
    expected = OPS[name].reference(*arrays, **{**OPS[name].attrs, **attrs})
    values = np.array([v.eval(env) for v in found.values]).reshape(expected.shape)
    np.testing.assert_array_equal(values, expected)
    assert found.dtype.numpy == expected.dtype


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=2), st.integers(1, 9))
@pytest.mark.parametrize("name", BINARY)
def test_sizes(name: str, left: list[int], right: int) -> None:
    """Of positive sizes everything folds."""
    arrays = [np.array(left) + 1, np.array([right])]
    check(name, arrays, 1, must_fold=True)
    check(name, [arrays[0], arrays[1][0]], 1, must_fold=True)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=2), st.integers(-9, 9))
@pytest.mark.parametrize("name", BINARY)
def test_any_integers(name: str, left: list[int], right: int) -> None:
    check(name, [np.array(left), np.array(right)], -9)


@pytest.mark.parametrize("value", [-7, 0, 5])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, value: int) -> None:
    check(name, [np.array([value, 3])], -9, must_fold=True)


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("name", ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"])
def test_reductions(name: str, keepdims: bool) -> None:
    check(name, [np.array([3, 1, 4])], 0, must_fold=True, axes=(0,), keepdims=keepdims)


@pytest.mark.parametrize("divisor", [3, -3, 1, -1])
@pytest.mark.parametrize("value", [-7, -6, 0, 6, 7])
@pytest.mark.parametrize("name", ["div", "mod", "fmod"])
def test_signs_of_division(name: str, value: int, divisor: int) -> None:
    n = Symbol("any", -100)
    scalar = IntTensor((n.expr,), 0, I64)
    found = infer(name, scalar, Tensor((), I64), constants=(None, np.array(divisor)))
    assert isinstance(found, IntTensor)
    expected = OPS[name].reference(np.array(value), np.array(divisor))
    assert found.values[0].eval({n: value}) == expected


def test_where_of_a_proven_condition() -> None:
    """The way exporters write expand: -1 becomes 1, all else stays."""
    n = Symbol("rows", 1)
    dims = IntTensor((n.expr, as_expr(-1)), 1, I64)
    minus = (None, np.array([-1]))
    cond = infer("eq", dims, Tensor((as_expr(1),), I64), constants=minus)
    assert isinstance(cond, IntTensor) and [v.as_int() for v in cond.values] == [0, 1]
    ones = IntTensor((as_expr(1), as_expr(1)), 1, I64)
    found = infer("where", cond, ones, dims)
    assert found == IntTensor((n.expr, as_expr(1)), 1, I64)


def test_what_a_type_does_not_hold_is_not_folded() -> None:
    n = Symbol("size", 0)
    ints = IntTensor((n.expr,), 1, I64)
    assert not isinstance(infer("cast", ints, dtype=U8), IntTensor)
    assert infer("cast", ints, dtype=I32) == IntTensor((n.expr,), 1, I32)
    as_bool = infer("cast", ints, dtype=BOOL)
    assert isinstance(as_bool, IntTensor)
    assert [as_bool.values[0].eval({n: k}) for k in (0, 1, 5)] == [0, 1, 1]


def test_clip() -> None:
    n = Symbol("length", 0)
    limits = (None, np.array(2), np.array(6))
    scalar = Tensor((), I64)
    found = infer("clip", IntTensor((n.expr,), 0, I64), scalar, scalar, constants=limits)
    assert isinstance(found, IntTensor)
    assert [found.values[0].eval({n: k}) for k in (0, 4, 9)] == [2, 4, 6]
