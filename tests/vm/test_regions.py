"""Recorded lists: hits, misses, late scalars, eviction, failures inside."""

import numpy as np
import pytest

from edgerelax.codegen.program import (
    Binding,
    FunctionBuilder,
    InputSpec,
    OutputSpec,
    ProgramBuilder,
)
from edgerelax.hosts.vm import Vm, VmError, VmModel
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32, I32, U8
from edgerelax.vm import isa
from tests.vm import cpu_kernels
from tests.vm.fake_gpu import FakeGpu, commands
from tests.vm.samples import keyed


def _add(buffers: list[np.ndarray], scalars: list[int]) -> None:
    grid, first, second = scalars
    buffers[0].view(np.int32)[:grid] += first * 100 + second


def _run(model: VmModel, gpu: FakeGpu, a: int, b: int) -> None:
    model.describe_input(0, I32, (a, b), 4 * a * b)
    gpu.run()
    wanted = np.zeros(64, np.int32)
    wanted[:a] = b * 100 + a + a * 100 + b
    np.testing.assert_array_equal(gpu.fetch(), wanted)


def test_gpu_hits_and_misses() -> None:
    model = Vm().open(keyed("gpu", late=False))
    gpu = FakeGpu(model, [_add])
    for a, b in ((1, 2), (2, 1), (1, 2), (1, 2), (2, 1), (3, 3)):
        _run(model, gpu, a, b)
    stats = model.stats()
    assert (stats["list_hits"], stats["list_misses"], stats["lists_forgotten"]) == (3, 3, 0)
    assert stats["dispatches"] == 12
    assert gpu.log.count("dispatch") == 6
    assert gpu.log.count("replay") == 3


def test_a_hit_is_one_command() -> None:
    model = Vm().open(keyed("gpu", late=True))
    gpu = FakeGpu(model, [_add])
    _run(model, gpu, 5, 6)
    model.describe_input(0, I32, (5, 7), 4 * 35)
    model.run(0)
    *_, last = commands(model.commands())
    assert (last.name, last.words) == ("replay", [0, 2, 0, 1, 7, 1, 2, 7])


def test_gpu_late_scalars() -> None:
    model = Vm().open(keyed("gpu", late=True))
    gpu = FakeGpu(model, [_add])
    for a, b in ((1, 2), (1, 3), (2, 9), (1, 4), (2, 8)):
        _run(model, gpu, a, b)
    assert model.stats()["list_misses"] == 2
    assert model.stats()["list_hits"] == 3


def test_the_list_used_longest_ago_is_forgotten() -> None:
    model = Vm().open(keyed("gpu", late=True))
    gpu = FakeGpu(model, [_add])
    bound = isa.LISTS_PER_REGION
    for a in range(bound):
        _run(model, gpu, a, 1)
    _run(model, gpu, 0, 1)
    assert model.stats()["lists_forgotten"] == 0
    assert len(gpu.lists) == bound
    _run(model, gpu, bound, 1)  # takes the place of 1
    assert gpu.log[-4:] == ["record", "dispatch", "dispatch", "end_record"]
    assert len(gpu.lists) == bound
    misses = model.stats()["list_misses"]
    _run(model, gpu, 0, 1)
    assert model.stats()["list_misses"] == misses
    _run(model, gpu, 1, 1)
    assert model.stats()["list_misses"] == misses + 1
    assert model.stats()["lists_forgotten"] == 2


def test_a_failure_while_recording_keeps_no_list() -> None:
    model = Vm().open(keyed("gpu", late=True, limit=20))
    gpu = FakeGpu(model, [_add])
    _run(model, gpu, 10, 1)
    for _ in range(2):
        model.describe_input(0, I32, (11, 1), 44)
        with pytest.raises(InputError, match="a: 22 is more than 20"):
            model.run(0)
    _run(model, gpu, 10, 1)
    assert model.stats()["list_hits"] == 0
    assert gpu.log.count("reset") == 2


def test_a_late_scalar_that_passes_32_bits() -> None:
    program = ProgramBuilder()
    kernel = program.kernel("gpu", 0, buffers=0, scalars=1)
    f = program.function("main", [InputSpec("n", U8, 1)])
    big = f.mul(f.load_dim(0, 0), f.const(1 << 30))
    with f.region("gpu", [], [big]):
        f.dispatch(kernel, f.const(1), [], [big])
    f.ret()
    model = Vm().open(program.encode())
    model.describe_input(0, U8, (1,), 1)
    model.run(0)
    model.describe_input(0, U8, (2,), 2)
    with pytest.raises(VmError, match=r"scalar 2147483648 passes 32 bits \(region at main"):
        model.run(0)


@pytest.mark.parametrize("late", [False, True])
def test_cpu_late_scalars(late: bool) -> None:
    model = Vm().open(keyed("cpu", late, index=cpu_kernels.ACCUMULATE))
    model.load_kernels(cpu_kernels.module(), cpu_kernels.COUNT)
    for a, b in ((1, 2), (1, 3), (40, 9), (1, 4), (40, 8), (0, 1), (0, 2)):
        model.describe_input(0, I32, (a, b), 4 * a * b)
        model.run(0)
        wanted = np.zeros(64, np.int32)
        wanted[:a] = 101 * (a + b)
        np.testing.assert_array_equal(model.fetch(model.result(0)), wanted)
    assert model.stats()["list_misses"] == (3 if late else 7)


def _cpu_chain() -> bytes:
    program = ProgramBuilder()
    slab = program.slab("cpu", 8)
    add_one = program.kernel("cpu", cpu_kernels.ADD_ONE, buffers=2, scalars=0)
    f = program.function("main", [InputSpec("x", F32, 1)], [OutputSpec("y", F32)])
    n = f.load_dim(0, 0)
    size = f.mul(n, f.const(4))
    f.ensure(slab, f.mul(size, f.const(2)))
    x, a, b = (
        Binding("input", 0, size),
        Binding("slab", slab, size),
        Binding("slab", slab, size, size),
    )
    with f.region("cpu", [n]):
        f.dispatch(add_one, n, [x, a], [])
        f.copy("cpu", b, a)
        f.fill("cpu", a, 0)
        f.dispatch(add_one, n, [b, a], [])
    f.output(0, "cpu", a, [n])
    f.ret()
    return program.encode()


def test_cpu_lists_survive_growth_and_moved_inputs() -> None:
    model = Vm().open(_cpu_chain())
    model.load_kernels(cpu_kernels.module(), cpu_kernels.COUNT)
    sizes = (3, 5, 3, 0, 100_000, 3, 5, 0, 100_000)
    for n in sizes:
        x = np.arange(n, dtype=np.float32)
        model.set_input(0, x, F32)
        model.run(0)
        np.testing.assert_array_equal(model.fetch(model.result(0)), x + 2)
        assert model.commands().size == 0
    stats = model.stats()
    assert stats["list_misses"] == 4
    assert stats["list_hits"] == len(sizes) - 4


def test_a_replayed_cpu_list_checks_the_input_it_finds() -> None:
    program = ProgramBuilder()
    slab = program.slab("cpu", 64)
    add_one = program.kernel("cpu", cpu_kernels.ADD_ONE, buffers=2, scalars=0)
    f = program.function("main", [InputSpec("x", F32, 1)])
    size = f.const(16)
    with f.region("cpu", []):  # forgets that the list depends on the size of x
        f.dispatch(
            add_one, f.const(4), [Binding("input", 0, size), Binding("slab", slab, size)], []
        )
    f.ret()
    model = Vm().open(program.encode())
    model.load_kernels(cpu_kernels.module(), cpu_kernels.COUNT)
    model.set_input(0, np.zeros(4, np.float32), F32)
    model.run(0)
    model.set_input(0, np.zeros(3, np.float32), F32)
    with pytest.raises(VmError, match="bytes 0 to 16 of input 0, which has 12"):
        model.run(0)


def test_jumps_inside_a_region() -> None:
    program = ProgramBuilder()
    slab = program.slab("gpu", 256)
    f = program.function("main", [InputSpec("n", U8, 1)], [OutputSpec("y", I32)])
    n = f.load_dim(0, 0)
    y = Binding("slab", slab, f.const(4))
    with f.region("gpu", [n]):
        small, end = f.label(), f.label()
        f.jump_if_zero(f.ge(n, f.const(10)), small)
        f.fill("gpu", y, 1)
        f.jump(end)
        f.place(small)
        f.fill("gpu", y, 2)
        f.place(end)
    f.output(0, "gpu", y, [f.const(1)])
    f.ret()
    model = Vm().open(program.encode())
    gpu = FakeGpu(model)
    for n, wanted in ((9, 2), (10, 1), (9, 2), (10, 1)):
        model.describe_input(0, U8, (n,), n)
        gpu.run()
        assert gpu.fetch().item() == wanted
    assert model.stats()["list_hits"] == 2


def test_many_regions_share_a_function() -> None:
    program = ProgramBuilder()
    slab = program.slab("gpu", 4096)

    def write(f: FunctionBuilder, k: int) -> None:
        with f.region("gpu", []):
            f.fill("gpu", Binding("slab", slab, f.const(4), f.const(4 * k)), k)

    f = program.function("main", [], [OutputSpec("y", I32)])
    for k in range(200):
        write(f, k)
    f.output(0, "gpu", Binding("slab", slab, f.const(800)), [f.const(200)])
    f.ret()
    model = Vm().open(program.encode())
    gpu = FakeGpu(model)
    for _ in range(2):
        gpu.run()
        np.testing.assert_array_equal(gpu.fetch(), np.arange(200))
    assert model.stats()["list_hits"] == 200
    assert len(gpu.lists) == 200
