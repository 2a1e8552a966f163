"""Moves of elements become index maps of the contraction that reads them, where that is free."""

import numpy as np
import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Value
from edgerelax.ops import OPS
from edgerelax.passes.classify import Kind, classify
from edgerelax.sym import as_expr, symbol
from tests.passes.programs import build, weights
from tests.passes.test_fusion import calls, fused
from tests.schedule.oracle import check

N, M = symbol("n"), symbol("m")
HEADS, WIDTH = 3, 4


def heads(f: Function, x: Value) -> Value:
    """[n, m, heads * width] as [n, heads, m, width]."""
    dims = (N, M, as_expr(HEADS), as_expr(WIDTH))
    return f.call(OPS["transpose"], f.call(OPS["reshape"], x, dims=dims), perm=(0, 2, 1, 3))


def scores(f: Function) -> None:
    a, b = (f.input(c, (N, M, HEADS * WIDTH), F32) for c in "ab")
    f.output("y", f.call(OPS["matmul"], heads(f, a), heads(f, b), transpose_b=True))


def sums(f: Function) -> None:
    """Heads as the right factor, whose columns stay neighbours."""
    p, v = f.input("p", (N, HEADS, M, M), F32), f.input("v", (N, M, HEADS * WIDTH), F32)
    f.output("y", f.call(OPS["tanh"], f.call(OPS["matmul"], p, heads(f, v))))


@pytest.mark.parametrize("body", (scores, sums))
def test_heads_are_read_where_they_lie(body) -> None:
    before = build(body)
    after = fused(before)
    (call,) = calls(after)
    (loop,) = after.loops.values()
    assert classify(loop) is Kind.OUT_FUSIBLE and call.func == loop.name
    rng = np.random.default_rng(0)
    for n, m in ((0, 3), (1, 1), (2, 7), (1, 63), (1, 65)):
        check(loop, {"n": n, "m": m}, tolerance=1e-4)
        env = {"n": n, "m": m}
        arrays = {
            p.name: rng.standard_normal([d.eval(env) for d in p.annotation.dims]).astype(np.float32)
            for p in before.funcs["main"].params
        }
        want, got = evaluate(before, arrays), evaluate(after, arrays)
        np.testing.assert_allclose(got["y"], want["y"], rtol=1e-5, atol=1e-5)


def test_moves_that_would_divide_stay_apart() -> None:
    """Heads joined again: a step of the reduction would be split by head."""

    def body(f: Function) -> None:
        x = f.input("x", (N, HEADS, M, WIDTH), F32)
        turned = f.call(OPS["transpose"], x, perm=(0, 2, 1, 3))
        joined = f.call(OPS["reshape"], turned, dims=(N, M, as_expr(HEADS * WIDTH)))
        f.output("y", f.call(OPS["matmul"], joined, f.constant("w", weights(HEADS * WIDTH, 8))))

    assert len(calls(fused(build(body)))) == 2


def test_what_computes_is_no_move() -> None:
    """It would be computed again for every row or column that reads it."""

    def body(f: Function) -> None:
        x = f.input("x", (N, M, HEADS * WIDTH), F32)
        w = f.constant("w", weights(WIDTH, 8))
        f.output("y", f.call(OPS["matmul"], f.call(OPS["exp"], heads(f, x)), w))

    assert len(calls(fused(build(body)))) == 2
