"""Results in the place of operands: where plans take it, what it saves, and that it is proved."""

from collections.abc import Callable

import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import CallTIR, Module, Value
from edgerelax.ir.outcome import taken
from edgerelax.ir.plan import MemoryPlan, Schedule
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import symbols_of
from edgerelax.ops import OPS
from edgerelax.passes.check_plan import check_plan
from edgerelax.passes.fuse import fuse
from edgerelax.passes.fuse_loops import fuse_loops
from edgerelax.passes.in_place import Allowed
from edgerelax.passes.place import place
from edgerelax.passes.plan_memory import plan_memory
from edgerelax.pipeline import GRAPH
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WEBGPU_SOFTWARE
from edgerelax.sym import Symbol, symbol
from tests.passes.programs import build, weights

N, FREE = symbol("n", 1, 64), symbol("n", 1)
Schedules = dict[tuple[str, str], Schedule]


def scheduled(body: Callable[[Function], None], fusing: bool = True) -> tuple[Module, Schedules]:
    """A module on the GPU and its schedules."""
    module = build(body)
    for step in GRAPH:
        module, _ = taken(step(module))
    module = place(module, device="gpu")
    if fusing:
        module, _ = taken(fuse_loops(taken(fuse(module))[0]))
    calls = [b.value for f in module.funcs.values() for b in all_bindings(f.body)]
    made = {
        (c.func, c.device): schedule(module.loops[c.func], WEBGPU_SOFTWARE)
        for c in calls
        if isinstance(c, CallTIR)
    }
    return module, made


def planned(module: Module, allowed: Allowed) -> tuple[MemoryPlan, dict[str, int]]:
    module, outcome = taken(plan_memory(module, workspaces={}, main="gpu", in_place=allowed))
    assert outcome is not None
    return module.attrs["plans"]["main"], outcome.summary()["done"]


def prove(module: Module, plan: MemoryPlan, schedules: Schedules, n: int) -> None:
    func = module.funcs["main"]
    sizes = {s: n for p in func.params for s in symbols_of(p.annotation)}
    check_plan(func, plan, sizes, module.loops, schedules)


def total(plan: MemoryPlan, n: int) -> int:
    return sum(s.size.eval({s: n for s in s.size.symbols()}) for s in plan.slabs)


def feed_forward(f: Function, x: Value, seed: int) -> Value:
    """x + W2 relu(W1 x), 16 wide, 64 inside: what is live at once is the inside and x."""
    inside = f.call(OPS["matmul"], x, f.constant(f"w{seed}", weights(16, 64, seed=seed)))
    inside = f.call(OPS["relu"], inside)
    back = f.constant(f"v{seed}", weights(64, 16, seed=seed))
    return f.call(OPS["add"], x, f.call(OPS["matmul"], inside, back))


def transformer(size: Symbol, layers: int = 3) -> Callable[[Function], None]:
    def body(f: Function) -> None:
        x = f.call(OPS["exp"], f.input("x", (size, 16), F32))
        for k in range(layers):
            x = feed_forward(f, x, k)
        f.output("y", f.call(OPS["reduce_sum"], x, axes=(1,), keepdims=False))

    return body


def test_residuals_take_the_place_of_what_they_add_to() -> None:
    module, schedules = scheduled(transformer(N))
    allowed = {k: s.in_place for k, s in schedules.items()}
    before, _ = planned(module, {})
    plan, done = planned(module, allowed)
    assert done == {"in place": 3}
    assert before.lower_bound == 64 * 4 * (16 + 64 + 16) and plan.lower_bound == 64 * 4 * (16 + 64)
    assert total(plan, 64) == plan.lower_bound and before.unplanned == plan.unplanned
    for n in (1, 7, 64):
        prove(module, plan, schedules, n)


def test_without_bounds_as_well() -> None:
    module, schedules = scheduled(transformer(FREE))
    plan, _ = planned(module, {k: s.in_place for k, s in schedules.items()})
    assert len(plan.slabs) == 2 and plan.lower_bound is None
    for n in (1, 100):
        prove(module, plan, schedules, n)
        assert total(plan, n) == n * 4 * (16 + 64)


def test_not_what_is_read_later_or_not_the_plans_own() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 16), F32)
        first = feed_forward(f, x, 0)  # x is the caller's
        second = feed_forward(f, first, 1)  # first is read again
        f.output("y", f.call(OPS["matmul"], first, f.constant("w", weights(16, 16))))
        f.output("z", second)  # a result
        f.output("u", feed_forward(f, second, 2))

    module, schedules = scheduled(body)
    plan, done = planned(module, {k: s.in_place for k, s in schedules.items()})
    assert plan.in_place == {} and done == {"in place": 0}


def test_a_second_form_of_a_function_only_where_it_saves_memory() -> None:
    """The same function at both calls; at the second its operand is a result of the model."""

    def body(f: Function, width: int) -> None:
        given = f.input("x", (N, 16), F32)
        beside = f.call(OPS["matmul"], given, f.constant("wide", weights(16, width)))
        first = f.call(OPS["exp"], f.call(OPS["tanh"], given))
        rows = [f.call(OPS["reduce_max"], v, axes=(1,), keepdims=False) for v in (beside, first)]
        f.output("rows", f.call(OPS["add"], *rows))
        second = f.call(OPS["sigmoid"], given)
        f.output("second", second)
        f.output("y", f.call(OPS["exp"], second))

    for width, forms in ((400, 1), (1, 0)):
        module, schedules = scheduled(
            lambda f, width=width: body(f, width),  # type: ignore[misc]
            fusing=False,
        )
        plan, done = planned(module, {k: s.in_place for k, s in schedules.items()})
        assert done.get("loop function in two forms", 0) == forms
        prove(module, plan, schedules, 9)


def test_of_two_operands_the_one_that_always_dies() -> None:
    """One form of the function does for both calls."""

    def body(f: Function) -> None:
        x = f.call(OPS["exp"], f.input("x", (N, 16), F32))
        first = feed_forward(f, x, 0)
        f.output("first", first)
        f.output("y", feed_forward(f, first, 1))

    module, schedules = scheduled(body, fusing=False)
    plan, done = planned(module, {k: s.in_place for k, s in schedules.items()})
    assert "loop function in two forms" not in done
    added = [names for b, names in plan.in_place.items() if b.value.func == "add"]
    assert added == [{"b": "out"}] * 2
    prove(module, plan, schedules, 5)


def test_in_place_against_the_rules_is_found_out() -> None:
    def body(f: Function) -> None:
        x = f.call(OPS["matmul"], f.input("x", (8, 8), F32), f.constant("w", weights(8, 8)))
        f.output("y", f.call(OPS["add"], x, f.call(OPS["transpose"], x, perm=(1, 0))))

    module, schedules = scheduled(body)
    forced = {
        k: tuple((a.name, y.name) for a in loop.inputs for y in loop.outputs)
        for k in schedules
        for loop in (module.loops[k[0]],)
    }
    plan, done = planned(module, forced)
    assert done == {"in place": 1}
    with pytest.raises(VerifyError, match="not in place"):
        prove(module, plan, schedules, 1)


def test_places_shared_in_silence_are_found_out() -> None:
    module, schedules = scheduled(transformer(N))
    plan, _ = planned(module, {k: s.in_place for k, s in schedules.items()})
    plan.in_place.popitem()
    with pytest.raises(VerifyError, match="that it binds too"):
        prove(module, plan, schedules, 4)
