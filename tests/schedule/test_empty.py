"""Sizes known to be 0 when compiled: no kernels for nothing, and what a sum of nothing is."""

import pytest

from edgerelax.ir.dtypes import F16, F32, I32, I64
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.scalar import Acc, Buffer, Value, constant, op
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import TARGETS
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import check
from tests.schedule.test_conv import conv
from tests.schedule.test_gemm import matmul
from tests.schedule.test_templates import template

N = symbol("n")


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


NOTHING = {
    "columns": matmul(N, 0, 8),
    "rows": matmul(0, 8, 8),
    "batches": matmul(N, 8, 8, batch=(0,)),
    "rows, columns and steps": matmul(0, 0, 0),
    "width": conv(N, 4, 6, 0, 5, 3, 3, pad=1),
    "height": conv(N, 4, 0, 6, 5, 3, 3, pad=1),
    "a window of all the width": conv(N, 4, 6, 2, 5, 3, 3),
    "channels out": conv(N, 4, 6, 6, 0, 3, 3, pad=1),
    "no more than nothing": matmul(symbol("none", 0, 0), 8, 8),
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("case", NOTHING)
def test_no_kernels_for_nothing(case, target):
    plan = schedule(NOTHING[case], target)
    assert [v.kernels for v in plan.versions] == [()]


@pytest.mark.parametrize("case", NOTHING)
def test_results_of_nothing(case):
    sizes = {s.name: 0 if s.hi == 0 else 3 for s in NOTHING[case].symbols()}
    check(NOTHING[case], sizes)


def test_no_steps():
    check(matmul(N, 8, 0), {"n": 5})
    check(matmul(N, 8, 0, dtype=F16), {"n": 5})
    check(conv(N, 0, 6, 9, 5, 3, 3, pad=1), {"n": 2})


COMBINERS = ("sum", "prod", "max", "min", "argmax", "argmin_last")


@pytest.mark.parametrize("dtype", (F32, I32, I64))
@pytest.mark.parametrize("combiner", COMBINERS)
def test_reductions_of_nothing(combiner, dtype):
    i, k = axis("i", N), axis("k", 0)
    x, y = buf("x", dtype, N, 0), buf("y", I64 if combiner.startswith("arg") else dtype, N)
    stage = Stage(y, (i,), x[i, k], (k,), combiner)
    check(LoopFunc("f", (x,), (y,), (stage,)), {"n": 5})


def test_a_start_and_an_end_of_its_own():
    i, k = axis("i", N), axis("k", 0)
    x, s, y = buf("x", F32, N, 0), buf("s", F32, N), buf("y", F32, N)
    inside = op("lt", Value(as_expr(k)), Value(as_expr(i)))
    stage = Stage(
        y, (i,), x[i, k], (k,), "max", init=s[i], where=inside, epilogue=Acc(F32) * 2.0 + s[i]
    )
    check(LoopFunc("f", (x, s), (y,), (stage,)), {"n": 5})


def test_moments_of_nothing():
    i, k = axis("i", N), axis("k", 0)
    x, y = buf("x", F32, N, 0), buf("y", F32, N)
    moments = Acc(F32) + Acc(F32, 1) * 2.0 + Acc(F32, 2) + 1.0
    stage = Stage(y, (i,), x[i, k], (k,), "welford", epilogue=moments)
    check(LoopFunc("f", (x,), (y,), (stage,)), {"n": 5})


def test_points_that_are_not_stored_stay_so():
    i, k = axis("i", N), axis("k", 0)
    x, y = buf("x", F32, N, 0), buf("y", F32, N)
    even = op("eq", Value(as_expr(i) // 2 * 2), Value(as_expr(i)))
    ones = Stage(y, (i,), constant(1.0, F32))
    zeros = Stage(y, (i,), x[i, k], (k,), "sum", where=even)
    check(LoopFunc("f", (x,), (y,), (ones, zeros)), {"n": 5})


def test_neighbours_of_nothing_in_a_chain():
    """An empty stage between others, as joining parts leaves it."""
    i, j, a, b = axis("i", N), axis("j", 0), axis("a", 3), axis("b", 3)
    x, y, s = buf("x", F32, N, 3), buf("y", F32, N, 3), buf("s", F32, N)
    stages = (
        Stage(y, (i, a), x[i, a] * 2.0),
        Stage(y, (i, j), constant(1.0, F32)),
        Stage(s, (i,), y[i, b], (b,), "sum"),
    )
    check(LoopFunc("f", (x,), (y, s), stages), {"n": 5})


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_no_template_kernels_for_nothing(target):
    x, y = buf("x", F32, N, 0), buf("y", F32, N, 0)
    func = template("cumsum", [x], [y], exclusive=False, reverse=False)
    assert schedule(func, target).versions[0].kernels == ()
    check(func, {"n": 3}, targets=[target])
