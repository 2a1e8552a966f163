"""Calls between functions, and what bounds a run."""

import pytest

from edgerelax.codegen.program import ProgramBuilder
from edgerelax.hosts.vm import DONE, Vm, VmError
from edgerelax.ir.diagnostics import FormatError


def test_arguments_and_results() -> None:
    program = ProgramBuilder()
    main = program.function("main")
    swap = program.function("swap", parameters=2, results=2)
    nothing = program.function("nothing")
    a, b = main.call(swap, main.const(1), main.const(2))
    c, d = main.call(swap, b, a)
    main.call(nothing)
    for value, wanted in ((a, 2), (b, 1), (c, 2), (d, 1)):
        main.check_eq(value, main.const(wanted), "swapped")
    main.ret()
    x, y = swap.parameters
    swap.ret(y, x)
    nothing.ret()
    assert Vm().open(program.encode()).run(0) == DONE


def test_recursion_has_its_own_registers() -> None:
    program = ProgramBuilder()
    main = program.function("main")
    fib = program.function("fib", parameters=1, results=1)
    (result,) = main.call(fib, main.const(15))
    main.check_eq(result, main.const(610), "fib")
    main.ret()
    (n,) = fib.parameters
    small = fib.label()
    fib.jump_if_zero(fib.ge(n, fib.const(2)), small)
    (a,) = fib.call(fib, fib.sub(n, fib.const(1)))
    (b,) = fib.call(fib, fib.sub(n, fib.const(2)))
    fib.ret(fib.add(a, b))
    fib.place(small)
    fib.ret(n)
    assert Vm().open(program.encode()).run(0) == DONE


def test_fresh_registers_are_zero() -> None:
    program = ProgramBuilder()
    main = program.function("main")
    dirty = program.function("dirty")
    clean = program.function("clean", results=1)
    main.call(dirty)
    (value,) = main.call(clean)
    main.check_eq(value, main.const(0), "register")
    main.ret()
    for _ in range(8):
        dirty.move(dirty.const(77))
    dirty.ret()
    clean.ret(clean.register())
    assert Vm().open(program.encode()).run(0) == DONE


def test_endless_recursion() -> None:
    program = ProgramBuilder()
    main = program.function("main")
    main.call(main)
    main.ret()
    with pytest.raises(VmError, match="calls are nested deeper than 256"):
        Vm().open(program.encode()).run(0)


def test_many_registers_in_endless_recursion() -> None:
    program = ProgramBuilder()
    main = program.function("main")
    for _ in range(1 << 16):
        main.register()
    main.call(main)
    main.ret()
    with pytest.raises(VmError, match="1114112 registers in nested calls, of 1048576"):
        Vm().open(program.encode()).run(0)


def test_endless_loop() -> None:
    program = ProgramBuilder()
    main = program.function("main")
    again = main.label()
    main.place(again)
    main.jump(again)
    model = Vm().open(program.encode())
    model.set_budget(100_000)
    with pytest.raises(VmError, match=r"more than 100000 steps \(jump at main\+0\)") as caught:
        model.run(0)
    assert caught.value.code == "limit"


def test_a_callee_may_not_ask_for_more_than_its_caller_has() -> None:
    program = ProgramBuilder()
    main = program.function("main")
    other = program.function("other", parameters=1)
    main.call(other)
    main.ret()
    other.ret()
    with pytest.raises(FormatError, match="0 arguments and 0 results for a function of 1 and 0"):
        Vm().open(program.encode())
