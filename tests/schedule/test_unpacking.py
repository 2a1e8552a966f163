"""Weights that take computing, once for many rows: panels in a workspace that does not grow."""

from dataclasses import replace

import numpy as np
import pytest

from edgerelax.ir.dtypes import F16, F32, U8
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.scalar import Acc, cast
from edgerelax.schedule import runs, unpacking
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WASM
from tests.kernel_runners import run_wasm
from tests.schedule.oracle import assert_close, check, run_version
from tests.schedule.test_codes import (
    FORMS,
    M,
    arrays_for,
    asymmetric,
    nibble,
    one_scale,
    plane,
    product,
)
from tests.schedule.test_conv import buf
from tests.schedule.test_gemm_cpu import product as plain_product

CPU = (WASM,)


def check_rows(func: LoopFunc, *rows: int, tolerance: float = 3e-3) -> None:
    """Tiles of any height, for some numbers of rows."""
    for m in rows:
        check(func, {"m": m}, targets=CPU, arrays=arrays_for(func, m), tolerance=tolerance)


def computes_panels(func: LoopFunc) -> bool:
    return any(b.name.endswith("_panels") for b in schedule(func, WASM).versions[-1].temps)


@pytest.fixture
def small(monkeypatch):
    """Blocks of few rows, few runs of panels."""
    for name, value in {"_ROWS": 4, "_LEFT": 1}.items():
        monkeypatch.setattr(unpacking, name, value)
    monkeypatch.setattr(runs, "_MOST", 2)


@pytest.mark.parametrize("n", (8, 17, 40))
def test_blocks_of_rows_and_runs_of_panels(small, n):
    """Three panels in two runs, runs that end early; rows that end in a tile, and in a block."""
    func, _ = product(one_scale, M, n, 8)
    (temp,) = schedule(func, WASM).versions[-1].temps
    assert [d.as_int() for d in temp.dims] == [min(-(-n // 8), 2), 8, 8]
    check_rows(func, 0, 4, 7)


def batched(n: int, k: int) -> LoopFunc:
    """A weight for each of three batches."""
    b, i, j, r = axis("b", 3), axis("i", M), axis("j", n), axis("r", k)
    codes, scales = buf("codes", U8, 3 * n, k // 2), buf("scales", F16, 3 * n, k // 32)
    row = b.expr * n + j
    weight = plane(scales, row, r.expr, 32) * cast(nibble(codes, row, r.expr) - 8, F32)
    x, y = buf("x", F32, 3, M, k), buf("y", F32, 3, M, n)
    stage = Stage(y, (b, i, j), x[b, i, r] * weight, (r,), "sum")
    names = frozenset(("codes", "scales"))
    return LoopFunc("product", (x, codes, scales), (y,), (stage,), names)


def test_batches_of_weights(small):
    func = batched(16, 32)
    assert computes_panels(func)
    check_rows(func, 3)


def test_two_summed_axes():
    n, h, k = 8, 3, 32
    i, j, a, r = axis("i", M), axis("j", n), axis("a", h), axis("r", k)
    codes, scales = buf("codes", U8, n * h, k // 2), buf("scales", F16, n * h, k // 32)
    row = j.expr * h + a
    weight = plane(scales, row, r.expr, 32) * cast(nibble(codes, row, r.expr) - 8, F32)
    x, y = buf("x", F32, h, M, k), buf("y", F32, M, n)
    stage = Stage(y, (i, j), x[a, i, r] * weight, (a, r), "sum")
    func = LoopFunc("product", (x, codes, scales), (y,), (stage,), frozenset(("codes", "scales")))
    assert computes_panels(func)
    check_rows(func, 3)


def test_halves_are_widened_once():
    x, w, y = buf("x", F32, M, 5), buf("w", F16, 5, 17), buf("y", F32, M, 17)
    i, j, r = axis("i", M), axis("j", 17), axis("r", 5)
    stage = Stage(y, (i, j), x[i, r] * cast(w[r, j], F32), (r,), "sum")
    func = LoopFunc("product", (x, w), (y,), (stage,), frozenset("w"))
    assert computes_panels(func)
    check_rows(func, 6)


def test_the_sum_may_lie_over_what_is_added_to_it():
    func, _ = product(asymmetric, M, 16, 64)
    (stage,) = func.stages
    z = buf("z", F32, M, 16)
    stage = replace(stage, epilogue=Acc(F32) + z[stage.axes])
    func = replace(func, inputs=(*func.inputs, z), stages=(stage,))
    assert schedule(func, WASM).versions[-1].in_place == (("z", "y"),)
    check_rows(func, 5)


def test_the_workspace_does_not_grow_with_the_columns():
    func, _ = product(asymmetric, M, 1 << 16, 64)
    (temp,) = schedule(func, WASM).versions[-1].temps
    assert [d.as_int() for d in temp.dims] == [32, 64, 8]


def test_floats_are_read_where_they_are():
    assert not computes_panels(plain_product(M, 16, 8))


def test_nor_is_a_factor_that_is_no_weight():
    """Packed weights are the rows here."""
    w, x, y = buf("w", F32, 8, 12), buf("x", F16, 12, M), buf("y", F32, 8, M)
    i, j, r = axis("i", 8), axis("j", M), axis("r", 12)
    stage = Stage(y, (i, j), w[i, r] * cast(x[r, j], F32), (r,), "sum")
    func = LoopFunc("product", (w, x), (y,), (stage,), frozenset("w"))
    assert not computes_panels(func)
    check(func, {"m": 9}, targets=CPU, tolerance=2e-2)


def test_one_row_takes_codes_as_they_are():
    func, _ = product(asymmetric, M, 16, 64)
    row, many = schedule(func, WASM).versions
    assert not row.temps and many.temps and row.packed == many.packed


@pytest.mark.parametrize("form", FORMS)
def test_as_webassembly(small, form):
    func, _ = product(FORMS[form], M, 21, 64)
    arrays, rows = arrays_for(func, 11), {"m": 11}
    version = schedule(func, WASM).versions[-1]

    def run(kernel, memory, scalars, grid):
        for name, array in run_wasm(kernel, memory, scalars, grid).items():
            np.copyto(memory[name], array)

    (got,) = run_version(version, func, arrays, rows, run)
    assert_close(got, run_loop(func, arrays, rows)[0], 3e-3)
