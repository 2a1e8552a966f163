"""Scales, biases and batch normalisations end up in weights; what is computed stays the same."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F16, F32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Call, Module, Value
from edgerelax.ir.outcome import Outcome, taken
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.fold_scales import fold_scales
from tests.passes.programs import M, N, build, weights
from tests.passes.test_meaning import inputs_of


def folded(body: Callable[[Function], None], **sizes: int) -> tuple[list[str], Outcome]:
    """The operators left over, after checking that they compute what the program did."""
    module = build(body)
    after, outcome = taken(fold_scales(module))
    verify(after)
    assert outcome is not None
    inputs = inputs_of(module, {"n": 3, "m": 5, **sizes})
    same(module, after, inputs)
    return ops(after), outcome


def same(before: Module, after: Module, inputs: dict[str, np.ndarray]) -> None:
    wanted, got = evaluate(before, inputs), evaluate(after, inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4)


def ops(module: Module) -> list[str]:
    bindings = all_bindings(module.funcs["main"].body)
    return [b.value.op.name for b in bindings if isinstance(b.value, Call)]


def batch_norm(f: Function, x: Value, channels: int, seed: int = 0) -> Value:
    scale, bias, mean = (weights(channels, seed=seed + k) for k in range(3))
    fitted = [scale, bias, mean, np.abs(weights(channels, seed=seed + 3)) + 0.1]
    given = [f.constant(f"bn{seed}_{k}", data) for k, data in enumerate(fitted)]
    return f.call(OPS["batch_norm"], x, *given, epsilon=1e-3)


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("op", ["conv", "conv_transpose"])
def test_batch_norm_goes_into_a_convolution(op: str, group: int, with_bias: bool) -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 4, M), F32)
        w = weights(6, 4 // group, 3) if op == "conv" else weights(4, 6 // group, 3)
        bias = f.constant("b", weights(6, seed=9)) if with_bias else None
        y = f.call(OPS[op], x, f.constant("w", w), bias, pads=(1, 1), group=group)
        f.output("y", f.call(OPS["relu"], batch_norm(f, y, 6)))

    left, outcome = folded(body)
    assert left == [op, "relu"]
    assert outcome.summary()["done"] == {f"maps after {op}": 1}


def test_chains_of_scalars_and_channels_fold_at_once() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 3, M, M), F32)
        y = f.call(OPS["conv"], x, f.constant("w", weights(5, 3, 2, 2)), None)
        y = f.call(OPS["mul"], f.constant("s", weights(1)), y)
        y = f.call(OPS["sub"], f.constant("t", weights(1, 5, 1, 1, seed=2)), y)
        y = f.call(OPS["div"], y, f.constant("d", np.float32(3)))
        f.output("y", f.call(OPS["neg"], f.call(OPS["add"], y, f.constant("u", weights(5, 1, 1)))))

    assert folded(body)[0] == ["conv"]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_scale_and_bias_after_a_product(turned: bool, left: bool) -> None:
    """The weight may stand on either side, transposed or not; the channel is its free dim."""

    def body(f: Function) -> None:
        x = f.input("x", (2, N, 7) if not left else (2, 7, N), F32)
        shape = (4, 7) if left != turned else (7, 4)
        w = f.constant("w", weights(*shape))
        turn = {"transpose_a" if left else "transpose_b": turned}
        y = f.call(OPS["matmul"], *((w, x) if left else (x, w)), **turn)
        per_channel = (4, 1) if left else (4,)
        y = f.call(OPS["mul"], y, f.constant("s", weights(*per_channel)))
        y = f.call(OPS["add"], y, f.constant("b", weights(*per_channel, seed=1)))
        f.output("y", f.call(OPS["mul"], y, f.constant("c", np.float32(0.3))))

    assert folded(body)[0] == ["matmul", "add"]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_scale_and_shift_before_a_product(turned: bool, left: bool) -> None:
    """W (s x + t) = (W s) x + W t."""

    def body(f: Function) -> None:
        x = f.input("x", (2, 7, N) if left else (2, N, 7), F32)
        per_channel = (7, 1) if left else (7,)
        x = f.call(OPS["mul"], x, f.constant("s", weights(*per_channel)))
        x = f.call(OPS["add"], x, f.constant("t", weights(*per_channel, seed=1)))
        w = f.constant("w", weights(*((4, 7) if left != turned else (7, 4)), seed=2))
        turn = {"transpose_a" if left else "transpose_b": turned}
        y = f.call(OPS["matmul"], *((w, x) if left else (x, w)), **turn)
        f.output("y", f.call(OPS["add"], y, f.constant("b", weights(4, 1) if left else weights(4))))

    assert folded(body)[0] == ["matmul", "add"]


@pytest.mark.parametrize("op,pads,left", [
    ("conv", (0, 0), ["relu", "conv"]),
    ("conv", (1, 0), ["relu", "mul", "add", "conv"]),
    ("conv_transpose", (0, 0), ["relu", "mul", "add", "conv_transpose"]),
])  # fmt: skip
def test_a_shift_goes_where_no_output_misses_it(op: str, pads: tuple, left: list[str]) -> None:
    """Padding adds zeros, not shifted zeros; edges of a transposed convolution see fewer inputs."""

    def body(f: Function) -> None:
        x = f.call(OPS["relu"], f.input("x", (N, 4, M), F32))
        x = f.call(OPS["mul"], x, f.constant("s", weights(4, 1)))
        x = f.call(OPS["add"], x, f.constant("t", weights(4, 1, seed=1)))
        w = weights(6, 2, 3) if op == "conv" else weights(4, 3, 3)
        f.output("y", f.call(OPS[op], x, f.constant("w", w), None, pads=pads, group=2))

    found, outcome = folded(body)
    assert found == left
    assert bool(outcome.skipped) == (left[-2] == "add")


def test_a_scale_without_a_shift_goes_into_padded_convolutions() -> None:
    def body(f: Function) -> None:
        x = f.call(OPS["mul"], f.input("x", (N, 4, M), F32), f.constant("s", weights(4, 1)))
        for k, op in enumerate(("conv", "conv_transpose")):
            w = f.constant(f"w{k}", weights(4, 2, 3, seed=k))
            f.output(op, f.call(OPS[op], x, w, None, pads=(1, 1), group=2))

    assert folded(body)[0] == ["conv", "conv_transpose"]


def test_values_that_others_need_stay() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 4), F32)
        y = f.call(OPS["matmul"], x, f.constant("w", weights(4, 4)))
        scaled = f.call(OPS["mul"], y, f.constant("s", weights(4)))
        f.output("sum", f.call(OPS["add"], y, scaled))

    assert folded(body)[0] == ["matmul", "mul", "add"]


def test_a_shared_weight_is_not_stored_twice() -> None:
    def body(f: Function) -> None:
        w = f.constant("w", weights(40, 40))
        for name in ("x", "y"):
            product = f.call(OPS["matmul"], f.input(name, (N, 40), F32), w)
            f.output(f"of_{name}", f.call(OPS["mul"], product, f.constant("s", weights(40))))

    left, outcome = folded(body)
    assert left == ["matmul", "mul"] * 2
    assert not outcome.done
    assert len(outcome.skipped) == 2


def test_what_overflows_stays() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 4), F16)
        big = f.constant("w", np.full((4, 3), 6e4, np.float16))
        y = f.call(OPS["matmul"], x, big)
        f.output("y", f.call(OPS["mul"], y, f.constant("s", np.float16(4))))

    module = build(body)
    after, outcome = taken(fold_scales(module))
    assert ops(after) == ["matmul", "mul"]
    assert outcome is not None and outcome.skipped


@pytest.mark.parametrize("factor", [np.nan, np.inf, 0.0])
def test_divisors_that_are_no_numbers_stay(factor: float) -> None:
    """What they do to a sum of products is not what they do to its terms."""

    def body(f: Function) -> None:
        y = f.call(OPS["matmul"], f.input("x", (N, 4), F32), f.constant("w", weights(4, 3)))
        f.output("y", f.call(OPS["div"], y, f.constant("s", np.float32(factor))))

    module = build(body)
    inputs = inputs_of(module, {"n": 3})
    after = fold_scales(module)
    before, now = evaluate(module, inputs)["y"], evaluate(after, inputs)["y"]
    np.testing.assert_array_equal(np.isnan(before), np.isnan(now))
    assert ops(after)[-1] == "div" or np.isinf(factor)


def test_a_scale_that_widens_its_operand_is_no_scale() -> None:
    """[n, 1] * [4] has four columns: nothing to fold into."""

    def body(f: Function) -> None:
        y = f.call(OPS["matmul"], f.input("x", (N, 3), F32), f.constant("w", weights(3, 1)))
        f.output("y", f.call(OPS["mul"], y, f.constant("s", weights(4))))

    assert folded(body)[0] == ["matmul", "mul"]


def test_a_lone_batch_norm_becomes_one_product_and_sum() -> None:
    def body(f: Function) -> None:
        x = f.call(OPS["relu"], f.input("x", (N, 4, M), F32))
        y = f.call(OPS["mul"], batch_norm(f, x, 4), f.constant("c", np.float32(2)))
        f.output("y", f.call(OPS["relu"], y))

    left, outcome = folded(body)
    assert left == ["relu", "mul", "add", "relu"]
    assert outcome.summary()["done"] == {"chains of maps shortened": 1}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=12), st.integers(1, 4))
def test_random_chains(choices: list[int], n: int) -> None:
    """Maps, products, convolutions and values of two uses in any order."""

    def body(f: Function) -> None:
        x: Value = f.input("x", (N, 4, M), F32)
        earlier = x
        for at, choice in enumerate(choices):
            kind, shape = choice % 8, ((), (1,), (4, 1), (1, 4, 1))[choice // 8 % 4]
            number = f.constant(f"c{at}", weights(*shape, seed=choice))
            if kind < 4:
                name = ("mul", "add", "sub", "mul")[kind]
                x = f.call(OPS[name], *((x, number) if choice // 32 % 2 else (number, x)))
            elif kind == 4:
                x = batch_norm(f, x, 4, seed=choice % 50 * 4)
            elif kind == 5:
                w, pads = weights(4, 2, 3, seed=choice) * 0.4, (choice // 8 % 2,) * 2
                w = f.constant(f"w{at}", w[:, :, : 1 + 2 * pads[0]])
                x = f.call(OPS["conv"], x, w, None, pads=pads, group=2)
            elif kind == 6:
                x = f.call(OPS["matmul"], f.constant(f"w{at}", weights(4, 4, seed=at) * 0.5), x)
            else:
                x, earlier = f.call(OPS["tanh"], f.call(OPS["add"], x, earlier)), x
        f.output("y", f.call(OPS["tanh"], x))

    module = build(body)
    after, _ = taken(fold_scales(module))
    verify(after)
    same(module, after, inputs_of(module, {"n": n, "m": 3}))
