"""Memory of the kernel interpreter: bounds, alignment, word ownership and races.

A race is seen per element. Within a workgroup two accesses by different invocations clash unless a
barrier lies between them; between workgroups they always clash. Equal values written twice may
pass.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.dtypes import DType

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]

_NONE, _MANY = 0, -1  # zeros take no memory until they are touched


class KernelFault(Exception):  # noqa: N818
    """A kernel did what no device may be asked to do."""


class Marks:
    """Who touched each element last: the invocation, its workgroup, and that workgroup's epoch."""

    def __init__(self, size: int) -> None:
        self.who = np.zeros(size, np.int64)
        self.group = np.zeros(size, np.int64)
        self.epoch = np.zeros(size, np.int64)

    def clash(self, at: Ids, by: "Accessors") -> npt.NDArray[np.bool_]:
        """Where another invocation's mark is not ordered before this access."""
        group = self.group[at]
        foreign = (group != _NONE) & (group != by.group)
        recent = (group == by.group) & (self.epoch[at] == by.epoch) & (self.who[at] != by.who)
        return np.asarray(foreign | recent)

    def set(self, at: Ids, by: "Accessors") -> None:
        old_group, old_who = self.group[at], self.who[at]
        same_epoch = (old_group == by.group) & (self.epoch[at] == by.epoch)
        who = np.where(same_epoch & (old_who != by.who), _MANY, by.who)
        group = np.where((old_group == _NONE) | (old_group == by.group), by.group, _MANY)
        self.who[at], self.group[at], self.epoch[at] = who, group, by.epoch
        # Elements that several invocations touch in this one step.
        self.who[at[self.who[at] != who]] = _MANY
        self.group[at[self.group[at] != group]] = _MANY


@dataclass(frozen=True, slots=True)
class Accessors:
    """Per access: the invocation, its workgroup, and how many barriers that has passed.

    Invocations and workgroups are counted from 1.
    """

    who: Ids
    group: Ids
    epoch: Ids

    def repeat(self, lanes: int) -> "Accessors":
        if lanes == 1:
            return self
        return Accessors(*(np.repeat(a, lanes) for a in (self.who, self.group, self.epoch)))


class Memory:
    """A flat array: a storage buffer, or all instances of a shared or private one.

    `bound` elements may be addressed in each instance. Races are looked for where `shared`, and
    between an output and the operand that it is stored over.
    """

    def __init__(self, name: str, dtype: DType, data: Array, bound: int, shared: bool) -> None:
        self.name, self.dtype, self.data, self.bound = name, dtype, data, bound
        self.written = Marks(len(data)) if shared else None
        self.read = Marks(len(data)) if shared else None
        self.defined: npt.NDArray[np.bool_] | None = None
        self.beneath: list[Memory] = []  # operands whose place it takes
        self.over: Memory | None = None  # the output that takes its place

    def check_bounds(self, index: Array, lanes: int, what: str) -> None:
        bad = (index < 0) | (index > self.bound - lanes)
        if np.any(bad):
            at = int(np.asarray(index).ravel()[int(np.argmax(bad))])
            extent = f"{at}" if lanes == 1 else f"{at} to {at + lanes - 1}"
            raise KernelFault(f"{what} {self.name}[{extent}]: it has {self.bound} elements")

    def load(self, at: Ids, by: Accessors) -> Array:
        if self.defined is not None and not self.defined[at].all():
            raise KernelFault(f"load of {self.name}[…] before anything is stored there")
        if self.over is not None and self.over.written is not None:
            gone = self.over.written.who[at] != _NONE
            if gone.any():
                element = int(at[int(np.argmax(gone))])
                raise KernelFault(
                    f"load of {self.name}[{element}] after {self.over.name} was stored over it"
                )
        if self.written is not None and self.read is not None:
            clash = self.written.clash(at, by)
            if clash.any():
                self._race("load", "a store", at, by, clash)
            self.read.set(at, by)
        return self.data[at]

    def store(self, at: Ids, value: Array, by: Accessors) -> None:
        old = self.data[at]
        self.data[at] = value
        value = value.astype(self.data.dtype)
        for operand in self.beneath:
            if operand.read is not None and (clash := operand.read.clash(at, by)).any():
                self._race("store", f"a load of {operand.name} under it", at, by, clash)
        if self.written is not None and self.read is not None:
            clash = self.read.clash(at, by)
            if clash.any():
                self._race("store", "a load", at, by, clash)
            clash = self.written.clash(at, by) & ~_same(old, value)
            clash |= ~_same(self.data[at], value)
            if clash.any():
                self._race("store", "a store of another value", at, by, clash)
            self.written.set(at, by)
        if self.defined is not None:
            self.defined[at] = True

    def combine(self, at: Ids, value: Array, by: Accessors, fn: np.ufunc) -> None:
        """Combine elements with values, each as one step: no race with another such step."""
        for operand in self.beneath:
            if operand.read is not None and (clash := operand.read.clash(at, by)).any():
                self._race("store", f"a load of {operand.name} under it", at, by, clash)
        fn.at(self.data, at, value.astype(self.data.dtype))
        if self.written is not None:
            self.written.set(at, by)

    def _race(
        self, access: str, other: str, at: Ids, by: Accessors, clash: npt.NDArray[np.bool_]
    ) -> None:
        k = int(np.argmax(clash))
        raise KernelFault(
            f"race: {access} of {self.name}[{int(at[k]) % max(self.bound, 1)}] by invocation "
            f"{int(by.who[k]) - 1} (workgroup {int(by.group[k]) - 1}) against {other} by another"
            " one"
        )


def _same(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    """Bitwise equality, so that NaNs agree."""
    size = a.dtype.itemsize
    bits = np.dtype(f"u{size}")
    return np.asarray(a.view(bits) == b.view(bits))
