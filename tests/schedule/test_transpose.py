"""Transposes: every config at odd sizes on the interpreter, then on the hosts."""

from typing import Any

import numpy as np
import pytest

from edgerelax.ir.dtypes import BOOL, F16, F32, I32, I64, U8
from edgerelax.ir.kernel import Array, Barrier, walk_stmts
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.scalar import Buffer, cast, constant, gather, op
from edgerelax.schedule.select import candidates, partition, schedule
from edgerelax.schedule.target import TARGETS, WASM, WEBGPU, WEBGPU_SOFTWARE, Target
from edgerelax.sym import as_expr, symbol
from tests.kernel_runners import run_wasm, run_wgpu
from tests.schedule.oracle import (
    assert_close,
    check,
    every_choice,
    inputs_for,
    run_schedule,
    run_version,
    single,
)

N, M, B = symbol("n"), symbol("m"), symbol("b")
ODD = (0, 1, 3, 4, 5, 15, 16, 17, 31)


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


def plain(m=M, n=N, dtype=F32):
    x, z = buf("x", dtype, m, n), buf("z", dtype, n, m)
    return single("f", [x], z, lambda i, j: x[j, i])


def offered(func, target):
    """The configs of transposes that are offered for the one stage."""
    (unit,) = partition(func, target)
    found = [c for c in candidates(unit, target) if not isinstance(c, str)]
    return [c[2] for c in found if c[0].name == "transpose"]


@pytest.mark.parametrize("m,n", [*zip(ODD, ODD[::-1], strict=True), *zip(ODD, ODD, strict=True)])
def test_odd_sizes(m: int, n: int) -> None:
    check(plain(), {"m": m, "n": n})


@pytest.mark.parametrize("m,n", [(4, 4), (8, 12), (5, 7), (33, 20)])
def test_known_sizes(m: int, n: int) -> None:
    check(plain(m, n), {})


def test_configs() -> None:
    assert offered(plain(), WEBGPU) == ["4x4", "16x16"]
    assert offered(plain(), WEBGPU_SOFTWARE) == ["4x4"]
    assert offered(plain(), WASM) == ["4x4"]


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_large_ones_are_chosen_without_barriers_where_these_are_slow(target: Target) -> None:
    plan = schedule(plain(), target)
    assert plan.strategies[0].startswith("transpose")
    body = plan.versions[-1].kernels[0].body
    barriers = any(isinstance(s, Barrier | Array) for s in walk_stmts(body))
    assert barriers == target.has_fast_barriers


@pytest.mark.parametrize("b,m,n", [(2, 5, 18), (3, 17, 3), (0, 4, 4)])
def test_batches_and_other_operands(b: int, m: int, n: int) -> None:
    """[b, m, h, n] → [b, h, n, m], with a bias by row, a scale by column and a residual."""
    x, z = buf("x", F32, B, M, 3, N), buf("z", F32, B, 3, N, M)
    bias, scale, rest = buf("bias", F32, N), buf("scale", F32, M), buf("rest", F32, B, 3, N, M)

    def body(i, h, j, k):
        return op("tanh", x[i, k, h, j] + bias[j]) * scale[k] + rest[i, h, j, k]

    check(single("f", [x, bias, scale, rest], z, body), {"b": b, "m": m, "n": n})


@pytest.mark.parametrize("b,m,n", [(2, 3, 4), (5, 1, 18), (17, 4, 3)])
def test_all_axes_reversed(b: int, m: int, n: int) -> None:
    """No two axes are always used as one; the loads run along the outermost one."""
    x, z = buf("x", F32, B, M, N), buf("z", F32, N, M, B)
    func = single("f", [x], z, lambda i, j, k: x[k, j, i])
    assert all(offered(func, target) for target in TARGETS.values())
    check(func, {"b": b, "m": m, "n": n})


def test_several_transposed_loads() -> None:
    x, y, z = buf("x", F32, M, N), buf("y", I32, M, N), buf("z", F32, N, M)
    func = single("f", [x, y], z, lambda i, j: x[j, i] * cast(y[j, i], F32) + x[j, i])
    check(func, {"m": 18, "n": 21})


@pytest.mark.parametrize("dtype", (BOOL, U8, F16))
def test_narrow_operands(dtype) -> None:
    x, z = buf("x", dtype, M, N), buf("z", F32, N, M)
    func = single("f", [x], z, lambda i, j: cast(x[j, i], F32) * 2.0)
    assert offered(func, WEBGPU) == ["4x4"]
    check(func, {"m": 18, "n": 7})


@pytest.mark.parametrize("dtype", (BOOL, U8, F16, I64))
def test_other_results_are_left_to_maps(dtype) -> None:
    func = plain(dtype=dtype)
    assert not offered(func, WEBGPU) and not offered(func, WASM)
    check(func, {"m": 5, "n": 7})


def test_gathered_rows() -> None:
    x, at, z = buf("x", F32, 9, N), buf("at", I64, M), buf("z", F32, N, M)
    func = single("f", [x, at], z, lambda i, j: x[gather(at[j], 9), i])
    arrays = [inputs_for(func, {"m": 7, "n": 18})[0], np.array([0, 8, 3, 3, 1, 7, 2])]
    check(func, {"m": 7, "n": 18}, arrays=arrays)


def test_stores_that_run_along_another_axis() -> None:
    x, z = buf("x", F32, M, N), buf("z", F32, N, M)
    (i, j) = grid(x)
    func = LoopFunc("f", (x,), (z,), (Stage(z, (i, j), x[i, j], index=(as_expr(j), as_expr(i))),))
    assert offered(func, WASM) == ["4x4"]
    check(func, {"m": 6, "n": 19})


def test_rows_that_are_not_stored() -> None:
    x, keep, z = buf("x", F32, M, N), buf("keep", BOOL, N), buf("z", F32, N, M)
    (i, j) = grid(z)
    stage = Stage(z, (i, j), x[j, i], where=keep[i])
    assert offered(LoopFunc("f", (x, keep), (z,), (stage,)), WEBGPU)
    first = Stage(z, grid(z), constant(1.0, F32))
    func = LoopFunc("f", (x, keep), (z,), (first, stage))
    check(func, {"m": 18, "n": 5})


def test_short_axes_are_left_to_maps() -> None:
    assert not offered(plain(3, 64), WASM)
    assert not offered(plain(64, 2), WEBGPU)


def test_more_than_a_chunk_of_columns() -> None:
    func = plain()
    sizes = {"m": 523, "n": 9}
    (x,) = inputs_for(func, sizes)
    (got,) = run_schedule(schedule(func, WASM), func, [x], sizes)
    np.testing.assert_array_equal(got, x.T)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
@pytest.mark.parametrize("m,n", [(16, 20), (17, 35)])
def test_hosts(m: int, n: int, target: Target) -> None:
    x, rest, z = buf("x", F32, 2, m, n), buf("rest", F32, 2, n, m), buf("z", F32, 2, n, m)
    func = single("f", [x, rest], z, lambda b, i, j: x[b, j, i] * 2.0 + rest[b, i, j])
    arrays = inputs_for(func, {})
    (want,) = run_loop(func, arrays, {})

    def run(kernel: Any, memory: Any, scalars: Any, grid: int) -> None:
        runner = run_wgpu if target.is_gpu else run_wasm
        for key, value in runner(kernel, memory, scalars, grid).items():
            memory[key][...] = value

    for version in every_choice(func, target):
        (got,) = run_version(version, func, arrays, {}, run)
        assert_close(got, want, 1e-6)
