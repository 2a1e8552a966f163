"""Which weights are rounded to f16 for CPUs, and that nothing else changes."""

import numpy as np

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Constant, Module, operands
from edgerelax.ir.outcome import Outcome, taken
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.round_weights import round_weights
from tests.passes.programs import N, build, weights
from tests.passes.test_meaning import inputs_of
from tests.passes.test_mixed_precision import SIZES, Body, calls, product


def rounded(body: Body) -> tuple[Module, Outcome]:
    """The module after, once its operators are found to be as they were and its results near."""
    module = build(body)
    after, outcome = taken(round_weights(module))
    verify(after)
    assert outcome is not None
    assert calls(after) == calls(module)
    inputs = inputs_of(module, SIZES)
    wanted, got = evaluate(module, inputs), evaluate(after, inputs)
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_allclose(got[name], value, rtol=1e-2, atol=1e-3 * np.abs(value).max())
    return after, outcome


def constants(module: Module) -> dict[str, Constant]:
    values = (v for b in all_bindings(module.funcs["main"].body) for v in operands(b.value))
    return {v.name: v for v in values if isinstance(v, Constant)}


def is_short(constant: Constant) -> bool:
    return np.array_equal(constant.data.astype(np.float16).astype(np.float32), constant.data)


def test_factors_are_rounded_and_terms_of_maps_are_not() -> None:
    def body(f: Function) -> None:
        y = product(f, f.input("x", (N, 16), F32))
        f.output("y", f.call(OPS["add"], y, f.constant("b", weights(16))))

    after, outcome = rounded(body)
    assert {n: is_short(c) for n, c in constants(after).items()} == {"w_rounded": True, "b": False}
    assert outcome.summary() == {"done": {"matmul": 1}, "skipped": {}}


def test_a_shared_weight_is_rounded_once_and_kept_where_it_is_a_term() -> None:
    def body(f: Function) -> None:
        x, w = f.input("x", (16, 16), F32), f.constant("w", weights(16, 16))
        y = f.call(OPS["matmul"], f.call(OPS["matmul"], x, w), w)
        f.output("y", f.call(OPS["mul"], y, w))

    assert sorted(constants(rounded(body)[0])) == ["w", "w_rounded"]


def test_tables_are_rounded() -> None:
    def body(f: Function) -> None:
        ids = f.constant("ids", np.array([3, 0, 77]))
        f.output("y", f.call(OPS["gather"], f.constant("table", weights(100, 16)), ids))

    found = constants(rounded(body)[0])
    assert is_short(found["table_rounded"]) and found["ids"].data.dtype == np.int64


def test_a_weight_beyond_f16_stays() -> None:
    def body(f: Function) -> None:
        w = f.constant("w", np.full((16, 4), 1e5, np.float32))
        f.output("y", f.call(OPS["matmul"], f.input("x", (N, 16), F32), w))

    after, outcome = rounded(body)
    assert list(constants(after)) == ["w"]
    assert outcome.summary()["skipped"] == {"a weight beyond the range of f16": 1}
