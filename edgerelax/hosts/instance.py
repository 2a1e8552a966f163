"""Instances of `vm.wasm` under wasmtime. One memory may have several: threads that share it.

A WebAssembly module says whether the memory that it imports is shared. That is one byte of its
imports, set here when a module is compiled, so that one file serves both.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import wasmtime
from wasmtime import _ffi as ffi

from edgerelax.ir.diagnostics import FormatError
from edgerelax.vm import isa

HostKernel = Callable[[int, int, int], None]  # args, begin, end

WASM_FEATURES = frozenset(("relaxed-simd",))  # what `engine` has beyond SIMD

_MEMORY_IMPORT = b"\x03env\x06memory\x02"  # names with their lengths, the kind; limits follow
_LIMITED, _SHARED = 1, 3  # kinds of limits


class SharedMemory(wasmtime.SharedMemory):  # type: ignore[misc]
    """A memory for instances of several stores and threads."""

    def __init__(self) -> None:
        super().__init__(engine(True), _memory_type(shared=True))

    def _as_extern(self) -> ffi.wasmtime_extern_t:
        # wasmtime-py 50 hands out a pointer to the pointer, which ctypes refuses.
        union = ffi.wasmtime_extern_union(sharedmemory=self.ptr())
        return ffi.wasmtime_extern_t(ffi.WASMTIME_EXTERN_SHAREDMEMORY, union)


@cache
def engine(shared: bool, /) -> wasmtime.Engine:
    """The process's engine for memory that is shared or not. Its stores can share modules.

    wasmtime 50 ends the process at an access outside of a shared memory that two instances of a
    store import (it finds the fault in both), so those check bounds themselves. That makes kernels
    up to half as slow again.
    """
    config = wasmtime.Config()
    config.wasm_simd = True
    config.wasm_relaxed_simd = True
    config.wasm_threads = True
    config.shared_memory = True
    config.signals_based_traps = not shared
    return wasmtime.Engine(config)


def compile_kernels(wasm: bytes, shared: bool = False) -> wasmtime.Module:
    """Compile a `kernels.wasm` for memory that is shared or not; the slow part of loading."""
    try:
        return wasmtime.Module(engine(shared), _for_memory(wasm, shared))
    except wasmtime.WasmtimeError as error:
        raise FormatError(f"kernels.wasm: {error}") from error


class Instance:
    """The VM on a memory of its own or a shared one, with its own table, globals and stack."""

    def __init__(self, memory: SharedMemory | None = None) -> None:
        self.shared = memory is not None
        self.store = wasmtime.Store(engine(self.shared))
        self._memory = memory or wasmtime.Memory(self.store, _memory_type(shared=False))
        self._owner = () if self.shared else (self.store,)  # no store owns shared memory
        made = wasmtime.Instance(self.store, _vm_module(self.shared), [self._memory])
        self.exports: dict[str, Any] = dict(made.exports(self.store))
        self.table: wasmtime.Table = self.exports["__indirect_function_table"]

    def call(self, name: str, *arguments: int | float) -> int:
        """Call an export. Addresses come back unsigned."""
        result = self.exports[name](self.store, *arguments)
        return 0 if result is None else result & 0xFFFFFFFF

    def add_kernels(self, module: wasmtime.Module, count: int) -> int:
        """Give kernels slots of the table and let them fill these. Returns the first."""
        start = self.table.grow(self.store, count, None)
        i32 = wasmtime.GlobalType(wasmtime.ValType.i32(), False)
        provided: dict[str, Any] = {
            "memory": self._memory,
            "table": self.table,
            "base": wasmtime.Global(self.store, i32, wasmtime.Val.i32(start)),
        }
        imports = []
        for wanted in module.imports:
            found = provided.get(wanted.name or "") or self._libm(wanted)
            imports.append(found)
        try:
            wasmtime.Instance(self.store, module, imports)
        except (wasmtime.WasmtimeError, wasmtime.Trap) as error:
            raise FormatError(f"kernels.wasm: {error}") from error
        return int(start)

    def add_functions(self, functions: Sequence[HostKernel]) -> int:
        """Give functions of the host the next slots of the table. Returns the first."""
        start = self.table.grow(self.store, len(functions), None)
        kind = wasmtime.FuncType([wasmtime.ValType.i32()] * 3, [])
        for k, function in enumerate(functions):
            self.table.set(self.store, start + k, wasmtime.Func(self.store, kind, function))
        return int(start)

    def size(self) -> int:
        """Bytes of memory."""
        return int(self._memory.data_len(*self._owner))

    def view(self) -> npt.NDArray[np.uint8]:
        """All of memory, valid until it grows."""
        address = ctypes.cast(self._memory.data_ptr(*self._owner), ctypes.c_void_p).value
        whole: Any = (ctypes.c_uint8 * self.size()).from_address(address or 0)
        return np.frombuffer(whole, np.uint8)

    def _libm(self, wanted: wasmtime.ImportType) -> wasmtime.Func:
        found = self.exports.get(wanted.name or "")
        if wanted.module != "env" or not isinstance(found, wasmtime.Func):
            raise FormatError(f"kernels.wasm: imports {wanted.module}.{wanted.name}, unknown here")
        return found


@cache
def _vm_module(shared: bool) -> wasmtime.Module:
    path = resources.files("edgerelax.vm") / "vm.wasm"
    return wasmtime.Module(engine(shared), _for_memory(path.read_bytes(), shared))


def _memory_type(shared: bool) -> wasmtime.MemoryType:
    limits = wasmtime.Limits(isa.FIRST_PAGES, isa.MOST_PAGES)
    return wasmtime.MemoryType(limits, shared=shared)


def _for_memory(wasm: bytes, shared: bool) -> bytes:
    """The module, importing memory that is shared or not; one with other imports stays as it is."""
    at = wasm.find(_MEMORY_IMPORT) + len(_MEMORY_IMPORT)
    if at < len(_MEMORY_IMPORT) or wasm[at : at + 1] not in (b"\x01", b"\x03"):
        return wasm
    return wasm[:at] + bytes((_SHARED if shared else _LIMITED,)) + wasm[at + 1 :]
