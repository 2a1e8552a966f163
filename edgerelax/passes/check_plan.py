"""Prove a memory plan anew, in another way than the planner's: play it, watch who owns what.

For given sizes every binding is walked in program order, each arm of an IfElse in turn, the body of
a loop as often as it may find another memory. Writing a
tensor takes its bytes from whoever held them; reading one whose bytes were taken, writing over an
operand of the same call, or leaving a slab is a fault. Where a call works in place, what its
kernels read and write of the two is played on the kernel interpreter, at these sizes. Used in
tests and under --verify.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.graph import (
    Binding,
    Block,
    CallTIR,
    GraphFunc,
    IfElse,
    Repeat,
    Value,
    operands,
    states,
)
from edgerelax.ir.kernel import Kernel
from edgerelax.ir.kernel_in_place import accesses_only, loads_from, stores_into
from edgerelax.ir.kernel_interp import run_kernel
from edgerelax.ir.kernel_memory import KernelFault
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.plan import MemoryPlan, Place, Schedule, Version, crossing
from edgerelax.ir.types import Tuple, tensor_bytes
from edgerelax.sym import Symbol

Span = tuple[int, int, int]  # slab, start, end


@dataclass(slots=True)
class _Memory:
    """Who holds which bytes."""

    holders: dict[object, Span] = field(default_factory=dict)

    def write(self, owner: object, span: Span) -> None:
        taken = [o for o, s in self.holders.items() if o is not owner and _overlap(s, span)]
        for other in taken:
            del self.holders[other]
        self.holders[owner] = span


Loops = Mapping[str, LoopFunc]
Schedules = Mapping[tuple[str, str], Schedule]  # (loop function, device)

Played = tuple[str, str, int, str, str]
"""A version of a loop function's schedule on a device, an operand and an output."""

_PLAYED = 1 << 15  # elements of an output that a kernel is played for, at most: the first
_LARGEST = 1 << 21  # elements of an output beyond which smaller sizes stand for these


def check_plan(
    func: GraphFunc,
    plan: MemoryPlan,
    sizes: Mapping[Symbol, int],
    loops: Loops = MappingProxyType({}),
    schedules: Schedules = MappingProxyType({}),
    played: set[Played] | None = None,
) -> None:
    """Raises VerifyError with the first fault at these sizes.

    A plan with calls in place needs the loop functions and their schedules. What is in `played`
    is not played again, what is played now gets there: for checks at several sizes.
    """
    own = list(states(func))
    checker = _Checker(plan, sizes, loops, schedules, set() if played is None else played, own)
    memory = _Memory()
    for state in own:
        memory.write(state, checker.home(state))
    checker.block(func.body, memory)


class _Checker:
    def __init__(
        self,
        plan: MemoryPlan,
        sizes: Mapping[Symbol, int],
        loops: Loops,
        schedules: Schedules,
        played: set[Played],
        states: Sequence[Value],
    ) -> None:
        self.plan, self.sizes, self.loops, self.schedules = plan, sizes, loops, schedules
        self.played, self.states = played, states

    def home(self, value: Value) -> Span:
        """Where a value is planned to lie: states are before all slabs."""
        place = self.plan.places.get(value)
        if place is not None:
            return self._span(place)
        state = self.plan.states.get(value, value)
        size = tensor_bytes(state.annotation).eval(self.sizes)
        return -1 - self.states.index(state), 0, size

    def block(self, block: Block, memory: _Memory) -> None:
        for binding in block.bindings:
            if isinstance(binding.value, IfElse):
                self._if_else(binding, binding.value, memory)
            elif isinstance(binding.value, Repeat):
                self._repeat(binding, binding.value, memory)
            else:
                self._step(binding, memory)
        for result in block.results:
            self._read(result, memory, "the end of its block")

    def _if_else(self, binding: Binding, branch: IfElse, memory: _Memory) -> None:
        after: list[_Memory] = []
        for arm in (branch.then, branch.other):
            inside = _Memory(dict(memory.holders))
            self.block(arm, inside)
            for part in self._written(binding):
                inside.write(part, self.home(part))
            after.append(inside)
        memory.holders = {o: s for o, s in after[0].holders.items() if o in after[1].holders}

    def _repeat(self, binding: Binding, repeat: Repeat, memory: _Memory) -> None:
        """The first run, the second, which finds what the first left, and the last."""
        homes = list(self._written(binding))
        for value, param, home in zip(repeat.initial, repeat.params, homes, strict=True):
            self._carry(value, param, home, memory, binding)
        outer, trips = self.sizes, repeat.trips.eval(self.sizes)
        integers = [e.eval(outer) for e in repeat.first]
        for run in sorted({run for run in (0, 1, trips - 1) if 0 <= run < trips}):
            counted = {repeat.counter: run, **dict(zip(repeat.symbols, integers, strict=True))}
            self.sizes = {**outer, **counted}
            self.block(repeat.body, memory)
            self._next(binding, repeat, homes, memory)
            integers = [e.eval(self.sizes) for e in repeat.next]
        self.sizes = {**dict(zip(repeat.after, integers, strict=True)), **outer}
        for home in homes:
            memory.write(home, self.home(home))

    def _next(
        self, binding: Binding, repeat: Repeat, homes: Sequence[Value], memory: _Memory
    ) -> None:
        """What the next run takes comes to its places: what crosses by way of a workspace."""
        aside = crossing(repeat, self.plan.root)
        scratch = [self._span(p) for p in self.plan.workspaces.get(binding, ())]
        for k, span in zip(aside, scratch, strict=True):
            self._copied(self._read(repeat.body.results[k], memory, "a run's end"), span, binding)
            memory.write((binding, k), span)
        for k, (param, home) in enumerate(zip(repeat.params, homes, strict=True)):
            if k not in aside:
                self._carry(repeat.body.results[k], param, home, memory, binding)
        for k, span in zip(aside, scratch, strict=True):
            if memory.holders.get((binding, k)) != span:
                raise VerifyError(f"memory plan: {binding.var.name} loses what is set aside")
            memory.write(repeat.params[k], self.home(homes[k]))

    def _carry(
        self, value: Value, param: Value, home: Value, memory: _Memory, binding: Binding
    ) -> None:
        """Copy a value to the place of what is carried; if it is there, it stays."""
        span, target = self._read(value, memory, binding.var.name), self.home(home)
        if self.home(param) != target:
            raise VerifyError(f"memory plan: {param.name} is not where {home.name} is")
        if span != target:
            self._copied(span, target, binding)
        memory.write(param, target)

    def _copied(self, source: Span | None, target: Span, binding: Binding) -> None:
        if source is not None and _overlap(source, target):
            raise VerifyError(f"memory plan: {binding.var.name} copies {source} over {target}")

    def _step(self, binding: Binding, memory: _Memory) -> None:
        if binding.var in self.plan.aliases:
            return
        where = binding.var.name
        reads = [self._read(v, memory, where) for v in operands(binding.value)]
        writes: list[tuple[object, Span]] = [
            (part, self.home(part)) for part in self._written(binding)
        ]
        scratch = self.plan.workspaces.get(binding, ())
        writes += [((binding, k), self._span(p)) for k, p in enumerate(scratch)]
        shared = self._in_place(binding)
        bound = [(k, s) for k, s in enumerate(reads) if s is not None]
        for n, (owner, span) in enumerate(writes):
            over = [(k, other) for k, other in bound if _overlap(span, other)]
            if over and over != [(shared.get(n), span)]:
                raise VerifyError(
                    f"memory plan: {where} writes over bytes {span} that it binds too"
                )
            bound.append((-1, span))
            memory.write(owner, span)

    def _in_place(self, binding: Binding) -> dict[int, int]:
        """The operand that each result may be written over, by their numbers."""
        names, call = self.plan.in_place.get(binding, {}), binding.value
        if not names:
            return {}
        if not isinstance(call, CallTIR):
            raise VerifyError(f"memory plan: {binding.var.name} is in place, but runs no kernel")
        loop = self.loops[call.func]
        inputs, outputs = ([b.name for b in bs] for bs in (loop.inputs, loop.outputs))
        for operand, output in names.items():
            self._prove(call, operand, output)
        return {outputs.index(y): inputs.index(a) for a, y in names.items()}

    def _prove(self, call: CallTIR, operand: str, output: str) -> None:
        """Play the kernels that the call launches at these sizes."""
        versions = self.schedules[call.func, call.device].versions
        numbered = enumerate(versions)
        k = next(k for k, v in numbered if all(c.eval(self.sizes) for c in v.guards))
        key = call.func, call.device, k, operand, output
        if key not in self.played and self._prove_version(versions[k], operand, output):
            self.played.add(key)

    def _prove_version(self, version: Version, operand: str, output: str) -> bool:
        """Whether it was played; not at sizes for which smaller ones stand."""
        written, played = False, True
        for kernel in version.kernels:
            if written and loads_from(kernel, operand):
                raise VerifyError(
                    f"memory plan: {kernel.name} reads {operand}, which {output} was written over"
                )
            if stores_into(kernel, output):
                written = True
                played &= self._play(kernel, operand, output)
        return played

    def _play(self, kernel: Kernel, operand: str, output: str) -> bool:
        if not loads_from(kernel, operand):
            return True
        small = accesses_only(kernel, operand, output)
        arrays: dict[str, npt.NDArray[Any]] = {}
        for buffer in (p.buffer for p in kernel.buffers if p.buffer.name in (operand, output)):
            shape = [d.eval(self.sizes) for d in buffer.dims]
            arrays[buffer.name] = np.zeros(shape, buffer.dtype.numpy)
        grid, size = kernel.grid.eval(self.sizes), arrays[output].size
        if size > _LARGEST and any(n > max(s.lo, s.multiple_of) for s, n in self.sizes.items()):
            return False
        grid = min(grid, -(-grid * _PLAYED // max(size, 1)))
        scalars = {n: e.eval(self.sizes) for n, e in kernel.scalars} if grid else {}
        try:
            run_kernel(small, arrays, scalars, grid, {operand: output})
        except KernelFault as fault:
            raise VerifyError(f"memory plan: not in place: {fault}") from None
        return True

    def _written(self, binding: Binding) -> Iterator[Value]:
        annotation = binding.var.annotation
        if isinstance(annotation, Tuple):
            parts = [self.plan.fields[binding.var, k] for k in range(len(annotation.fields))]
        else:
            parts = [binding.var]
        yield from (p for p in parts if p in self.plan.places or p in self.plan.states)

    def _read(self, value: Value, memory: _Memory, where: str) -> Span | None:
        root = self.plan.root(value)
        known = (self.plan.places, self.plan.states, self.states)
        if not any(root in where for where in known):
            return None  # an input or a constant
        span = self.home(root)
        if memory.holders.get(root) != span:
            raise VerifyError(
                f"memory plan: {value.name} is read at {where} after its bytes were taken"
            )
        return span

    def _span(self, place: Place) -> Span:
        start = place.offset.eval(self.sizes)
        end = start + place.bytes.eval(self.sizes)
        size = self.plan.slabs[place.slab].size.eval(self.sizes)
        if start < 0 or end > size:
            raise VerifyError(
                f"memory plan: bytes {start}..{end} leave slab {place.slab} of {size}"
            )
        return place.slab, start, end


def _overlap(a: Span, b: Span) -> bool:
    return a[0] == b[0] and a[1] < b[2] and b[1] < a[2]
