"""More than 65,535 workgroups, and block numbers at the fold (web.md C 13, 14)."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.hosts import wgpu as host
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32, I32, U8, DType
from edgerelax.ops import OPS
from edgerelax.sym import symbol
from tests.faults.hosts import N, calling


@cache
def doubling(dtype: DType) -> api.Executable:
    return api.compile(calling("add", ((N,), dtype.numpy), ((), dtype.numpy)), fallback=False)


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int, int]]]:
    """(linear grid, x, y) of every launch."""
    seen: list[tuple[int, int, int]] = []
    launch = host.WgpuDevice.dispatch

    def noting(self: host.WgpuDevice, kernel: int, grid: int) -> object:
        made = launch(self, kernel, grid)
        seen.append((grid, made.x, made.y))
        return made

    monkeypatch.setattr(host.WgpuDevice, "dispatch", noting)
    yield seen


def items_per_workgroup(grids: list[tuple[int, int, int]]) -> int:
    """How many elements one workgroup of the map makes, found by asking."""
    with doubling(F32).session("wgpu") as session:
        for n in (1, 1 << 20):
            session.run({"x0": np.zeros(n, np.float32), "x1": np.float32(0)})
    return (1 << 20) // grids[-1][0]


@pytest.mark.parametrize("blocks", [65535, 65536, 65537, 131071])
@pytest.mark.parametrize("tail", [0, 1])
def test_maps_over_the_limit(blocks: int, tail: int, grids: list[tuple[int, int, int]]) -> None:
    """65,537 folds to x = 32,769, y = 2: one workgroup too many, which must do nothing."""
    per_group = items_per_workgroup(grids)
    n = blocks * per_group - tail * (per_group - 1)
    x = np.arange(n, dtype=np.float32)
    with doubling(F32).session("wgpu") as session:
        got = session.run({"x0": x, "x1": np.float32(1)})["y0"]
    grid, across, down = grids[-1]
    assert grid == blocks
    assert across <= 65535
    assert across * down >= grid
    np.testing.assert_array_equal(got, x + 1)
    assert got[-1] == np.float32(n - 1) + 1


@pytest.mark.parametrize("dtype", [I32, U8], ids=str)
def test_packed_and_integers_over_the_limit(
    dtype: DType, grids: list[tuple[int, int, int]]
) -> None:
    per_group = items_per_workgroup(grids) * (4 if dtype is U8 else 1)
    n = 65537 * per_group - 3
    x = (np.arange(n) % 251).astype(dtype.numpy)
    with doubling(dtype).session("wgpu") as session:
        got = session.run({"x0": x, "x1": np.array(1, dtype.numpy)})["y0"]
    np.testing.assert_array_equal(got, x + 1)


@pytest.mark.parametrize("rows", [65535, 65537])
def test_rows_over_the_limit(rows: int, grids: list[tuple[int, int, int]]) -> None:
    """A workgroup for each row: long rows, many of them."""

    f = Function("main")
    x = f.input("x", (N, 70), F32)
    f.output("sum", f.call(OPS["reduce_sum"], x, axes=(1,), keepdims=False))
    f.output("soft", f.call(OPS["softmax"], x, axis=-1))
    executable = api.compile(f.module(), fallback=False)
    data = np.zeros((rows, 70), np.float32)
    data[:, 3] = np.arange(rows) % 97
    with executable.session(variant="gpu") as session:
        got = session.run({"x": data})
    assert {g for g, _, _ in grids} == {rows}
    np.testing.assert_array_equal(got["sum"], data[:, 3])
    np.testing.assert_allclose(got["soft"].sum(1), np.ones(rows), rtol=1e-5)
    np.testing.assert_allclose(got["soft"][:, 3], _first(data[:, 3]), rtol=1e-5)


def _first(peak: np.ndarray) -> np.ndarray:
    """exp(p) / (exp(p) + 69): the softmax of a row with one number other than 0."""
    return 1 / (1 + 69 * np.exp(-peak.astype(np.float64)))


def test_columns_of_a_product_over_the_limit(grids: list[tuple[int, int, int]]) -> None:
    """A matrix-vector product with a great vocabulary."""
    m = symbol("m")
    executable = api.compile(
        calling("matmul", ((1, 4), np.float32), ((4, m), np.float32)), fallback=False
    )
    width = 65537 * 8 + 5
    weights = (np.arange(4 * width) % 13).reshape(4, width).astype(np.float32)
    with executable.session("wgpu") as session:
        got = session.run({"x0": np.float32([[1, 2, 3, 4]]), "x1": weights})["y0"]
    np.testing.assert_array_equal(got, np.float32([[1, 2, 3, 4]]) @ weights)


def test_products_in_batches_over_the_limit() -> None:
    executable = api.compile(
        calling("matmul", ((N, 2, 3), np.float32), ((N, 3, 2), np.float32)), fallback=False
    )
    count = 70_001
    a = (np.arange(count * 6) % 7).reshape(count, 2, 3).astype(np.float32)
    b = (np.arange(count * 6) % 5).reshape(count, 3, 2).astype(np.float32)
    with executable.session("wgpu") as session:
        np.testing.assert_array_equal(session.run({"x0": a, "x1": b})["y0"], a @ b)
