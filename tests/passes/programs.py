"""Small programs with symbolic shapes, and random ones, for the tests of passes."""

from collections.abc import Callable

import numpy as np

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Module, Value
from edgerelax.ops import OPS
from edgerelax.sym import symbol

N = symbol("n", 1, 64)
M = symbol("m", 1, 64)


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def build(body: Callable[[Function], None]) -> Module:
    f = Function("main")
    body(f)
    return f.module()


def mlp() -> Module:
    """Two layers with bias and activation: an epilogue each."""

    def body(f: Function) -> None:
        x = f.input("x", (N, 16), F32)
        h = f.call(OPS["matmul"], x, f.constant("w1", weights(16, 24)))
        h = f.call(OPS["tanh"], f.call(OPS["add"], h, f.constant("b1", weights(24))))
        y = f.call(OPS["matmul"], h, f.constant("w2", weights(24, 5, seed=1)))
        f.output("y", f.call(OPS["add"], y, f.constant("b2", weights(5, seed=2))))

    return build(body)


def diamond() -> Module:
    """Two branches of one value meet again: one group of elementwise operators."""

    def body(f: Function) -> None:
        x = f.input("x", (N, M), F32)
        a = f.call(OPS["exp"], x)
        b = f.call(OPS["tanh"], a)
        c = f.call(OPS["sigmoid"], a)
        f.output("y", f.call(OPS["mul"], b, c))

    return build(body)


def softmax_of_sum() -> Module:
    """A producer that a row chain takes in."""

    def body(f: Function) -> None:
        x = f.input("x", (N, M), F32)
        bias = f.input("bias", (M,), F32)
        f.output("y", f.call(OPS["softmax"], f.call(OPS["add"], x, bias), axis=-1))

    return build(body)


def many_operands() -> Module:
    """A sum of twelve inputs: more than a kernel may bind."""

    def body(f: Function) -> None:
        inputs = [f.input(f"x{k}", (N,), F32) for k in range(12)]
        total: Value = inputs[0]
        for other in inputs[1:]:
            total = f.call(OPS["add"], total, other)
        f.output("y", total)

    return build(body)


def reshaped() -> Module:
    """A view in the middle and one as a result."""

    def body(f: Function) -> None:
        x = f.input("x", (N, 6), F32)
        y = f.call(OPS["reshape"], f.call(OPS["exp"], x), dims=(N * 2, 3))
        s = f.call(OPS["reduce_sum"], y, axes=(1,), keepdims=False)
        f.output("s", s)
        f.output("y", y)

    return build(body)


PROGRAMS = {f.__name__: f for f in (mlp, diamond, softmax_of_sum, many_operands, reshaped)}

UNARY = ("exp", "tanh", "sigmoid", "abs", "neg")
BINARY = ("add", "mul", "max", "sub")


def random_program(choices: list[int]) -> Module:
    """Maps, broadcasts, transposes, reductions and products over [n, 4] values, at random."""

    def body(f: Function) -> None:
        values: list[Value] = [f.input("x", (N, 4), F32), f.input("y", (N, 4), F32)]
        square = f.constant("w", weights(4, 4) * 0.3)
        row = f.constant("r", weights(4, seed=3))
        for at, choice in enumerate(choices):
            a = values[choice % len(values)]
            b = values[(choice // 7) % len(values)]
            kind = choice % 6
            if kind < 2:
                made = f.call(OPS[UNARY[choice % len(UNARY)]], f.call(OPS["tanh"], a))
            elif kind == 2:
                made = f.call(OPS[BINARY[choice % len(BINARY)]], a, b)
            elif kind == 3:
                made = f.call(OPS["matmul"], a, square)
            elif kind == 4:
                mean = f.call(OPS["reduce_sum"], a, axes=(1,), keepdims=True)
                made = f.call(OPS["add"], f.call(OPS["sub"], b, mean), row)
            else:
                turned = f.call(OPS["transpose"], a, perm=(1, 0))
                made = f.call(
                    OPS["transpose"], f.call(OPS["exp"], f.call(OPS["tanh"], turned)), perm=(1, 0)
                )
            values.append(made)
            if at % 5 == 4:
                f.output(f"o{at}", made)
        f.output("last", values[-1])

    return build(body)
