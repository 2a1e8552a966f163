"""Factors of scores end in the weights of a projection; what is computed stays the same."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Module, Value
from edgerelax.ir.outcome import Outcome, taken
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.sink_factors import sink_factors
from tests.passes.programs import M, N, build, weights
from tests.passes.test_fold_scales import ops, same
from tests.passes.test_meaning import inputs_of


def sunk(body: Callable[[Function], None]) -> tuple[Module, Outcome]:
    """The module after, once it is checked to compute what the program did."""
    module = build(body)
    after, outcome = taken(sink_factors(module))
    verify(after)
    assert outcome is not None
    same(module, after, inputs_of(module, {"n": 3, "m": 5}))
    return after, outcome


def projection(f: Function, name: str, bias: bool = True) -> Value:
    """[n, 2, m, 3] heads of x."""
    x = f.input(f"x_{name}", (N, M, 4), F32)
    y = f.call(OPS["matmul"], x, f.constant(f"w_{name}", weights(4, 6)))
    if bias:
        y = f.call(OPS["add"], f.constant(f"b_{name}", weights(6)), y)
    y = f.call(OPS["reshape"], y, dims=(N, M, 2, 3))
    return f.call(OPS["transpose"], y, perm=(0, 2, 1, 3))


def number(f: Function, value: float = 1.7, shape: tuple = ()) -> Value:
    return f.constant("factor", np.full(shape, value, np.float32))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", ["mul", "div"])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)])
def test_a_factor_of_scores_goes_into_a_projection(bias: bool, op: str, shape: tuple) -> None:
    def body(f: Function) -> None:
        q, k = projection(f, "q", bias), projection(f, "k")
        scores = f.call(OPS["matmul"], q, k, transpose_b=True)
        f.output("y", f.call(OPS["softmax"], f.call(OPS[op], scores, number(f, shape=shape))))

    module, outcome = sunk(body)
    assert op not in ops(module)
    assert outcome.summary() == {"done": {"factors moved into weights": 1}, "skipped": {}}


def test_the_other_operand_takes_what_the_first_cannot() -> None:
    """Negative too, and after another factor."""

    def body(f: Function) -> None:
        q = f.input("q", (N, 2, M, 3), F32)
        scores = f.call(OPS["matmul"], q, projection(f, "k"), transpose_b=True)
        scores = f.call(OPS["mul"], f.call(OPS["neg"], scores), number(f))
        f.output("y", f.call(OPS["softmax"], scores))

    left = ops(sunk(body)[0])
    assert "neg" not in left
    assert "mul" not in left


def test_a_factor_of_heads_goes_through_what_moves_them() -> None:
    def body(f: Function) -> None:
        q = f.call(OPS["mul"], projection(f, "q"), number(f, 0.125))
        f.output("y", f.call(OPS["slice"], q, starts=(0,), ends=(1,), axes=(1,), steps=(1,)))

    assert "mul" not in ops(sunk(body)[0])


@pytest.mark.parametrize("factor", [1e9, 1e-9, 0.0, np.inf, np.nan])
def test_what_would_cost_digits_stays(factor: float) -> None:
    def body(f: Function) -> None:
        scores = f.call(OPS["matmul"], projection(f, "q"), projection(f, "k"), transpose_b=True)
        f.output("y", f.call(OPS["mul"], scores, number(f, factor)))

    module, outcome = taken(sink_factors(build(body)))
    assert "mul" in ops(module)
    assert outcome is not None and not outcome.done


def test_a_factor_per_column_stays() -> None:
    def body(f: Function) -> None:
        q = f.call(OPS["mul"], projection(f, "q"), f.constant("factors", weights(3)))
        f.output("y", f.call(OPS["relu"], q))

    assert "mul" in ops(sunk(body)[0])


def test_scores_that_others_use_stay() -> None:
    def body(f: Function) -> None:
        scores = f.call(OPS["matmul"], projection(f, "q"), projection(f, "k"), transpose_b=True)
        f.output("raw", scores)
        f.output("y", f.call(OPS["mul"], scores, number(f)))

    module, outcome = sunk(body)
    assert "mul" in ops(module)
    assert [s.reason for s in outcome.skipped] == ["factors that reach no weight of their own"]


def test_a_weight_that_others_use_stays() -> None:
    def body(f: Function) -> None:
        w = f.constant("w", weights(4, 4))
        q, k = (f.call(OPS["matmul"], f.input(x, (N, 4), F32), w) for x in "qk")
        f.output("y", f.call(OPS["mul"], f.call(OPS["matmul"], q, k, transpose_b=True), number(f)))

    module, _ = sunk(body)
    assert "mul" in ops(module)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=12))
def test_random_paths(choices: list[int]) -> None:
    """Projections, products of values, moves, biases and factors in any order."""

    def body(f: Function) -> None:
        values: list[Value] = [f.input(name, (N, 4, 4), F32) for name in "xy"]
        for at, choice in enumerate(choices):
            kind, a = choice % 6, values[choice // 6 % len(values)]
            if kind == 0:
                w = f.constant(f"w{at}", weights(4, 4, seed=choice) * 0.5)
                made = f.call(OPS["matmul"], *((a, w) if choice // 600 % 2 else (w, a)))
            elif kind == 1:
                made = f.call(OPS["matmul"], a, values[choice // 60 % len(values)])
            elif kind == 2:
                made = f.call(OPS["transpose"], a, perm=(0, 2, 1))
            elif kind == 3:
                made = f.call(OPS["add"], a, f.constant(f"b{at}", weights(4, seed=choice)))
            else:
                factor = f.constant(f"f{at}", np.float32((0.5, -0.25, 0.3)[choice // 60 % 3]))
                made = f.call(OPS[("mul", "div")[choice // 600 % 2]], a, factor)
            values.append(made)
        f.output("y", f.call(OPS["tanh"], values[-1]))

    sunk(body)
