"""Library dispatch: what patterns match, which match is taken, and what is left alone and why."""

from collections.abc import Callable

import numpy as np
import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32, F64
from edgerelax.ir.graph import CallLibrary, Module, Value
from edgerelax.ir.library import Library
from edgerelax.ir.outcome import taken
from edgerelax.ir.parser import parse
from edgerelax.ir.pattern import Hole, Match, OpPattern, hole, number, op
from edgerelax.ir.printer import same, weights_of, write
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.dispatch_library import dispatch_library, for_device
from edgerelax.sym import symbol

N = symbol("n", lo=0, hi=64)
X, Y = hole("x"), hole("y")
W = np.eye(4, dtype=np.float32)


def library(name: str, pattern: OpPattern, **more: object) -> Library:
    return Library(name=name, pattern=pattern, **more)  # type: ignore[arg-type]


def build(body: Callable[[Function, Value, Value], Value], dtype=F32) -> Module:  # type: ignore[no-untyped-def]
    f = Function("main")
    x, y = f.input("x", (N, 4), dtype), f.input("y", (N, 4), dtype)
    f.output("out", body(f, x, y))
    return f.module()


def dispatched(module: Module, *libraries: Library) -> tuple[list[CallLibrary], dict[str, int]]:
    """The library calls, and what was skipped; the module is verified and printed on the way."""
    module, outcome = taken(dispatch_library(module, libraries=libraries))
    verify(module)
    assert same(parse(write(module), OPS, weights_of(module)), module)
    calls = [
        b.value for b in all_bindings(module.funcs["main"].body) if isinstance(b.value, CallLibrary)
    ]
    assert outcome is not None
    assert sum(outcome.done.values()) == len(calls)
    return calls, outcome.summary()["skipped"]


def names(calls: list[CallLibrary]) -> list[str]:
    return [c.func for c in calls]


def args(call: CallLibrary) -> list[str]:
    return [a.name for a in call.args]


def chain(f: Function, x: Value, y: Value) -> Value:
    return f.call(OPS["tanh"], f.call(OPS["add"], f.call(OPS["mul"], x, y), y))


def test_the_longest_match_is_taken_whatever_the_order() -> None:
    short = library("short", op("tanh", X))
    middle = library("middle", op("add", op("mul", X, Y), Y))
    long = library("long", op("tanh", op("add", op("mul", X, Y), Y)))
    assert names(dispatched(build(chain), short, middle, long)[0]) == ["long"]
    assert names(dispatched(build(chain), short, middle)[0]) == ["middle", "short"]


def test_of_equal_lengths_the_first_registered_is_taken() -> None:
    one, other = library("one", op("tanh", X)), library("other", op("tanh", X))
    assert names(dispatched(build(chain), other, one)[0]) == ["other"]


def test_what_does_not_match_stays() -> None:
    module = dispatch_library(build(chain), libraries=[library("middle", op("mul", X, Y))])
    kept = [type(b.value).__name__ for b in all_bindings(module.funcs["main"].body)]
    assert kept == ["CallLibrary", "Call", "Call"]


def test_a_value_used_elsewhere_forbids_a_match() -> None:
    def body(f: Function, x: Value, y: Value) -> Value:
        inner = f.call(OPS["mul"], x, y)
        return f.call(OPS["add"], f.call(OPS["tanh"], inner), inner)

    calls, skipped = dispatched(build(body), library("l", op("tanh", op("mul", X, Y))))
    assert not calls
    assert skipped == {"l: a value inside the match is used elsewhere": 1}


def test_a_result_inside_forbids_a_match() -> None:
    f = Function("main")
    x = f.input("x", (N, 4), F32)
    inner = f.call(OPS["exp"], x)
    f.output("a", inner)
    f.output("b", f.call(OPS["tanh"], inner))
    calls, skipped = dispatched(f.module(), library("l", op("tanh", op("exp", X))))
    assert not calls and len(skipped) == 1


def test_operands_that_commute_fit_in_either_order() -> None:
    pattern = op("add", X, op("tanh", Y))
    one = build(lambda f, x, y: f.call(OPS["add"], x, f.call(OPS["tanh"], y)))
    other = build(lambda f, x, y: f.call(OPS["add"], f.call(OPS["tanh"], y), x))
    for module in (one, other):
        (call,), _ = dispatched(module, library("l", pattern))
        assert args(call) == ["x", "y"]
    ordered = build(lambda f, x, y: f.call(OPS["sub"], f.call(OPS["tanh"], y), x))
    assert not dispatched(ordered, library("l", op("sub", X, op("tanh", Y))))[0]


@pytest.mark.parametrize("same_value", [True, False])
def test_a_hole_named_twice_is_one_value(same_value: bool) -> None:
    module = build(
        lambda f, x, y: f.call(OPS["mul"], x, f.call(OPS["sigmoid"], x if same_value else y))
    )
    calls, _ = dispatched(module, library("silu", op("mul", X, op("sigmoid", X))))
    assert [args(c) for c in calls] == ([["x"]] if same_value else [])


@pytest.mark.parametrize("same_value", [True, False])
def test_an_operator_named_twice_is_one_call(same_value: bool) -> None:
    def body(f: Function, x: Value, y: Value) -> Value:
        one = f.call(OPS["tanh"], x)
        other = one if same_value else f.call(OPS["tanh"], x)
        return f.call(OPS["mul"], one, f.call(OPS["exp"], other))

    inner = op("tanh", X)
    calls, _ = dispatched(build(body), library("l", op("mul", inner, op("exp", inner))))
    assert len(calls) == same_value


def test_numbers_constants_and_attributes() -> None:
    def body(f: Function, x: Value, y: Value) -> Value:
        half = f.call(OPS["mul"], x, f.constant("half", np.full(1, 0.1, np.float32)))
        return f.call(OPS["matmul"], half, f.constant("w", W))

    module = build(body)
    for pattern, found in (
        (op("mul", X, number(0.1)), True),
        (op("mul", X, number(0.2)), False),
        (op("matmul", X, hole("w", constant=True)), True),
        (op("matmul", hole("x", constant=True), Y), False),
        (op("matmul", X, Y, transpose_b=False), True),
        (op("matmul", X, Y, transpose_b=True), False),
        (op("matmul | mul", X, number(0.1)), True),
        (op("matmul", X), False),
        (op("matmul", X, Y, None), True),
        (op("matmul", X, None), False),
    ):
        assert bool(dispatched(module, library("l", pattern))[0]) == found, pattern


def test_checks_and_attributes_of_a_match() -> None:
    def check(match: Match) -> str | None:
        return None if match["x"].name == "x" else "only x"

    def attrs(match: Match) -> dict[str, object]:
        return {"axis": match.attrs("softmax")["axis"], "sizes": (1, "two", None)}

    entry = library("l", op("softmax", X), check=check, attrs=attrs)
    module = build(
        lambda f, x, y: f.call(
            OPS["add"], f.call(OPS["softmax"], x, axis=1), f.call(OPS["softmax"], y, axis=1)
        )
    )
    (call,), skipped = dispatched(module, entry)
    assert call.attrs == {"axis": 1, "sizes": (1, "two", None)} and call.device == "cpu"
    assert skipped == {"l: only x": 1}


def test_attributes_that_nothing_can_hold() -> None:
    module = build(chain)
    late = library("l", op("tanh", X), attrs=lambda m: {"rows": m["x"].annotation.dims[0]})
    assert dispatched(module, late)[1] == {"l: attribute rows is not known at compile time": 1}
    for bad in ({"f": print}, {"device": "x"}):
        with pytest.raises(InputError, match="cannot be passed"):
            dispatch_library(module, libraries=[library("l", op("tanh", X), attrs=lambda m: bad)])  # noqa: B023


def test_a_gpu_takes_neither_doubles_nor_one_value_twice() -> None:
    twice = build(lambda f, x, y: f.call(OPS["mul"], x, x))
    on_gpu = library("l", op("mul", X, Y), device="gpu")
    assert list(dispatched(twice, on_gpu)[1]) == [
        "l: one value is two operands, which a GPU cannot bind"
    ]
    doubles = build(lambda f, x, y: f.call(OPS["mul"], x, y), F64)
    assert list(dispatched(doubles, on_gpu)[1]) == ["l: a dtype that no GPU has"]


def test_libraries_of_a_device() -> None:
    near = library("near", op("tanh", X))
    far = library("far", op("tanh", X), device="gpu")
    both = library("both", op("tanh", X), everywhere=True)
    assert for_device([near, far, both], "cpu") == (near, both)
    assert for_device([near, far, both], "gpu") == (far, both)


def test_without_libraries_nothing_is_done() -> None:
    module = build(chain)
    assert dispatch_library(module) is module


def test_holes_are_told_apart_by_name() -> None:
    assert isinstance(hole("x"), Hole)
    with pytest.raises(ValueError, match="two holes"):
        library("l", op("mul", hole("x"), hole("x")))
