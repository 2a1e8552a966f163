"""Sizes that operators take to be equal are checked when the program runs."""

import re
from collections.abc import Callable

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import InputError, ShapeError
from edgerelax.ir.dtypes import F32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Value
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ops import OPS
from edgerelax.passes.guard import guard
from edgerelax.sym import symbol
from tests.passes.programs import PROGRAMS, build

A, B, C, D = (symbol(name) for name in "abcd")
Body = Callable[[Function, Value, Value], Value]

CALLS: dict[str, tuple[Body, str]] = {
    "matmul": (lambda f, x, y: f.call(OPS["matmul"], x, y), "b and c must be equal: 3 is not 4"),
    "add": (
        lambda f, x, y: f.call(OPS["add"], x, y),
        "a and c must be equal, or one of them 1: 2 is not 4",
    ),
    "concat": (
        lambda f, x, y: f.call(OPS["concat"], x, y, axis=0),
        "b and d must be equal: 3 is not 5",
    ),
    "split": (
        lambda f, x, y: f.fields(f.call(OPS["split"], x, sizes=(1, 2), axis=0))[1],
        "a and 3 must be equal: 2 is not 3",
    ),
    "reshape": (
        lambda f, x, y: f.call(OPS["reshape"], x, dims=(D, 2)),
        "a*b and 2*d must be equal: 6 is not 10",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_contradictions_are_found(name: str) -> None:
    body, words = CALLS[name]

    def whole(f: Function) -> None:
        x, y = f.input("x", (A, B), F32), f.input("y", (C, D), F32)
        f.output("z", body(f, x, y))

    module = build(whole)
    inputs = {"x": np.ones((2, 3), np.float32), "y": np.ones((4, 5), np.float32)}
    with (
        api.compile(module, target="cpu", verify=True).session("cpu") as session,
        pytest.raises(InputError, match=re.escape(words)),
    ):
        session.run(inputs)
    with pytest.raises(ShapeError):
        evaluate(guard(module), inputs)


def test_one_check_for_each_pair() -> None:
    def body(f: Function) -> None:
        x, y = f.input("x", (A,), F32), f.input("y", (B,), F32)
        f.output("z", f.call(OPS["mul"], f.call(OPS["add"], x, y), f.call(OPS["sub"], x, y)))

    names = [b.var.name for b in all_bindings(guard(build(body)).funcs["main"].body)]
    assert sum(name.startswith("agreed") for name in names) == 1
    assert names.index("agreed") < names.index("add")


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_proven_is_not_checked(name: str) -> None:
    module = PROGRAMS[name]()
    before, after = (list(all_bindings(m.funcs["main"].body)) for m in (module, guard(module)))
    assert [b.var.name for b in before] == [b.var.name for b in after]
