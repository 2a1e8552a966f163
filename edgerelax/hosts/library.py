"""Library functions on hosts: which a program needs, and how they are called (docs/libraries.md).

On the CPU a function stands in the VM's function table like a kernel, and gets numpy views of the
VM's memory. On the GPU it gets ranges of buffers and the encoder of the commands under way.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.artifact.manifest import LibraryInfo, ProgramInfo
from edgerelax.hosts.vm import Vm
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError
from edgerelax.ir.dtypes import DTYPES, DType
from edgerelax.ir.library import Function

Functions = Mapping[str, Function]


class LibraryError(EdgeRelaxError):
    """A library function failed."""

    default_code = "library"


@dataclass(frozen=True, slots=True)
class GpuOperand:
    """An operand on the GPU: `bytes` from `offset` of a wgpu-py buffer, as kernels store them.

    Types of 8 bits are 4 to a word, 16-bit types 2 to a word, 64-bit integers two words.
    """

    buffer: Any
    offset: int
    bytes: int
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Bound:
    """A way of calling a function, and the function."""

    info: LibraryInfo
    function: Function
    dtypes: tuple[DType, ...]

    def shapes(self, dims: Sequence[int]) -> list[tuple[int, ...]]:
        """The operands' shapes, from their dims one after another."""
        left, found = list(dims), []
        for operand in (*self.info.inputs, *self.info.outputs):
            found.append(tuple(left[: operand.rank]))
            del left[: operand.rank]
        return found

    def call(self, operands: Sequence[Any], **more: Any) -> None:
        """Call it on operands, then results. Raises LibraryError for whatever it raises."""
        try:
            self.function(*operands, **self.info.attrs, **more)
        except Exception as error:
            raise LibraryError(
                f"library function {self.info.function} failed: {type(error).__name__}: {error}"
            ) from error

    def launch(self, vm: Vm, args: int) -> None:
        """Call it as the VM calls a CPU kernel, over views of the VM's memory."""
        count = len(self.dtypes)
        ranks = sum(o.rank for o in (*self.info.inputs, *self.info.outputs))
        words = vm.words(args & 0xFFFFFFFF, count + 1 + ranks)  # pointers, the grid, dims
        memory, arrays = vm.bytes(), []
        shapes = self.shapes(words[count + 1 :].tolist())
        pointers = words[:count].view(np.uint32).tolist()
        for k, (start, shape, dtype) in enumerate(zip(pointers, shapes, self.dtypes, strict=True)):
            array = _view(memory, start, shape, dtype)
            array.flags.writeable = k >= len(self.info.inputs)
            arrays.append(array)
        self.call(arrays)


def bind(program: ProgramInfo, functions: Functions) -> dict[str, list[Bound]]:
    """The functions that a program calls, in order for each device.

    Raises InputError that names those which are missing.
    """
    needed = dict.fromkeys(entry.function for entry in program.libraries)
    missing = [name for name in needed if name not in functions]
    if missing:
        raise InputError(
            f"variant {program.name} calls library functions that are not given: "
            + ", ".join(missing),
            hint="pass them: load(..., libraries={name: function})",
        )
    bound: dict[str, list[Bound]] = {"gpu": [], "cpu": []}
    for entry in program.libraries:
        dtypes = tuple(DTYPES[o.dtype] for o in (*entry.inputs, *entry.outputs))
        bound[entry.device].append(Bound(entry, functions[entry.function], dtypes))
    return bound


def kernels_of(vm: Vm, bound: Sequence[Bound]) -> list[Callable[[int, int, int], None]]:
    """Functions as kernels of the VM: (args, begin, end)."""

    def kernel(entry: Bound) -> Callable[[int, int, int], None]:
        return lambda args, _begin, _end: entry.launch(vm, args)

    return [kernel(entry) for entry in bound]


def _view(
    memory: npt.NDArray[np.uint8], start: int, shape: tuple[int, ...], dtype: DType
) -> npt.NDArray[Any]:
    size = prod(shape) * dtype.numpy.itemsize
    return memory[start : start + size].view(dtype.numpy).reshape(shape)
