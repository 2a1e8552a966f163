"""Chains of stages over the same rows: one kernel, right for every row length."""

import pytest

from edgerelax.ir.dtypes import F16, F32
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.scalar import Acc, Buffer, Value, cast, op
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import TARGETS, WASM, WEBGPU
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import check

N, M, K = symbol("n"), symbol("m"), symbol("k", 1)
SIZES = [(1, 1), (0, 3), (5, 7), (4, 64), (2, 65), (3, 131), (7, 4)]


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


def softmax(lead, length, dtype=F32, keepdims=False):
    x, y = buf("x", dtype, *lead, length), buf("y", dtype, *lead, length)
    ones = (1,) if keepdims else ()
    zeros = (as_expr(0),) * len(ones)
    m, s = buf("m", F32, *lead, *ones), buf("s", F32, *lead, *ones)
    *rows, k = grid(x)
    own = tuple(axis(f"q{j}", a.extent) for j, a in enumerate(rows))
    unit = tuple(axis("u", 1) for _ in ones)
    e = op("exp", cast(x[(*rows, k)], F32) - m[(*map(as_expr, rows), *zeros)])
    z = op("exp", cast(x[(*own, k)], F32) - m[(*map(as_expr, own), *zeros)])
    stages = (
        Stage(m, (*rows, *unit), cast(x[(*rows, k)], F32), (k,), "max"),
        Stage(s, (*own, *unit), z, (k,), "sum"),
        Stage(y, (*rows, k), cast(e / s[(*map(as_expr, rows), *zeros)], dtype)),
    )
    return LoopFunc("softmax", (x,), (y,), stages)


@pytest.mark.parametrize("keepdims", (False, True))
def test_softmax(keepdims):
    for n, k in SIZES:
        check(softmax((N,), K, keepdims=keepdims), {"n": n, "k": k})
        check(softmax((2, N), 12, keepdims=keepdims), {"n": n})


def test_softmax_is_one_kernel():
    for target in TARGETS.values():
        assert len(schedule(softmax((N,), K), target).versions[-1].kernels) == 1


@pytest.mark.parametrize("length", (8, 7))
def test_softmax_of_half_floats(length):
    check(softmax((N,), length, F16), {"n": 5}, tolerance=2e-3)


def layer_norm(n, shape, *, keep_sum):
    """y = norm(x + r) * g + b over the trailing dims, the sum an output too where `keep_sum`."""
    x, r, y = (buf(c, F32, n, *shape) for c in "xry")
    t, g, b = buf("t", F32, n, *shape), buf("g", F32, *shape), buf("b", F32, *shape)
    mean, scale = buf("mean", F32, n), buf("scale", F32, n)
    i, *cols = grid(x)
    at = (i, *cols)
    number = cast(Value(as_expr(1) * 1), F32)
    for dim in shape:
        number = number * cast(Value(as_expr(dim)), F32)
    inv = 1.0 / op("sqrt", Acc(F32, 1) / op("max", Acc(F32, 2), 1.0) + 1e-5)
    stages = (
        Stage(t, at, x[at] + r[at]),
        Stage(mean, (i,), t[at], tuple(cols), "sum", epilogue=Acc(F32) / number),
        Stage(scale, (i,), t[at], tuple(cols), "welford", epilogue=inv),
        Stage(y, at, (t[at] - mean[i]) * scale[i] * g[tuple(cols)] + b[tuple(cols)]),
    )
    outputs = (y, t) if keep_sum else (y,)
    return LoopFunc("layer_norm", (x, r, g, b), outputs, stages)


@pytest.mark.parametrize("keep_sum", (False, True))
@pytest.mark.parametrize("shape", ((8,), (K,), (3, 5), (M, 4), (M, K)))
def test_layer_norm(shape, keep_sum):
    for n, k in ((1, 1), (3, 5), (2, 66)):
        check(layer_norm(N, shape, keep_sum=keep_sum), {"n": n, "m": 3, "k": k}, tolerance=1e-4)


def test_row_results_that_others_read_are_stored():
    func = softmax((N,), K)
    x, y = func.inputs[0], func.outputs[0]
    s = func.stages[1].out
    check(LoopFunc("f", (x,), (y, s), func.stages), {"n": 5, "k": 9})


def test_a_read_across_rows_is_no_chain():
    x, m, y = buf("x", F32, N, 4), buf("m", F32, N), buf("y", F32, N, 4)
    i, k = grid(x)
    stages = (
        Stage(m, (i,), x[i, k], (k,), "max"),
        Stage(y, (i, k), x[i, k] - m[N - 1 - i]),
    )
    func = LoopFunc("f", (x,), (y,), stages)
    assert len(schedule(func, WEBGPU).versions[-1].kernels) == 2
    check(func, {"n": 6})


def test_a_product_is_not_drowned_in_a_chain():
    a, b, t, y = (buf(c, F32, 64, 64) for c in "abty")
    i, j, k = axis("i", 64), axis("j", 64), axis("k", 64)
    stages = (
        Stage(t, (i, j), a[i, k] * b[k, j], (k,), "sum"),
        Stage(y, (i, j), t[i, j] * t[i, 63 - j.expr]),
    )
    for target in TARGETS.values():
        assert len(schedule(LoopFunc("f", (a, b), (y,), stages), target).strategies) == 2


def test_more_buffers_than_a_kernel_may_bind_are_split():
    xs = tuple(buf(f"x{k}", F32, N, 4) for k in range(9))
    s, y = buf("s", F32, N), buf("y", F32, N, 4)
    i, k = grid(y)
    total, product = xs[0][i, k], xs[5][i, k]
    for x in xs[1:5]:
        total = total + x[i, k]
    for x in xs[6:]:
        product = product * x[i, k]
    func = LoopFunc(
        "f", xs, (y,), (Stage(s, (i,), total, (k,), "sum"), Stage(y, (i, k), product * s[i]))
    )
    version = schedule(func, WEBGPU).versions[-1]
    assert all(len(kernel.buffers) <= 8 for kernel in version.kernels)
    check(func, {"n": 6})


@pytest.mark.parametrize("name", ("r1", "k"))
def test_a_step_as_long_as_a_row_keeps_its_own_axis(name):
    x, y = buf("x", F32, 3, 2, 2), buf("y", F32, 3, 2)
    i, j = grid(y)
    k = axis(name, 2)
    check(LoopFunc("f", (x,), (y,), (Stage(y, (i, j), x[i, k, j], (k,), "sum"),)), {})


def test_few_long_rows_are_not_one_kernel_on_a_gpu():
    """The map over a million elements would have the threads of the reduction alone."""
    assert len(schedule(softmax((2,), 1 << 20), WEBGPU).versions[-1].kernels) > 1
    assert len(schedule(softmax((2,), 1 << 10), WEBGPU).versions[-1].kernels) == 1
    assert len(schedule(softmax((2,), 1 << 20), WASM).versions[-1].kernels) == 1
