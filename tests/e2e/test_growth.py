"""Growing sequences and batches: within bounds nothing is allocated anew (Relax, table 2).

Counted by the VM: bytes of the slabs after each call, which only ever grow.
"""

import numpy as np
import pytest

from edgerelax import api
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ops import OPS
from edgerelax.sym import Symbol, symbol

WIDTH = 16
SEQUENCES = [(1, n) for n in range(16, 257, 48)]
BATCHES = [(b, 32) for b in range(1, 9)]


def encoder(batch: Symbol, length: Symbol) -> api.Executable:
    """A layer of attention and one of a product, each with its residual."""
    rng = np.random.default_rng(0)

    def weight(name: str, rows: int, columns: int) -> object:
        return f.constant(name, rng.standard_normal((rows, columns), np.float32) / rows)

    f = Function("main")
    x = f.input("x", (batch, length, WIDTH), F32)
    q, k, v = (f.call(OPS["matmul"], x, weight(n, WIDTH, WIDTH)) for n in "qkv")
    scores = f.call(OPS["matmul"], q, f.call(OPS["transpose"], k, perm=(0, 2, 1)))
    mixed = f.call(OPS["matmul"], f.call(OPS["softmax"], scores, axis=-1), v)
    h = f.call(OPS["add"], x, mixed)
    inside = f.call(OPS["relu"], f.call(OPS["matmul"], h, weight("up", WIDTH, 4 * WIDTH)))
    f.output(
        "y", f.call(OPS["add"], h, f.call(OPS["matmul"], inside, weight("d", 4 * WIDTH, WIDTH)))
    )
    return api.compile(f.module(), variants=("cpu",), verify=True)


def memory_after(executable: api.Executable, sizes: list[tuple[int, int]]) -> list[int]:
    after = []
    with executable.session("cpu") as session:
        for batch, length in sizes:
            x = np.ones((batch, length, WIDTH), np.float32)
            (y,) = session.run({"x": x}).values()
            assert np.isfinite(y).all()
            after.append(int(session.stats()["cpu_slab_bytes"]))
    return after


@pytest.fixture(scope="module")
def bounded() -> api.Executable:
    return encoder(symbol("batch", 1, 8), symbol("length", 1, 256))


@pytest.fixture(scope="module")
def unbounded() -> api.Executable:
    return encoder(symbol("batch", 1), symbol("length", 1))


@pytest.mark.parametrize("sizes", [SEQUENCES, BATCHES])
def test_within_bounds_all_memory_is_there_with_the_first_call(
    bounded: api.Executable, sizes: list[tuple[int, int]]
) -> None:
    (program,) = bounded.artifact.manifest.programs
    assert set(memory_after(bounded, [*sizes, sizes[0]])) == {program.memory.planned}


@pytest.mark.parametrize("sizes", [SEQUENCES, BATCHES])
def test_without_bounds_memory_grows_where_a_size_exceeds_all_before(
    unbounded: api.Executable, bounded: api.Executable, sizes: list[tuple[int, int]]
) -> None:
    assert unbounded.artifact.manifest.programs[0].memory.planned is None
    after = memory_after(unbounded, sizes)
    assert after == sorted(set(after))  # each size is new: each call takes more
    downwards = memory_after(unbounded, sizes[::-1])
    assert set(downwards) == {after[-1]}  # the largest first: once is enough


def test_a_plan_reaches_its_lower_bound(bounded: api.Executable) -> None:
    memory = bounded.artifact.manifest.programs[0].memory
    assert memory.planned is not None and memory.lower_bound is not None
    assert memory.lower_bound <= memory.planned <= 1.1 * memory.lower_bound
    assert memory.unplanned is not None and memory.unplanned > 1.5 * memory.planned
