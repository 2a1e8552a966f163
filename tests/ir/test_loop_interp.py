"""The loop interpreter against plain numpy, at odd sizes, and the faults it must find."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from edgerelax.ir.diagnostics import ShapeError, VerifyError
from edgerelax.ir.dtypes import BF16, BOOL, DTYPES, F16, F32, I8, I32, I64, U8, DType, from_numpy
from edgerelax.ir.loop import LoopFunc, Stage, Template, axis, grid
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.scalar import (
    Acc,
    Buffer,
    Cast,
    Value,
    cast,
    constant,
    gather,
    in_range,
    op,
    select,
)
from edgerelax.sym import as_expr, symbol

I4 = DTYPES["i4"]
N, M, K = symbol("n"), symbol("m"), symbol("k")
ROW, COL, R = axis("i", N), axis("j", M), axis("r", K)


def buffer(name: str, *dims: Any, dtype: DType = F32) -> Buffer:
    return Buffer(name, dtype, tuple(map(as_expr, dims)))


def func(inputs: list[Buffer], *stages: Stage | Template, out: Buffer | None = None) -> LoopFunc:
    last = stages[-1]
    outputs = (last.out,) if isinstance(last, Stage) else last.outputs
    return LoopFunc("f", tuple(inputs), (out,) if out else outputs, stages)


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


SIZES = [(3, 4, 5), (0, 2, 3), (2, 0, 3), (2, 3, 0), (1, 1, 1), (17, 13, 7)]
A, B = buffer("a", N, K), buffer("b", K, M)
OUT = buffer("out", N, M)


@pytest.mark.parametrize("n,m,k", SIZES)
def test_contraction_with_epilogue(n: int, m: int, k: int) -> None:
    stage = Stage(
        OUT, (ROW, COL), A[ROW, R] * B[R, COL], (R,), "sum", epilogue=op("max", Acc(F32) + 1.0, 0.0)
    )
    a, b = normal(n, k), normal(k, m)
    got = run_loop(func([A, B], stage), [a, b])[0]
    np.testing.assert_allclose(got, np.maximum(a @ b + 1, 0), rtol=1e-5, atol=1e-5)


def test_large_contraction_runs_in_blocks() -> None:
    stage = Stage(OUT, (ROW, COL), op("max", A[ROW, R], B[R, COL]), (R,), "sum")
    a, b = normal(300, 200), normal(200, 150)
    got = run_loop(func([A, B], stage), [a, b])[0]
    expected = np.maximum(a[:, :, None], b[None]).sum(axis=1, dtype=np.float64)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


REDUCTIONS = {
    "sum": np.sum,
    "prod": np.prod,
    "max": lambda x, axis: np.max(x, axis=axis, initial=-np.inf),
    "min": lambda x, axis: np.min(x, axis=axis, initial=np.inf),
}


@pytest.mark.parametrize("combiner", list(REDUCTIONS))
@pytest.mark.parametrize("k", [0, 1, 5])
def test_reductions(combiner: Any, k: int) -> None:
    out = buffer("out", N)
    a = normal(3, k)
    got = run_loop(func([A], Stage(out, (ROW,), A[ROW, R], (R,), combiner)), [a])[0]
    np.testing.assert_allclose(got, REDUCTIONS[combiner](a, axis=1), rtol=1e-5)


def test_init_starts_the_reduction() -> None:
    out, start = buffer("out", N), buffer("s", N)
    stage = Stage(out, (ROW,), A[ROW, R], (R,), "max", init=start[ROW])
    a, s = normal(4, 3), np.full(4, 0.5, np.float32)
    np.testing.assert_array_equal(
        run_loop(func([A, start], stage), [a, s])[0], np.maximum(a.max(1), 0.5)
    )


def test_where_on_reduce_axes_skips_steps() -> None:
    x, out = buffer("x", N), buffer("out", N)
    j = axis("j", N)
    stage = Stage(
        out, (ROW,), x[j], (j,), "sum", where=op("le", Value(as_expr(j)), Value(as_expr(ROW)))
    )
    np.testing.assert_array_equal(
        run_loop(func([x], stage), [np.arange(5, dtype=np.float32)])[0], [0, 1, 3, 6, 10]
    )


def test_where_on_spatial_axes_keeps_contents() -> None:
    x, out = buffer("x", N), buffer("out", N)
    first = Stage(out, (ROW,), constant(7.0, F32))
    second = Stage(out, (ROW,), x[ROW], where=op("gt", x[ROW], 0.0))
    got = run_loop(func([x], first, second), [np.array([-1, 2, 0, 3], np.float32)])[0]
    assert got.tolist() == [7, 2, 7, 3]


@pytest.mark.parametrize(
    "combiner,expected", [("argmax", 1), ("argmax_last", 3), ("argmin", 0), ("argmin_last", 2)]
)
def test_arg_reductions_break_ties_as_said(combiner: Any, expected: int) -> None:
    out = buffer("out", N, dtype=I64)
    a = np.array([[1, 5, 1, 5]], np.float32)
    assert run_loop(func([A], Stage(out, (ROW,), A[ROW, R], (R,), combiner)), [a])[0] == [expected]


def test_arg_reduction_finds_nan_and_gives_value_and_index() -> None:
    out = buffer("out", N)
    epilogue = Acc(F32, 0) + cast(Acc(I64, 1), F32)
    stage = Stage(out, (ROW,), A[ROW, R], (R,), "argmax", epilogue=epilogue)
    got = run_loop(func([A], stage), [np.array([[1, 9, 2], [1, np.nan, 2]], np.float32)])[0]
    assert got[0] == 10 and np.isnan(got[1])


def test_welford() -> None:
    out = buffer("out", N)
    stage = Stage(out, (ROW,), A[ROW, R], (R,), "welford", epilogue=Acc(F32, 1) / Acc(F32, 2))
    a = normal(3, 9) + 100
    np.testing.assert_allclose(run_loop(func([A], stage), [a])[0], a.var(axis=1), rtol=1e-4)


def test_any_and_all() -> None:
    x, out = buffer("x", N, K, dtype=BOOL), buffer("out", N, dtype=BOOL)
    data = np.array([[True, False], [True, True], [False, False]])
    for combiner, meaning in (("any", np.any), ("all", np.all)):
        stage = Stage(out, (ROW,), x[ROW, R], (R,), combiner)  # type: ignore[arg-type]
        np.testing.assert_array_equal(run_loop(func([x], stage), [data])[0], meaning(data, axis=1))


def test_integers_wrap_in_the_dtype_of_the_body() -> None:
    x, out = buffer("x", N, K, dtype=U8), buffer("out", N, dtype=U8)
    stage = Stage(out, (ROW,), x[ROW, R], (R,), "sum")
    assert run_loop(func([x], stage), [np.array([[200, 100]], np.uint8)])[0] == [44]


def test_select_is_lazy_and_padding_reads_nothing_outside() -> None:
    x, out = buffer("x", N), buffer("out", N + 2)
    (i,) = grid(out)
    inside = in_range(as_expr(i) - 1, 0, N)
    stage = Stage(out, (i,), select(inside, x[as_expr(i) - 1], constant(9, F32)))
    for n in (0, 1, 3):
        data = np.arange(n, dtype=np.float32)
        got = run_loop(func([x], stage), [data], {"n": n})[0]
        assert got.tolist() == [9, *data.tolist(), 9]


def test_gather_wraps_and_clamps() -> None:
    ids, out = buffer("ids", M, dtype=I64), buffer("out", M, K)
    stage = Stage(out, (COL, R), A[gather(ids[COL], N), R])
    a = normal(5, 3)
    got = run_loop(func([A, ids], stage), [a, np.array([0, -1, 4, 9, -9])])[0]
    np.testing.assert_array_equal(got, a[[0, 4, 4, 4, 0]])


def test_store_index_permutes() -> None:
    out = buffer("out", K, N)
    stage = Stage(out, (ROW, R), A[ROW, R], index=(as_expr(R), as_expr(ROW)))
    a = normal(2, 3)
    np.testing.assert_array_equal(run_loop(func([A], stage), [a])[0], a.T)


@pytest.mark.parametrize(
    "value,target,expected",
    [
        (3.9, I8, 3),
        (-3.9, I8, -3),
        (1e9, I8, 127),
        (-np.inf, I8, -128),
        (np.nan, I32, 0),
        (np.inf, I64, 2**63 - 1),
        (-5.0, U8, 0),
        (0.1, BOOL, True),
        (np.nan, BOOL, True),
        (9.0, I4, 7),
    ],
)
def test_casts_of_floats(value: float, target: DType, expected: Any) -> None:
    x, out = buffer("x", 1), buffer("out", 1, dtype=target)
    (i,) = grid(out)
    got = run_loop(func([x], Stage(out, (i,), Cast(x[i], target))), [np.array([value], "f4")])[0]
    assert got.dtype == target.numpy and got[0] == expected


def test_casts_of_integers_wrap() -> None:
    x, out = buffer("x", N, dtype=I32), buffer("out", N, dtype=I8)
    data = np.array([130, -130, 256, 5], np.int32)
    got = run_loop(func([x], Stage(out, (ROW,), Cast(x[ROW], I8))), [data])[0]
    np.testing.assert_array_equal(got, data.astype(np.int8))


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_narrow_floats_are_rounded_where_stored(dtype: DType) -> None:
    x, out = buffer("x", N, dtype=dtype), buffer("out", N, dtype=dtype)
    data = np.array([1.0, 1.001, 30.5], dtype.numpy)
    got = run_loop(func([x], Stage(out, (ROW,), x[ROW] * x[ROW] - x[ROW])), [data])[0]
    wide = data.astype(np.float32)
    np.testing.assert_array_equal(got, (wide * wide - wide).astype(dtype.numpy))


def test_temporaries_and_templates() -> None:
    x, t, out = buffer("x", N), buffer("t", N), buffer("out", N)
    stages = (Stage(t, (ROW,), x[ROW] + 1.0), Template("cumsum", (t,), (out,)))
    got = run_loop(func([x], *stages), [np.zeros(4, np.float32)])[0]
    assert got.tolist() == [1, 2, 3, 4]


def test_symbols_solved_from_compound_dims() -> None:
    x, out = buffer("x", 2 * N + 1), buffer("out", N)
    stage = Stage(out, (ROW,), x[2 * as_expr(ROW)])
    got = run_loop(func([x], stage), [np.arange(7, dtype=np.float32)])[0]
    assert got.tolist() == [0, 2, 4]


def test_shapes_that_contradict_are_named() -> None:
    stage = Stage(OUT, (ROW, COL), A[ROW, R] * B[R, COL], (R,), "sum")
    with pytest.raises(ShapeError, match=r"f: dim 0 of b must be k \(k = 3\), got 4"):
        run_loop(func([A, B], stage), [normal(2, 3), normal(4, 2)])


def test_unwritten_places_stand_out() -> None:
    out = buffer("out", N)
    stage = Stage(
        out, (ROW,), constant(1.0, F32), where=op("ge", Value(as_expr(ROW)), Value(as_expr(1)))
    )
    assert np.isnan(run_loop(func([], stage), [], {"n": 2})[0]).tolist() == [True, False]


FAULTS = {
    "loads x": lambda x, out: Stage(out, (ROW,), x[as_expr(ROW) + 1]),
    "stores at": lambda x, out: Stage(out, (ROW,), x[ROW], index=(as_expr(ROW) + 1,)),
    "two points": lambda x, out: Stage(out, (ROW,), x[ROW], index=(as_expr(ROW) // 2,)),
    "not written": lambda x, out: Stage(out, (ROW,), buffer("y", N)[ROW]),
}


@pytest.mark.parametrize("message", list(FAULTS))
def test_faults(message: str) -> None:
    x, out = buffer("x", N), buffer("out", N)
    with pytest.raises(VerifyError, match=message):
        run_loop(func([x], FAULTS[message](x, out)), [np.zeros(4, np.float32)])


def test_dtype_of_inputs_is_checked() -> None:
    x, out = buffer("x", N), buffer("out", N)
    with pytest.raises(VerifyError, match="x is f32, got float64"):
        run_loop(func([x], Stage(out, (ROW,), x[ROW])), [np.zeros(4)])


def test_every_dtype_is_known() -> None:
    assert from_numpy(np.dtype(ml_dtypes.int4)) == I4
