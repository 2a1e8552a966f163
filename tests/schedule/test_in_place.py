"""Outputs in the place of operands: what schedules allow, and that the rest would go wrong.

That what is allowed is right, `oracle.check` shows of everything in this folder.
"""

import numpy as np
import pytest

from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.dtypes import F16, F32, I32
from edgerelax.ir.kernel import Barrier, for_features, walk_stmts
from edgerelax.ir.kernel_in_place import accesses_only, loads_from, over_operands
from edgerelax.ir.kernel_interp import run_kernel
from edgerelax.ir.kernel_memory import KernelFault
from edgerelax.ir.kernel_verify import verify_kernel
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.scalar import Acc, Buffer, Load, cast, gather, op
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WASM, WEBGPU, WEBGPU_SOFTWARE
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import (
    ALL_TARGETS,
    check,
    every_choice,
    inputs_for,
    run_version,
    single,
)

N, M = symbol("n", 1), symbol("m", 1)


def buffer(name, *dims, dtype=F32):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


def residual(rows, columns, steps=3):
    """y = a @ b + r: the sum of a row and a column goes over the element of r."""
    a, b = buffer("a", rows, steps), buffer("b", steps, columns)
    r, y = buffer("r", rows, columns), buffer("y", rows, columns)
    i, j, k = axis("i", rows), axis("j", columns), axis("k", steps)
    stage = Stage(y, (i, j), a[i, k] * b[k, j], (k,), "sum", epilogue=Acc(F32) + r[i, j])
    return LoopFunc("residual", (a, b, r), (y,), (stage,), frozenset("b"))


def normed(width, *, again=False):
    """y of x and the mean of its row; a second output reads the row again once y is stored."""
    x, mean, y, z = buffer("x", N, width), buffer("mean", N), buffer("y", N, width), buffer("z", N)
    i, j, k = axis("i", N), axis("j", width), axis("k", width)
    stages = (
        Stage(mean, (i,), x[i, k], (k,), "sum"),
        Stage(y, (i, j), op("exp", x[i, j] - mean[i,])),
        Stage(z, (i,), x[i, k], (k,), "max"),
    )
    return LoopFunc("normed", (x,), (y, z) if again else (y,), stages if again else stages[:2])


def test_residuals_of_products():
    for columns in (64, 10, M):
        for m in (1, 5):
            sizes = {"n": m, "m": 7} if columns is M else {"n": m}
            check(residual(N, columns), sizes, tolerance=1e-4)
    for target in ALL_TARGETS:
        assert schedule(residual(N, 64), target).in_place == (("r", "y"),)
    for target in (WEBGPU, WEBGPU_SOFTWARE):
        assert schedule(residual(N, M), target).in_place == (("r", "y"),)


def test_groups_of_columns_that_overlap_compute_some_twice():
    """On the CPU, where columns are no multiple of a tile: the second time r is gone."""
    func = residual(N, 20)
    *_, version = schedule(func, WASM).versions
    assert version.in_place == ()
    arrays = inputs_for(func, {"n": 3})
    run_version(version, func, arrays, {"n": 3})
    for reduced in (False, True):
        with pytest.raises(KernelFault, match="after y was stored over it"):
            run_version(version, func, arrays, {"n": 3}, run=over_r(reduced))


def over_r(reduced):
    """Runs a kernel, or what it does to r and y alone, as if y lay over r."""

    def run(kernel, arrays, scalars, grid):
        if reduced:
            kernel = accesses_only(kernel, "r", "y")
            arrays = {p.buffer.name: arrays[p.buffer.name] for p in kernel.buffers}
        run_kernel(kernel, arrays, scalars, grid, {"r": "y"})

    return run


def test_an_operand_that_is_read_elsewhere_as_well():
    x, y = buffer("x", 20, 20), buffer("y", 20, 20)
    for target in ALL_TARGETS:
        same = single("same", (x,), y, lambda i, j: x[i, j] * x[i, j])
        assert schedule(same, target).in_place == (("x", "y"),)
        turned = single("turned", (x,), y, lambda i, j: x[i, j] + x[j, i])
        assert schedule(turned, target).in_place == ()
        for version in every_choice(turned, target):
            assert version.in_place == ()
            (kernel,) = version.kernels
            arrays = {n: np.ones((20, 20), np.float32) for n in "xy"}
            scalars = {n: e.eval({}) for n, e in kernel.scalars}
            with pytest.raises(KernelFault, match=r"after y was stored|race: "):
                run_kernel(kernel, arrays, scalars, kernel.grid.eval({}), {"x": "y"})


def test_an_element_of_another_size_is_none():
    x, y = buffer("x", N, dtype=F16), buffer("y", N)
    func = single("wider", (x,), y, lambda i: cast(x[i], F32))
    assert all(schedule(func, target).in_place == () for target in ALL_TARGETS)


def test_one_element_that_every_invocation_could_read():
    x, y = buffer("x"), buffer("y")
    func = LoopFunc("one", (x,), (y,), (Stage(y, (), Load(x, ()) * 2.0),))
    assert all(schedule(func, target).in_place == () for target in ALL_TARGETS)
    check(func, {})


@pytest.mark.parametrize("width", [5, 100])
def test_rows_that_are_read_before_they_are_stored(width):
    for rows in (1, 5):
        check(normed(width), {"n": rows}, tolerance=1e-3)
        check(normed(width, again=True), {"n": rows}, tolerance=1e-3)
    for target in ALL_TARGETS:
        assert schedule(normed(width), target).in_place == (("x", "y"),)
    for target in (WASM, WEBGPU_SOFTWARE):  # a group keeps the row in workgroup memory
        assert ("x", "y") not in schedule(normed(width, again=True), target).in_place


def test_one_binding_for_both():
    for target in ALL_TARGETS:
        for version in every_choice(residual(N, 64), target):
            if version.in_place:
                *_, kernel = version.kernels
                merged = over_operands(kernel, {"r": "y"})
                verify_kernel(merged)
                names = [p.buffer.name for p in merged.buffers]
                assert "r" not in names and len(names) == len(kernel.buffers) - 1
                assert loads_from(merged, "y") and not loads_from(merged, "r")


def test_what_decides_on_places_is_kept_and_little_else():
    found = 0
    for version in every_choice(residual(N, 64), WEBGPU):
        kernel = for_features(version.kernels[-1], frozenset())
        small = accesses_only(kernel, "r", "y")
        assert {p.buffer.name for p in small.buffers} == {"r", "y"}
        whole, part = (list(walk_stmts(k.body)) for k in (kernel, small))
        barriers = [sum(isinstance(s, Barrier) for s in stmts) for stmts in (whole, part)]
        assert barriers[0] == barriers[1]
        found += len(part) < len(whole)
    assert found


def test_places_that_data_decides_on_are_refused():
    x, at, y = buffer("x", N), buffer("at", N, dtype=I32), buffer("y", N)
    func = single("gather", (x, at), y, lambda i: x[gather(at[i], N)])
    (kernel,) = schedule(func, WEBGPU).versions[-1].kernels
    with pytest.raises(VerifyError, match="a place that data decides on"):
        accesses_only(kernel, "x", "y")
