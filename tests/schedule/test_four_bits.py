"""Elements of 4 bits: read on every target, written where each has a byte of its own (the CPU)."""

import numpy as np
import pytest

from edgerelax.ir.dtypes import DTYPES, F32
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.scalar import Buffer, cast
from edgerelax.schedule.target import WASM
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import check, single

N, K = symbol("n"), symbol("k")
FOUR_BITS = pytest.mark.parametrize("dtype", (DTYPES["i4"], DTYPES["u4"]), ids=str)


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


@FOUR_BITS
def test_scaled_by_row(dtype):
    for k in (K, 8):
        q, s, y = buf("q", dtype, N, k), buf("s", F32, N), buf("y", F32, N, k)
        i, j = grid(y)
        func = LoopFunc("f", (q, s), (y,), (Stage(y, (i, j), cast(q[i, j], F32) * s[i]),))
        for n, width in ((1, 1), (3, 8), (5, 13), (0, 4), (2, 0)):
            check(func, {"n": n, "k": width})


@FOUR_BITS
def test_every_value_is_read(dtype):
    low, high = dtype.int_range
    values = np.arange(low, high + 1).astype(dtype.numpy)
    q, y = buf("q", dtype, 16), buf("y", F32, 16)
    check(single("f", [q], y, lambda i: cast(q[i], F32)), {}, arrays=[values])


@FOUR_BITS
@pytest.mark.parametrize("width", (8, 6))
def test_product_with_scaled_weights(dtype, width):
    x, q, s = buf("x", F32, N, K), buf("q", dtype, K, width), buf("s", F32, width)
    y = buf("y", F32, N, width)
    i, j, k = axis("i", N), axis("j", width), axis("k", K)
    body = x[i, k] * (cast(q[k, j], F32) * s[j])
    func = LoopFunc("f", (x, q, s), (y,), (Stage(y, (i, j), body, (k,), "sum"),))
    for n, depth in ((1, 5), (6, 9), (2, 0)):
        check(func, {"n": n, "k": depth}, tolerance=1e-4)


@FOUR_BITS
def test_sum_of_rows(dtype):
    q, y = buf("q", dtype, N, K), buf("y", F32, N)
    k = axis("k", K)
    func = single("f", [q], y, lambda i: cast(q[i, k], F32), reduce=(k,), combiner="sum")
    for n, depth in ((3, 16), (2, 7)):
        check(func, {"n": n, "k": depth})


@FOUR_BITS
def test_written(dtype):
    x, q = buf("x", F32, N, 5), buf("q", dtype, N, 5)
    func = single("f", [x], q, lambda i, j: cast(x[i, j] * 3.0, dtype))
    values = np.linspace(-20, 20, 15, dtype=np.float32).reshape(3, 5)
    check(func, {"n": 3}, targets=[WASM], arrays=[values])
    moved = buf("moved", dtype, 5, N)
    check(single("f", [q], moved, lambda j, i: q[i, j]), {"n": 3}, targets=[WASM])
