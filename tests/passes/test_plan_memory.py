"""Plans are proved by playing them; reuse is real; a wrong plan is found out."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import UnsupportedError, VerifyError
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Module
from edgerelax.ir.plan import MemoryPlan
from edgerelax.ir.types import symbols_of
from edgerelax.ops import OPS
from edgerelax.passes.check_plan import check_plan
from edgerelax.passes.fuse import fuse
from edgerelax.passes.fuse_loops import fuse_loops
from edgerelax.passes.place import place
from edgerelax.passes.plan_memory import plan_memory
from edgerelax.pipeline import GRAPH
from edgerelax.sym import symbol
from tests.passes.programs import PROGRAMS, build, random_program


def planned(module: Module, fusing: bool = True, reuse: bool = True) -> Module:
    for step in GRAPH:
        module = step(module)
    module = place(module, device="gpu")
    if fusing:
        module = fuse_loops(fuse(module))
    return plan_memory(module, workspaces={}, main="gpu", reuse=reuse)


def check(module: Module, **sizes: int) -> None:
    func = module.funcs["main"]
    symbols = {s for p in func.params for s in symbols_of(p.annotation)}
    check_plan(func, module.attrs["plans"]["main"], {s: sizes[s.name] for s in symbols})


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("fusing", [True, False])
def test_programs(name: str, fusing: bool) -> None:
    module = planned(PROGRAMS[name](), fusing)
    for n, m in ((1, 1), (7, 3), (64, 64)):
        check(module, n=n, m=m)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=14), st.booleans())
def test_random_programs(choices: list[int], fusing: bool) -> None:
    module = planned(random_program(choices), fusing)
    plan: MemoryPlan = module.attrs["plans"]["main"]
    total = sum(s.size.as_int() for s in plan.slabs)
    assert plan.lower_bound <= total
    for n in (1, 5, 64):
        check(module, n=n)


def test_without_bounds_sizes_are_symbolic_and_slabs_are_reused() -> None:
    n = symbol("n", 1)

    def body(f: Function) -> None:
        x = f.input("x", (n, 4), F32)
        for _ in range(5):
            x = f.call(OPS["transpose"], f.call(OPS["exp"], x), perm=(1, 0))
            x = f.call(OPS["transpose"], f.call(OPS["tanh"], x), perm=(1, 0))
        f.output("y", x)

    module = planned(build(body), fusing=False)
    plan: MemoryPlan = module.attrs["plans"]["main"]
    assert all(s.size.as_int() is None for s in plan.slabs)
    assert len(plan.slabs) == 2
    for size in (1, 6, 1000):
        check(module, n=size)


def test_a_slab_is_as_large_as_the_larger_of_sizes_that_nothing_compares() -> None:
    n, m = symbol("n", 1), symbol("m", 1)

    def body(f: Function) -> None:
        rows = f.call(OPS["exp"], f.input("x", (n, 4), F32))
        total = f.call(OPS["reduce_sum"], rows, axes=(0, 1), keepdims=False)
        columns = f.call(OPS["mul"], f.input("z", (m, 8), F32), total)
        f.output("y", f.call(OPS["reduce_max"], columns, axes=(0, 1), keepdims=False))

    module = planned(build(body), fusing=False)
    plan: MemoryPlan = module.attrs["plans"]["main"]
    (shared,) = (s.size for s in plan.slabs if s.size.as_int() is None)
    for sizes in ({"n": 1, "m": 9}, {"n": 70, "m": 1}, {"n": 2, "m": 1}):
        at = {s: sizes[s.name] for s in shared.symbols()}
        assert shared.eval(at) == max(16 * sizes["n"], 32 * sizes["m"])
        check(module, **sizes)


def test_reuse_shrinks_the_plan() -> None:
    module = random_program(list(range(3, 33, 2)))
    with_reuse = planned(module, fusing=False).attrs["plans"]["main"]
    without = planned(module, fusing=False, reuse=False).attrs["plans"]["main"]
    size = [sum(s.size.as_int() for s in p.slabs) for p in (with_reuse, without)]
    assert size[0] < size[1] / 2


def test_a_wrong_plan_is_found_out() -> None:
    module = planned(random_program(list(range(3, 33, 2))), fusing=False)
    plan: MemoryPlan = module.attrs["plans"]["main"]
    first = min(plan.places.values(), key=lambda p: p.offset.as_int())
    squeezed = replace(
        plan, places={v: replace(p, offset=first.offset) for v, p in plan.places.items()}
    )
    broken = replace(module, attrs={"plans": {"main": squeezed}})
    with pytest.raises(VerifyError, match="memory plan"):
        check(broken, n=64)


def test_a_bound_beyond_memory_is_no_bound() -> None:
    """Sizes may be large or small; a slab for the largest could not even be named."""
    wide = symbol("wide", 1, 1 << 20)

    def body(f: Function) -> None:
        x = f.input("x", (wide, 1), F32)
        y = f.call(OPS["add"], x, f.call(OPS["transpose"], x, perm=(1, 0)))
        f.output("y", f.call(OPS["reduce_max"], y, axes=(0, 1), keepdims=False))

    module = planned(build(body), fusing=False)
    plan = module.attrs["plans"]["main"]
    assert {s.size.as_int() is None for s in plan.slabs} == {True, False}
    check(module, wide=3)


def test_tensors_that_no_slab_holds() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (1, 1), F32)
        f.output("y", f.call(OPS["expand"], x, dims=(1 << 20, 1 << 20)))

    with pytest.raises(UnsupportedError, match="takes 4398046511104 bytes"):
        planned(build(body))
