"""The virtual machine in Python: `vm.wasm` under wasmtime, its memory as numpy arrays.

A `Vm` is one instance with its heap and function table; a `VmModel` is one program in it. Calls
into wasm cost tens of microseconds each, so what has a fixed address is read from memory instead.
Memory moves when it grows: an array from `Vm.bytes` is valid until the next call.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import wasmtime

from edgerelax.hosts.helpers import STACK_BYTES, Helpers
from edgerelax.hosts.instance import HostKernel, Instance, SharedMemory, compile_kernels
from edgerelax.ir.diagnostics import EdgeRelaxError, FormatError, InputError
from edgerelax.ir.dtypes import DTYPES, DType
from edgerelax.vm import isa

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.int32]
Buffer = bytes | memoryview | Bytes

DONE, NEED_READ, FLUSH, ERROR = range(len(isa.STATUSES))
GPU, CPU = 1, 2  # bits of places

_INPUT, _INPUT_WORDS = isa.layout(isa.INPUT_FIELDS)
_OUTPUT, _OUTPUT_WORDS = isa.layout(isa.OUTPUT_FIELDS)
_DTYPES = tuple(DTYPES.values())


class VmError(EdgeRelaxError):
    """A run failed for a reason that is not its inputs: `code` is one of isa.ERRORS, or trap."""

    default_code = "vm"


_ERROR_CLASSES: dict[str, type[EdgeRelaxError]] = {
    "format": FormatError,
    "input": InputError,
    "check": InputError,
}


@dataclass(frozen=True, slots=True)
class Result:
    """Where a result lies: `bytes` from `offset` of input, weight or slab `index` of `device`.

    `pointer` is its address in the VM's memory where the device is the cpu.
    """

    dtype: DType
    dims: tuple[int, ...]
    device: str
    kind: str
    index: int
    offset: int
    bytes: int
    pointer: int


def _as_array(data: Buffer) -> Bytes:
    return data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)


class Vm:
    """An instance of `vm.wasm`. Not to be used by two threads at once.

    With `threads` its kernels' work is shared by as many, the caller among them.
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._memory = SharedMemory() if threads > 1 else None
        self._helpers: Helpers | None = None
        self.instance = Instance(self._memory)
        self._view: Bytes = np.empty(0, np.uint8)
        self.call("_initialize")
        self._stack = self.call("stackSave")
        self.call("er_may_block", 1)

    def open(self, program: Buffer) -> "VmModel":
        """Check a program and make a model of it. Raises FormatError."""
        pointer = self.copy_in(program)
        handle = self.call("er_open", pointer, len(program))
        self.call("er_free", pointer)
        if not handle:
            raise self.failure(0)
        return VmModel(self, handle)

    def bytes(self) -> Bytes:
        """All of memory, valid until the next call."""
        if self.instance.size() != self._view.size:
            self._view = self.instance.view()
        return self._view

    def words(self, pointer: int, count: int) -> Words:
        """Words of memory, valid until the next call."""
        return self.bytes()[pointer : pointer + 4 * count].view(np.int32)

    def alloc(self, size: int) -> int:
        """The address of `size` bytes, aligned to 16. Raises VmError where memory is exhausted."""
        pointer = self.call("er_alloc", size) if size < 1 << 32 else 0
        if not pointer:
            raise VmError(f"vm: no memory for {size} bytes", code="memory")
        return int(pointer)

    def free(self, pointer: int) -> None:
        self.call("er_free", pointer)

    def copy_in(self, data: Buffer) -> int:
        """The address of a copy, which the caller frees."""
        array = _as_array(data)
        pointer = self.alloc(array.size)
        self.bytes()[pointer : pointer + array.size] = array
        return pointer

    def call(self, name: str, *arguments: int | float) -> int:
        """Call an export. Addresses come back unsigned."""
        return self.instance.call(name, *arguments)

    def failure(self, handle: int) -> EdgeRelaxError:
        """The last failure of a model, or of `open` where the handle is 0."""
        kind = isa.ERRORS[self.call("er_error_kind", handle)]
        start = self.call("er_error", handle)
        memory = self.bytes()
        end = start + int(np.argmin(memory[start : start + 4096]))
        text = memory[start:end].tobytes().decode(errors="replace")
        subject = "program: " if kind == "format" else ""
        return _ERROR_CLASSES.get(kind, VmError)(subject + text, code=kind)

    def instantiate_kernels(self, module: wasmtime.Module, count: int) -> int:
        """Give kernels slots of the table and let them fill these. Returns the first."""
        if self._helpers is not None:
            raise VmError("vm: with threads it runs one model", code="usage")
        start = self.instance.add_kernels(module, count)
        if self._memory is not None:
            stacks = [self.alloc(STACK_BYTES) + STACK_BYTES for _ in range(self.threads - 1)]
            self._helpers = Helpers(self._memory, self.instance, (module, count), stacks)
        return start

    def add_functions(self, functions: Sequence[HostKernel]) -> int:
        """Give functions of the host the next slots of the table. Returns the first."""
        return self.instance.add_functions(functions)

    def close(self) -> None:
        """End its threads; safe to call twice. Its memory goes when it is forgotten."""
        if self._helpers is not None:
            self._helpers.close()

    def recover(self) -> None:
        """After a trap: take back the stack of the calls that it ended."""
        self.call("stackRestore", self._stack)


class VmModel:
    """One program with its weights, slabs and recorded lists. `close` frees them."""

    def __init__(self, vm: Vm, handle: int) -> None:
        self.vm = vm
        self._handle = handle
        self._weights: dict[int, int] = {}  # addresses
        self._inputs: dict[int, tuple[int, int]] = {}  # addresses and sizes
        self._input_descriptors: dict[int, int] = {}
        self._output_descriptors: dict[int, int] = {}
        self._stats = vm.call("er_stats", handle)

    def load_kernels(
        self,
        module: wasmtime.Module | bytes | None,
        count: int,
        functions: Sequence[HostKernel] = (),
    ) -> None:
        """Provide the cpu kernels: `count` functions of a `kernels.wasm`, then those of the host.

        A host's function may raise: the run fails with that.
        """
        if isinstance(module, bytes):
            module = compile_kernels(module, self.vm.instance.shared)
        start = None if module is None else self.vm.instantiate_kernels(module, count)
        own = self.vm.add_functions(functions)  # adjoin the kernels: nothing grew the table since
        start = own if start is None else start
        self._check(self.vm.call("er_set_kernels", self._handle, start, count + len(functions)))

    def weight_places(self, k: int) -> int:
        """Where weight k is bound: GPU, CPU, both or 0."""
        return self.vm.call("er_weight_places", self._handle, k)

    def input_places(self, function: int, k: int) -> int:
        """Where input k of a function is bound: GPU, CPU, both or 0."""
        return self.vm.call("er_input_places", self._handle, function, k)

    def set_weight(self, k: int, data: Buffer) -> None:
        """Copy the cpu bytes of weight k into the VM."""
        size, wanted = _as_array(data).size, self.vm.call("er_weight_bytes", self._handle, k)
        if size != wanted:
            raise FormatError(f"weight {k} has {size} bytes; the program needs {wanted}")
        pointer = self.vm.copy_in(data)
        self.vm.free(self._weights.pop(k, 0))
        self._weights[k] = pointer
        self._check(self.vm.call("er_set_weight", self._handle, k, pointer))

    def set_budget(self, steps: int) -> None:
        """How many steps one run may take; at first 2^32."""
        self.vm.call("er_set_budget", self._handle, float(steps))

    def set_input(self, k: int, array: npt.NDArray[Any], dtype: DType) -> None:
        """Copy input k to the cpu. The VM compares `dtype` with the signature's."""
        if array.dtype != dtype.numpy or array.dtype.hasobject:
            raise InputError(f"input {k} has dtype {array.dtype}; {dtype} is {dtype.numpy}")
        pointer = self._input_memory(k, array.nbytes)
        self._describe(k, dtype, array.shape, array.nbytes, pointer)
        memory = self.vm.bytes()[pointer : pointer + array.nbytes]
        memory[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def make_state(self, k: int, dtype: DType, dims: Sequence[int]) -> None:
        """Make input k on the cpu anew, all 0."""
        size = math.prod(dims) * dtype.numpy.itemsize
        self.vm.free(self._inputs.pop(k, (0, 0))[0])
        pointer = self._input_memory(k, size)
        self._describe(k, dtype, dims, size, pointer)
        self.vm.bytes()[pointer : pointer + size] = 0

    def describe_input(self, k: int, dtype: DType, dims: Sequence[int], size: int) -> None:
        """Say what input k is without bytes on the cpu; `size` is of the host's buffer."""
        self._describe(k, dtype, dims, size, 0)

    def run(self, function: int) -> int:
        """Start a function; DONE, NEED_READ or FLUSH. Raises what the program or the VM refuses."""
        return self._step("er_run", function)

    def resume(self) -> int:
        """Go on after NEED_READ or FLUSH, the commands executed."""
        return self._step("er_resume")

    def cancel(self) -> None:
        """Give up a waiting run, or say that its commands could not be executed."""
        self.vm.call("er_cancel", self._handle)

    def commands(self) -> Words:
        """A copy of the commands of the last run or resume."""
        length = self.vm.call("er_commands_length", self._handle)
        if not length:
            return np.empty(0, np.int32)
        return self.vm.words(self.vm.call("er_commands", self._handle), length).copy()

    def result(self, k: int) -> Result:
        """Where result k lies after DONE, until the next run."""
        pointer = self._output_descriptors.get(k)
        if pointer is None:
            pointer = self.vm.call("er_output", self._handle, k)
            if not pointer:
                raise InputError(f"result {k}: the program has not so many")
            self._output_descriptors[k] = pointer
        words = self.vm.words(pointer, _OUTPUT_WORDS).view(np.uint32).tolist()
        dims = _OUTPUT["dims"]
        return Result(
            _DTYPES[words[_OUTPUT["dtype"]]],
            tuple(words[dims : dims + words[_OUTPUT["rank"]]]),
            isa.DEVICES[words[_OUTPUT["device"]]],
            isa.BINDING_KINDS[words[_OUTPUT["kind"]]],
            words[_OUTPUT["index"]],
            words[_OUTPUT["offset"]],
            words[_OUTPUT["bytes"]],
            words[_OUTPUT["pointer"]],
        )

    def fetch(self, result: Result) -> npt.NDArray[Any]:
        """A copy of a result that lies on the cpu."""
        size = int(np.prod(result.dims, dtype=np.int64)) * result.dtype.numpy.itemsize
        data = self.vm.bytes()[result.pointer : result.pointer + size].copy()
        return data.view(result.dtype.numpy).reshape(result.dims)

    def stats(self) -> dict[str, int]:
        """Numbers by isa.STATS, counted since `open`."""
        memory = self.vm.bytes()[self._stats : self._stats + 8 * len(isa.STATS)]
        return dict(zip(isa.STATS, map(int, memory.view(np.float64)), strict=True))

    def close(self) -> None:
        """Free all that the model has in the VM; safe to call twice."""
        handle, self._handle = self._handle, 0
        if not handle:
            return
        try:
            self.vm.call("er_close", handle)
            for pointer in (*self._weights.values(), *(p for p, _ in self._inputs.values())):
                self.vm.free(pointer)
        except wasmtime.Trap:
            # A damaged program had a kernel write over the heap: the instance's end frees it all.
            self.vm.recover()
        self._weights.clear()
        self._inputs.clear()

    def _check(self, status: int) -> int:
        if status == ERROR:
            raise self.vm.failure(self._handle)
        return status

    def _step(self, name: str, *arguments: int) -> int:
        try:
            status = self.vm.call(name, self._handle, *arguments)
        except EdgeRelaxError:  # of a host's function
            self.vm.recover()
            self.cancel()
            raise
        except wasmtime.Trap as trap:
            self.vm.recover()
            self.cancel()
            reason = trap.message.strip().splitlines()[-1].strip()  # above it stands the backtrace
            raise VmError(f"a cpu kernel trapped: {reason}", code="trap") from trap
        return self._check(status)

    def _input_memory(self, k: int, size: int) -> int:
        pointer, capacity = self._inputs.get(k, (0, 0))
        if not pointer or size > capacity:
            self.vm.free(pointer)
            self._inputs.pop(k, None)
            pointer = self.vm.alloc(size)
            self._inputs[k] = (pointer, size)
        return pointer

    def _describe(self, k: int, dtype: DType, dims: Sequence[int], size: int, pointer: int) -> None:
        if len(dims) > isa.MAX_RANK:
            raise InputError(f"input {k} has rank {len(dims)}; at most {isa.MAX_RANK}")
        if max(dims, default=0) >= 1 << 31 or size >= 1 << 32:
            raise InputError(f"input {k} of shape {tuple(dims)} has {size} bytes; at most 2^32 - 1")
        descriptor = self._input_descriptors.get(k)
        if descriptor is None:
            descriptor = self.vm.call("er_input", self._handle, k)
            if not descriptor:
                raise InputError(f"input {k}: the program has not so many")
            self._input_descriptors[k] = descriptor
        words = self.vm.words(descriptor, _INPUT_WORDS).view(np.uint32)
        words[_INPUT["dtype"]] = isa.DTYPE_NUMBER[dtype.name]
        words[_INPUT["rank"]] = len(dims)
        words[_INPUT["dims"] : _INPUT["dims"] + len(dims)] = dims
        words[_INPUT["bytes"]] = size
        words[_INPUT["pointer"]] = pointer
