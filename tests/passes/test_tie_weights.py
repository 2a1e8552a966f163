"""Products read the table that their weight equals; what is computed stays the same."""

from collections.abc import Callable

import numpy as np
import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Call, Constant, Module, Value
from edgerelax.ir.outcome import taken
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.fold_scales import fold_scales
from edgerelax.passes.tie_weights import tie_weights
from tests.passes.programs import N, build, weights
from tests.passes.test_fold_scales import same
from tests.passes.test_meaning import inputs_of

TABLE = weights(300, 24)  # of more rows than are compared at a time


def tied(body: Callable[[Function, Value], Value], table: np.ndarray = TABLE) -> Module:
    """A program that gathers rows of a table, once it is checked to compute the same after."""

    def whole(f: Function) -> None:
        ids = f.constant("ids", np.array([0, 5, -1]))
        f.output("rows", f.call(OPS["gather"], f.constant("table", table), ids, axis=0))
        f.output("y", body(f, f.input("x", (N, 24), F32)))

    module = build(whole)
    after, _ = taken(tie_weights(module))
    verify(after)
    same(module, after, inputs_of(module, {"n": 3, "m": 1}))
    return after


def call_of(module: Module, name: str) -> Call:
    bindings = all_bindings(module.funcs["main"].body)
    (found,) = (b.value for b in bindings if isinstance(b.value, Call) and b.value.op.name == name)
    return found


def is_one(module: Module) -> bool:
    """Whether the product reads the constant that is gathered from."""
    return call_of(module, "gather").args[0] in call_of(module, "matmul").args


@pytest.mark.parametrize("stored", [TABLE, TABLE.T, TABLE.T.copy()])
@pytest.mark.parametrize("side", [0, 1])
def test_copies_and_transposes(stored: np.ndarray, side: int) -> None:
    flags = {
        "transpose_a": side == 0 and len(stored) == 24,
        "transpose_b": side == 0 or len(stored) == 300,
    }

    def body(f: Function, x: Value) -> Value:
        weight = f.constant("w", stored)
        return f.call(OPS["matmul"], *((weight, x) if side == 0 else (x, weight)), **flags)

    module = tied(body)
    assert is_one(module)
    assert call_of(module, "matmul").attrs == {"transpose_a": False, "transpose_b": True}


def changed(at: tuple[int, int], to: float) -> np.ndarray:
    data = TABLE.T.copy()
    data[at] = to
    return data


@pytest.mark.parametrize(
    ("weight", "table"),
    [
        (changed((23, 299), 1.0), TABLE),
        (changed((0, 0), -0.0), changed((0, 0), 0.0).T),
        (TABLE[:40].T.copy(), TABLE[:40]),
    ],
    ids=["another number at the end", "another zero", "small ones"],
)
def test_what_stays(weight: np.ndarray, table: np.ndarray) -> None:
    module = tied(lambda f, x: f.call(OPS["matmul"], x, f.constant("w", weight)), table)
    assert not is_one(module)
    assert not call_of(module, "matmul").attrs["transpose_b"]


def test_scales_stay_beside_it() -> None:
    def body(f: Function, x: Value) -> Value:
        y = f.call(OPS["matmul"], x, f.constant("w", TABLE.T.copy()))
        return f.call(OPS["mul"], y, f.constant("scale", weights(300, seed=1)))

    module, outcome = taken(fold_scales(tied(body)))
    assert is_one(module)
    assert outcome is not None
    assert outcome.summary()["done"] == {}


def test_tables_of_other_functions() -> None:
    def product(f: Function) -> None:
        x = f.input("x", (N, 24), F32)
        f.output("y", f.call(OPS["matmul"], x, f.constant("w", TABLE.T.copy())))

    other = tied(lambda f, x: x)
    module = build(product)
    both = Module({"other": other.funcs["main"], "main": module.funcs["main"]})
    found = call_of(tie_weights(both), "matmul")
    assert found.attrs["transpose_b"]
    assert isinstance(found.args[1], Constant)
    assert found.args[1] is call_of(other, "gather").args[0]
