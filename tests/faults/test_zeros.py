"""Steps of 0 and axes of no elements, known only at run time: an error on every host."""

from typing import Any

import numpy as np
import onnx
import pytest

import edgerelax.api as api
from edgerelax.ir.diagnostics import InputError, ShapeError
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Call
from edgerelax.ir.rewrite import all_bindings
from edgerelax.passes.guard import guard
from edgerelax.sym import symbol
from tests.faults.hosts import HOSTS, N, calling
from tests.faults.models import F32, I64, by_onnxruntime, model, node

Inputs = dict[str, np.ndarray]


def ranged(dtype: int) -> onnx.ModelProto:
    inputs = [(name, dtype, []) for name in ("start", "limit", "delta")]
    return model([node("Range", ["start", "limit", "delta"], ["y"])], inputs, [("y", dtype, None)])


def sliced() -> onnx.ModelProto:
    nodes = [node("Slice", ["x", "first", "last", "axes", "step"], ["y"])]
    known = {name: np.array([v]) for name, v in (("first", 0), ("last", 9), ("axes", 1))}
    given = [("x", F32, [2, "n"]), ("step", I64, [1])]
    return model(nodes, given, [("y", F32, None)], known)


def chosen(op: str) -> onnx.ModelProto:
    """The axis is as long as there are elements other than 0."""
    nodes = [node("NonZero", ["x"], ["at"]), node(op, ["at"], ["y"], axis=1, keepdims=0)]
    return model(nodes, [("x", F32, ["n"])], [("y", I64, None)])


def bounds(dtype: Any, start: float, limit: float, delta: float) -> Inputs:
    given = {"start": start, "limit": limit, "delta": delta}
    return {name: np.array(v, dtype) for name, v in given.items()}


def steps(step: int) -> Inputs:
    return {"x": np.arange(10, dtype=np.float32).reshape(2, 5), "step": np.array([step])}


def values(*numbers: float) -> Inputs:
    return {"x": np.array(numbers, np.float32)}


CASES: dict[str, tuple[onnx.ModelProto, tuple[Inputs, ...], tuple[Inputs, ...], str]] = {
    "range of integers": (
        ranged(I64),
        (bounds(np.int64, 0, 5, 2), bounds(np.int64, 5, 0, -2), bounds(np.int64, 0, 5, -1)),
        (bounds(np.int64, 0, 5, 0), bounds(np.int64, 5, 5, 0)),
        "Range:y: delta must not be 0: 0 is not 1",
    ),
    "range of floats": (
        ranged(F32),
        (bounds(np.float32, 0, 1, 0.25), bounds(np.float32, 0, -1, -0.25)),
        (bounds(np.float32, 0, 5, 0), bounds(np.float32, 5, 5, 0), bounds(np.float32, 5, 0, -0.0)),
        "Range:y: delta must not be 0: 0 is not 1",
    ),
    "slice": (
        sliced(),
        (steps(1), steps(2), steps(100)),
        (steps(0),),
        "Slice:y: the step along axis 1 must not be 0: 0 is not 1",
    ),
    "argmax": (
        chosen("ArgMax"),
        (values(0, 1, 1), values(1)),
        (values(0, 0), values(0)),
        "ArgMax:y: dim 1 must not be empty: nothing to choose from: 0 is not 1",
    ),
    "argmin": (
        chosen("ArgMin"),
        (values(0, 1, 1), values(1)),
        (values(0, 0), values(0)),
        "ArgMin:y: dim 1 must not be empty: nothing to choose from: 0 is not 1",
    ),
}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", CASES)
def test_found_at_run_time(name: str, host: str) -> None:
    proto, right, wrong, words = CASES[name]
    with api.compile(proto, verify=True).session(host) as session:
        for bad in wrong:
            for good in right:  # a session that refused goes on
                expected = by_onnxruntime(proto, good)["y"]
                np.testing.assert_array_equal(session.run(good)["y"], expected)
            with pytest.raises(InputError, match=words):
                session.run(bad)


@pytest.mark.parametrize("op", ["argmax", "argmin"])
def test_an_axis_of_any_size(op: str) -> None:
    module = calling(op, ((N, 3), np.float32), axis=0)
    for host in HOSTS:
        with api.compile(module, verify=True).session(host) as session:
            assert session.run({"x0": np.ones((2, 3), np.float32)})["y0"].shape == (1, 3)
            with pytest.raises(InputError, match="dim 0 must not be empty"):
                session.run({"x0": np.ones((0, 3), np.float32)})
    with pytest.raises(ShapeError, match="dim 0 must not be empty"):
        evaluate(guard(module), {"x0": np.ones((0, 3), np.float32)})


def test_found_when_compiling() -> None:
    with pytest.raises(ShapeError, match="dim 0 is 0"):
        calling("argmax", ((0, N), np.float32), axis=0)
    with pytest.raises(ShapeError, match="step 0"):
        calling("slice", ((N,), np.float32), starts=(0,), ends=(3,), steps=(0,))
    with pytest.raises(ShapeError, match="delta 0"):
        calling("range", start=0, limit=N, delta=0)


def test_no_check_where_none_is_needed() -> None:
    module = calling("argmax", ((symbol("rows", 1), 3), np.float32), axis=0)
    bindings = all_bindings(guard(module).funcs["main"].body)
    assert [type(b.value) for b in bindings] == [Call]
