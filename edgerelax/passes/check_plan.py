"""Prove a memory plan anew, in another way than the planner's: play it, watch who owns what.

For given sizes every binding is walked in program order, each arm of an IfElse in turn. Writing a
tensor takes its bytes from whoever held them; reading one whose bytes were taken, writing over an
operand of the same call, or leaving a slab is a fault. Used in tests and under --verify.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.graph import Binding, Block, GraphFunc, IfElse, Value, operands
from edgerelax.ir.plan import MemoryPlan, Place
from edgerelax.ir.types import Tuple
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


def check_plan(func: GraphFunc, plan: MemoryPlan, sizes: Mapping[Symbol, int]) -> None:
    """Raises VerifyError with the first fault at these sizes."""
    checker = _Checker(plan, sizes)
    checker.block(func.body, _Memory())


class _Checker:
    def __init__(self, plan: MemoryPlan, sizes: Mapping[Symbol, int]) -> None:
        self.plan, self.sizes = plan, sizes

    def block(self, block: Block, memory: _Memory) -> None:
        for binding in block.bindings:
            if isinstance(binding.value, IfElse):
                self._if_else(binding, binding.value, memory)
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
                inside.write(part, self._span(self.plan.places[part]))
            after.append(inside)
        memory.holders = {o: s for o, s in after[0].holders.items() if o in after[1].holders}

    def _step(self, binding: Binding, memory: _Memory) -> None:
        if binding.var in self.plan.aliases:
            return
        where = binding.var.name
        reads = [self._read(v, memory, where) for v in operands(binding.value)]
        writes: list[tuple[object, Span]] = [
            (part, self._span(self.plan.places[part])) for part in self._written(binding)
        ]
        scratch = self.plan.workspaces.get(binding, ())
        writes += [((binding, k), self._span(p)) for k, p in enumerate(scratch)]
        bound = [s for s in reads if s is not None]
        for owner, span in writes:
            if any(_overlap(span, other) for other in bound):
                raise VerifyError(
                    f"memory plan: {where} writes over bytes {span} that it binds too"
                )
            bound.append(span)
            memory.write(owner, span)

    def _written(self, binding: Binding) -> Iterator[Value]:
        annotation = binding.var.annotation
        if isinstance(annotation, Tuple):
            parts = [self.plan.fields[binding.var, k] for k in range(len(annotation.fields))]
        else:
            parts = [binding.var]
        yield from (p for p in parts if p in self.plan.places)

    def _read(self, value: Value, memory: _Memory, where: str) -> Span | None:
        root = self.plan.root(value)
        place = self.plan.places.get(root)
        if place is None:
            return None  # a parameter or a constant
        span = self._span(place)
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
