"""Transposes move to where they move the fewest bytes; what is computed stays the same."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.frontends.onnx import load
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import CallTIR, Module, Value
from edgerelax.ir.outcome import Outcome, taken
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import as_tensor
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.canonicalize import canonicalize
from edgerelax.passes.classify import is_view
from edgerelax.passes.dce import dce
from edgerelax.passes.layout import bytes_of, layout, traffic, typical
from edgerelax.passes.legalize import legalize
from edgerelax.passes.orders import transposition
from edgerelax.pipeline import GRAPH
from edgerelax.sym import symbol
from tests.e2e.models import REAL
from tests.passes.programs import N, build, weights
from tests.passes.test_fold_scales import same
from tests.passes.test_meaning import inputs_of

H, W = symbol("h", 1, 40), symbol("w", 1, 40)
SIZES = ({"n": 2, "h": 6, "w": 5}, {"n": 1, "h": 1, "w": 1}, {"n": 3, "h": 4, "w": 7})
NHWC, NCHW = (0, 2, 3, 1), (0, 3, 1, 2)


def transposes(module: Module) -> list[Value]:
    """The results of transposes that move something."""
    return [
        b.var
        for b in all_bindings(module.funcs["main"].body)
        if isinstance(b.value, CallTIR)
        and transposition(module.loops[b.value.func]) is not None
        and not is_view(module.loops[b.value.func])
    ]


def moved(module: Module, sizes: dict[str, int]) -> int:
    return sum(bytes_of(v).eval(sizes) for v in transposes(module))


def laid_out(module: Module) -> tuple[Module, Module, Outcome]:
    """Before and after, once both are checked to compute the same, in no more traffic."""
    before = dce(canonicalize(legalize(module)))
    after, outcome = taken(layout(before))
    verify(after)
    assert outcome is not None
    for sizes in SIZES:
        same(module, after, inputs_of(module, sizes))
    (kernels, bytes_), (least, fewest) = traffic(after), traffic(before)
    assert kernels <= least and typical(bytes_) <= typical(fewest)
    return before, after, outcome


def counts(body: Callable[[Function], None]) -> tuple[int, int]:
    before, after, _ = laid_out(build(body))
    return len(transposes(before)), len(transposes(after))


def turned(f: Function, x: Value, perm: tuple[int, ...]) -> Value:
    return f.call(OPS["transpose"], x, perm=perm)


def conv(f: Function, x: Value, channels: int, given_channels: int) -> Value:
    name = f"w{channels}_{given_channels}"
    w = f.constant(name, weights(channels, given_channels, 3, 3))
    return f.call(OPS["conv"], x, w, None, pads=(1, 1, 1, 1))


def image(f: Function, channels: int = 4) -> Value:
    return f.input("x", (N, channels, H, W), F32)


MIDDLES: dict[str, Callable[[Function, Value], Value]] = {
    "bias": lambda f, x: f.call(OPS["add"], x, f.constant("b", weights(8))),
    "concat": lambda f, x: f.call(OPS["concat"], x, f.call(OPS["tanh"], x), axis=1),
    "pad": lambda f, x: f.call(OPS["pad"], x, None, pads=(0, 1, 2, 0, 0, 0, 3, 0)),
    "slice": lambda f, x: f.call(OPS["slice"], x, starts=(1,), ends=(8,), axes=(3,), steps=(2,)),
    "softmax": lambda f, x: f.call(OPS["softmax"], x, axis=2),
    "mean": lambda f, x: f.call(
        OPS["sub"], x, f.call(OPS["reduce_mean"], x, axes=(1, 2), keepdims=True)
    ),
    "unsqueezed": lambda f, x: f.call(
        OPS["reshape"],
        f.call(OPS["exp"], f.call(OPS["reshape"], x, dims=(N, 1, H, W, 8))),
        dims=(N, H, W, 8),
    ),
    "where": lambda f, x: f.call(
        OPS["where"],
        f.call(OPS["gt"], x, f.constant("z", weights(8))),
        x,
        f.call(OPS["neg"], x),
    ),
}


@pytest.mark.parametrize("name", MIDDLES)
def test_inverse_transposes_meet_through(name: str) -> None:
    """conv → NHWC → something → NCHW → conv."""

    def body(f: Function) -> None:
        x = turned(f, conv(f, image(f), 8, 4), NHWC)
        y = turned(f, MIDDLES[name](f, x), NCHW)
        channels = as_tensor(y.annotation).dims[1].as_int()  # type: ignore[union-attr, index]
        f.output("y", conv(f, y, 2, channels or 8))

    assert counts(body) == (2, 0)


def test_branches_and_joins() -> None:
    def body(f: Function) -> None:
        a = turned(f, conv(f, image(f), 8, 4), NHWC)
        b = turned(f, conv(f, f.call(OPS["tanh"], turned(f, a, NCHW)), 8, 8), NHWC)
        joined = f.call(OPS["add"], f.call(OPS["relu"], a), f.call(OPS["sigmoid"], b))
        f.output("y", conv(f, turned(f, joined, NCHW), 2, 8))
        f.output("z", conv(f, turned(f, f.call(OPS["exp"], joined), NCHW), 3, 8))

    assert counts(body) == (5, 0)


def test_a_copy_is_made_where_it_is_smallest() -> None:
    """A result in NHWC takes one transpose: after the pooling, not before."""

    def body(f: Function) -> None:
        x = f.call(OPS["relu"], turned(f, conv(f, image(f), 8, 4), NHWC))
        f.output("y", f.call(OPS["reduce_max"], x, axes=(3,), keepdims=True))
        f.output("z", f.call(OPS["slice"], x, starts=(0,), ends=(2,), axes=(3,), steps=(1,)))

    before, after, _ = laid_out(build(body))
    assert len(transposes(before)) == 1
    assert [as_tensor(v.annotation).dims[-1].as_int() for v in transposes(after)] == [2]  # type: ignore[union-attr, index]


def test_copies_that_are_part_of_a_kernel_stay() -> None:
    """One copy of x would serve both, and be a kernel more."""

    def body(f: Function) -> None:
        x = image(f)
        f.output("a", turned(f, f.call(OPS["exp"], x), NHWC))
        f.output("b", turned(f, f.call(OPS["tanh"], x), NHWC))

    assert counts(body) == (2, 2)


def test_what_is_best_stays_as_it_is() -> None:
    """Inputs and results have their order: between them a transpose is needed."""

    def body(f: Function) -> None:
        x = turned(f, f.call(OPS["tanh"], image(f)), NHWC)
        f.output("y", f.call(OPS["exp"], x))

    module = canonicalize(legalize(build(body)))
    after, _ = taken(layout(module))
    assert after.funcs == module.funcs and after.loops == module.loops


def test_rows_that_a_kernel_keeps_at_hand_stay_rows() -> None:
    """A softmax over the innermost dim is not turned into one over an outer dim."""

    def body(f: Function) -> None:
        x = turned(f, conv(f, image(f), 8, 4), NHWC)
        y = turned(f, f.call(OPS["softmax"], x, axis=3), NCHW)
        f.output("y", conv(f, y, 2, 8))

    assert counts(body) == (2, 2)


def test_branches_of_a_condition_keep_what_they_are_given() -> None:
    def body(f: Function) -> None:
        x = turned(f, f.call(OPS["tanh"], conv(f, image(f), 8, 4)), NHWC)
        flag = f.call(OPS["reduce_max"], x, axes=(0, 1, 2, 3), keepdims=False)
        cond = f.call(OPS["gt"], flag, f.constant("half", np.float32(0.5)))
        (y,) = f.if_else(
            cond,
            lambda: (f.call(OPS["exp"], turned(f, f.call(OPS["neg"], turned(f, x, NCHW)), NHWC)),),
            lambda: (x,),
        )
        f.output("y", turned(f, y, NCHW))

    _, after, _ = laid_out(build(body))
    assert len(transposes(after)) <= 2


KINDS = ("turn", "turn", "conv", "map", "bias", "join", "pad", "reduce", "soft")


def random_graph(seed: int) -> Module:
    """Convolutions, transposes and what stands between them in models of TensorFlow."""
    chosen = random.Random(seed)

    def body(f: Function) -> None:
        values: list[tuple[Value, bool]] = [(image(f), False)]  # whether in NHWC
        for k in range(chosen.randint(4, 12)):
            x, last = chosen.choice(values[-4:])
            channels = as_tensor(x.annotation).dims[3 if last else 1].as_int()  # type: ignore[union-attr, index]
            kind = chosen.choice(KINDS)
            if kind == "turn" or (kind == "conv" and last):
                values.append((turned(f, x, NCHW if last else NHWC), not last))
            elif kind == "conv":
                values.append((conv(f, x, chosen.choice((4, 8)), channels), last))
            elif kind == "map":
                values.append((f.call(OPS[chosen.choice(("tanh", "relu", "neg"))], x), last))
            elif kind == "bias":
                shape = (channels,) if last else (channels, 1, 1)
                values.append((f.call(OPS["add"], x, f.constant(f"b{k}", weights(*shape))), last))
            elif kind == "join":
                others = [v for v, at in values if at == last and v.annotation == x.annotation]
                values.append((f.call(OPS["sub"], x, chosen.choice(others)), last))
            elif kind == "pad":
                pads = (0, 0, 0, 1, 0, 0, 0, 0) if last else (0, 1, 0, 0, 0, 0, 0, 0)
                values.append((f.call(OPS["pad"], x, None, pads=pads), last))
            elif kind == "reduce":
                axis = chosen.randint(1, 3)
                y = f.call(OPS["reduce_max"], x, axes=(axis,), keepdims=True)
                values.append((f.call(OPS["sub"], x, y), last))
            else:
                values.append((f.call(OPS["softmax"], x, axis=chosen.randint(1, 3)), last))
        f.output("y", values[-1][0])
        f.output("z", chosen.choice(values)[0])

    return build(body)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 10**6))
def test_random_graphs(seed: int) -> None:
    laid_out(random_graph(seed))


def test_basic_pitch() -> None:
    """A model from TensorFlow: 40 transposes around its filters become two small ones."""
    module = load(REAL["basic-pitch"].path)
    for step in GRAPH[: GRAPH.index(layout)]:
        module, _ = taken(step(module))
    after, outcome = taken(layout(module))
    verify(after)
    assert outcome is not None and not outcome.skipped
    symbols = {s.name: 1 for v in transposes(module) for s in bytes_of(v).symbols()}
    assert (len(transposes(module)), len(transposes(after))) == (40, 2)
    assert moved(after, symbols) * 8 < moved(module, symbols)
