"""What becomes f16 and what stays f32; casts once; results stay near what the program computed."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import BOOL, F16, F32, I64
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Binding, Call, Module, Value
from edgerelax.ir.outcome import Outcome, taken
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import as_tensor
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.mixed_precision import mixed_precision
from tests.passes.programs import PROGRAMS, M, N, build, random_program, weights
from tests.passes.test_meaning import inputs_of

Body = Callable[[Function], None]
SIZES = {"n": 3, "m": 5}


def narrowed(source: Body | Module) -> tuple[Module, Outcome]:
    """The module after, once it is checked to compute nearly what the program did."""
    module = source if isinstance(source, Module) else build(source)
    after, outcome = taken(mixed_precision(module))
    verify(after)
    assert outcome is not None
    before_params, params = module.funcs["main"].params, after.funcs["main"].params
    assert before_params == params
    inputs = inputs_of(module, SIZES)
    wanted, got = evaluate(module, inputs), evaluate(after, inputs)
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_allclose(got[name], value, rtol=1e-2, atol=1e-2 * np.abs(value).max())
    return after, outcome


def calls(module: Module) -> list[str]:
    """Operators with the dtypes of their results, in order; casts by their target alone."""
    bindings = all_bindings(module.funcs["main"].body)
    return [_text(b, b.value) for b in bindings if isinstance(b.value, Call)]


def _text(binding: Binding, call: Call) -> str:
    tensor = as_tensor(binding.var.annotation)
    dtype = "?" if tensor is None else str(tensor.dtype)
    return dtype if call.op.name == "cast" else f"{call.op.name}:{dtype}"


def product(f: Function, x: Value, name: str = "w", wide: int = 16) -> Value:
    depth = as_tensor(x.annotation).dims[-1].as_int()
    return f.call(OPS["matmul"], x, f.constant(name, weights(depth, wide)))


def body_of(*steps: Callable[[Function, Value], Value]) -> Body:
    def body(f: Function) -> None:
        value: Value = f.input("x", (N, 16), F32)
        for step in steps:
            value = step(f, value)
        f.output("y", value)

    return body


def op(name: str, **attrs: object) -> Callable[[Function, Value], Value]:
    return lambda f, x: f.call(OPS[name], x, **attrs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    narrowed(PROGRAMS[name]())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=12))
def test_random_programs_stay_well_formed(choices: list[int]) -> None:
    """Their numbers grow without bound: only the form and the types are compared."""
    module = random_program(choices)
    after, _ = taken(mixed_precision(module))
    verify(after)
    for old, new in zip(
        module.funcs["main"].body.results, after.funcs["main"].body.results, strict=True
    ):
        assert old.annotation == new.annotation


def test_casts_that_meet_are_never_made() -> None:
    module, _ = narrowed(
        body_of(product, op("reshape", dims=(N, 2, 8)), op("transpose", perm=(0, 2, 1)), op("relu"),
                op("reshape", dims=(N, 16)), product)
    )  # fmt: skip
    assert calls(module) == [
        "f16", "matmul:f16", "reshape:f16", "transpose:f16", "relu:f16", "reshape:f16",
        "matmul:f16", "f32",
    ]  # fmt: skip


def test_a_value_is_narrowed_once() -> None:
    def body(f: Function) -> None:
        x = f.call(OPS["exp"], f.input("x", (N, 16), F32))
        f.output("y", f.call(OPS["add"], product(f, x), product(f, x, "v")))

    module, outcome = narrowed(body)
    assert calls(module).count("f16") == 1
    assert outcome.done["matmul"] == 2 and outcome.done["casts to f16"] == 1


def test_a_weight_that_two_products_share_is_stored_once() -> None:
    def body(f: Function) -> None:
        w = f.constant("w", weights(16, 16))
        x = f.input("x", (N, 16), F32)
        f.output("y", f.call(OPS["matmul"], f.call(OPS["matmul"], x, w), w))

    module, _ = narrowed(body)
    bindings = all_bindings(module.funcs["main"].body)
    used = [b.value.args[1] for b in bindings if b.value.op.name == "matmul"]
    assert used[0] is used[1] and used[0].data.dtype == np.float16


def test_a_chain_of_maps_keeps_f32_within() -> None:
    """Bias and activation are rounded once, where the next product reads them."""

    def bias(f: Function, x: Value) -> Value:
        return f.call(OPS["add"], x, f.constant("b", weights(16)))

    module, _ = narrowed(body_of(product, bias, op("gelu"), product))
    assert calls(module) == [
        "f16", "matmul:f16", "f32", "add:f32", "gelu:f32", "f16", "matmul:f16", "f32"
    ]  # fmt: skip


def test_norms_compute_in_f32_and_several_readers_share_f16() -> None:
    def body(f: Function) -> None:
        x = product(f, f.input("x", (N, 16), F32))
        scale, bias = f.constant("s", weights(16)), f.constant("b", weights(16, seed=1))
        y = f.call(OPS["layer_norm"], x, scale, bias)
        f.output("y", f.call(OPS["add"], y, product(f, y)))

    module, _ = narrowed(body)
    assert calls(module) == [
        "f16", "matmul:f16", "f32", "layer_norm:f32", "f16", "matmul:f16", "f32", "f32", "add:f32",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["exp", "sqrt", "reciprocal", "reduce_sum", "reduce_mean"])
def test_what_loses_digits_stays_f32(name: str) -> None:
    def positive(f: Function, x: Value) -> Value:
        return f.call(OPS["add"], f.call(OPS["abs"], x), f.constant("one", np.float32(1)))

    last = op(name, axes=(1,), keepdims=True) if name.startswith("reduce") else op(name)
    module, _ = narrowed(body_of(product, positive, op("tanh"), last))
    assert f"{name}:f32" in calls(module) and f"{name}:f16" not in calls(module)


def test_squares_and_quotients_stay_f32() -> None:
    def body(f: Function) -> None:
        x = product(f, f.input("x", (N, 16), F32))
        square = f.call(OPS["mul"], x, x)
        f.output("y", product(f, f.call(OPS["div"], x, f.call(OPS["add"], square, square))))

    found = calls(taken(mixed_precision(build(body)))[0])
    assert "mul:f32" in found and "div:f32" in found and "add:f32" in found


def test_spectra_stay_f32() -> None:
    """Products that are squared or whose logarithm is taken, whatever moves them between."""

    def body(f: Function) -> None:
        waves = product(f, f.input("x", (N, 16), F32))
        real, imaginary = f.call_all(OPS["split"], waves, sizes=(8, 8), axis=1)
        squares = [f.call(OPS["mul"], part, part) for part in (real, imaginary)]
        bands = product(f, f.call(OPS["add"], *squares), "filters", 6)
        floor = f.call(OPS["max"], bands, f.constant("floor", np.float32(1e-9)))
        levels = f.call(OPS["log"], f.call(OPS["transpose"], floor, perm=(1, 0)))
        f.output("y", levels)

    module, outcome = narrowed(body)
    assert not [name for name in calls(module) if "16" in name]
    skipped = outcome.summary()["skipped"]
    assert skipped == {"a product whose square or logarithm is taken": 2}


def test_masks_beyond_f16_stay_f32() -> None:
    least = np.finfo(np.float32).min

    def body(f: Function) -> None:
        scores = product(f, f.input("x", (N, 16), F32))
        shown = f.call(OPS["lt"], f.input("z", (N, 16), F32), f.constant("c", np.float32(0)))
        y = f.call(OPS["where"], shown, scores, f.constant("least", np.array(least)))
        f.output("y", y)
        f.output("z", f.call(OPS["softmax"], y))

    module, _ = narrowed(body)
    assert "where:f32" in calls(module)
    assert calls(module)[-1] == "softmax:f32"


def test_a_weight_beyond_f16_keeps_its_operator() -> None:
    def body(f: Function) -> None:
        w = f.constant("w", np.full((16, 4), 1e5, np.float32))
        f.output("y", f.call(OPS["matmul"], f.input("x", (N, 16), F32), w))

    module, outcome = narrowed(body)
    assert calls(module) == ["matmul:f32"]
    assert outcome.summary()["skipped"] == {"a weight beyond the range of f16": 1}


def test_products_of_few_terms_stay_f32() -> None:
    """Positions times frequencies: angles, which f16 would ruin."""

    def body(f: Function) -> None:
        x = f.input("x", (N, 1), F32)
        f.output("y", f.call(OPS["sin"], f.call(OPS["matmul"], x, f.constant("w", weights(1, 8)))))

    assert calls(narrowed(body)[0]) == ["matmul:f32", "sin:f32"]


def test_tables_are_stored_short() -> None:
    def body(f: Function) -> None:
        ids = f.constant("ids", np.array([3, 0, 77]))
        rows = f.call(OPS["gather"], f.constant("table", weights(100, 16)), ids)
        f.output("y", product(f, rows))

    module, _ = narrowed(body)
    assert calls(module) == ["gather:f16", "matmul:f16", "f32"]


def test_fields_of_a_split() -> None:
    def body(f: Function) -> None:
        x = product(f, f.input("x", (N, 16), F32))
        a, b = f.fields(f.call(OPS["split"], x, axis=1, sizes=(8, 8)))
        f.output("y", f.call(OPS["matmul"], a, b, transpose_b=True))

    module, _ = narrowed(body)
    assert "f32" not in calls(module)[:-1] and calls(module)[-2] == "matmul:f16"


def test_other_types_are_left_alone() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 16), F16)
        y = f.call(OPS["matmul"], x, f.constant("w", weights(16, 16).astype(np.float16)))
        f.output("y", f.call(OPS["add"], y, y))

    module = build(body)
    after, outcome = taken(mixed_precision(module))
    assert calls(after) == calls(module) == ["matmul:f16", "add:f16"]
    assert outcome is not None and outcome.summary() == {"done": {}, "skipped": {}}


def test_arms_give_f32() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 16), F32)
        flag = f.input("flag", (), BOOL)
        y = product(f, x)
        (z,) = f.if_else(
            flag,
            lambda: (f.call(OPS["tanh"], y),),
            lambda: (product(f, y, "v"),),
        )
        f.output("y", product(f, z, "u"))

    module = build(body)
    after, _ = taken(mixed_precision(module))
    verify(after)
    x = weights(3, 16, seed=7)
    for flag in (True, False):
        given = {"x": x, "flag": np.array(flag)}
        wanted, got = evaluate(module, given)["y"], evaluate(after, given)["y"]
        np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=1e-2 * np.abs(wanted).max())


def test_integers_pass() -> None:
    def body(f: Function) -> None:
        ids = f.input("ids", (N, M), I64)
        table = f.constant("table", weights(8, 16))  # too small to be worth it
        f.output("y", f.call(OPS["gather"], table, ids))

    after, _ = taken(mixed_precision(build(body)))
    assert calls(after) == ["gather:f32"]
