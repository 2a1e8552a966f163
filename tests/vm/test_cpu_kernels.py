"""Cpu kernels: the function table, libm, traps."""

import math

import numpy as np
import pytest
import wasmtime

from edgerelax.codegen.program import Binding, InputSpec, OutputSpec, ProgramBuilder
from edgerelax.hosts.vm import Vm, VmError
from edgerelax.ir.diagnostics import FormatError
from edgerelax.ir.dtypes import F32
from tests.vm import cpu_kernels


def program(kernel: int) -> bytes:
    builder = ProgramBuilder()
    slab = builder.slab("cpu")
    row = builder.kernel("cpu", kernel, buffers=2, scalars=0)
    f = builder.function("main", [InputSpec("x", F32, 1)], [OutputSpec("y", F32)])
    n = f.load_dim(0, 0)
    size = f.mul(n, f.const(4))
    f.ensure(slab, size)
    x, y = Binding("input", 0, size), Binding("slab", slab, size)
    f.dispatch(row, n, [x, y], [])
    f.output(0, "cpu", y, [n])
    f.ret()
    return builder.encode()


def _apply(vm: Vm, kernel: int, x: np.ndarray) -> np.ndarray:
    model = vm.open(program(kernel))
    model.load_kernels(cpu_kernels.module(), cpu_kernels.COUNT)
    model.set_input(0, x, F32)
    model.run(0)
    return model.fetch(model.result(0))


def test_models_have_their_own_table_slots() -> None:
    vm = Vm()
    x = np.linspace(-3, 3, 37, dtype=np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(_apply(vm, cpu_kernels.ADD_ONE, x), x + 1)
        np.testing.assert_allclose(_apply(vm, cpu_kernels.SINE, x), np.sin(x), atol=1e-7)


def test_a_trap_ends_the_run_only() -> None:
    vm = Vm()
    x = np.ones(3, np.float32)
    for _ in range(3):
        with pytest.raises(
            VmError, match="a cpu kernel trapped: wasm trap: wasm `unreachable`"
        ) as caught:
            _apply(vm, cpu_kernels.TRAP, x)
        assert caught.value.code == "trap"
    np.testing.assert_array_equal(_apply(vm, cpu_kernels.ADD_ONE, x), x + 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(module", "kernels.wasm"),
        ('(module (import "env" "er_gammaf" (func)))', "imports env.er_gammaf, unknown here"),
        ('(module (import "wasi" "er_sin" (func)))', "imports wasi.er_sin, unknown here"),
        ('(module (import "env" "er_sin" (func)))', "kernels.wasm: "),
    ],
)
def test_foreign_kernels(text: str, words: str) -> None:
    data = text.encode() if text == "(module" else bytes(wasmtime.wat2wasm(text))
    model = Vm().open(program(0))
    with pytest.raises(FormatError, match=words):
        model.load_kernels(data, 1)


UNARY = {
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "asin": math.asin, "acos": math.acos,
    "atan": math.atan, "sinh": math.sinh, "cosh": math.cosh, "tanh": math.tanh,
    "asinh": math.asinh, "acosh": math.acosh, "atanh": math.atanh,
    "exp": math.exp, "log": math.log, "log1p": math.log1p, "expm1": math.expm1, "erf": math.erf,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_libm(name: str) -> None:
    vm = Vm()
    store, exports = vm.instance.store, vm.instance.exports
    for x in (0.0625, 0.3, 0.75, 0.999):
        at = 1 + x if name == "acosh" else x
        wanted = UNARY[name](at)
        assert exports[f"er_{name}"](store, at) == pytest.approx(wanted, rel=1e-15, abs=1e-16)
        single = float(np.float32(at))
        wanted = UNARY[name](single)
        assert exports[f"er_{name}f"](store, single) == pytest.approx(wanted, rel=3e-7, abs=1e-7)
    assert math.isnan(exports[f"er_{name}"](store, math.nan))
    assert math.isnan(exports[f"er_{name}f"](store, math.nan))


def test_libm_of_two() -> None:
    vm = Vm()
    store, exports = vm.instance.store, vm.instance.exports
    for suffix in ("", "f"):
        power, rest = exports[f"er_pow{suffix}"], exports[f"er_fmod{suffix}"]
        assert power(store, 2.0, 0.5) == pytest.approx(math.sqrt(2), rel=1e-7)
        assert power(store, -2.0, 3.0) == -8
        assert rest(store, -7.5, 2.0) == -1.5
