"""Memory plans of loops: what is carried has one place, and a wrong plan is found out."""

from dataclasses import replace

import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Block, Module, Repeat, Value, Var
from edgerelax.ir.plan import MemoryPlan
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ops import OPS
from edgerelax.passes.check_plan import check_plan
from edgerelax.passes.legalize import legalize
from edgerelax.passes.place import place
from edgerelax.passes.plan_memory import plan_memory
from edgerelax.sym import symbol

N = symbol("n", 1, 64)
T = symbol("t", 0, 50)
STEP = symbol("step", 0, 49)


def looped(trading: bool) -> Module:
    """Two values, as often as `steps` is long: a tanh of each, which trade places if wanted."""
    f = Function("main")
    start = f.call(OPS["exp"], f.input("x", (N,), F32))
    outer = f.call(OPS["relu"], start)
    f.input("steps", (T,), F32)
    params = tuple(Var(name, start.annotation) for name in ("a", "b"))
    (step,) = STEP.symbols()
    assert step.name == "step"
    with f.block() as bindings:
        f.define((step,))
        given = params[::-1] if trading else params
        sums = [f.call(OPS["add"], f.call(OPS["tanh"], p), outer) for p in params]
        results: tuple[Value, ...] = given if trading else tuple(sums)
        if trading:
            f.call(OPS["neg"], sums[0])
        body = Block(tuple(bindings), results)
    repeat = Repeat(T, step, (start, start), params, body)
    a, b = f.fields(f.emit_repeat(repeat))
    f.output("y", f.call(OPS["sub"], f.call(OPS["mul"], a, b), outer))
    module = place(legalize(f.module()), device="cpu")
    return plan_memory(module, workspaces={}, main="cpu")


def check(module: Module, plan: MemoryPlan, steps: int = 9) -> None:
    (t,), (n,) = T.symbols(), N.symbols()
    check_plan(module.funcs["main"], plan, {t: steps, n: 5})


def parts(module: Module) -> tuple[MemoryPlan, Repeat]:
    (repeat,) = (
        b.value for b in all_bindings(module.funcs["main"].body) if isinstance(b.value, Repeat)
    )
    return module.attrs["plans"]["main"], repeat


@pytest.mark.parametrize("trading", [False, True])
def test_plans_hold_for_any_number_of_steps(trading: bool) -> None:
    module = looped(trading)
    plan, repeat = parts(module)
    for steps in (0, 1, 2, 50):
        check(module, plan, steps)
    assert len({plan.places[p].offset for p in repeat.params}) == 2
    assert len(plan.workspaces) == (1 if trading else 0)


def test_what_is_used_in_each_step_keeps_its_place() -> None:
    module = looped(trading=False)
    plan, repeat = parts(module)
    (outer,) = (b.var for b in module.funcs["main"].body.bindings if b.var.name.startswith("relu"))
    inner = repeat.body.bindings[0].var  # read by what reads the other one, too
    over = replace(plan, places={**plan.places, inner: plan.places[outer]})
    check(module, over, steps=0)
    with pytest.raises(VerifyError, match=r"memory plan: relu is read at .* after its bytes"):
        check(module, over)


def test_what_is_carried_is_not_lost_between_runs() -> None:
    module = looped(trading=False)
    plan, repeat = parts(module)
    a, b = repeat.params
    homes = [v for v, p in plan.places.items() if p == plan.places[b]]
    one = replace(plan, places={**plan.places, **dict.fromkeys(homes, plan.places[a])})
    with pytest.raises(VerifyError, match="memory plan"):
        check(module, one)


def test_values_that_trade_places_need_a_third() -> None:
    module = looped(trading=True)
    plan, repeat = parts(module)
    (binding,) = plan.workspaces
    first, second = plan.workspaces[binding]
    with pytest.raises(VerifyError, match="loses what is set aside"):
        check(module, replace(plan, workspaces={binding: (first, first)}))
    with pytest.raises(VerifyError, match="memory plan"):
        check(module, replace(plan, workspaces={binding: (plan.places[repeat.params[1]], second)}))
