"""Products of dequantised operands become exact products of integers, where that holds."""

from collections.abc import Callable

import numpy as np
import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32, I8, U8, DType
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Value
from edgerelax.ir.outcome import taken
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.dce import dce
from edgerelax.passes.integer_products import integer_products
from edgerelax.sym import symbol
from tests.passes.programs import M, N, build
from tests.passes.test_fold_scales import ops

Body = Callable[[Function], None]


def numbers(dtype: DType, *shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(*dtype.int_range, shape, endpoint=True).astype(dtype.numpy)


def scales(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random(shape) * 0.1 + 0.01).astype(np.float32)


def dequantised(
    f: Function, x: Value, scale: np.ndarray, zero: np.ndarray | None, axis: int = 0
) -> Value:
    name = getattr(x, "name", "x")
    given = None if zero is None else f.constant(f"{name}_zero", zero)
    own = f.constant(f"{name}_scale", scale)
    return f.call(OPS["dequantize_linear"], x, own, given, axis=axis)


def data(f: Function, *dims: object, dtype: DType = U8, zero: int | None = 130) -> Value:
    x = f.input("x", dims, dtype)
    point = None if zero is None else np.array(zero, dtype.numpy)
    return dequantised(f, x, np.array(0.02, np.float32), point)


def weight(
    f: Function, *shape: int, dtype: DType = I8, axis: int | None = None, zero: bool = False
) -> Value:
    """A dequantised constant, with one scale or one for each index of an axis."""
    w = f.constant("w", numbers(dtype, *shape, seed=1))
    size = () if axis is None else (shape[axis],)
    point = numbers(dtype, *size, seed=2) if zero else None
    return dequantised(f, w, scales(*size, seed=3), point, axis or 0)


def check(body: Body, dtype: DType = U8, sizes: tuple[int, ...] = (1, 5)) -> list[str]:
    """The operators left over, after checking that they compute what the floats did in f64."""
    module = build(body)
    after, outcome = taken(integer_products(module))
    verify(after)
    assert outcome is not None
    for size in sizes:
        (x,) = module.funcs["main"].params
        shape = [d.eval({"n": size, "m": size}) for d in x.annotation.dims]
        inputs = {"x": numbers(dtype, *shape, seed=size)}
        wanted, got = evaluate(module, inputs)["y"], evaluate(after, inputs)["y"]
        # Of the floats each product and each sum is rounded, of the integers only the sum.
        margin = 1e-4 * np.abs(wanted).max(initial=1)
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=margin)
    return [name for name in ops(dce(after)) if name not in ("cast", "mul", "add")]


def skipped(body: Body) -> dict[str, int]:
    after, outcome = taken(integer_products(build(body)))
    assert outcome is not None and "matmul_integer" not in ops(after)
    return outcome.summary()["skipped"]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("dtype", [I8, U8])
@pytest.mark.parametrize("by_channel", [False, True])
def test_matmul(by_channel: bool, dtype: DType, zero: bool, turned: bool) -> None:
    def body(f: Function) -> None:
        axis = (0 if turned else 1) if by_channel else None
        w = weight(f, *((7, 13) if turned else (13, 7)), dtype=dtype, axis=axis, zero=zero)
        f.output("y", f.call(OPS["matmul"], data(f, N, 3, 13), w, transpose_b=turned))

    assert check(body) == ["matmul_integer"]


def test_weights_on_the_left() -> None:
    def body(f: Function) -> None:
        w = weight(f, 6, 13, axis=0)
        f.output("y", f.call(OPS["matmul"], w, data(f, N, 13, M)))

    assert check(body) == ["matmul_integer"]


@pytest.mark.parametrize("zero", [None, 0, -128, 127])
def test_zero_points_of_the_data(zero: int | None) -> None:
    def body(f: Function) -> None:
        x = data(f, N, 13, dtype=I8, zero=zero)
        f.output("y", f.call(OPS["matmul"], x, weight(f, 13, 7)))

    assert check(body, I8) == ["matmul_integer"]


def test_what_moves_the_operands() -> None:
    def body(f: Function) -> None:
        x = f.call(OPS["reshape"], data(f, N, 2, 13), dims=(N * 2, 13))
        w = f.call(OPS["transpose"], weight(f, 7, 13, axis=0), perm=(1, 0))
        f.output("y", f.call(OPS["matmul"], x, w))

    assert check(body) == ["reshape", "matmul_integer"]


def test_weights_quantised_in_the_graph() -> None:
    def body(f: Function) -> None:
        step = f.constant("step", np.array(0.01, np.float32))
        real = f.constant("real", (numbers(I8, 13, 7) * 0.01).astype(np.float32))
        w = f.call(OPS["quantize_linear"], real, step, None, dtype=I8)
        w = f.call(OPS["dequantize_linear"], w, step, None)
        f.output("y", f.call(OPS["matmul"], data(f, N, 13), w))

    assert check(body) == ["matmul_integer"]


def test_two_operands_that_are_not_constant() -> None:
    def body(f: Function) -> None:
        x = data(f, N, 4, 13)
        f.output("y", f.call(OPS["matmul"], x, x, transpose_b=True))

    assert check(body) == ["matmul_integer"]


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("with_bias", [False, True])
def test_convolutions_pad_with_the_zero_point(with_bias: bool, group: int) -> None:
    def body(f: Function) -> None:
        bias = None
        if with_bias:
            numbers_ = f.constant("b", np.arange(-3, 3, dtype=np.int32) * 100)
            bias = dequantised(f, numbers_, scales(6), None)
        w = weight(f, 6, 4 // group, 3, axis=0, zero=True)
        f.output("y", f.call(OPS["conv"], data(f, N, 4, M), w, bias, pads=(2, 1), group=group))

    left = check(body)
    assert [op for op in left if op in ("conv", "conv_integer")] == ["conv_integer"]


def test_floats_stay_for_others() -> None:
    def body(f: Function) -> None:
        x = data(f, N, 13)
        y = f.call(OPS["matmul"], x, weight(f, 13, 13))
        f.output("y", f.call(OPS["tanh"], f.call(OPS["add"], x, y)))

    assert check(body) == ["dequantize_linear", "matmul_integer", "tanh"]


def test_why_not() -> None:
    def by_steps(f: Function) -> None:
        f.output("y", f.call(OPS["matmul"], data(f, N, 13), weight(f, 13, 7, axis=0)))

    def too_long(f: Function) -> None:
        w = f.constant("w", np.full((70_000, 1), 255, np.uint8))
        w = dequantised(f, w, scales(), None)
        f.output("y", f.call(OPS["matmul"], data(f, N, 70_000), w))

    def without_end(f: Function) -> None:
        x = data(f, symbol("k"), 4)
        f.output("y", f.call(OPS["matmul"], x, x, transpose_a=True))

    def faint(f: Function) -> None:
        w = dequantised(f, f.constant("w", numbers(I8, 13, 7)), np.array(1e-37, np.float32), None)
        f.output("y", f.call(OPS["matmul"], data(f, N, 13), w))

    assert skipped(by_steps) == {"scales along an axis that is summed, or a batch": 1}
    assert skipped(too_long) == {"sums that could exceed 32 bits": 1}
    assert skipped(without_end) == {"sums of no known greatest length": 1}
    assert skipped(faint) == {"scales whose product f32 does not hold": 1}


def test_long_sums_of_small_weights_are_taken() -> None:
    def body(f: Function) -> None:
        w = f.constant("w", np.ones((70_000, 1), np.int8))
        f.output("y", f.call(OPS["matmul"], data(f, N, 70_000), dequantised(f, w, scales(), None)))

    assert check(body) == ["matmul_integer"]


def test_floats_alone_are_no_skip() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 13), F32)
        f.output("y", f.call(OPS["matmul"], x, weight(f, 13, 7)))

    assert skipped(body) == {}
