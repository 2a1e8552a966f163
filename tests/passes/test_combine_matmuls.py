"""Products that share their left operand become one where that pays, and only there."""

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Module, Value, Var
from edgerelax.ir.outcome import Outcome, taken
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.combine_matmuls import combine_matmuls
from edgerelax.passes.fuse import fuse
from edgerelax.passes.fuse_loops import fuse_loops
from edgerelax.passes.place import place
from edgerelax.pipeline import GRAPH, Pass
from tests.passes.programs import M, N, build, weights
from tests.passes.test_fold_scales import ops, same
from tests.passes.test_fusion import calls
from tests.passes.test_meaning import inputs_of


def combined(body: Callable[[Function], None]) -> tuple[list[str], Outcome]:
    """The operators left over, after checking that they compute what the program did."""
    module = build(body)
    after, outcome = taken(combine_matmuls(module))
    verify(after)
    assert outcome is not None
    same(module, after, inputs_of(module, {"n": 3, "m": 5}))
    return ops(after), outcome


def heads(f: Function, y: Value, count: int) -> Var:
    """[n, m, c] as [n, count, m, c / count], the way attention takes it."""
    width = y.annotation.dims[-1].as_int()
    y = f.call(OPS["reshape"], y, dims=(N, M, count, width // count))
    return f.call(OPS["transpose"], y, perm=(0, 2, 1, 3))


def attention(f: Function, biased: str = "qkv", turned: str = "") -> None:
    x = f.input("x", (N, M, 6), F32)
    parts = []
    for k, name in enumerate("qkv"):
        w = f.constant(f"w{name}", weights(*((8, 6) if name in turned else (6, 8)), seed=k))
        y = f.call(OPS["matmul"], x, w, transpose_b=name in turned)
        if name in biased:
            y = f.call(OPS["add"], f.constant(f"b{name}", weights(8, seed=k)), y)
        parts.append(heads(f, y, 2))
    q, k, v = parts
    scores = f.call(OPS["softmax"], f.call(OPS["matmul"], q, k, transpose_b=True), axis=-1)
    f.output("y", f.call(OPS["matmul"], scores, v))


@pytest.mark.parametrize("biased", ["", "q", "qkv"])
@pytest.mark.parametrize("turned", ["", "k", "qkv"])
def test_projections_of_attention(biased: str, turned: str) -> None:
    left, outcome = combined(lambda f: attention(f, biased, turned))
    assert left.count("matmul") == 3
    assert left.count("slice") == 3
    assert left.count("add") == bool(biased)
    assert outcome.summary()["done"] == {"3 products combined": 1}


def test_the_slices_cost_no_kernel() -> None:
    module = build(attention)
    alone = [step for step in GRAPH if step is not combine_matmuls]
    assert kernels(module, GRAPH) == kernels(module, alone) - 2


def kernels(module: Module, steps: Iterable[Pass]) -> int:
    for step in steps:
        module = step(module)
    return len(calls(fuse_loops(fuse(place(module, device="gpu")))))


def test_two_slices_that_would_be_kernels_are_not_worth_it() -> None:
    """relu is free after a product and a kernel after a slice."""

    def body(f: Function) -> None:
        x = f.input("x", (N, 6), F32)
        for name in "ab":
            y = f.call(OPS["matmul"], x, f.constant(f"w{name}", weights(6, 4)))
            f.output(name, f.call(OPS["relu"], y))

    left, outcome = combined(body)
    assert left == ["matmul", "relu"] * 2
    assert [s.reason for s in outcome.skipped] == [
        "products whose slices would cost the launches saved"
    ]


@pytest.mark.parametrize("outputs,done", [(6, True), (7, False)])
def test_one_slice_that_costs_is_weighed_by_bytes(outputs: int, done: bool) -> None:
    """Two reads of 6 numbers a row saved pay for writing and reading 6 once more, not 7."""

    def body(f: Function) -> None:
        x = f.input("x", (N, M, 6), F32)
        for k in range(2):
            y = f.call(OPS["matmul"], x, f.constant(f"w{k}", weights(6, 4, seed=k)))
            f.output(f"y{k}", heads(f, y, 2))
        y = f.call(OPS["matmul"], x, f.constant("w", weights(6, outputs)))
        f.output("y", f.call(OPS["relu"], y))

    left, outcome = combined(body)
    assert (left.count("matmul") == 1) == done
    assert bool(outcome.skipped) != done


def test_a_weight_that_others_use_is_not_stored_twice() -> None:
    def body(f: Function) -> None:
        x, w = f.input("x", (N, M, 6), F32), f.constant("w", weights(6, 8))
        for k in range(2):
            own = w if k else f.constant("own", weights(6, 8, seed=1))
            f.output(f"y{k}", heads(f, f.call(OPS["matmul"], x, own), 2))
        f.output("z", f.call(OPS["matmul"], f.input("z", (M, 6), F32), w))

    left, outcome = combined(body)
    assert left.count("matmul") == 3
    assert [s.at for s in outcome.skipped] == ["x"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=7))
def test_random_branches(choices: list[int]) -> None:
    """Widths, biases, turns, and uses that make a slice free or not, at random."""

    def body(f: Function) -> None:
        inputs = [f.input(name, (N, M, 6), F32) for name in "xy"]
        for at, choice in enumerate(choices):
            x, turned, width = inputs[choice % 2], bool(choice // 2 % 2), 2 + choice // 4 % 3 * 2
            w = f.constant(f"w{at}", weights(*((width, 6) if turned else (6, width)), seed=at))
            y: Value = f.call(OPS["matmul"], x, w, transpose_b=turned)
            bias = ((), (1,), (width,), (1, 1, width))[choice // 12 % 4]
            if choice // 60 % 3:
                y = f.call(OPS["add"], y, f.constant(f"b{at}", weights(*bias, seed=at)))
            use = choice // 180 % 4
            if use == 0:
                f.output(f"raw{at}", y)
            f.output(f"y{at}", heads(f, y, 2) if use < 3 else f.call(OPS["relu"], y))

    combined(body)
