import numpy as np
import pytest

from edgerelax.ir.dtypes import F16, F32, I8, I32
from edgerelax.ir.kernel import For, KStore, walk_stmts
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.scalar import Acc, Buffer, cast, op
from edgerelax.schedule.contraction import contraction
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import TARGETS, WEBGPU, WEBGPU_SOFTWARE
from edgerelax.sym import as_expr, eq, symbol
from tests.schedule.oracle import check

B, M, N, K = (symbol(c) for c in "bmnk")
SIZES = [(1, 1, 1), (4, 4, 4), (5, 7, 3), (3, 33, 9), (33, 5, 12), (1, 17, 8), (2, 0, 3), (3, 5, 0)]


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


def matmul(m, n, k, *, ta=False, tb=False, batch=(), batch_b=True, dtype=F32, epilogue=None):
    a = buf("a", dtype, *batch, *((k, m) if ta else (m, k)))
    b = buf("b", dtype, *(batch if batch_b else ()), *((n, k) if tb else (k, n)))
    wide = I32 if dtype is I8 else F32
    y = buf("y", I32 if dtype is I8 else dtype, *batch, m, n)
    lead = tuple(axis(f"q{j}", d) for j, d in enumerate(batch))
    i, j, s = axis("i", m), axis("j", n), axis("k", k)
    left = a[(*lead, s, i) if ta else (*lead, i, s)]
    right = b[(*(lead if batch_b else ()), *((j, s) if tb else (s, j)))]
    extra, tail = (), None
    if epilogue:
        extra, tail = epilogue(lead, i, j, y)
    body = cast(left, wide) * cast(right, wide)
    stage = Stage(y, (*lead, i, j), body, (s,), "sum", epilogue=tail)
    return LoopFunc("gemm", (a, b, *extra), (y,), (stage,))


@pytest.mark.parametrize("tb", (False, True))
@pytest.mark.parametrize("ta", (False, True))
def test_symbolic(ta, tb):
    for m, n, k in SIZES:
        check(matmul(M, N, K, ta=ta, tb=tb), {"m": m, "n": n, "k": k}, tolerance=1e-4)


@pytest.mark.parametrize("tb", (False, True))
@pytest.mark.parametrize(("n", "k"), [(8, 8), (12, 4), (36, 40), (4, 6), (7, 8)])
def test_constant_sizes(n, k, tb):
    for m in (1, 3, 8, 35):
        check(matmul(M, n, k, tb=tb), {"m": m}, tolerance=1e-4)


@pytest.mark.parametrize("batch_b", (False, True))
def test_batches(batch_b):
    for m, n, k in ((3, 8, 4), (1, 5, 7)):
        func = matmul(M, N, K, batch=(2, B), batch_b=batch_b)
        check(func, {"b": 3, "m": m, "n": n, "k": k}, tolerance=1e-4)
        check(matmul(M, 8, 12, batch=(B,), batch_b=batch_b), {"b": 2, "m": m}, tolerance=1e-4)


def test_one_row_or_column():
    for n in (1, 5, 16, 70):
        check(matmul(1, N, 8), {"n": n}, tolerance=1e-4)
        check(matmul(1, N, 8, tb=True), {"n": n}, tolerance=1e-4)
        check(matmul(N, 1, 8), {"n": n}, tolerance=1e-4)


def test_epilogue_with_loads():
    def epilogue(lead, i, j, y):
        bias, rest = buf("bias", F32, y.dims[1]), buf("rest", F32, *y.dims)
        return (bias, rest), op("tanh", Acc(F32) + bias[j]) + rest[i, j]

    for m, n, k in SIZES:
        check(matmul(M, N, K, epilogue=epilogue), {"m": m, "n": n, "k": k}, tolerance=1e-4)
    for m in (1, 5, 9):
        check(matmul(M, 8, 4, epilogue=epilogue), {"m": m}, tolerance=1e-4)


@pytest.mark.parametrize("n", (N, 8))
def test_half_floats(n):
    check(matmul(M, n, 12, dtype=F16), {"m": 5, "n": 7}, tolerance=4e-3)


def test_integers():
    check(matmul(M, N, K, dtype=I8), {"m": 5, "n": 7, "k": 9})


def test_transposed_output_and_shared_heads():
    """Queries by grouped keys: a key head is a query head over 3; output columns are keys."""
    q, k, y = buf("q", F32, M, 6, 8), buf("k", F32, N, 2, 8), buf("y", F32, 6, M, N)
    h, i, j, d = axis("h", 6), axis("i", M), axis("j", N), axis("d", 8)
    body = q[i, h, d] * k[j, h.expr // 3, d]
    func = LoopFunc("f", (q, k), (y,), (Stage(y, (h, i, j), body, (d,), "sum"),))
    found = contraction(func.stages[0])
    assert [str(a.extent) for a in found.rows] == ["3", "m"]
    for m, n in ((1, 1), (5, 7), (9, 4)):
        check(func, {"m": m, "n": n}, tolerance=1e-4)


def test_heads_of_one_position_have_a_version_of_their_own():
    q, k, y = buf("q", F32, M, 8, 64), buf("k", F32, N, 2, 64), buf("y", F32, 8, M, N)
    h, i, j, d = axis("h", 8), axis("i", M), axis("j", N), axis("d", 64)
    stage = Stage(y, (h, i, j), q[i, h, d] * k[j, h.expr // 4, d], (d,), "sum")
    func = LoopFunc("f", (q, k), (y,), (stage,))
    row, general = schedule(func, WEBGPU).versions
    assert row.guards == (eq(M, 1),) and general.guards == ()
    for m in (1, 2):
        check(func, {"m": m, "n": 5}, targets=[WEBGPU], tolerance=1e-4)


def test_two_reduced_axes():
    x, v, y = buf("x", F32, N, 3, K), buf("v", F32, 3, K, 8), buf("y", F32, N, 8)
    i, j, a, b = axis("i", N), axis("j", 8), axis("a", 3), axis("b", K)
    plain = Stage(y, (i, j), x[i, a, b] * v[a, b, j], (a, b), "sum")
    func = LoopFunc("f", (x, v), (y,), (plain,))
    check(func, {"n": 5, "k": 6}, tolerance=1e-4)
    turned = Stage(y, (i, j), x[i, a, b] * v[a, b, j], (b, a), "sum")
    check(LoopFunc("f", (x, v), (y,), (turned,)), {"n": 5, "k": 6}, tolerance=1e-4)


def test_one_row_has_a_version_of_its_own():
    for target in TARGETS.values():
        versions = schedule(matmul(M, 512, 512, batch=(B,), batch_b=False), target).versions
        assert versions[0].guards == (eq(B, 1), eq(M, 1)) and versions[-1].guards == ()
    assert len(schedule(matmul(7, N, K), WEBGPU).versions) == 1


def test_a_large_product_is_a_gemm_on_every_target():
    for target in TARGETS.values():
        assert "gemm" in schedule(matmul(256, 256, 256), target).strategies[0]
    assert "gemm_shared" in schedule(matmul(1024, 1024, 256), WEBGPU).strategies[0]


def test_a_slow_compiler_gets_one_store_and_steps_of_one():
    """Four steps are written out where adapters that count turns might leave the loop early."""

    def text(k):
        func = matmul(symbol("m", lo=17), 32, k)
        (version,) = schedule(func, WEBGPU_SOFTWARE).versions
        (kernel,) = version.kernels
        stmts = list(walk_stmts(kernel.body))
        stores = sum(isinstance(s, KStore) for s in stmts)
        return stores, {s.step for s in stmts if isinstance(s, For)}

    assert text(64) == (1, {1})
    assert text(1 << 15) == text(symbol("k") * 4) == (1, {1, 4})


def test_infinities_pass_through():
    a = np.full((5, 6), np.inf, np.float32)
    b = np.ones((6, 7), np.float32)
    b[0, 3] = -1
    check(matmul(5, 7, 6), {}, arrays=[a, b])
