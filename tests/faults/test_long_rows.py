"""Rows longer than software adapters let a thread's loop run: 65,535 turns, silently."""

from typing import Any

import numpy as np
import pytest

from tests.faults.hosts import calling, run

LENGTH = 70_000
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sort": ("topk", {"k": LENGTH}),
    "sums": ("cumsum", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_long_rows(name: str) -> None:
    op, attrs = CASES[name]
    x = np.random.default_rng(0).integers(0, 200, LENGTH).astype(np.float32)
    wanted = {"sort": np.argsort(-x, kind="stable"), "sums": np.cumsum(x)}[name]
    for variant, found in run(calling(op, ((LENGTH,), np.float32), **attrs), {"x0": x}).items():
        got = found["y0" if name == "sums" else "y1"]
        np.testing.assert_array_equal(got, wanted, err_msg=variant)
