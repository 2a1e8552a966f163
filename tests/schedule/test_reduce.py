import numpy as np
import pytest

from edgerelax.ir.dtypes import BOOL, F16, F32, I32, I64
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.scalar import Acc, Buffer, Value, cast, constant, op
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import check

N, M, K = symbol("n"), symbol("m"), symbol("k")
SIZES = [(1, 1), (3, 0), (0, 3), (5, 7), (4, 64), (2, 65), (3, 131), (7, 4)]
ARG = ("argmax", "argmin", "argmax_last", "argmin_last")


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


def reduction(x, out, combiner, order="nk", **more):
    """Reduce a matrix over its last axis (nk) or its first (kn)."""
    n, k = (axis("i", x.dims[0]), axis("k", x.dims[1]))
    if order == "kn":
        n, k = axis("i", x.dims[1]), axis("k", x.dims[0])
    load = x[n, k] if order == "nk" else x[k, n]
    stage = Stage(out, (n,), load, (k,), combiner, **more)
    return LoopFunc("f", (x,), (out,), (stage,))


@pytest.mark.parametrize("order", ("nk", "kn"))
@pytest.mark.parametrize("combiner", ("sum", "prod", "max", "min", *ARG))
def test_floats(combiner, order):
    for n, k in SIZES:
        x = buf("x", F32, N, K) if order == "nk" else buf("x", F32, K, N)
        y = buf("y", I64 if combiner in ARG else F32, N)
        check(reduction(x, y, combiner, order), {"n": n, "k": k})


@pytest.mark.parametrize("order", ("nk", "kn"))
@pytest.mark.parametrize("combiner", ("max", "min", *ARG))
def test_nan_wins(combiner, order):
    rng = np.random.default_rng(1)
    values = rng.integers(-3, 3, (5, 67)).astype(np.float32)
    values[1, 40] = values[1, 50] = values[2, 0] = np.nan
    values[3] = -np.inf
    values[4] = np.inf
    x = buf("x", F32, 5, 67) if order == "nk" else buf("x", F32, 67, 5)
    y = buf("y", I64 if combiner in ARG else F32, 5)
    given = values if order == "nk" else np.ascontiguousarray(values.T)
    check(reduction(x, y, combiner, order), {}, arrays=[given])


@pytest.mark.parametrize("dtype", (I32, I64))
@pytest.mark.parametrize("combiner", ("sum", "prod", "max", "min", *ARG))
def test_integers(combiner, dtype):
    for n, k in SIZES:
        y = buf("y", I64 if combiner in ARG else dtype, N)
        check(reduction(buf("x", dtype, N, K), y, combiner), {"n": n, "k": k})


@pytest.mark.parametrize("order", ("nk", "kn"))
@pytest.mark.parametrize("combiner", ("any", "all"))
def test_bools(combiner, order):
    for n, k in SIZES:
        x = buf("x", BOOL, N, K) if order == "nk" else buf("x", BOOL, K, N)
        check(reduction(x, buf("y", BOOL, N), combiner, order), {"n": n, "k": k})


def test_short_floats_are_summed_in_f32():
    x, y = buf("x", F16, N, K), buf("y", F16, N)
    arrays = [np.full((2, 3000), 0.9, np.float16)]
    check(reduction(x, y, "sum"), {"n": 2, "k": 3000}, arrays=arrays, tolerance=1e-3)


@pytest.mark.parametrize("order", ("nk", "kn"))
def test_welford(order):
    for n, k in SIZES:
        x = buf("x", F32, N, K) if order == "nk" else buf("x", F32, K, N)
        count = op("max", Acc(F32, 2), 1.0)
        epilogue = Acc(F32, 0) + op("sqrt", Acc(F32, 1) / count)
        check(reduction(x, buf("y", F32, N), "welford", order, epilogue=epilogue), {"n": n, "k": k})


@pytest.mark.parametrize("combiner", ("sum", "max", "argmin", "welford"))
@pytest.mark.parametrize("k", (0, 1, 5, 66))
def test_where_skips_steps(combiner, k):
    x = buf("x", F32, N, K)
    n, r = axis("i", N), axis("k", K)
    epilogue = Acc(F32, 1) if combiner == "welford" else None
    y = buf("y", I64 if combiner == "argmin" else F32, N)
    guard = op("lt", Value(as_expr(r)), Value(n.expr + 2))
    stage = Stage(y, (n,), x[n, r], (r,), combiner, where=guard, epilogue=epilogue)
    check(LoopFunc("f", (x,), (y,), (stage,)), {"n": 6, "k": k})


@pytest.mark.parametrize("k", (0, 1, 9))
def test_init_and_epilogue(k):
    x, b, y = buf("x", F32, N, K), buf("b", F32, N), buf("y", F32, N)
    n, r = axis("i", N), axis("k", K)
    stage = Stage(
        y, (n,), x[n, r] * x[n, r], (r,), "sum", init=b[n], epilogue=op("sqrt", op("abs", Acc(F32)))
    )
    check(LoopFunc("f", (x, b), (y,), (stage,)), {"n": 5, "k": k})


@pytest.mark.parametrize("which", ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1), (0, 1, 2)))
def test_any_axes(which):
    x = buf("x", F32, N, M, K)
    for sizes in ((3, 5, 4), (1, 1, 1), (2, 8, 65), (2, 0, 3)):
        axes = [axis(f"i{k}", d) for k, d in enumerate(x.dims)]
        kept = tuple(a for k, a in enumerate(axes) if k not in which)
        reduced = tuple(axes[k] for k in which)
        y = Buffer("y", F32, tuple(a.extent for a in kept))
        stage = Stage(y, kept, x[tuple(axes)], reduced, "sum")
        func = LoopFunc("f", (x,), (y,), (stage,))
        check(func, dict(zip("nmk", sizes, strict=True)), tolerance=1e-4)


def test_sum_pool_windows():
    x, y = buf("x", F32, 2, N), buf("y", F32, 2, (N - 3) // 2 + 1)
    c, o, w = axis("c", 2), axis("o", (N - 3) // 2 + 1), axis("w", 3)
    stage = Stage(y, (c, o), x[c, o.expr * 2 + w], (w,), "max", epilogue=op("exp", Acc(F32)))
    check(LoopFunc("f", (x,), (y,), (stage,)), {"n": 17})


def test_mean_of_cast_integers():
    x, y = buf("x", I64, N, K), buf("y", F32, N)
    n, r = axis("i", N), axis("k", K)
    scale = op("max", cast(Value(K), F32), constant(1.0, F32))
    stage = Stage(y, (n,), cast(x[n, r], F32), (r,), "sum", epilogue=Acc(F32) / scale)
    for k in (0, 1, 10):
        check(LoopFunc("f", (x,), (y,), (stage,)), {"n": 3, "k": k})
