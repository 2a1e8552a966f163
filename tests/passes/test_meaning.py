"""Every pass keeps what a program computes: numpy before, numpy after."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.ir.types import as_tensor
from edgerelax.passes.fuse import fuse
from edgerelax.passes.fuse_loops import fuse_loops
from edgerelax.passes.place import place
from edgerelax.pipeline import GRAPH
from tests.passes.programs import PROGRAMS, random_program

STEPS = (*GRAPH, lambda m: place(m, device="gpu"), fuse, fuse_loops)


def inputs_of(module: Module, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    out = {}
    for param in module.funcs["main"].params:
        tensor = as_tensor(param.annotation)
        shape = [d.eval(sizes) for d in tensor.dims]
        out[param.name] = rng.standard_normal(shape).astype(np.float32)
    return out


def check(module: Module, sizes: dict[str, int]) -> None:
    inputs = inputs_of(module, sizes)
    wanted = evaluate(module, inputs)
    for step in STEPS:
        module = step(module)
        got = evaluate(module, inputs)
        for name, value in wanted.items():
            np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=2e-5, err_msg=str(step))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("n,m", [(1, 1), (3, 7), (13, 2)])
def test_programs(name: str, n: int, m: int) -> None:
    check(PROGRAMS[name](), {"n": n, "m": m})


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=14), st.integers(1, 5))
def test_random_programs(choices: list[int], n: int) -> None:
    check(random_program(choices), {"n": n})
