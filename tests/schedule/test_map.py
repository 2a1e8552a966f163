import numpy as np
import pytest

from edgerelax.ir.dtypes import BOOL, F16, F32, I8, I32, I64, U8
from edgerelax.ir.kernel_in_place import stores_as_is
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.scalar import Buffer, Value, cast, constant, gather, in_range, op, select
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WEBGPU
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import check, single

N, M = symbol("n"), symbol("m")
SIZES = (0, 1, 3, 4, 5, 7, 64, 257)


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


@pytest.mark.parametrize("n", SIZES)
def test_elementwise_on_a_symbolic_size(n):
    x, y, z = buf("x", F32, N, 3), buf("y", F32, N, 3), buf("z", F32, N, 3)
    check(single("f", [x, y], z, lambda i, j: op("exp", x[i, j]) * y[i, j] + 1.0), {"n": n})


@pytest.mark.parametrize("n", (0, 1, 5, 9))
def test_vector_body_with_broadcasts_and_splats(n):
    x, b, c, z = buf("x", F32, N, 8), buf("b", F32, 8), buf("c", F32, N), buf("z", F32, N, 8)
    check(single("f", [x, b, c], z, lambda i, j: (x[i, j] + b[j]) * c[i]), {"n": n})


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 5), (7, 4), (0, 3), (13, 11)])
def test_transpose(n, m):
    x, z = buf("x", F32, M, N), buf("z", F32, N, M)
    check(single("f", [x], z, lambda i, j: x[j, i]), {"n": n, "m": m})


def test_a_long_chain_of_steps():
    """Deeper than Python's stack; as a tree, what reads a value twice again and again is huge."""
    x, z = buf("x", F32, 8), buf("z", F32, 8)

    def body(i):
        value = x[i]
        for _ in range(300):
            value = op("sin", value) * 0.5 + value * 0.25
        return value

    func = single("f", [x], z, body)
    check(func, {}, targets=(WEBGPU,))
    kernels = [k for version in schedule(func, WEBGPU).versions for k in version.kernels]
    assert kernels and not any(map(stores_as_is, kernels))


def test_transpose_of_aligned_dims():
    x, z = buf("x", F32, 8, 12), buf("z", F32, 12, 8)
    check(single("f", [x], z, lambda i, j: x[j, i]), {})


@pytest.mark.parametrize("dtype", (BOOL, U8, I8, F16))
@pytest.mark.parametrize("n", (0, 1, 2, 3, 5, 8, 65))
def test_sub_word_outputs(dtype, n):
    x, z = buf("x", F32, N), buf("z", dtype, N)
    body = (lambda i: op("gt", x[i], 0.0)) if dtype is BOOL else (lambda i: cast(x[i] * 3.0, dtype))
    if dtype is U8:
        body = lambda i: cast(op("abs", x[i]) * 3.0, dtype)  # noqa: E731
    check(single("f", [x], z, body), {"n": n})


@pytest.mark.parametrize("dtype", (BOOL, F16))
def test_sub_word_vectors(dtype):
    x, z = buf("x", dtype, 6, 8), buf("z", dtype, 6, 8)
    body = (lambda i, j: op("not", x[i, j])) if dtype is BOOL else (lambda i, j: x[i, j] * 2.0)
    check(single("f", [x], z, body), {})


@pytest.mark.parametrize("n", (0, 1, 4, 6))
def test_pad_with_lazy_loads(n):
    x, z = buf("x", F32, N, 5), buf("z", F32, N + 2, 8)

    def body(i, j):
        inside = op("and", in_range(i.expr - 1, 0, N), in_range(j.expr - 2, 0, 5))
        return select(inside, x[i.expr - 1, j.expr - 2], constant(7.0, F32))

    check(single("f", [x], z, lambda i, j: body(i, j)), {"n": n})


@pytest.mark.parametrize("n", (1, 4, 6))
def test_gather_rows(n):
    x, at, z = buf("x", F32, 7, 8), buf("at", I64, N), buf("z", F32, N, 8)
    check(single("f", [x, at], z, lambda i, j: x[gather(at[i], 7), j]), {"n": n})
    col = buf("col", I32, N)
    z2 = buf("z", F32, 7, N)
    check(single("f", [x, col], z2, lambda i, j: x[i, gather(col[j], 8)]), {"n": n})


def test_gather_saturates_huge_indices():
    x, at, z = buf("x", F32, 7), buf("at", I64, 4), buf("z", F32, 4)
    arrays = [np.arange(7, dtype=np.float32), np.array([0, 1 << 40, -(1 << 40), -1])]
    check(single("f", [x, at], z, lambda i: x[gather(at[i], 7)]), {}, arrays=arrays)


def test_range_and_wide_types():
    z = buf("z", I64, N, 4)
    check(single("f", [], z, lambda i, j: Value(i.expr * 4 + j) * 3), {"n": 5})
    y = buf("y", F32, N, 4)
    check(single("f", [], y, lambda i, j: cast(Value(i.expr * 4 + j), F32)), {"n": 5})
    x, w = buf("x", I64, N, 8), buf("w", F32, N, 8)
    check(single("f", [x], w, lambda i, j: cast(x[i, j] + 1, F32) * 0.5), {"n": 5})


@pytest.mark.parametrize("dtype", (F32, U8))
def test_offset_writes_fill_one_buffer(dtype):
    x, y, z = buf("x", dtype, N, 3), buf("y", dtype, N, 2), buf("z", dtype, N, 5)
    (i, j), (k, m) = grid(x), grid(y)
    stages = (
        Stage(z, (i, j), x[i, j], index=(as_expr(i), as_expr(j))),
        Stage(z, (k, m), y[k, m], index=(as_expr(k), m.expr + 3)),
    )
    check(LoopFunc("f", (x, y), (z,), stages), {"n": 5})


def test_where_skips_stores():
    x, z = buf("x", F32, N), buf("z", F32, N)
    i, j = axis("i", N), axis("j", N)
    stages = (
        Stage(z, (i,), constant(1.0, F32)),
        Stage(z, (j,), x[j], where=op("gt", x[j], 0.0)),
    )
    check(LoopFunc("f", (x,), (z,), stages), {"n": 9})


def test_literals_beyond_i32():
    z = buf("z", I64, N)
    big = 1 << 40
    check(single("f", [], z, lambda i: Value(as_expr(i)) + Value(as_expr(big))), {"n": 5})
    y = buf("y", BOOL, N)
    body = lambda i: op("lt", Value(as_expr(i)), Value(as_expr(big)))  # noqa: E731
    check(single("f", [], y, body), {"n": 5})


def test_scalar_output():
    x, z = buf("x", F32), buf("z", F32)
    check(single("f", [x], z, lambda: x[()] * 2.0), {})


@pytest.mark.parametrize(("n", "a", "b"), [(3, 4, 8), (2, 3, 5), (5, 0, 4), (1, 1, 1)])
def test_concatenation_by_nested_choices(n, a, b):
    for split in (as_expr(a), M):
        x, y, w = buf("x", F32, N, split), buf("y", F32, N, b), buf("w", I64, N, 4)
        z = buf("z", F32, N, split + b + 4)

        def body(i, j, split=split, x=x, y=y, w=w):
            last = cast(w[i, j.expr - split - b], F32)
            return select(
                op("lt", Value(as_expr(j)), Value(split)),
                x[i, j],
                select(op("lt", Value(as_expr(j)), Value(split + b)), y[i, j.expr - split], last),
            )

        check(single("f", [x, y, w], z, body), {"n": n, "m": a})
