"""Each integer instruction against Python's unbounded integers."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.codegen.program import FunctionBuilder, ProgramBuilder, Reg
from edgerelax.hosts.vm import DONE, Vm, VmError
from edgerelax.ir.diagnostics import InputError

LOW, HIGH = -(1 << 63), (1 << 63) - 1
VM = Vm()

OPS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "ge": lambda a, b: int(a >= b),
    "eq": lambda a, b: int(a == b),
}

NUMBERS = st.one_of(
    st.integers(LOW, HIGH),
    st.integers(-70, 70),
    st.sampled_from([LOW, LOW + 1, HIGH, HIGH - 1, 1 << 31, -(1 << 32), 3037000500]),
)


def run(build: Callable[[FunctionBuilder], None]) -> None:
    program = ProgramBuilder()
    f = program.function("main")
    build(f)
    f.ret()
    model = VM.open(program.encode())
    try:
        assert model.run(0) == DONE
    finally:
        model.close()


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(OPS)), NUMBERS, NUMBERS)
def test_binary(op: str, a: int, b: int) -> None:
    def build(f: FunctionBuilder) -> None:
        result: Reg = getattr(f, op)(f.const(a), f.const(b))
        f.check_eq(result, f.const(expected), "result")

    expected = 0
    if op in ("floordiv", "mod") and b == 0:
        with pytest.raises(VmError, match=f"{a} is divided by zero"):
            run(build)
        return
    expected = OPS[op](a, b)
    if LOW <= expected <= HIGH:
        run(build)
    else:
        expected = 0
        with pytest.raises(VmError, match=r"passes 64 bits \(\w+ at main\+\d+\)"):
            run(build)


@settings(max_examples=100, deadline=None)
@given(NUMBERS, NUMBERS)
def test_checks(a: int, b: int) -> None:
    cases = [
        ("check_eq", a == b, f"t: {a} is not {b}"),
        ("check_le", a <= b, f"t: {a} is more than {b}"),
        ("check_divisible", b != 0 and a % b == 0, f"t: {a} is not a multiple of {b}"),
    ]
    for name, holds, text in cases:

        def build(f: FunctionBuilder, name: str = name) -> None:
            getattr(f, name)(f.const(a), f.const(b), "t")

        if holds:
            run(build)
        else:
            with pytest.raises(InputError) as caught:
                run(build)
            assert str(caught.value) == text


@pytest.mark.parametrize("condition", [0, 1, -5, 1 << 40])
def test_select_move_and_jumps(condition: int) -> None:
    def build(f: FunctionBuilder) -> None:
        seven, nine, c = f.const(7), f.const(9), f.const(condition)
        wanted = seven if condition else nine
        f.check_eq(f.move(f.select(c, seven, nine)), wanted, "select")
        variable = f.register()
        otherwise, end = f.label(), f.label()
        f.jump_if_zero(c, otherwise)
        f.move(seven, into=variable)
        f.jump(end)
        f.place(otherwise)
        f.move(nine, into=variable)
        f.place(end)
        f.check_eq(variable, wanted, "jump")

    run(build)


def test_a_register_is_its_own_operand() -> None:
    def build(f: FunctionBuilder) -> None:
        x = f.move(f.const(1 << 62))
        f.add(x, x, into=x)

    with pytest.raises(VmError, match="4611686018427387904 \\+ 4611686018427387904 passes"):
        run(build)


def test_loops_sum() -> None:
    def build(f: FunctionBuilder) -> None:
        total, k = f.move(f.const(0)), f.move(f.const(10_000))
        again, end = f.label(), f.label()
        f.place(again)
        f.jump_if_zero(k, end)
        f.add(total, k, into=total)
        f.sub(k, f.const(1), into=k)
        f.jump(again)
        f.place(end)
        f.check_eq(total, f.const(50_005_000), "sum")

    run(build)
