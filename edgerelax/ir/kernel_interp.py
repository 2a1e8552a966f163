"""The kernel interpreter: what a kernel means, and the faults no device reports.

All invocations of a batch of workgroups run in lock step, statement by statement, as numpy arrays:
a scalar has shape (active,) or, where it is the same for all, (); a vector has one more axis for
its lanes. Under a branch only the active invocations are evaluated. `kernel_memory` says what is
checked.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.dtypes import F8E8M0, DType, to_powers
from edgerelax.ir.kernel import (
    KERNEL_FUNCTIONS,
    SUBGROUPS,
    Array,
    Assign,
    Barrier,
    For,
    If,
    KBits,
    KCast,
    KConst,
    Kernel,
    KExpr,
    KLane,
    KLoad,
    KOp,
    KScalar,
    KSelect,
    KStmt,
    KStore,
    KSubgroup,
    KVar,
    KVec,
    Let,
    VarDecl,
    for_features,
    walk_stmts,
)
from edgerelax.ir.kernel_memory import Accessors, KernelFault, Memory

Values = npt.NDArray[Any]

_BATCH = 1 << 17  # invocations at a time
_COMBINED = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def run_kernel(
    kernel: Kernel,
    arrays: Mapping[str, Values],
    scalars: Mapping[str, int],
    grid: int,
    over: Mapping[str, str] = MappingProxyType({}),
    subgroup: int = 0,
) -> None:
    """Run a kernel on arrays, which it changes. Raises KernelFault; they are then of no use.

    `over` names operands and, for each, the output of as many elements that shall take its place:
    each has an array of its own, but a fault is what would go wrong if they were one. `subgroup`
    is how many invocations a subgroup has, 0 for a device that has none.
    """
    kernel = for_features(kernel, frozenset((SUBGROUPS,) if subgroup else ()))
    storage: dict[str, Memory] = {}
    stored = {s.buffer for s in walk_stmts(kernel.body) if isinstance(s, KStore)}
    for parameter in kernel.buffers:
        name, dtype = parameter.buffer.name, parameter.buffer.dtype
        if name in stored and parameter.access == "read":
            raise KernelFault(f"{kernel.name} stores into {name}, which it may only read")
        flat = _padded(arrays[name].reshape(-1), dtype, kernel.device)
        watched = name in stored or name in over or name in over.values()
        storage[name] = Memory(name, dtype, flat, len(flat), shared=watched)
    for operand, output in over.items():
        storage[operand].over = storage[output]
        storage[output].beneath.append(storage[operand])
    workgroup = kernel.workgroup if kernel.device == "gpu" else 1
    per_batch = max(1, _BATCH // workgroup)
    with np.errstate(all="ignore"):
        for first in range(0, grid, per_batch):
            groups = np.arange(first, min(first + per_batch, grid), dtype=np.int64)
            _Run(kernel, storage, scalars, groups, workgroup, subgroup or 4).block(kernel.body)
    for name in stored & storage.keys():
        target = arrays[name]
        target[...] = storage[name].data[: target.size].reshape(target.shape)


def _padded(flat: Values, dtype: DType, device: str) -> Values:
    """A copy; never empty, as no binding is, and on the GPU with its last word filled up."""
    per_word = 4 // dtype.bytes if device == "gpu" and 0 < dtype.bits < 32 else 1
    size = -(-max(1, len(flat)) // per_word) * per_word
    return np.concatenate([flat, np.zeros(size - len(flat), flat.dtype)])


def compute_type(dtype: DType) -> np.dtype[Any]:
    """How values of a type are held between operations."""
    if dtype.is_float and dtype.bits < 32:
        return np.dtype(np.float32)
    if 0 < dtype.bits < 8:
        return np.dtype(np.int8 if dtype.kind == "int" else np.uint8)
    return dtype.numpy


def convert(values: Values, source: DType, target: DType) -> Values:
    """KCast: float to integer saturates with NaN as 0, integer to integer wraps."""
    if target.kind == "bool":
        return np.asarray(values != 0)
    if source.is_float and target.is_integer:
        return _saturate(values, target)
    if target.is_integer:
        return _wrap(values, target)
    narrow = to_powers(values) if target == F8E8M0 else values.astype(target.numpy)
    return narrow.astype(compute_type(target))


def _saturate(values: Values, target: DType) -> Values:
    lo, hi = target.int_range
    whole = np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0))
    inside = (whole > float(lo)) & (whole < float(hi))
    exact = np.where(inside, whole, 0).astype(np.uint64 if target.kind == "uint" else np.int64)
    ends = np.where(whole <= float(lo), np.array(lo, exact.dtype), np.array(hi, exact.dtype))
    return np.where(inside, exact, ends).astype(compute_type(target))


def _wrap(values: Values, target: DType) -> Values:
    held = values.astype(compute_type(target))
    if target.bits >= 8:
        return held
    unused = 8 - target.bits
    return (held << unused).astype(held.dtype) >> unused


class _Run:
    """One batch of workgroups. `active` are positions in the batch, `whole` if all of them."""

    def __init__(
        self,
        kernel: Kernel,
        storage: dict[str, Memory],
        scalars: Mapping[str, int],
        groups: npt.NDArray[np.int64],
        workgroup: int,
        subgroup: int,
    ) -> None:
        self.kernel, self.scalars, self.width = kernel, scalars, workgroup
        self.subgroup = min(subgroup, workgroup)
        self.memory = dict(storage)
        self.arrays: dict[str, Array] = {}
        self.count = len(groups) * workgroup
        self.active = np.arange(self.count)
        self.group = np.repeat(groups, workgroup)
        self.local = np.tile(np.arange(workgroup, dtype=np.int64), len(groups))
        self.slot = self.active // workgroup
        self.epoch = np.zeros(len(groups), np.int64)
        self.env: dict[str, Values] = {"workgroup": self.group.astype(np.int32)}
        if kernel.device == "gpu":
            self.env["local"] = self.local.astype(np.int32)
            self.env["lane"] = (self.local % self.subgroup).astype(np.int32)

    @property
    def whole(self) -> bool:
        return len(self.active) == self.count

    def block(self, body: tuple[KStmt, ...]) -> None:
        for stmt in body:
            self.stmt(stmt)

    def stmt(self, stmt: KStmt) -> None:
        match stmt:
            case Let(name, value):
                self.env[name] = self._spread(self.eval(value), value.lanes)
            case VarDecl(name, value):
                self.env[name] = self._register(self.eval(value), value.lanes)
            case Assign(name, value):
                register = self.env[name].copy()  # what was read of the old one stays
                register[self.active] = self.eval(value)
                self.env[name] = register
            case Array():
                self._declare(stmt)
            case KStore():
                self._store(stmt)
            case For():
                self._loop(stmt)
            case If():
                self._branch(stmt)
            case Barrier():
                self._barrier()

    def _spread(self, value: Values, lanes: int) -> Values:
        """A value at its invocations' positions; what is uniform stays so."""
        if self.whole or value.ndim == (lanes > 1):
            return value
        full = np.zeros((self.count, *value.shape[1:]), value.dtype)
        full[self.active] = value
        return full

    def _register(self, value: Values, lanes: int) -> Values:
        full = np.zeros((self.count, lanes) if lanes > 1 else self.count, value.dtype)
        full[self.active] = value
        return full

    def _declare(self, array: Array) -> None:
        shared = array.shared and self.kernel.device == "gpu"
        instances = len(self.epoch) if shared else self.count
        span = array.size * array.lanes
        if self.arrays.get(array.name) == array:
            if not shared:
                self.memory[array.name].data.reshape(-1, span)[self.active] = 0
            return
        size = instances * span
        data = np.zeros(size, compute_type(array.dtype))
        memory = Memory(array.name, array.dtype, data, span, shared)
        if shared:
            memory.defined = np.zeros(size, np.bool_)
        self.memory[array.name], self.arrays[array.name] = memory, array

    def _branch(self, stmt: If) -> None:
        cond = self.eval(stmt.cond)
        if cond.ndim == 0:
            self.block(stmt.then if cond else stmt.other)
            return
        outer = self.active
        for taken, body in ((cond, stmt.then), (~cond, stmt.other)):
            self.active = outer[taken]
            if len(self.active):
                self.block(body)
        self.active = outer

    def _loop(self, loop: For) -> None:
        start, stop = self.eval(loop.start), self.eval(loop.stop)
        if start.ndim == 0 and stop.ndim == 0:
            for i in range(int(start), int(stop), loop.step):
                self.env[loop.name] = np.asarray(i, np.int32)
                self.block(loop.body)
            return
        outer = self.active
        at = np.broadcast_to(start, outer.shape).astype(np.int64)
        end = np.broadcast_to(stop, outer.shape)
        while (going := at < end).any():
            self.active = outer[going]
            self.env[loop.name] = self._spread(at[going].astype(np.int32), 1)
            self.block(loop.body)
            at = at + loop.step
        self.active = outer

    def _barrier(self) -> None:
        if self.kernel.device != "gpu":
            raise KernelFault(f"{self.kernel.name}: barrier in a CPU kernel")
        arrived = np.bincount(self.slot[self.active], minlength=len(self.epoch))
        partial = (arrived != 0) & (arrived != self.width)
        if partial.any():
            k = int(np.argmax(partial))
            raise KernelFault(
                f"{self.kernel.name}: divergent barrier: {arrived[k]} of {self.width} invocations "
                f"of workgroup {int(self.group[k * self.width])} reach it"
            )
        self.epoch[arrived != 0] += 1

    # Memory

    def _address(self, name: str, index: Values) -> Values:
        """The place of an instance's element in the flat data of a memory."""
        array = self.arrays.get(name)
        if array is None:
            return index
        shared = array.shared and self.kernel.device == "gpu"
        instance = self.slot[self.active] if shared else self.active
        return index + instance * (array.size * array.lanes)

    def _index(self, buffer: str, index: KExpr, lanes: int, aligned: bool, what: str) -> Values:
        """Checked element indices, in entries times lanes for arrays."""
        if buffer not in self.memory:
            raise KernelFault(f"{self.kernel.name}: {what} {buffer}, which is not declared")
        at = self.eval(index).astype(np.int64)
        array = self.arrays.get(buffer)
        if array is not None and array.lanes > 1:
            if lanes != array.lanes:
                raise KernelFault(f"{what} {buffer}: {lanes} lanes of entries of {array.lanes}")
            at = at * lanes
        elif array is None and lanes > 1 and aligned and np.any(at % lanes):
            raise KernelFault(f"{what} {buffer}: {lanes} lanes at an index that is no multiple")
        try:
            self.memory[buffer].check_bounds(at, lanes, what)
        except KernelFault as fault:
            raise KernelFault(f"{self.kernel.name}: {fault}") from None
        return at

    def _accessors(self) -> Accessors:
        active, group = self.active, self.group[self.active]
        who = group * self.width + self.local[active]
        return Accessors(who + 1, group + 1, self.epoch[self.slot[active]])

    def _lanes(self, at: Values, lanes: int) -> Values:
        """Flat element numbers of every active invocation and lane."""
        first = np.broadcast_to(at, self.active.shape)
        return (first[:, None] + np.arange(lanes)).ravel() if lanes > 1 else first

    def _load(self, load: KLoad) -> Values:
        at = self._index(load.buffer, load.index, load.lanes, load.aligned, "load of")
        memory = self.memory[load.buffer]
        if at.ndim == 0 and memory.written is None and load.buffer not in self.arrays:
            found = memory.data[int(at) : int(at) + load.lanes]
            return found.astype(compute_type(memory.dtype)).reshape(() if load.lanes == 1 else -1)
        elements = self._lanes(self._address(load.buffer, at), load.lanes)
        if memory.written is None:
            found = memory.data[elements]
        else:
            found = memory.load(elements, self._accessors().repeat(load.lanes))
        shape = self.active.shape if load.lanes == 1 else (len(self.active), load.lanes)
        return found.astype(compute_type(memory.dtype)).reshape(shape)

    def _store(self, stmt: KStore) -> None:
        lanes = stmt.value.lanes
        at = self._index(stmt.buffer, stmt.index, lanes, stmt.aligned, "store to")
        memory = self.memory[stmt.buffer]
        if self._packed(stmt.buffer) and (lanes * memory.dtype.bytes % 4 or not stmt.aligned):
            raise KernelFault(
                f"{self.kernel.name}: store of {lanes} {memory.dtype} to {stmt.buffer}: "
                "an invocation owns whole words"
            )
        value = self.eval(stmt.value)
        shape = self.active.shape if lanes == 1 else (len(self.active), lanes)
        value = np.broadcast_to(value, shape).reshape(-1)
        elements = self._lanes(self._address(stmt.buffer, at), lanes)
        if stmt.combine:
            memory.combine(elements, value, self._accessors(), _COMBINED[stmt.combine])
            return
        if memory.written is None:
            memory.data[elements] = value
            return
        memory.store(elements, value, self._accessors().repeat(lanes))

    def _packed(self, buffer: str) -> bool:
        on_gpu = buffer not in self.arrays and self.kernel.device == "gpu"
        return on_gpu and self.memory[buffer].dtype.bits < 32

    # Expressions

    def eval(self, expr: KExpr) -> Values:
        match expr:
            case KConst(dtype, lanes, value):
                one = np.asarray(value).astype(dtype.numpy).astype(compute_type(dtype))
                return np.full(lanes, one) if lanes > 1 else one
            case KVar(_, lanes, name):
                return self._variable(name, lanes)
            case KScalar(_, _, name):
                return np.asarray(self.scalars[name], np.int32)
            case KLoad():
                return self._load(expr)
            case KOp(dtype, _, fn, args):
                return apply(fn, args[0].dtype, [self.eval(a) for a in args])
            case KCast(dtype, _, arg):
                return convert(self.eval(arg), arg.dtype, dtype)
            case KBits(dtype, _, arg):
                return self.eval(arg).view(dtype.numpy)
            case KSelect(_, lanes, cond, then, other):
                test = self.eval(cond)
                wide = test[..., None] if cond.lanes < lanes else test
                return np.where(wide, self.eval(then), self.eval(other))
            case KVec(_, lanes, parts):
                return self._vector([self.eval(p) for p in parts], lanes)
            case KLane(_, _, vector, lane):
                return self.eval(vector)[..., lane]
            case KSubgroup():
                return self._subgroup(expr)
        raise TypeError(f"not a kernel expression: {expr!r}")

    def _variable(self, name: str, lanes: int) -> Values:
        if name not in self.env:
            raise KernelFault(f"{self.kernel.name}: {name} is not defined")
        value = self.env[name]
        return value if self.whole or value.ndim == (lanes > 1) else value[self.active]

    def _vector(self, parts: list[Values], lanes: int) -> Values:
        if len(parts) == 1:
            return np.repeat(parts[0][..., None], lanes, axis=-1)
        return np.stack(np.broadcast_arrays(*parts), axis=-1)

    def _subgroup(self, expr: KSubgroup) -> Values:
        if SUBGROUPS not in self.kernel.features:
            raise KernelFault(f"{self.kernel.name}: subgroup operation without the feature")
        value = np.broadcast_to(self.eval(expr.arg), self.active.shape)
        leader = self.active // self.subgroup
        _, starts, inverse = np.unique(leader, return_index=True, return_inverse=True)
        ufunc = {"add": np.add, "max": np.maximum, "min": np.minimum}[expr.fn]
        reduced = ufunc.reduceat(value, starts).astype(value.dtype)
        return reduced[inverse]


def apply(fn: str, dtype: DType, args: list[Values]) -> Values:
    """A scalar function on held values of one dtype, rounded as they are held."""
    result = np.asarray(KERNEL_FUNCTIONS[fn].meaning(*args))
    if result.dtype == np.bool_ and dtype.kind != "bool":
        return result
    return _wrap(result, dtype) if dtype.is_integer else result.astype(compute_type(dtype))
