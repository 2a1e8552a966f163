"""States: tensors that live on between calls, on the device, shared by functions."""

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

import edgerelax
from edgerelax import nn
from edgerelax.frontends.nn.tensor import apply
from edgerelax.hosts.session import Session
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError, UnsupportedError, VerifyError
from edgerelax.ir.dtypes import F32, I32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.ir.verify import verify
from edgerelax.sym import symbol

N, SLOTS = symbol("n"), symbol("slots", lo=1)
CACHE = {"cache": nn.Input((SLOTS, 4), F32)}
ROWS = {"x": nn.Input((N, 4), F32), "at": nn.Input((N, 1), I32)}
States = Mapping[str, nn.Tensor]


def write(x: nn.Tensor, at: nn.Tensor, states: States) -> dict[str, nn.Tensor]:
    return {"cache": apply("scatter_nd", states["cache"], at, x)}


def write_and_sum(x: nn.Tensor, at: nn.Tensor, states: States) -> dict[str, nn.Tensor]:
    """What it was before is read after the update: it must be copied."""
    after = apply("scatter_nd", states["cache"], at, x)
    total = apply("reduce_sum", after, axes=(0,), keepdims=False)
    before = apply("reduce_sum", states["cache"], axes=(0,), keepdims=False)
    return {"cache": after, "change": total - before}


def read(states: States) -> dict[str, nn.Tensor]:
    return {"y": states["cache"] + 0.0}


def module() -> Module:
    made = nn.trace(write, ROWS, "write", states=CACHE)
    made = nn.trace(write_and_sum, ROWS, "change", made, CACHE)
    made = nn.trace(read, {}, "read", made, CACHE)
    return nn.trace(lambda x: {"y": x * 2.0}, {"x": nn.Input((N, 4), F32)}, "double", made)


@pytest.fixture(scope="module", params=("cpu", "wgpu"))
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    target = "cpu" if request.param == "cpu" else "webgpu"
    executable = edgerelax.compile(module(), target=target, verify=True)
    planned = executable.report.passes[f"{'cpu' if target == 'cpu' else 'gpu'}-plan_memory"]
    assert planned["done"]["state updated in place"] == 1
    assert sum(planned["skipped"].values()) >= 1
    with executable.session(request.param) as opened:
        yield opened


def test_functions_share_a_state(session: Session) -> None:
    """Rows are replaced, those past the end dropped; what other functions write is seen."""
    session.allocate({"slots": 7})
    wanted = np.zeros((7, 4), np.float32)
    rng = np.random.default_rng(0)
    for count, at in ((3, (1, 2, 99)), (1, (6,)), (0, ()), (3, (0, 6, 5))):
        x = rng.standard_normal((count, 4)).astype(np.float32)
        rows = np.array(at, np.int32).reshape(count, 1)
        before = wanted.copy()
        for row, place in zip(x, at, strict=True):
            if place < 7:
                wanted[place] = row
        if count == 3:
            found = session.run({"x": x, "at": rows}, "change")
            np.testing.assert_allclose(found["change"], (wanted - before).sum(0), atol=1e-5)
        else:
            assert session.run({"x": x, "at": rows}, "write") == {}
        np.testing.assert_array_equal(session.run({}, "read")["y"], wanted)
    twice = session.run({"x": np.ones((2, 4), np.float32)}, "double")["y"]
    np.testing.assert_array_equal(twice, 2)
    np.testing.assert_array_equal(session.run({}, "read")["y"], wanted)


def test_allocate_begins_anew(session: Session) -> None:
    session.allocate({"slots": 3})
    session.run({"x": np.ones((1, 4), np.float32), "at": np.zeros((1, 1), np.int32)}, "write")
    session.allocate({"slots": 5})
    np.testing.assert_array_equal(session.run({}, "read")["y"], np.zeros((5, 4)))
    assert session.states == {"cache": (5, 4)}


def test_a_state_that_was_not_allocated() -> None:
    with edgerelax.compile(module(), target="cpu").session("cpu") as opened:
        with pytest.raises(EdgeRelaxError, match="at least 1 is expected"):
            opened.run({}, "read")
        opened.allocate({"slots": 2})
        assert opened.run({}, "read")["y"].shape == (2, 4)


@pytest.mark.parametrize("sizes", ({}, {"slots": 2, "n": 1}, {"slots": 0}, {"pages": 3}))
def test_sizes_that_do_not_fit(session: Session, sizes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="slots"):
        session.allocate(sizes)


def test_the_evaluator_passes_states_through() -> None:
    """States are a parameter and a result of one name."""
    cache = np.zeros((3, 4), np.float32)
    x, at = np.ones((1, 4), np.float32), np.array([[1]], np.int32)
    found = evaluate(module(), {"x": x, "at": at, "cache": cache}, func="write")
    np.testing.assert_array_equal(found["cache"][1], 1)
    assert set(evaluate(module(), {"cache": cache}, func="read")) == {"y", "cache"}


def test_a_state_keeps_its_dims() -> None:
    def grow(states: States) -> dict[str, nn.Tensor]:
        return {"cache": nn.functional.concat((states["cache"], states["cache"]), 0)}

    with pytest.raises(VerifyError, match="afterwards"):
        verify(nn.trace(grow, {}, states=CACHE))


def test_a_result_cannot_be_what_a_state_was() -> None:
    def swap(x: nn.Tensor, at: nn.Tensor, states: States) -> dict[str, nn.Tensor]:
        return {**write(x, at, states), "old": states["cache"]}

    with pytest.raises(UnsupportedError, match="the state cache as it was before"):
        edgerelax.compile(nn.trace(swap, ROWS, states=CACHE), target="cpu")
