"""About how many instructions an iteration takes: it follows sizes and fits into a scalar."""

import pytest

from edgerelax.codegen.kernel_steps import MOST, iteration_steps
from edgerelax.ir.dtypes import F32, I32
from edgerelax.ir.kernel import (
    WORKGROUP,
    For,
    If,
    Kernel,
    KernelBuffer,
    KExpr,
    KLoad,
    KScalar,
    KSelect,
    KStmt,
    KStore,
    Let,
    i32,
    kop,
    var,
)
from edgerelax.ir.scalar import Buffer
from edgerelax.sym import symbol

N, M = symbol("n"), symbol("m")
n, m = KScalar(I32, 1, "n"), KScalar(I32, 1, "m")
X = Buffer("x", F32, (N,))
ZERO = i32(0)
STORE = KStore("x", i32(0), KLoad(F32, 1, "x", i32(0)))  # 2 steps


def _steps(*body: KStmt):
    scalars = (("n", N), ("m", M))
    buffers = (KernelBuffer(X, "read_write"),)
    return iteration_steps(Kernel("k", "cpu", buffers, scalars, N, 1, body))


def _loop(stop: KExpr, *body: KStmt, start: KExpr = ZERO, step: int = 1) -> For:
    return For("i", start, stop, body, step)


def test_straight_code() -> None:
    assert _steps().as_int() == 1
    assert _steps(STORE, Let("a", kop("mul", n, m))).as_int() == 4
    assert _steps(If(kop("lt", n, m), (STORE,), (STORE, STORE))).as_int() == 8


def test_loops_follow_sizes() -> None:
    assert _steps(_loop(n, STORE)).eval({"n": 10, "m": 0}) == 21
    assert _steps(_loop(n, STORE, step=4)).eval({"n": 10, "m": 0}) == 7
    assert _steps(_loop(n, _loop(m, STORE))).eval({"n": 10, "m": 5}) == 101
    assert _steps(_loop(n, STORE, start=m)).eval({"n": 3, "m": 10}) == 1


def test_tiles_are_taken_as_the_first() -> None:
    """min(start + 8, n) - start, where the start depends on the iteration."""
    start = kop("mul", WORKGROUP, i32(8))
    stop = kop("min", kop("add", var("start"), i32(8)), n)
    steps = _steps(Let("start", start), _loop(stop, STORE, start=var("start")))
    assert steps.eval({"n": 100, "m": 0}) == 1 + 3 + 2 * 8  # itself, three operations, the loop
    assert steps.eval({"n": 3, "m": 0}) == 1 + 3 + 2 * 3


def test_loops_that_are_branches() -> None:
    once = KSelect(I32, 1, kop("lt", n, m), kop("index_div", i32(8), i32(8)), i32(0))
    assert _steps(_loop(once, STORE)).as_int() < 10


@pytest.mark.parametrize("fn", ["index_div", "index_mod"])
def test_sizes_that_may_be_zero_divide_nothing(fn: str) -> None:
    steps = _steps(_loop(kop(fn, n, m), STORE)).as_int()
    assert steps is not None and steps > 2


def test_any_size_fits() -> None:
    nest = _loop(n, _loop(m, _loop(n, _loop(m, STORE))))
    huge = {"n": 2**31 - 1, "m": 2**31 - 1}
    assert _steps(nest).eval(huge) == MOST
    assert _steps(nest).eval({"n": 0, "m": 2**31 - 1}) == 1
