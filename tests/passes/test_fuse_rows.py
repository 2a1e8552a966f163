"""Rows that are reduced several times become one kernel, however they were written."""

from collections.abc import Callable

import numpy as np
import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F16, F32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import CallTIR, Module, Value
from edgerelax.ops import OPS
from edgerelax.passes.classify import Kind, classify, is_view
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import TARGETS
from edgerelax.sym import symbol
from tests.passes.programs import build, weights
from tests.passes.test_fusion import calls, fused
from tests.schedule.oracle import check

ROWS, LENGTH = symbol("n"), symbol("m")
SIZES = [(3, 0), (0, 5), (3, 1), (2, 63), (2, 64), (3, 65), (2, 257)]

Body = Callable[[Function, Value], Value]


def norm(f: Function, x: Value, axes: tuple[int, ...] = (-1,)) -> Value:
    """(x - mean) / sqrt(mean((x - mean)²) + eps), an operator at a time."""
    centred = f.call(OPS["sub"], x, f.call(OPS["reduce_mean"], x, axes=axes, keepdims=True))
    square = f.call(OPS["pow"], centred, f.constant("two", np.float32(2)))
    variance = f.call(OPS["reduce_mean"], square, axes=axes, keepdims=True)
    spread = f.call(OPS["add"], variance, f.constant("eps", np.float32(1e-3)))
    return f.call(OPS["div"], centred, f.call(OPS["sqrt"], spread))


def layer_norm(f: Function, x: Value) -> Value:
    """A residual before; a scale, a bias and an activation after."""
    x = f.call(OPS["add"], x, f.input("r", (ROWS, LENGTH), F32))
    y = f.call(OPS["mul"], norm(f, x), f.input("g", (LENGTH,), F32))
    return f.call(OPS["tanh"], f.call(OPS["add"], y, f.input("b", (LENGTH,), F32)))


def rms_norm(f: Function, x: Value) -> Value:
    square = f.call(OPS["mul"], x, x)
    mean = f.call(OPS["reduce_mean"], square, axes=(-1,), keepdims=True)
    spread = f.call(OPS["add"], mean, f.constant("eps", np.float32(1e-3)))
    y = f.call(OPS["div"], x, f.call(OPS["sqrt"], spread))
    return f.call(OPS["cast"], f.call(OPS["cast"], y, dtype=F16), dtype=F32)


def exponentials(f: Function, x: Value, axis: int = -1) -> tuple[Value, Value, Value]:
    """x - max, its exponential, and the sum of that."""
    peak = f.call(OPS["reduce_max"], x, axes=(axis,), keepdims=True)
    centred = f.call(OPS["sub"], x, peak)
    e = f.call(OPS["exp"], centred)
    return centred, e, f.call(OPS["reduce_sum"], e, axes=(axis,), keepdims=True)


def softmax(f: Function, x: Value) -> Value:
    _, e, total = exponentials(f, f.call(OPS["mul"], x, f.constant("s", np.float32(0.5))))
    return f.call(OPS["div"], e, total)


def log_softmax(f: Function, x: Value) -> Value:
    centred, _, total = exponentials(f, x)
    return f.call(OPS["sub"], centred, f.call(OPS["log"], total))


def log_sum_exp(f: Function, x: Value) -> Value:
    peak = f.call(OPS["reduce_max"], x, axes=(-1,), keepdims=True)
    e = f.call(OPS["exp"], f.call(OPS["sub"], x, peak))
    total = f.call(OPS["reduce_sum"], e, axes=(-1,), keepdims=True)
    return f.call(OPS["add"], f.call(OPS["log"], total), peak)


def norm_then_softmax(f: Function, x: Value) -> Value:
    return f.call(OPS["softmax"], norm(f, x), axis=-1)


def norm_of_norm(f: Function, x: Value) -> Value:
    return f.call(OPS["layer_norm"], norm(f, x), f.input("g", (LENGTH,), F32), axis=-1)


def best_of_softmax(f: Function, x: Value) -> Value:
    return f.call(OPS["argmax"], f.call(OPS["softmax"], x, axis=-1), axis=-1, keepdims=False)


CHAINS = (
    layer_norm, rms_norm, softmax, log_softmax, log_sum_exp,
    norm_then_softmax, norm_of_norm, best_of_softmax,
)  # fmt: skip


def program(body: Body, *dims: object) -> Module:
    def whole(f: Function) -> None:
        f.output("y", body(f, f.input("x", dims or (ROWS, LENGTH), F32)))

    return build(whole)


def assert_one_kernel(module: Module) -> CallTIR:
    (call,) = calls(module)
    loop = module.loops[call.func]
    assert classify(loop) is Kind.ROW
    for target in TARGETS.values():
        assert len(schedule(loop, target).versions[-1].kernels) == 1
    return call


@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_is_one_kernel(chain: Body) -> None:
    before = program(chain)
    after = fused(before)
    loop = after.loops[assert_one_kernel(after).func]
    rng = np.random.default_rng(0)
    for n, m in SIZES:
        if not (m == 0 and chain is best_of_softmax):  # an arg reduction of nothing is an error
            check(loop, {"n": n, "m": m}, tolerance=2e-3 if chain is rms_norm else 1e-4)
        shapes = {"g": (m,), "b": (m,)}
        names = [p.name for p in before.funcs["main"].params]
        arrays = {k: rng.standard_normal(shapes.get(k, (n, m))).astype(np.float32) for k in names}
        if n and m:
            want, got = evaluate(before, arrays), evaluate(after, arrays)
            np.testing.assert_allclose(got["y"], want["y"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("axis", (0, 1))
def test_rows_may_lie_among_the_axes(axis: int) -> None:
    """A softmax over channels: rows are the points of an image, four of them at once."""

    def body(f: Function, x: Value) -> Value:
        _, e, total = exponentials(f, x, axis)
        return f.call(OPS["div"], e, total)

    after = fused(program(body, 3, LENGTH, ROWS, 32))
    loop = after.loops[assert_one_kernel(after).func]
    for n, m in ((1, 1), (5, 3), (9, 7), (2, 65)):
        check(loop, {"n": n, "m": m})


def test_rows_may_have_several_axes() -> None:
    """An instance norm: each channel of each image."""
    after = fused(program(lambda f, x: norm(f, x, (2, 3)), ROWS, 3, 5, LENGTH))
    loop = after.loops[assert_one_kernel(after).func]
    for n, m in ((1, 1), (2, 7), (1, 64)):
        check(loop, {"n": n, "m": m}, tolerance=1e-4)


def channelwise(f: Function, y: Value, channels: int) -> Value:
    """A scale and a bias per channel, and an activation that reads its operand twice."""
    g = f.constant("g", weights(channels, 1, 1))
    b = f.constant("b", weights(channels, 1, 1, seed=1))
    y = f.call(OPS["add"], f.call(OPS["mul"], y, g), b)
    return f.call(OPS["mul"], y, f.call(OPS["sigmoid"], y))


def group_norm(f: Function, x: Value) -> Value:
    g, b = f.constant("s", weights(6)), f.constant("t", weights(6, seed=2))
    return channelwise(f, f.call(OPS["group_norm"], x, g, b, num_groups=2), 6)


def instance_norm(f: Function, x: Value) -> Value:
    g, b = f.constant("s", weights(6)), f.constant("t", weights(6, seed=2))
    return channelwise(f, f.call(OPS["instance_norm"], x, g, b), 6)


def written_out(inner: Body) -> Body:
    """Groups as rows, normalised by some means, and back to channels: as exporters write it."""

    def body(f: Function, x: Value) -> Value:
        dims = tuple(x.annotation.dims)
        flat = (dims[0], 2, dims[2] * dims[3] * 3)
        y = inner(f, f.call(OPS["reshape"], x, dims=flat))
        return channelwise(f, f.call(OPS["reshape"], y, dims=dims), 6)

    return body


def instances(f: Function, x: Value) -> Value:
    one, zero = f.constant("one", np.ones(2, np.float32)), f.constant("0", np.zeros(2, np.float32))
    return f.call(OPS["instance_norm"], x, one, zero)


@pytest.mark.parametrize("dims", ((ROWS, 6, 5, LENGTH), (ROWS, 6, LENGTH, LENGTH)))
@pytest.mark.parametrize(
    "body", (group_norm, instance_norm, written_out(norm), written_out(instances))
)
def test_norms_of_channels(body: Body, dims: tuple[object, ...]) -> None:
    """Reductions see groups, scales see channels: rows are quotients of the maps' axes."""
    before = program(body, *dims)
    after = fused(before)
    launched = [c for c in calls(after) if not is_view(after.loops[c.func])]
    assert len(launched) == 1
    loop = after.loops[launched[0].func]
    for target in TARGETS.values():
        assert len(schedule(loop, target).versions[-1].kernels) == 1
    for n, m in ((0, 3), (2, 5)):
        check(loop, {"n": n, "m": m}, tolerance=1e-4)
    shape = tuple({"n": 2, "m": 7}.get(str(d), d) for d in dims)
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    want, got = evaluate(before, {"x": x}), evaluate(after, {"x": x})
    np.testing.assert_allclose(got["y"], want["y"], rtol=1e-3, atol=1e-4)


def test_a_view_that_regroups_rows_ends_the_chain() -> None:
    """Columns of several rows become one dim: a later scale is not of the rows."""

    def body(f: Function, x: Value) -> Value:
        y = f.call(OPS["reshape"], norm(f, x), dims=(LENGTH, ROWS))
        return f.call(OPS["tanh"], f.call(OPS["softmax"], y, axis=-1))

    after = fused(program(body))
    assert len([c for c in calls(after) if not is_view(after.loops[c.func])]) == 2


def test_products_keep_their_epilogues() -> None:
    """The residual stays with its product, the norm begins a kernel of its own."""

    def body(f: Function, x: Value) -> Value:
        h = f.call(OPS["matmul"], x, f.constant("w", weights(16, 16)))
        return norm(f, f.call(OPS["add"], h, x))

    after = fused(program(body, ROWS, 16))
    assert [classify(after.loops[c.func]) for c in calls(after)] == [Kind.OUT_FUSIBLE, Kind.ROW]


def test_different_rows_stay_apart() -> None:
    """Rows of a matrix, then its columns."""

    def body(f: Function, x: Value) -> Value:
        return f.call(OPS["softmax"], f.call(OPS["softmax"], x, axis=-1), axis=0)

    assert len(calls(fused(program(body)))) == 2


def test_what_others_use_is_no_part_of_a_chain() -> None:
    """The exponentials are a result as well."""

    def body(f: Function) -> None:
        _, e, total = exponentials(f, f.input("x", (ROWS, LENGTH), F32))
        f.output("e", e)
        f.output("y", f.call(OPS["div"], e, total))

    kinds = [classify(m) for m in fused(build(body)).loops.values()]
    assert Kind.ROW in kinds and len(kinds) == 2


def test_a_chain_binds_no_more_buffers_than_allowed() -> None:
    for limit in (3, 4):
        module = fused(program(layer_norm), max_buffers=limit)
        for loop in module.loops.values():
            assert len(loop.inputs) + len(loop.outputs) <= limit
