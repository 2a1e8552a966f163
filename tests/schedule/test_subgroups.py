"""Groups that reduce by subgroups give what others give, NaN included, whatever the size."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from edgerelax.ir.dtypes import F32, I32
from edgerelax.ir.kernel import SUBGROUPS, Kernel, KSubgroup, for_features, walk_exprs
from edgerelax.ir.kernel_interp import run_kernel
from edgerelax.ir.kernel_verify import verify_kernel
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.loop_interp import run_loop
from edgerelax.schedule.target import WEBGPU
from tests.kernel_runners import run_wgpu
from tests.schedule.oracle import assert_close, run_version, versions_by
from tests.schedule.test_reduce import buf, reduction

SIZES = (4, 8, 32, 64)
DATA = {
    "numbers": lambda rng: rng.integers(-50, 50, (2, 4100)),
    "nan": lambda rng: np.where(rng.random((2, 4100)) < 1e-3, np.nan, 1.0),
    "infinite": lambda rng: np.full((2, 4100), -np.inf),
}


def func(combiner: str, dtype: Any = F32) -> LoopFunc:
    return reduction(buf("x", dtype, 2, 4100), buf("y", dtype, 2), combiner)


def check(combiner: str, dtype: Any, data: Any, run: Any, strategies: Any) -> None:
    loop = func(combiner, dtype)
    given = [data.astype(dtype.numpy)]
    (want,) = run_loop(loop, given)
    for strategy in strategies:
        group = versions_by(strategy, loop, WEBGPU)[0]
        assert any(uses_subgroups(k) for k in group.kernels)
        for kernel in group.kernels:
            verify_kernel(kernel)
        (got,) = run_version(group, loop, given, {}, run)
        assert_close(got, want, 1e-4)


def uses_subgroups(kernel: Kernel) -> bool:
    chosen = for_features(kernel, frozenset((SUBGROUPS,)))
    return any(isinstance(e, KSubgroup) for e in walk_exprs(chosen.body))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("combiner", ("sum", "max", "min"))
def test_sizes_do_not_matter(combiner: str, size: int) -> None:
    rng = np.random.default_rng(size)
    for dtype, kinds in ((F32, DATA), (I32, ("numbers",))):
        for kind in kinds:
            run = partial(run_kernel, subgroup=size)
            check(combiner, dtype, DATA[kind](rng), run, ("row_reduce", "split_reduce"))


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("combiner", ("sum", "max"))
def test_on_a_device(combiner: str, kind: str) -> None:
    def run(kernel: Kernel, memory: Any, scalars: Any, grid: int) -> None:
        for name, value in run_wgpu(kernel, memory, scalars, grid, subgroups=True).items():
            memory[name][...] = value

    check(combiner, F32, DATA[kind](np.random.default_rng(0)), run, ("row_reduce", "split_reduce"))


def test_kernels_without_a_choice_stay_as_they_are() -> None:
    chosen = versions_by("row_reduce", func("argmax"), WEBGPU)[0].kernels[0]
    assert for_features(chosen, frozenset((SUBGROUPS,))) is chosen
