"""Attention is found however it is written, and only where it is attention."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import BOOL, F16, F32, F64, DType
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Constant, Module, Value, operands
from edgerelax.ir.outcome import Outcome, taken
from edgerelax.ir.parser import parse
from edgerelax.ir.printer import write
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.fuse_attention import fuse_attention
from edgerelax.pipeline import GRAPH
from edgerelax.sym import symbol
from tests.passes.programs import build, weights
from tests.passes.test_fold_scales import ops

B, S, T = symbol("b", 1, 16), symbol("s", 1, 64), symbol("t", 1, 64)
SIZES = {"b": 2, "s": 5, "t": 7}
HIDDEN = float("-inf")


def arrays_for(module: Module, sizes: dict[str, int]) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    found = {}
    for param in module.funcs["main"].params:
        shape = [d.eval(sizes) for d in param.annotation.dims]
        numbers = rng.standard_normal(shape)
        is_mask = param.annotation.dtype == BOOL
        found[param.name] = (
            numbers > -0.8 if is_mask else numbers.astype(param.annotation.dtype.numpy)
        )
    return found


def fused(body: Callable[[Function], None], tolerance: float = 1e-5) -> tuple[list[str], Outcome]:
    """The operators left over, after checking that they compute what the program did."""
    module = build(body)
    after, outcome = taken(fuse_attention(module))
    verify(after)
    assert outcome is not None
    text = write(after)
    named = {
        v.name: v.data
        for b in all_bindings(after.funcs["main"].body)
        for v in operands(b.value)
        if isinstance(v, Constant)
    }
    assert write(parse(text, OPS, named)) == text
    for sizes in (SIZES, dict.fromkeys(SIZES, 1)):
        inputs = arrays_for(module, sizes)
        want, got = evaluate(module, inputs), evaluate(after, inputs)
        for name, value in want.items():
            np.testing.assert_allclose(
                got[name].astype(np.float64), value.astype(np.float64), tolerance, tolerance
            )
    return ops(after), outcome


def qkv(f: Function, batch: tuple[Any, ...] = (B, 3), width: int = 4, dtype: DType = F32) -> Any:
    q = f.input("q", (*batch, S, width), dtype)
    k = f.input("k", (*batch, T, width), dtype)
    v = f.input("v", (*batch, T, 6), dtype)
    return q, k, v


def call(f: Function, name: str, *args: Value, **attrs: Any) -> Value:
    return f.call(OPS[name], *args, **attrs)


def finish(f: Function, scores: Value, v: Value) -> None:
    f.output("y", call(f, "matmul", call(f, "softmax", scores, axis=-1), v))


def number(f: Function, value: float, dtype: DType = F32) -> Value:
    return f.constant("number", np.asarray(value, dtype.numpy))


STEPS: dict[str, Callable[[Function, Value], Value]] = {
    "mul": lambda f, s: call(f, "mul", s, number(f, 0.5)),
    "div": lambda f, s: call(f, "div", s, number(f, 2.0)),
    "tanh": lambda f, s: call(f, "tanh", s),
    "clip": lambda f, s: call(f, "max", s, number(f, -0.5)),
    "add": lambda f, s: call(f, "add", f.input("bias", (B, 1, 1, T), F32), s),
    "sub": lambda f, s: call(f, "sub", s, f.input("less", (S, T), F32)),
    "where": lambda f, s: call(
        f, "where", f.input("shown", (B, 1, S, T), BOOL), s, number(f, -1e4)
    ),
    "unless": lambda f, s: call(f, "where", f.input("hidden", (T,), BOOL), number(f, -9.0), s),
}


@pytest.mark.parametrize("names", [(), *itertools.permutations(STEPS, 2)], ids="-".join)
def test_any_chain_of_steps(names: tuple[str, ...]) -> None:
    def body(f: Function) -> None:
        q, k, v = qkv(f)
        scores = call(f, "matmul", q, k, transpose_b=True)
        for name in names:
            scores = STEPS[name](f, scores)
        finish(f, scores, v)

    left, outcome = fused(body)
    assert left == ["attention"]
    assert outcome.summary()["done"] == {"attention fused": 1}


def test_a_row_that_is_hidden_is_nan_as_before() -> None:
    def body(f: Function) -> None:
        q, k, v = qkv(f)
        scores = call(f, "matmul", q, k, transpose_b=True)
        shown = f.constant("shown", np.array([[False]]))
        finish(f, call(f, "where", shown, scores, number(f, HIDDEN)), v)

    assert fused(body)[0] == ["attention"]


BATCHES: dict[str, tuple[Any, Any, Any]] = {
    "none": ((), (), ()),
    "one": ((B,), (B,), (B,)),
    "shared keys": ((B, 3), (B, 1), (B, 1)),
    "shared queries": ((1, 3), (B, 3), (B, 3)),
    "fewer dims": ((B, 3), (), (3,)),
    "groups": ((B, 3, 2), (B, 3, 1), (B, 3, 1)),
}


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("turned", [False, True])
def test_batch_dims_that_broadcast(name: str, turned: bool) -> None:
    left, right, last = BATCHES[name]

    def body(f: Function) -> None:
        q = f.input("q", (*left, S, 4), F32)
        k = f.input("k", (*right, 4, T) if turned else (*right, T, 4), F32)
        v = f.input("v", (*last, T, 6), F32)
        finish(f, call(f, "matmul", q, k, transpose_b=not turned), v)

    assert fused(body)[0] == ["attention"]


def heads(f: Function, x: Value, count: int = 3) -> Value:
    """[b, n, c] as [b, count, n, c / count]."""
    batch, length, width = x.annotation.dims
    split = call(f, "reshape", x, dims=(batch, length, count, width // count))
    return call(f, "transpose", split, perm=(0, 2, 1, 3))


def test_packed_heads_are_read_and_written_in_place() -> None:
    """As in BERT: slices of one projection, split into heads; the result put together again."""

    def body(f: Function) -> None:
        x = f.input("x", (B, S, 36), F32)
        parts = [
            call(f, "slice", x, starts=(k,), ends=(k + 12,), axes=(2,), steps=(1,))
            for k in (0, 12, 24)
        ]
        q, k, v = (heads(f, part) for part in parts)
        scores = call(f, "matmul", q, call(f, "transpose", k, perm=(0, 1, 3, 2)))
        mask = call(f, "reshape", f.input("mask", (B, S), F32), dims=(B, 1, 1, S))
        shown = call(f, "expand", mask, dims=(B, 1, S, S))
        weights = call(f, "softmax", call(f, "add", scores, shown), axis=3)
        y = call(f, "transpose", call(f, "matmul", weights, v), perm=(0, 2, 1, 3))
        f.output("y", call(f, "reshape", y, dims=(B, S, 12)))

    assert fused(body)[0] == ["attention"]


def test_heads_merged_with_the_batch() -> None:
    """Three-dimensional products, as for a batched product that takes no more; masks per head."""

    def body(f: Function) -> None:
        q, k, v = qkv(f)
        q, k, v = (call(f, "reshape", x, dims=(B * 3, *x.annotation.dims[2:])) for x in (q, k, v))
        scores = call(f, "matmul", q, k, transpose_b=True)
        scores = call(f, "reshape", scores, dims=(B, 3, S, T))
        scores = call(f, "add", scores, f.input("bias", (1, 3, S, T), F32))
        weights = call(f, "softmax", scores, axis=-1)
        y = call(f, "matmul", call(f, "reshape", weights, dims=(B * 3, S, T)), v)
        y = call(f, "transpose", call(f, "reshape", y, dims=(B, 3, S, 6)), perm=(2, 0, 1, 3))
        f.output("y", y)

    assert fused(body)[0] == ["attention"]


def test_keys_repeated_for_a_group_of_heads() -> None:
    """An expand between two reshapes copies keys; read through a view they stay where they are."""

    def body(f: Function) -> None:
        q = f.input("q", (B, 6, S, 4), F32)
        repeated = []
        for name in "kv":
            x = f.input(name, (B, 3, T, 4), F32)
            x = call(f, "reshape", x, dims=(B, 3, 1, T, 4))
            x = call(f, "expand", x, dims=(B, 3, 2, T, 4))
            repeated.append(call(f, "reshape", x, dims=(B, 6, T, 4)))
        k, v = repeated
        finish(f, call(f, "matmul", q, k, transpose_b=True), v)

    assert fused(body)[0] == ["attention"]


def test_a_causal_mask_is_a_mask() -> None:
    """As in GPT-2: the corner of a constant triangle chooses between scores and a low number."""

    def body(f: Function) -> None:
        q, k, v = qkv(f)
        triangle = f.constant("triangle", np.tril(np.ones((64, 64), np.bool_)))
        ends = {"starts": (0, 0), "ends": (S, T), "axes": (0, 1), "steps": (1, 1)}
        shown = call(f, "slice", triangle, **ends)
        scores = call(f, "div", call(f, "matmul", q, k, transpose_b=True), number(f, 2.0))
        finish(f, call(f, "where", shown, scores, number(f, -1e4)), v)

    assert "matmul" not in fused(body)[0]


def test_rows_without_keys_to_look_at_may_be_zero() -> None:
    def body(f: Function) -> None:
        q, k, v = qkv(f)
        scores = call(f, "matmul", q, k, transpose_b=True)
        shown = f.input("shown", (S, 1), BOOL)
        scores = call(f, "where", shown, scores, number(f, HIDDEN))
        weights = call(f, "softmax", scores, axis=-1)
        weights = call(f, "where", call(f, "isnan", weights), number(f, 0.0), weights)
        f.output("y", call(f, "matmul", weights, v))

    assert fused(body)[0] == ["attention"]


@pytest.mark.parametrize("keys,done", [(1, True), (T, False)])
def test_queries_that_a_condition_makes_zero(keys: Any, done: bool) -> None:
    """As in ONNX's definition of Attention. A condition on keys is none on queries."""

    def body(f: Function) -> None:
        q, k, v = qkv(f)
        weights = call(f, "softmax", call(f, "matmul", q, k, transpose_b=True), axis=-1)
        hidden = f.input("hidden", (B, 1, S, keys), BOOL)
        f.output("y", call(f, "matmul", call(f, "where", hidden, number(f, 0.0), weights), v))

    assert (fused(body)[0] == ["attention"]) == done


def test_short_floats_with_scores_cast_to_f32() -> None:
    def body(f: Function) -> None:
        q, k, v = qkv(f, dtype=F16)
        scores = call(f, "cast", call(f, "matmul", q, k, transpose_b=True), dtype=F32)
        weights = call(f, "softmax", call(f, "mul", scores, number(f, 0.5)), axis=-1)
        f.output("y", call(f, "matmul", call(f, "cast", weights, dtype=F16), v))

    assert fused(body, 4e-3)[0] == ["attention"]


# what is not attention, or not worth it


def plain(f: Function, **more: Any) -> tuple[Value, Value]:
    q, k, v = qkv(f, **more)
    return call(f, "matmul", q, k, transpose_b=True), v


def scores_as_a_result(f: Function) -> None:
    scores, v = plain(f)
    f.output("scores", scores)
    finish(f, scores, v)


def probabilities_as_a_result(f: Function) -> None:
    scores, v = plain(f)
    weights = call(f, "softmax", scores, axis=-1)
    f.output("weights", weights)
    f.output("y", call(f, "matmul", weights, v))


def scores_used_twice_on_the_way(f: Function) -> None:
    scores, v = plain(f)
    scaled = call(f, "mul", scores, number(f, 0.5))
    finish(f, call(f, "add", scaled, call(f, "tanh", scaled)), v)


def softmax_over_queries(f: Function) -> None:
    scores, v = plain(f)
    f.output("y", call(f, "matmul", call(f, "softmax", scores, axis=-2), v))


def softmax_of_no_product(f: Function) -> None:
    scores = f.input("scores", (B, 3, S, T), F32)
    finish(f, scores, f.input("v", (B, 3, T, 6), F32))


def wide_heads(f: Function) -> None:
    finish(f, *plain(f, width=257))


def doubles(f: Function) -> None:
    finish(f, *plain(f, dtype=F64))


def scores_that_a_bias_widens(f: Function) -> None:
    q, k, v = (f.input(n, (1, d, 4), F32) for n, d in (("q", S), ("k", T), ("v", T)))
    scores = call(f, "matmul", q, k, transpose_b=True)
    finish(f, call(f, "add", scores, f.input("bias", (B, S, T), F32)), v)


def heads_of_unknown_width(f: Function) -> None:
    width = symbol("w", 1, 8)
    q, k = (f.input(n, (d, width), F32) for n, d in (("q", S), ("k", T)))
    finish(f, call(f, "matmul", q, k, transpose_b=True), f.input("v", (T, 6), F32))


REASONS = {
    scores_as_a_result: "softmax of something else than scores used once",
    scores_used_twice_on_the_way: "softmax of something else than scores used once",
    softmax_of_no_product: "softmax of something else than scores used once",
    scores_that_a_bias_widens: "softmax of something else than scores used once",
    probabilities_as_a_result: "probabilities that something else uses",
    softmax_over_queries: "softmax over another axis than the keys",
    wide_heads: "attention of heads not known to be at most 256 wide",
    heads_of_unknown_width: "attention of heads not known to be at most 256 wide",
    doubles: "attention of f64",
}


@pytest.mark.parametrize("body", REASONS, ids=lambda body: body.__name__)
def test_what_stays(body: Callable[[Function], None]) -> None:
    module = build(body)
    after, outcome = taken(fuse_attention(module))
    assert outcome is not None
    assert ops(after) == ops(module)
    assert [s.reason for s in outcome.skipped] == [REASONS[body]]


@pytest.mark.parametrize("left_out", ["", "fuse_attention"])
def test_projections_and_attention_are_few_kernels(left_out: str) -> None:
    """The packed projection, attention, nothing between."""
    module = build(lambda f: attention_layer(f))
    for step in GRAPH:
        module = module if step.__name__ == left_out else step(module)
    names = [loop.split("_")[0] for loop in module.loops]
    assert ("attention" in names) != bool(left_out)
    assert ("transpose" in names) == bool(left_out)


def attention_layer(f: Function) -> None:
    x = f.input("x", (B, S, 12), F32)
    q, k, v = (
        heads(f, call(f, "matmul", x, f.constant(f"w{n}", weights(12, 12, seed=n))))
        for n in range(3)
    )
    scores = call(f, "mul", call(f, "matmul", q, k, transpose_b=True), number(f, 0.5))
    y = call(f, "matmul", call(f, "softmax", scores, axis=-1), v)
    y = call(f, "reshape", call(f, "transpose", y, perm=(0, 2, 1, 3)), dims=(B, S, 12))
    f.output("y", call(f, "matmul", y, f.constant("wo", weights(12, 12, seed=3))))
