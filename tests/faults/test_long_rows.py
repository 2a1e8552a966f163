"""Rows longer than software adapters let a thread's loop run: 65,535 turns, silently."""

from typing import Any

import numpy as np
import pytest

import edgerelax.api as api
from tests.faults.hosts import N, calling, run

LENGTH = 70_000
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sort": ("topk", {"k": LENGTH}),
    "sums": ("cumsum", {}),
}
SCATTERS = (
    ("none", np.float32),
    ("none", np.int8),
    ("add", np.float32),
    ("add", np.float16),
    ("add", np.int64),
    ("mul", np.int64),
    ("mul", np.float32),
    ("mul", np.uint8),
    ("max", np.uint32),
    ("max", np.bool_),
    ("min", np.float32),
    ("min", np.int16),
)


@pytest.mark.parametrize("name", CASES)
def test_long_rows(name: str) -> None:
    op, attrs = CASES[name]
    x = np.random.default_rng(0).integers(0, 200, LENGTH).astype(np.float32)
    wanted = {"sort": np.argsort(-x, kind="stable"), "sums": np.cumsum(x)}[name]
    for variant, found in run(calling(op, ((LENGTH,), np.float32), **attrs), {"x0": x}).items():
        got = found["y0" if name == "sums" else "y1"]
        np.testing.assert_array_equal(got, wanted, err_msg=variant)


def test_passes_of_a_sort_share_a_kernel_however_long_rows_may_be() -> None:
    programs = api.compile(calling("topk", ((N,), np.float32), k=10)).artifact.manifest.programs
    on_gpu = [p for p in programs if p.device == "gpu"]
    assert on_gpu
    for program in on_gpu:
        assert len([k for k in program.gpu_kernels if k.name.endswith("_merge")]) == 1


def _updates(reduction: str, dtype: type) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Data of 99 places, and for each update a place (some negative, some outside) and a value."""
    rng = np.random.default_rng(1)
    data = (np.arange(99) % 4).astype(dtype)
    places = rng.integers(-99, 110, LENGTH)
    if reduction == "none":
        return data, places, (places % 99 % 7).astype(dtype)  # equal where the place is
    values = rng.integers(0, 3, LENGTH) if dtype != np.float16 else rng.integers(-1, 2, LENGTH)
    if reduction == "mul":
        values = np.where(rng.random(LENGTH) < 0.02, 3 if dtype != np.float32 else -1, 1)
    return data, places, values.astype(dtype)


@pytest.mark.parametrize(
    ("op", "reduction", "dtype"),
    [
        *(("scatter_elements", *case) for case in SCATTERS),
        *(("scatter_nd", *case) for case in SCATTERS[::2]),
    ],
)
def test_many_updates(op: str, reduction: str, dtype: type) -> None:
    data, places, updates = _updates(reduction, dtype)
    inside = places < 99
    wanted = data.astype(np.float32 if dtype == np.float16 else dtype)
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    if reduction == "none":
        wanted[places[inside]] = updates[inside]
    else:
        ufunc[reduction].at(wanted, places[inside], updates[inside])
    if op == "scatter_nd":
        places = places[:, None]
    module = calling(
        op, ((99,), dtype), ((N, *places.shape[1:]), np.int64), ((N,), dtype), reduction=reduction
    )
    given = {"x0": data, "x1": places, "x2": updates}
    for variant, got in run(module, given).items():
        np.testing.assert_array_equal(got["y0"], wanted.astype(dtype), err_msg=variant)
