"""Whole programs on both devices: commands, waits, inputs, results."""

import numpy as np
import pytest

from edgerelax.codegen.program import Binding, InputSpec, OutputSpec, ProgramBuilder
from edgerelax.hosts.vm import DONE, FLUSH, NEED_READ, Vm, VmError, VmModel
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import DTYPES, F16, F32, I32, I64, U8, U64
from tests.vm import cpu_kernels
from tests.vm.fake_gpu import FakeGpu, commands
from tests.vm.samples import everything


def twice(buffers: list[np.ndarray], scalars: list[int]) -> None:
    grid, n, late = scalars
    assert grid == n == late
    source, target = (b.view(np.float32) for b in buffers)
    target[:n] = 2 * source[:n]


def scale(buffers: list[np.ndarray], scalars: list[int]) -> None:
    assert buffers[0].size == 4 * scalars[0]


@pytest.fixture
def model() -> VmModel:
    model = Vm().open(everything().encode())
    model.load_kernels(cpu_kernels.module(), cpu_kernels.COUNT)
    model.set_weight(0, np.array([3, 0], np.int64).tobytes())
    return model


def _run(model: VmModel, gpu: FakeGpu, n: int) -> np.ndarray:
    x = np.arange(n, dtype=np.float32)
    i = np.array([5], np.int32)
    model.set_input(0, x, F32)
    model.describe_input(1, I32, (), 4)
    gpu.set("input", 0, x)
    gpu.set("input", 1, i)
    gpu.run(0)
    np.testing.assert_array_equal(gpu.fetch(0), 2 * x + 1)
    np.testing.assert_array_equal(gpu.fetch(1), [1 << 32, 7])
    return gpu.fetch(0)


def test_everything(model: VmModel) -> None:
    gpu = FakeGpu(model, [twice], library={"scale": scale})
    gpu.set("weight", 1, np.array([1 << 32, 7], np.int64))
    for n in (4, 128, 4, 1000, 4, 4):  # where the slab grows, lists are forgotten
        _run(model, gpu, n)
    assert model.stats()["list_misses"] == 5
    assert model.stats()["list_hits"] == 1
    assert gpu.log.count("replay") == 1
    assert gpu.log.count("reset") == 1


def test_waits(model: VmModel) -> None:
    gpu = FakeGpu(model, [twice], library={"scale": scale})
    gpu.set("weight", 1, np.zeros(2, np.int64))
    x = np.ones(8, np.float32)
    model.set_input(0, x, F32)
    model.set_input(1, np.array([1], np.int32), I32)
    gpu.set("input", 0, x)
    gpu.set("input", 1, np.array([1], np.int32))
    seen = [model.run(0)]
    while seen[-1] != DONE:
        gpu.drain()
        seen.append(model.resume())
    # to_cpu waits; the fill of cpu memory after the upload needs a flush; then the read waits.
    assert seen == [NEED_READ, FLUSH, NEED_READ, DONE]


def test_a_cancelled_run_starts_again_with_reset(model: VmModel) -> None:
    gpu = FakeGpu(model, [twice], library={"scale": scale})
    gpu.set("weight", 1, np.array([1 << 32, 7], np.int64))
    _run(model, gpu, 8)
    assert model.run(0) == NEED_READ
    with pytest.raises(VmError, match="a run of this model waits"):
        model.run(0)
    model.cancel()
    with pytest.raises(VmError, match="no run of this model waits"):
        model.resume()
    gpu.log.clear()
    _run(model, gpu, 8)
    assert gpu.log[:4] == ["reset", "ensure", "ensure", "record"]


def test_failures_leave_the_model_usable(model: VmModel) -> None:
    gpu = FakeGpu(model, [twice], library={"scale": scale})
    gpu.set("weight", 1, np.array([1 << 32, 7], np.int64))
    model.set_input(0, np.zeros(6, np.float32), F32)
    model.set_input(1, np.zeros(1, np.int32), I32)
    with pytest.raises(InputError, match=r"^bärt: rank: 2 is not 0$"):
        model.run(0)
    assert model.commands().size == 0
    with pytest.raises(InputError, match=r"^this function fails$"):
        model.run(2)
    with pytest.raises(VmError, match="function 'inner' takes or gives registers"):
        model.run(1)
    with pytest.raises(VmError, match="function 9 of 3"):
        model.run(9)
    _run(model, gpu, 12)


def identity(dtype=F32, rank: int | None = 2) -> bytes:
    program = ProgramBuilder()
    f = program.function("main", [InputSpec("x", dtype, rank)], [OutputSpec("y", dtype)])
    dims = [f.load_dim(0, d) for d in range(rank or 0)]
    size = f.const(dtype.bytes)
    for dim in dims:
        size = f.mul(size, dim)
    f.output(0, "cpu", Binding("input", 0, size), dims)
    f.ret()
    return program.encode()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 3), (1,) * 16])
def test_identity(shape: tuple[int, ...]) -> None:
    model = Vm().open(identity(F16, len(shape)))
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float16).reshape(shape)
    model.set_input(0, x, F16)
    assert model.run(0) == DONE
    result = model.result(0)
    assert (result.kind, result.device, result.dims) == ("input", "cpu", shape)
    np.testing.assert_array_equal(model.fetch(result), x)


def test_inputs_are_checked() -> None:
    model = Vm().open(identity())
    with pytest.raises(InputError, match="input 'x' has dtype f16; it must be f32"):
        model.set_input(0, np.zeros((2, 2), np.float16), F16)
        model.run(0)
    with pytest.raises(InputError, match="input 'x' has rank 1; it must be 2"):
        model.set_input(0, np.zeros(2, np.float32), F32)
        model.run(0)
    with pytest.raises(InputError, match="input 'x' has 12 bytes; its shape needs 16"):
        model.describe_input(0, F32, (2, 2), 12)
        model.run(0)
    with pytest.raises(VmError, match="input 'x' has no bytes on the cpu"):
        model.describe_input(0, F32, (2, 2), 16)
        model.run(0)
    with pytest.raises(InputError, match="not so many"):
        model.set_input(1, np.zeros(1, np.float32), F32)
    with pytest.raises(InputError, match="rank 17"):
        model.set_input(0, np.zeros((1,) * 17, np.float32), F32)
    with pytest.raises(InputError, match="f32 is float32"):
        model.set_input(0, np.zeros((1, 1), np.int32), F32)
    with pytest.raises(InputError, match="not so many"):
        model.result(1)


def test_rank_of_an_input_that_may_have_any() -> None:
    program = ProgramBuilder()
    f = program.function("main", [InputSpec("x", F32, None)])
    f.load_dim(0, 2)
    f.ret()
    model = Vm().open(program.encode())
    model.set_input(0, np.zeros((1, 2, 3), np.float32), F32)
    model.run(0)
    model.set_input(0, np.zeros((1, 2), np.float32), F32)
    with pytest.raises(InputError, match="input 'x' has rank 2; dimension 2 is needed"):
        model.run(0)


def test_results_must_be_set() -> None:
    program = ProgramBuilder()
    program.function("main", [], [OutputSpec("y", F32)]).ret()
    with pytest.raises(InputError, match="function 'main' has not set its result 'y'"):
        Vm().open(program.encode()).run(0)


def test_two_models_in_one_vm_wait_independently() -> None:
    vm = Vm()
    models, gpus = [], []
    for value in (3, 4):
        program = ProgramBuilder()
        slab = program.slab("gpu", 256)
        f = program.function("main", [], [OutputSpec("y", I32)])
        f.fill("gpu", Binding("slab", slab, f.const(4)), value)
        (n,) = f.read("gpu", Binding("slab", slab, f.const(4)), I32, 1)
        f.output(0, "gpu", Binding("slab", slab, f.const(4)), [n])
        f.ret()
        models.append(vm.open(program.encode()))
        gpus.append(FakeGpu(models[-1]))
    assert [m.run(0) for m in models] == [NEED_READ, NEED_READ]
    vm.free(vm.alloc(64 << 20))  # memory grows and moves
    for gpu, model in reversed(list(zip(gpus, models, strict=True))):
        gpu.drain()
        assert model.resume() == DONE
    assert [m.result(0).dims for m in models] == [(3,), (4,)]
    models[0].close()
    models[0].close()
    assert models[1].run(0) == NEED_READ


def test_consecutive_reads_wait_once_unless_they_depend() -> None:
    program = ProgramBuilder()
    slab = program.slab("gpu", 1024)
    f = program.function("main", [], [OutputSpec("y", U8)])
    four = f.const(4)
    f.fill("gpu", Binding("slab", slab, f.const(1024)), 0x80)
    (a,) = f.read("gpu", Binding("slab", slab, four), U8, 1)
    (b,) = f.read("gpu", Binding("slab", slab, four, f.const(256)), U8, 1)
    c = f.read("gpu", Binding("slab", slab, four, b), U8, 2)  # depends on b
    f.output(0, "gpu", Binding("slab", slab, four), [a, b, *c])
    f.ret()
    model = Vm().open(program.encode())
    gpu = FakeGpu(model)
    gpu.run()
    assert gpu.drains == 3
    assert model.result(0).dims == (128, 128, 128, 0)


def test_uploads_flush_only_before_cpu_memory_changes() -> None:
    program = ProgramBuilder()
    gpu_slab, cpu_slab = program.slab("gpu", 256), program.slab("cpu", 256)
    f = program.function("main", [], [OutputSpec("y", I32)])
    size = f.const(8)
    near, far = Binding("slab", cpu_slab, size), Binding("slab", gpu_slab, size)
    f.fill("cpu", near, 7)
    f.to_gpu(far, near)
    f.fill("gpu", Binding("slab", gpu_slab, f.const(4)), 6)
    f.output(0, "gpu", far, [f.const(2)])
    f.ret()
    model = Vm().open(program.encode())
    gpu = FakeGpu(model)
    gpu.run()
    assert gpu.drains == 1
    np.testing.assert_array_equal(gpu.fetch(), [6, 7])


@pytest.mark.parametrize("device", ["gpu", "cpu"])
def test_slabs_grow_and_keep_their_contents(device: str) -> None:
    program = ProgramBuilder()
    slab = program.slab(device, 6)
    program.keep(slab)
    f = program.function("main", [InputSpec("n", I32, 1)], [OutputSpec("y", U8)])
    n = f.load_dim(0, 0)
    f.ensure(slab, n)
    f.fill(device, Binding("slab", slab, f.const(8)), 0x04030201)
    f.ensure(slab, f.mul(n, f.const(2)))
    f.output(0, device, Binding("slab", slab, f.mul(n, f.const(2))), [f.mul(n, f.const(2))])
    f.ret()
    model = Vm().open(program.encode())
    model.describe_input(0, I32, (50,), 200)
    gpu = FakeGpu(model)
    gpu.run()
    found = gpu.fetch() if device == "gpu" else model.fetch(model.result(0))
    assert len(found) == 100
    np.testing.assert_array_equal(found[:8], [1, 2, 3, 4, 1, 2, 3, 4])
    assert model.stats()[f"{device}_slab_bytes"] == 100


def test_commands_are_as_the_table_says() -> None:
    program = ProgramBuilder()
    slab = program.slab("gpu", 600)
    kernel = program.kernel("gpu", 5, buffers=2, scalars=1)
    f = program.function("main", [InputSpec("x", F32, 1)])
    n = f.load_dim(0, 0)
    a = Binding("input", 0, n)
    b = Binding("slab", slab, n, f.const(256))
    f.dispatch(kernel, n, [a, b], [f.const(-3)])
    f.dispatch(kernel, f.const(0), [a, b], [f.const(-3)])
    f.ret()
    model = Vm().open(program.encode())
    model.describe_input(0, F32, (3,), 12)
    model.run(0)
    found = [(c.name, c.words) for c in commands(model.commands())]
    dispatch = [5, 2, 0, 0, 0, 4, 2, 0, 256, 4, 2, 3, -3]  # bytes are rounded up to words
    assert found == [("reset", []), ("ensure", [0, 600, 0]), ("dispatch", dispatch)]


def test_reads_of_all_integers() -> None:
    for name in ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool"):
        dtype = DTYPES[name]
        low, high = dtype.int_range
        values = np.array([low, min(high, (1 << 63) - 1), 1], dtype.numpy)
        program = ProgramBuilder()
        program.weight(values.nbytes)
        f = program.function("main")
        read = f.read("cpu", Binding("weight", 0, f.const(values.nbytes)), dtype, 3)
        for register, value in zip(read, values, strict=True):
            f.check_eq(register, f.const(int(value)), name)
        f.ret()
        model = Vm().open(program.encode())
        model.set_weight(0, values.tobytes())
        assert model.run(0) == DONE


def test_a_u64_that_no_register_holds() -> None:
    program = ProgramBuilder()
    program.weight(8)
    f = program.function("main")
    f.read("cpu", Binding("weight", 0, f.const(8)), U64, 1)
    f.ret()
    model = Vm().open(program.encode())
    model.set_weight(0, b"\xff" * 8)
    with pytest.raises(VmError, match="a u64 value that was read passes 63 bits"):
        model.run(0)


def test_i64_results_have_their_dtype() -> None:
    model = Vm().open(identity(I64, 1))
    model.set_input(0, np.array([-1, 1 << 40]), I64)
    model.run(0)
    np.testing.assert_array_equal(model.fetch(model.result(0)), [-1, 1 << 40])
