"""Long reductions in parts: every config at odd sizes, and where the cost model takes them."""

import numpy as np
import pytest

from edgerelax.ir.dtypes import BOOL, F16, F32, I32, I64, U8
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.scalar import Acc, Value, op
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WASM, WEBGPU, WEBGPU_SOFTWARE
from edgerelax.sym import ge, symbol
from tests.schedule.oracle import check_strategy, random_array, run_schedule
from tests.schedule.test_gemm import matmul
from tests.schedule.test_reduce import ARG, buf, reduction

LONG = symbol("k", lo=4096)
COMBINERS = ("sum", "prod", "max", "min", "any", "all", *ARG)


def check(func, symbols, **more):
    check_strategy("split_reduce", func, symbols, targets=[WEBGPU], **more)


def matrix(combiner, order, n, k, dtype=None):
    dtype = dtype or (BOOL if combiner in ("any", "all") else F32)
    x = buf("x", dtype, n, k) if order == "nk" else buf("x", dtype, k, n)
    return reduction(x, buf("y", I64 if combiner in ARG else dtype, n), combiner, order)


@pytest.mark.parametrize("order", ("nk", "kn"))
@pytest.mark.parametrize("combiner", COMBINERS)
def test_every_combiner(combiner, order):
    for n, k in ((1, 4099), (8, 4996)):
        check(matrix(combiner, order, n, LONG), {"k": k}, tolerance=1e-3)


@pytest.mark.parametrize("dtype", (I32, I64, F16, U8))
@pytest.mark.parametrize("combiner", ("sum", "max", "argmin"))
def test_types(combiner, dtype):
    for n, order in ((1, "nk"), (8, "kn")):
        func = matrix(combiner, order, n, LONG, dtype)
        check(func, {"k": 4999}, tolerance=1e-2 if dtype is F16 else 1e-4)


@pytest.mark.parametrize("order", ("nk", "kn"))
def test_welford(order):
    x = buf("x", F32, 3, LONG) if order == "nk" else buf("x", F32, LONG, 3)
    epilogue = Acc(F32, 0) + op("sqrt", Acc(F32, 1) / op("max", Acc(F32, 2), 1.0))
    func = reduction(x, buf("y", F32, 3), "welford", order, epilogue=epilogue)
    given = random_array(np.random.default_rng(0), F32, tuple(d.eval({"k": 4999}) for d in x.dims))
    check(func, {"k": 4999}, arrays=[given + 100], tolerance=1e-4)


@pytest.mark.parametrize("combiner", ("max", "min", *ARG))
def test_first_and_last_of_equals_and_nan(combiner):
    """Equal values lie in different slices and parts; NaN wins, the first of several."""
    values = np.zeros((4, 8200), np.float32)
    values[0, [70, 4100, 8199]] = 7, 7, 7
    values[1, [5, 8198]] = np.nan
    values[2] = -np.inf
    values[3, [8192, 3]] = -7, -7
    for order in ("nk", "kn"):
        given = values if order == "nk" else np.ascontiguousarray(values.T)
        check(matrix(combiner, order, 4, 8200), {}, arrays=[given])


def test_start_epilogue_and_skipped_steps():
    """The start counts once and the epilogue comes last, whatever the parts."""
    x, b, y = buf("x", F32, 3, LONG), buf("b", F32, 3), buf("y", F32, 3)
    n, r = axis("i", 3), axis("k", LONG)
    stage = Stage(
        y, (n,), x[n, r], (r,), "sum",
        init=b[n] * 100.0, where=op("ne", Value(r.expr % 5), Value(n.expr)),
        epilogue=op("abs", Acc(F32)) / 3.0,
    )  # fmt: skip
    func = LoopFunc("f", (x, b), (y,), (stage,))
    check(func, {"k": 4997}, tolerance=1e-3)


def test_several_reduced_axes():
    x, y = buf("x", F32, 2, 3, 4, LONG), buf("y", F32, 3)
    a, b, c, d = (axis(f"i{k}", e) for k, e in enumerate(x.dims))
    for reduced in ((a, c, d), (d, a, c)):
        func = LoopFunc("f", (x,), (y,), (Stage(y, (b,), x[a, b, c, d], reduced, "max"),))
        check(func, {"k": 4096})


def test_rows_of_few_go_on_with_the_result():
    """A softmax of one very long row: its sums in parts, its map as any other."""
    x, m, y = buf("x", F32, 1, 150_001), buf("m", F32, 1), buf("y", F32, 1, 150_001)
    i, k, j = axis("i", 1), axis("k", 150_001), axis("j", 150_001)
    stages = (
        Stage(m, (i,), x[i, k], (k,), "max"),
        Stage(y, (i, j), op("exp", x[i, j] - m[i])),
    )
    func = LoopFunc("f", (x,), (y,), stages)
    plan = schedule(func, WEBGPU)
    assert [s.split()[0] for s in plan.strategies] == ["split_reduce", "split_reduce", "map"]
    assert {t.name.split("_")[-1] for t in plan.versions[-1].temps} == {"m", "part0"}


def choices():
    """The strategy of each target for typical shapes, few outputs first."""
    row, column = (lambda n, k: matrix("sum", "nk", n, k)), (lambda n, k: matrix("sum", "kn", n, k))
    top = matrix("argmax", "nk", 1, 150_000)
    return {
        "1 of 1000": (row(1, 1000), "row_reduce", "row_reduce", "row_reduce"),
        "1 of 1M": (row(1, 1_000_000), "split_reduce", "row_reduce", "row_reduce"),
        "1 of a vocabulary": (top, "split_reduce", "row_reduce", "row_reduce"),
        "8 of 100k": (column(8, 100_000), "split_reduce", "row_reduce", "row_reduce"),
        "1000 of 1000": (row(1000, 1000), "row_reduce", "row_reduce", "row_reduce"),
        "100k of 64": (row(100_000, 64), "row_reduce", "row_reduce", "row_reduce"),
        "1x512x2048": (matmul(1, 512, 2048), "split_reduce", "gemm", "gemm_cpu"),
        "1x512x2048 t": (matmul(1, 512, 2048, tb=True), "row_reduce", "row_reduce", "gemm_cpu"),
        "1x32000x2048": (matmul(1, 32000, 2048), "gemm", "gemm", "gemm_cpu"),
        "16x512x4096": (matmul(16, 512, 4096), "gemm_split", "gemm", "gemm_cpu"),
        "64x64x8192": (matmul(64, 64, 8192), "gemm_split", "gemm", "gemm_cpu"),
        "512x512x512": (matmul(512, 512, 512), "gemm_shared", "gemm", "gemm_cpu"),
    }


@pytest.mark.parametrize("name", choices())
def test_split_where_the_device_would_idle(name):
    func, *wanted = choices()[name]
    chosen = [schedule(func, t).strategies[0].split()[0] for t in (WEBGPU, WEBGPU_SOFTWARE, WASM)]
    assert chosen == wanted


def test_a_symbolic_reduction_is_split_where_it_is_long():
    k = symbol("k")
    long, short = schedule(matrix("sum", "nk", 1, k), WEBGPU).versions
    assert long.guards == (ge(k, 1 << 16),) and long.temps
    assert short.guards == () and not short.temps
    func = matrix("max", "nk", 1, k)
    x = np.zeros((1, 70_001), np.float32)
    x[0, 69_999] = 3
    (got,) = run_schedule(schedule(func, WEBGPU), func, [x], {"k": 70_001})
    assert got == [3]
