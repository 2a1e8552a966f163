"""A loaded model on some host: checks arguments, drives the VM, fetches results.

Calls on one session are queued (a lock), never globally; a failed call leaves the session as it
was.
"""

import functools
import math
import operator
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgerelax.artifact.manifest import FunctionInfo, ProgramInfo, SymbolInfo, TensorInfo
from edgerelax.artifact.store import Artifact
from edgerelax.hosts.library import Bound, kernels_of
from edgerelax.hosts.vm import CPU, DONE, GPU, NEED_READ, Result, Vm, VmModel
from edgerelax.ir.diagnostics import FormatError, InputError
from edgerelax.ir.dtypes import DTYPES, DType

Array = npt.NDArray[Any]


class Device(Protocol):
    """What executes the VM's commands and holds the device's memory."""

    name: str

    def set_input(self, k: int, data: Array) -> bool:
        """Put an input's bytes on the device; True if recorded lists must be forgotten."""

    def make_state(self, k: int, size: int) -> None:
        """Make input k anew, of `size` bytes that are 0."""

    def execute(self, model: VmModel) -> None:
        """Execute the commands of the last step, reads into VM memory included."""

    def fetch(self, results: Sequence[Result]) -> list[bytes]:
        """Bytes of results that lie on the device."""

    def stats(self) -> dict[str, int]:
        """What the device made and launched since it was opened."""

    def close(self) -> None:
        """Free all device memory."""


class Session:
    """A model ready to run. `close` frees everything; a closed session refuses to run.

    `variant` is the name of the program that runs, `device_name` where: wgpu or cpu. `libraries`
    are the functions of the CPU that it calls. `threads` share the work of the CPU's kernels.
    """

    def __init__(
        self,
        artifact: Artifact,
        program: ProgramInfo,
        device: Device | None,
        libraries: Sequence[Bound] = (),
        threads: int = 1,
    ) -> None:
        self.artifact = artifact
        self.variant = program.name
        self.device_name = "cpu" if device is None else device.name
        self.functions: dict[str, FunctionInfo] = {f.name: f for f in artifact.manifest.functions}
        self._device = device
        self._lock = threading.Lock()
        self.threads = threads
        self._vm = Vm(threads)
        self._model: VmModel | None = self._vm.open(artifact.read(program.program))
        self._load_cpu_side(self._model, program, libraries)
        self.states: dict[str, tuple[int, ...]] = {}  # their dims
        self._make_states(self._model, {})

    def _load_cpu_side(
        self, model: VmModel, program: ProgramInfo, libraries: Sequence[Bound]
    ) -> None:
        manifest, file = self.artifact.manifest, program.cpu_kernels_file
        if file is not None or libraries:
            wasm = None if file is None else self.artifact.read(file)
            functions = kernels_of(self._vm, libraries)
            model.load_kernels(wasm, len(program.cpu_kernels), functions)
        for k in program.weights_on_cpu:
            model.set_weight(k, self.artifact.weight(k))
        for k, weight in enumerate(manifest.weights):
            places = model.weight_places(k)
            on_gpu, on_cpu = k in program.weights_on_gpu, k in program.weights_on_cpu
            if (places & GPU and not on_gpu) or (places & CPU and not on_cpu):
                raise FormatError(
                    f"{program.program}: needs weight {weight.name} where the manifest has it not"
                )

    def allocate(self, sizes: Mapping[str, int]) -> None:
        """Make the states anew, all 0. `sizes` gives the symbols that their dims are.

        States whose dims are numbers are there from the start. Raises InputError for a symbol that
        is missing, unknown or out of its bounds.
        """
        manifest = self.artifact.manifest
        known = {d for s in manifest.states for d in s.shape or () if isinstance(d, str)}
        _check_sizes(known, sizes, manifest.symbols)
        with self._lock:
            if self._model is None:
                raise InputError("the session is closed")
            self._make_states(self._model, sizes)

    def _make_states(self, model: VmModel, sizes: Mapping[str, int]) -> None:
        """States with a dim of which `sizes` says nothing have none of it."""
        functions = range(len(self.functions))
        for k, spec in enumerate(self.artifact.manifest.states):
            dims = tuple(d if isinstance(d, int) else sizes.get(d, 0) for d in spec.shape or ())
            dtype = DTYPES[spec.dtype]
            places = functools.reduce(
                operator.or_, (model.input_places(f, k) for f in functions), 0
            )
            size = -(-math.prod(dims) * dtype.numpy.itemsize // 4) * 4
            if self._device is None or places & CPU:
                model.make_state(k, dtype, dims)
            else:
                model.describe_input(k, dtype, dims, size)
            if self._device is not None and places & GPU:
                self._device.make_state(k, size)
            self.states[spec.name] = dims
        if self.states:
            model.cancel()  # recorded lists bind what was there

    def run(self, inputs: Mapping[str, Any], function: str = "main") -> dict[str, Array]:
        """Run a function on arrays by input name; gives arrays by output name.

        Raises InputError for a wrong name, dtype, rank or size, and says which.
        """
        info = self.functions.get(function)
        if info is None:
            raise InputError(f"no function {function!r}; known: {', '.join(self.functions)}")
        arrays = _check_inputs(info, inputs)
        with self._lock:
            if self._model is None:
                raise InputError("the session is closed")
            return self._run(self._model, info, arrays)

    def _run(self, model: VmModel, info: FunctionInfo, arrays: list[Array]) -> dict[str, Array]:
        number = list(self.functions).index(info.name)
        try:
            self._give_inputs(model, number, info, arrays)
            status = model.run(number)
            while True:
                if self._device is not None:
                    self._device.execute(model)
                if status == DONE:
                    break
                assert self._device is not None or status != NEED_READ
                status = model.resume()
            return self._results(model, info)
        except BaseException:
            model.cancel()
            raise

    def _give_inputs(
        self, model: VmModel, number: int, info: FunctionInfo, arrays: list[Array]
    ) -> None:
        stale, first = False, len(self.states)
        for k, (spec, array) in enumerate(zip(info.inputs, arrays, strict=True), first):
            dtype = DTYPES[spec.dtype]
            places = model.input_places(number, k)
            if places & CPU or self._device is None:
                model.set_input(k, array, dtype)
            else:
                model.describe_input(k, dtype, array.shape, -(-array.nbytes // 4) * 4)
            if places & GPU and self._device is not None:
                stale |= self._device.set_input(k, array)
        if stale:
            model.cancel()

    def _results(self, model: VmModel, info: FunctionInfo) -> dict[str, Array]:
        results = [model.result(k) for k in range(len(info.outputs))]
        remote = [r for r in results if r.device != "cpu"]
        if remote and self._device is None:
            raise FormatError("a result lies on a GPU, in a program that is said to need none")
        fetched = iter(self._device.fetch(remote) if self._device is not None and remote else ())
        out: dict[str, Array] = {}
        for spec, result in zip(info.outputs, results, strict=True):
            if result.device == "cpu":
                out[spec.name] = model.fetch(result)
            else:
                out[spec.name] = _from_bytes(next(fetched), result.dtype, result.dims)
        return out

    def stats(self) -> dict[str, int]:
        """Counters of the VM and the device, since loading."""
        with self._lock:
            own = {} if self._model is None else self._model.stats()
            return own | ({} if self._device is None else self._device.stats())

    def close(self) -> None:
        """Free everything; safe to call twice."""
        with self._lock:
            if self._model is not None:
                self._model.close()
                self._model = None
                self._vm.close()
                if self._device is not None:
                    self._device.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_sizes(
    known: set[str], sizes: Mapping[str, int], symbols: Mapping[str, SymbolInfo]
) -> None:
    if known != set(sizes):
        raise InputError(
            f"sizes of states: {', '.join(sizes) or 'none'} given",
            hint=f"the states of this model need {', '.join(sorted(known)) or 'none'}",
        )
    for name, size in sizes.items():
        own = symbols[name]
        most = size if own.hi is None else own.hi
        if not own.lo <= size <= most or size % own.multiple_of:
            upper = "" if own.hi is None else f" and at most {own.hi}"
            raise InputError(
                f"{name} is {size}: at least {own.lo}{upper}, a multiple of {own.multiple_of}, "
                "is expected"
            )


def _check_inputs(info: FunctionInfo, inputs: Mapping[str, Any]) -> list[Array]:
    """Arrays in the order of the signature. Sizes are checked by the program itself."""
    known = [spec.name for spec in info.inputs]
    unknown = [name for name in inputs if name not in known]
    missing = [name for name in known if name not in inputs]
    if unknown or missing:
        wrong = [f"unknown input {n!r}" for n in unknown] + [f"missing {n!r}" for n in missing]
        raise InputError(
            f"{info.name}: {', '.join(wrong)}", hint=f"its inputs are {', '.join(known)}"
        )
    return [_check_input(spec, inputs[spec.name]) for spec in info.inputs]


def _check_input(spec: TensorInfo, value: Any) -> Array:
    wanted = DTYPES[spec.dtype]
    array = value if isinstance(value, np.ndarray) else _from_python(value, wanted)
    shape = "" if spec.shape is None else f"[{', '.join(map(str, spec.shape))}]"
    if array.dtype != wanted.numpy:
        raise InputError(
            f"input '{spec.name}': dtype {array.dtype}, "
            f"expected {wanted.numpy} ({spec.dtype}{shape})",
            hint=f"convert it with .astype({wanted.numpy.name!r})",
        )
    if spec.shape is not None and array.ndim != len(spec.shape):
        raise InputError(
            f"input '{spec.name}': rank {array.ndim} (shape {array.shape}), "
            f"expected rank {len(spec.shape)} ({spec.dtype}{shape})"
        )
    return np.ascontiguousarray(array).reshape(array.shape)


def _from_python(value: Any, wanted: DType) -> Array:
    """Python numbers and lists take the input's dtype where nothing is lost by it."""
    array = np.asarray(value)
    if array.dtype == object:
        raise InputError(f"{type(value).__name__} is no array of numbers")
    if wanted.is_float and array.dtype.kind in "fiu":
        return array.astype(wanted.numpy)
    if wanted.is_integer and array.dtype.kind in "iu":
        low, high = wanted.int_range
        if array.size and (int(array.min()) < low or int(array.max()) > high):
            raise InputError(f"a number is outside the range of {wanted}")
        return array.astype(wanted.numpy)
    return array


def _from_bytes(data: bytes, dtype: DType, dims: Sequence[int]) -> Array:
    size = int(np.prod(dims, dtype=np.int64)) * dtype.numpy.itemsize
    return np.frombuffer(bytearray(data[:size]), dtype.numpy).reshape(tuple(dims))
