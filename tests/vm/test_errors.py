"""What a run refuses, and in which words; what the loader refuses is in test_loader.py."""

from collections.abc import Callable

import numpy as np
import pytest
import wasmtime

from edgerelax.codegen.program import Binding, FunctionBuilder, ProgramBuilder
from edgerelax.hosts.vm import Vm, VmError
from edgerelax.ir.diagnostics import FormatError
from edgerelax.ir.dtypes import I64
from tests.vm import cpu_kernels


def _gpu_dispatch(*places: tuple[int, int]) -> Callable[[ProgramBuilder, FunctionBuilder], None]:
    def build(program: ProgramBuilder, f: FunctionBuilder) -> None:
        slab = program.slab("gpu", 1024)
        kernel = program.kernel("gpu", 0, len(places), 0)
        bindings = [Binding("slab", slab, f.const(n), f.const(at)) for at, n in places]
        f.dispatch(kernel, f.const(1), bindings, [])

    return build


def _grid(grid: int) -> Callable[[ProgramBuilder, FunctionBuilder], None]:
    def build(program: ProgramBuilder, f: FunctionBuilder) -> None:
        f.dispatch(program.kernel("gpu", 0, 0, 0), f.const(grid), [], [])

    return build


def _scalar(program: ProgramBuilder, f: FunctionBuilder) -> None:
    f.dispatch(program.kernel("gpu", 0, 0, 1), f.const(1), [], [f.const(1 << 31)])


def _copy(to: int, of: int) -> Callable[[ProgramBuilder, FunctionBuilder], None]:
    def build(program: ProgramBuilder, f: FunctionBuilder) -> None:
        slab = program.slab("cpu", 64)
        dst, src = (Binding("slab", slab, f.const(n)) for n in (to, of))
        f.copy("cpu", dst, src)

    return build


def _ensure(size: int) -> Callable[[ProgramBuilder, FunctionBuilder], None]:
    def build(program: ProgramBuilder, f: FunctionBuilder) -> None:
        f.ensure(program.slab("cpu"), f.const(size))

    return build


def _weight(program: ProgramBuilder, f: FunctionBuilder) -> None:
    k = program.weight(8)
    f.read("cpu", Binding("weight", k, f.const(8)), I64, 1)


def _short_read(program: ProgramBuilder, f: FunctionBuilder) -> None:
    f.read("cpu", Binding("slab", program.slab("cpu", 64), f.const(8)), I64, 2)


def _missing_kernel(program: ProgramBuilder, f: FunctionBuilder) -> None:
    f.dispatch(program.kernel("cpu", 3, 0, 0), f.const(1), [], [])


def _transfer(program: ProgramBuilder, f: FunctionBuilder) -> None:
    near, far = program.slab("cpu", 64), program.slab("gpu", 64)
    f.to_cpu(Binding("slab", near, f.const(8)), Binding("slab", far, f.const(12)))


CASES = {
    "past the slab": (_gpu_dispatch((0, 1025)), "bytes 0 to 1028 of slab 0, which has 1024"),
    "far past the slab": (
        _gpu_dispatch((1 << 31, 1 << 31)),
        "bytes 2147483648 to 4294967296 of slab 0, which has 1024",
    ),
    "empty past the end": (_gpu_dispatch((1280, 0)), "bytes 1280 to 1280 of slab 0"),
    "negative offset": (_gpu_dispatch((-4, 4)), "4 bytes from -4 of slab 0"),
    "negative bytes": (_gpu_dispatch((0, -1)), "-1 bytes from 0 of slab 0"),
    "huge bytes": (_gpu_dispatch((0, 1 << 32)), "4294967296 bytes from 0 of slab 0"),
    "alignment": (_gpu_dispatch((128, 4)), "offset 128 of slab 0 is not a multiple of 256"),
    "overlap": (_gpu_dispatch((0, 300), (256, 8)), "buffers 0 and 1 overlap: 300 bytes at 0 and 8"),
    "same": (_gpu_dispatch((0, 4), (512, 4), (0, 4)), "buffers 0 and 2 overlap"),
    "negative grid": (_grid(-1), "a grid of -1"),
    "huge grid": (_grid(1 << 31), "grid 2147483648 passes 32 bits"),
    "scalar": (_scalar, "scalar 2147483648 passes 32 bits"),
    "copy": (_copy(8, 12), "a copy of 12 bytes to 8"),
    "negative slab": (_ensure(-1), "slab 0 of -1 bytes"),
    "huge slab": (_ensure(1 << 32), "slab 0 of 4294967296 bytes: at most 4294967292"),
    "no memory": (_ensure((1 << 32) - 4), "no memory for slab 0: 4294967292 bytes"),
    "weight": (_weight, "weight 0 has no bytes on the cpu"),
    "short read": (_short_read, "a read of 16 bytes from 8"),
    "no kernels": (_missing_kernel, "cpu kernel 3: the host has set 0"),
    "transfer": (_transfer, "a transfer between 8 bytes and 12"),
}


@pytest.mark.parametrize("name", CASES)
def test_words(name: str) -> None:
    build, words = CASES[name]
    program = ProgramBuilder()
    f = program.function("main")
    build(program, f)
    f.ret()
    model = Vm().open(program.encode())
    with pytest.raises(VmError) as caught:
        model.run(0)
    assert words in str(caught.value)
    assert " at main+" in str(caught.value)


def test_two_reads_of_one_weight_may_overlap() -> None:
    program = ProgramBuilder()
    f = program.function("main")
    weight = Binding("weight", program.weight(8), f.const(8))
    f.dispatch(program.kernel("gpu", 0, 2, 0), f.const(1), [weight, weight], [])
    f.ret()
    Vm().open(program.encode()).run(0)


def test_too_few_kernels() -> None:
    program = ProgramBuilder()
    f = program.function("main")
    _missing_kernel(program, f)
    f.ret()
    model = Vm().open(program.encode())
    with pytest.raises(FormatError, match="the program needs cpu kernel 3; there are 2"):
        model.load_kernels(bytes(wasmtime.wat2wasm("(module)")), 2)
    with pytest.raises(FormatError, match=r"kernels.wasm: .*table"):
        model.load_kernels(cpu_kernels.module(), cpu_kernels.COUNT - 1)


def test_a_weight_of_another_size() -> None:
    program = ProgramBuilder()
    program.weight(8)
    program.function("main").ret()
    model = Vm().open(program.encode())
    with pytest.raises(FormatError, match="weight 0 has 7 bytes; the program needs 8"):
        model.set_weight(0, bytes(7))
    with pytest.raises(VmError, match="weight 1 of 1"):
        model.set_weight(1, b"")


def test_a_long_message_is_cut() -> None:
    program = ProgramBuilder()
    program.function("main").fail("x" * 5000)
    with pytest.raises(Exception, match=r"^x{511}$"):
        Vm().open(program.encode()).run(0)


def test_errors_have_codes() -> None:
    program = ProgramBuilder()
    f = program.function("main")
    f.floordiv(f.const(1), f.const(0))
    f.ret()
    with pytest.raises(VmError) as caught:
        Vm().open(program.encode()).run(0)
    assert caught.value.code == "value"


def test_memory_is_given_back() -> None:
    program = ProgramBuilder()
    slab = program.slab("cpu", 64 << 20)
    f = program.function("main")
    f.fill("cpu", Binding("slab", slab, f.const(4)), 1)
    f.ret()
    data = program.encode()
    vm = Vm()
    for _ in range(10):  # 640 MB in all
        model = vm.open(data)
        model.run(0)
        model.close()
    assert vm.bytes().size < 200 << 20


def test_memory_above_2_gigabytes() -> None:
    program = ProgramBuilder()
    high = program.slab("cpu", 1 << 20)
    f = program.function("main")
    f.fill("cpu", Binding("slab", high, f.const(16)), 0x01020304)
    (value,) = f.read("cpu", Binding("slab", high, f.const(8)), I64, 1)
    f.check_eq(value, f.const(0x0102030401020304), "value")
    f.ret()
    vm = Vm()
    vm.alloc((1 << 31) - (1 << 20))  # not touched
    vm.open(program.encode()).run(0)
    x = np.arange(1 << 20, dtype=np.uint8)
    pointer = vm.copy_in(x)
    assert pointer > 1 << 31
    np.testing.assert_array_equal(vm.bytes()[pointer : pointer + x.size], x)
