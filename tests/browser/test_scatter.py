"""Updates by atomics, of every kind, in a browser: its compiler of kernels is another."""

from pathlib import Path

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32, I32, I64, U32, DType
from edgerelax.ops import OPS
from edgerelax.sym import symbol
from tests.browser.harness import Browser
from tests.browser.runtime_page import BACKENDS, check

PLACES, UPDATES = 9, 3000
CASES: tuple[tuple[str, DType], ...] = (
    *((fn, dtype) for fn in ("add", "mul", "max", "min") for dtype in (F32, I32)),
    ("max", U32),
    ("add", I64),
)
UFUNCS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _compiled() -> api.Executable:
    f, n = Function("main"), symbol("n")
    places = f.input("places", (n,), I64)
    for fn, dtype in CASES:
        name = f"{fn}_{dtype}"
        data, updates = f.input(f"d_{name}", (PLACES,), dtype), f.input(f"u_{name}", (n,), dtype)
        f.output(name, f.call(OPS["scatter_elements"], data, places, updates, reduction=fn))
    return api.compile(f.module())


@pytest.mark.parametrize("backend", BACKENDS)
def test_updates_by_atomics(page: Browser, tmp_path: Path, backend: str) -> None:
    _compiled().save(tmp_path / "scatter")
    page.open("scatter", page.publish(tmp_path / "scatter", f"scatter-{backend}"), backend=backend)
    rng = np.random.default_rng(0)
    places = rng.integers(-PLACES, PLACES + 2, UPDATES)
    inside = places < PLACES
    inputs, expected = {"places": places}, {}
    for fn, dtype in CASES:
        name = f"{fn}_{dtype}"
        values = rng.choice([1, 1, 3] if dtype != F32 else [-1, 1], UPDATES)
        values = values if fn == "mul" else rng.integers(0, 90, UPDATES)
        inputs[f"d_{name}"] = np.arange(1, PLACES + 1).astype(dtype.numpy)
        inputs[f"u_{name}"] = values.astype(dtype.numpy)
        expected[name] = inputs[f"d_{name}"].copy()
        UFUNCS[fn].at(expected[name], places[inside], inputs[f"u_{name}"][inside])
    check(page.run("scatter", inputs)[0], expected)
