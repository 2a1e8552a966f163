"""topk for any k and any row: counted, by networks, merged, on the interpreter and on hosts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgerelax.ir.dtypes import F16, F32, I8, I32, I64, U32
from edgerelax.ir.kernel import Kernel
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.loop_interp import run_loop
from edgerelax.schedule.select import schedule
from edgerelax.schedule.strategies.templates import sort_tiles, topk_few
from edgerelax.schedule.target import TARGETS, WASM, WEBGPU, WEBGPU_SOFTWARE, Target
from edgerelax.sym import Expr, as_expr, symbol
from tests.kernel_runners import run_wasm, run_wgpu
from tests.schedule.oracle import assert_close, run_schedule, run_version
from tests.schedule.test_templates import buf, template

N, K = symbol("n"), symbol("k")


def topk(n, k, *, rows=2, dtype=F32, largest=True) -> LoopFunc:
    outs = [buf("v", dtype, rows, k), buf("i", I64, rows, k)]
    return template(
        "topk", [buf("x", dtype, rows, n)], outs, k=outs[0].dims[1], largest=largest, sorted=True
    )


def rows_of(n: int, dtype: Any, rows: int = 2, seed: int = 0) -> Any:
    """Many equal values, and what floats have besides numbers."""
    rng = np.random.default_rng(seed)
    lo = 0 if dtype is U32 else -20
    x = rng.integers(lo, 20, (rows, n)).astype(dtype.numpy)
    if dtype.is_float:
        special = np.array([np.nan, np.inf, -np.inf, -0.0], dtype.numpy)
        where = rng.random(x.shape) < 0.1
        x[where] = rng.choice(special, int(where.sum()))
    return x


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort_tiles, "_COUNTED", 4)
    monkeypatch.setattr(sort_tiles, "_TILE", 16)
    monkeypatch.setattr(sort_tiles, "_THREADS", 4)
    monkeypatch.setattr(sort_tiles, "_LONGEST", 64)


def agree(func: LoopFunc, sizes: dict[str, int], arrays: list[Any]) -> None:
    """Every target gives what numpy gives."""
    want = run_loop(func, arrays, sizes)
    for target in TARGETS.values():
        got = run_schedule(schedule(func, target), func, arrays, sizes)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, 0.0)


LENGTHS = {0: (0,), 1: (0, 1), 4: (4,), 5: (1, 5), 16: (3,), 17: (17,), 33: (16,), 64: (63,)}


@pytest.mark.parametrize("n,ks", LENGTHS.items())
def test_rows_of_any_length(small_tiles: None, n: int, ks: tuple[int, ...]) -> None:
    for k in ks:
        func = topk(N, K, largest=k % 2 == 1)
        agree(func, {"n": n, "k": k}, [rows_of(n, F32)])


@pytest.mark.parametrize("dtype", (F16, I8, I32, U32, I64), ids=str)
def test_types(small_tiles: None, dtype: Any) -> None:
    largest = dtype.is_float or dtype is U32
    agree(topk(N, K, dtype=dtype, largest=largest), {"n": 18, "k": 18}, [rows_of(18, dtype)])


@pytest.mark.parametrize("n", (64, 65))
def test_known_lengths(n: int) -> None:
    agree(topk(n, 60, rows=1), {}, [rows_of(n, F32, 1)])


def kernels(func: LoopFunc, target: Target) -> tuple[Kernel, ...]:
    return schedule(func, target).versions[-1].kernels


def test_passes_are_as_many_as_the_row_needs() -> None:
    assert len(kernels(topk(1024, 100), WEBGPU)) == 1
    assert len(kernels(topk(64, 10), WEBGPU_SOFTWARE)) == 1
    assert len(kernels(topk(1025, 100), WEBGPU)) == 3
    assert len(kernels(topk(8192, 100), WEBGPU)) == 5


@pytest.mark.parametrize("target", (WEBGPU, WEBGPU_SOFTWARE), ids=lambda t: t.name)
@pytest.mark.parametrize("n", (N, as_expr(1 << 16)), ids=str)
def test_passes_are_one_kernel(n: Expr, target: Target) -> None:
    tiles, *passes, results = kernels(topk(n, 100), target)
    assert len(passes) >= 6
    assert {id(p.body) for p in passes} == {id(passes[0].body)}
    given = {tuple(str(e) for _, e in p.scalars) for p in passes}
    assert len(given) == len(passes)
    symbols = {s.name for p in (tiles, *passes, results) for _, e in p.scalars for s in e.symbols()}
    assert symbols == {s.name for s in n.symbols()}


def on(target: Target) -> Any:
    """Runs kernels of a target on its host."""

    def run(kernel: Any, memory: Any, scalars: Any, grid: int) -> None:
        runner = run_wgpu if target.is_gpu else run_wasm
        for key, value in runner(kernel, memory, scalars, grid).items():
            memory[key][...] = value

    return run


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
@pytest.mark.parametrize("n,k", [(700, 90), (3000, 3000)])
def test_hosts(n: int, k: int, target: Target) -> None:
    func = topk(N, k)
    arrays = [rows_of(n, F32)]
    want = run_loop(func, arrays, {"n": n})
    (version,) = schedule(func, target).versions
    got_all = run_version(version, func, arrays, {"n": n}, on(target))
    for got, w in zip(got_all, want, strict=True):
        assert_close(got, w, 0.0)


# Few of long rows


@pytest.fixture
def few_of_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk_few, "_SHORT", 4)
    monkeypatch.setattr(topk_few, "_TILES", 8)


FEW = ((5, 5, F32), (16, 1, F32), (17, 3, I32), (37, 7, F32), (300, 9, F32), (131, 32, U32))


@pytest.mark.parametrize("largest", (False, True))
@pytest.mark.parametrize(("n", "k", "dtype"), FEW, ids=str)
def test_few(few_of_short: None, n: int, k: int, dtype: Any, largest: bool) -> None:
    """Tiles of one element and of none, equals, and what floats have besides numbers."""
    func = topk(N, k, dtype=dtype, largest=largest)
    arrays = [rows_of(n, dtype)]
    want = run_loop(func, arrays, {"n": n})
    for target in (replace(WEBGPU, workgroup_size=16), WASM):
        version = schedule(func, target).versions[-1]
        assert len(version.kernels) == 1
        got = run_version(version, func, arrays, {"n": n})
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, 0.0)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda t: t.name)
def test_few_on_hosts(target: Target) -> None:
    func = topk(32003, 20)
    arrays = [rows_of(32003, F32)]
    want = run_loop(func, arrays, {})
    (version,) = schedule(func, target).versions
    assert len(version.kernels) == 1
    for got, w in zip(run_version(version, func, arrays, {}, on(target)), want, strict=True):
        assert_close(got, w, 0.0)
