"""Threads: every iteration once, traps of helpers, ends. The pool itself under the sanitizer."""

import gc
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from edgerelax.codegen.program import Binding, InputSpec, OutputSpec, ProgramBuilder
from edgerelax.hosts.vm import Vm, VmError, VmModel
from edgerelax.ir.dtypes import I32
from tests.vm import cpu_kernels
from tests.vm.conftest import VM, WARNINGS
from tests.waiting import wait_until

SIZES = (1, 2, 3, 37, 64, 1000, 4099)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("clang") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("pool") / "threads"
    sources = [VM / "pool.c", Path(__file__).parent / "native" / "threads.c"]
    options = ["-O1", "-g", "-pthread", "-fsanitize=thread", f"-I{VM}"]
    subprocess.run(
        [compiler, *WARNINGS, *options, *map(str, sources), "-o", str(made)],
        check=True,
        timeout=300,
    )
    return made


@pytest.mark.parametrize("helpers", [0, 1, 3])
def test_random_jobs_under_the_thread_sanitizer(pool: Path, helpers: int) -> None:
    """Ends once a helper has helped, where there are any."""
    done = subprocess.run([str(pool), str(helpers), "600", "7"], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-6000:]
    helped, traps = map(int, done.stdout.split())
    assert (helped > 0) == (helpers > 0)
    assert traps == 0 or helpers > 0


def _program(steps: int, visit: int = cpu_kernels.COUNT_VISITS) -> bytes:
    """y = a slab whose words are counted up by each visit, in an odd number of launches."""
    builder = ProgramBuilder()
    slab = builder.slab("cpu")
    kernel = builder.kernel("cpu", visit, 1, scalars=2, steps=2)
    f = builder.function("main", [InputSpec("limit", I32, 1)], [OutputSpec("y", I32)])
    n, four = f.load_dim(0, 0), f.const(4)
    (limit,) = f.read("cpu", Binding("input", 0, four), I32, 1)
    y = Binding("slab", slab, f.mul(n, four))
    f.ensure(slab, y.bytes)
    f.fill("cpu", y, 0)
    for _ in range(3):
        f.dispatch(kernel, n, [y], [limit, f.const(steps)])
    f.output(0, "cpu", y, [n])
    f.ret()
    return builder.encode()


@contextmanager
def _model(
    threads: int, steps: int = 1000, visit: int = cpu_kernels.COUNT_VISITS
) -> Iterator[VmModel]:
    vm = Vm(threads)
    model = vm.open(_program(steps, visit))
    model.load_kernels(cpu_kernels.wasm(), cpu_kernels.COUNT)
    yield model
    model.close()
    vm.close()


def _visits(model: VmModel, n: int, limit: int = 0) -> np.ndarray:
    model.set_input(0, np.full(n, limit, np.int32), I32)
    model.run(0)
    return model.fetch(model.result(0))


def _helped(model: VmModel) -> bool:
    """Run until a helper has come."""
    np.testing.assert_array_equal(_visits(model, 4099), 3)
    return model.stats()["helped_pieces"] > 0


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_each_iteration_runs_once(threads: int) -> None:
    with _model(threads) as model:
        if threads > 1:
            wait_until(lambda: _helped(model), "nobody helps")
        for n in SIZES:
            np.testing.assert_array_equal(_visits(model, n), 3)
        assert (model.stats()["helped_pieces"] > 0) == (threads > 1)


@pytest.mark.parametrize("steps", [0, 1])
def test_grids_that_must_not_or_need_not_be_split(steps: int) -> None:
    with _model(3, steps) as model:
        for _ in range(20):
            np.testing.assert_array_equal(_visits(model, 4099), 3)
        assert model.stats()["helped_pieces"] == 0


def test_a_trap_in_a_helper_ends_the_run_only() -> None:
    with _model(3) as model:
        wait_until(lambda: _helped(model), "nobody helps")
        stack = model.vm.call("stackSave")
        for _ in range(3):

            def trapped() -> bool:
                try:
                    _visits(model, 4099, limit=stack)
                    return False
                except VmError as error:
                    assert error.code == "trap"
                    assert "cpu kernel 5 trapped in a helper (dispatch at main+" in str(error)
                    return True

            wait_until(trapped, "no helper traps")
            np.testing.assert_array_equal(_visits(model, 1000), 3)
        before = model.stats()["helped_pieces"]
        wait_until(
            lambda: _helped(model) and model.stats()["helped_pieces"] > before, "none is left"
        )


def test_a_trap_of_the_caller_waits_for_its_helpers() -> None:
    """The caller's own stack passes the limit too: whoever takes the first piece traps."""
    with _model(3) as model:
        wait_until(lambda: _helped(model), "nobody helps")
        for _ in range(5):
            with pytest.raises(VmError, match="trapped") as caught:
                _visits(model, 4099, limit=1)
            assert caught.value.code == "trap"
            np.testing.assert_array_equal(_visits(model, 1000), 3)


@pytest.mark.parametrize("n", [1, 4099])
def test_an_access_outside_of_shared_memory(n: int) -> None:
    """Of the caller, or of whoever comes first."""
    with _model(3, visit=cpu_kernels.OUTSIDE) as model:
        for _ in range(20):
            with pytest.raises(VmError, match="trapped") as caught:
                _visits(model, n)
            assert caught.value.code == "trap"


def _threads() -> set[threading.Thread]:
    """Of all VMs; those of other tests may end at any time."""
    return {t for t in threading.enumerate() if t.name.startswith("edgerelax")}


def test_threads_end_with_the_vm() -> None:
    before = _threads()
    with _model(4) as model:
        wait_until(lambda: _helped(model), "nobody helps")
        its = _threads() - before
        assert len(its) == 3
    assert not its & _threads()
    model.vm.close()


def test_a_forgotten_vm_ends_its_threads() -> None:
    before = _threads()
    vm = Vm(3)
    vm.open(_program(1)).load_kernels(cpu_kernels.wasm(), cpu_kernels.COUNT)
    its = _threads() - before
    assert len(its) == 2
    del vm
    gc.collect()
    wait_until(lambda: not its & _threads(), "they go on")


def test_one_model_only() -> None:
    with _model(2) as model, pytest.raises(VmError, match="one model"):
        model.vm.instantiate_kernels(cpu_kernels.module(), cpu_kernels.COUNT)
