"""Weights that some launches read by index and others in another layout are stored once.

A language model reads its embedding by tokens, and multiplies by it in panels to score them. Where
all that read such a weight as it is can read it in a layout that another schedule wants, they do,
and nothing binds the weight itself; where one of them cannot, all stays as it is.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgerelax.codegen.packed_weights import packed_of
from edgerelax.ir.graph import (
    Binding,
    CallTIR,
    Constant,
    Module,
    Value,
    blocks,
    direct_operands,
)
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.plan import Packed, Schedule
from edgerelax.schedule.by_index import Forms, over_layouts

Key = tuple[str, str]
"""A loop function and the device that it runs on."""
Content = Hashable  # of weights: equal ones are one


def share_weights(
    module: Module,
    schedules: Mapping[Key, Schedule],
    make: Callable[[LoopFunc, str], Schedule],
    most_buffers: int,
) -> dict[Key, Schedule]:
    """The schedules, those that read by index over the layouts of others where that saves a weight.

    `make` schedules a loop function on a device; kernels on a GPU bind no more than `most_buffers`.
    """
    weights = _Weights(module, schedules).of
    layouts = {c: list(dict.fromkeys(w.layouts)) for c, w in weights.items() if w.layouts}
    shared = {c for c in layouts if weights[c].readers and not weights[c].kept}
    made: dict[Key, Schedule] = {}
    while True:
        wanted: dict[Key, dict[str, Content]] = defaultdict(dict)
        for content in shared:
            for key, name in weights[content].readers:
                wanted[key][name] = content
        refused: set[Content] = set()
        for key, names in wanted.items():
            found = over_layouts(module.loops[key[0]], {n: layouts[c] for n, c in names.items()})
            if found is None:
                refused |= {
                    c
                    for n, c in names.items()
                    if over_layouts(module.loops[key[0]], {n: layouts[c]}) is None
                }
                continue
            made[key] = _with_packed(make(found[0], key[1]), found[1])
            if key[1] == "gpu" and _most_bound(made[key]) > most_buffers:
                refused |= set(names.values())
        if not refused:
            return {**schedules, **{key: made[key] for key in wanted}}
        shared -= refused


@dataclass(slots=True)
class _Weight:
    """Who binds a weight as it is, the layouts in which others want it; `kept` for others still."""

    readers: set[tuple[Key, str]] = field(default_factory=set)
    layouts: list[Forms] = field(default_factory=list)
    kept: bool = False


class _Weights:
    """The weights of a module by content."""

    def __init__(self, module: Module, schedules: Mapping[Key, Schedule]) -> None:
        self.of: dict[Content, _Weight] = defaultdict(_Weight)
        self._module, self._schedules = module, schedules
        self._read: dict[tuple[Key, str], set[Content]] = defaultdict(set)
        for func in module.funcs.values():
            for block in blocks(func.body):
                self._keep(block.results)
                for binding in block.bindings:
                    self._add(binding)
        for contents in self._read.values():
            if len(contents) > 1:  # one schedule for several: they would all need the layout
                for content in contents:
                    self.of[content].kept = True

    def _keep(self, values: Sequence[Value]) -> None:
        for value in values:
            if isinstance(value, Constant):
                self.of[value.content()].kept = True

    def _add(self, binding: Binding) -> None:
        call = binding.value
        if not isinstance(call, CallTIR):
            self._keep(direct_operands(call))  # nested bodies are blocks of their own
            return
        key = call.func, call.device
        schedule = self._schedules[key]
        for buffer, value in zip(self._module.loops[call.func].inputs, call.args, strict=True):
            if not isinstance(value, Constant):
                continue
            weight = self.of[value.content()]
            forms = tuple(p for p in packed_of(schedule) if p.source.name == buffer.name)
            if forms and all(p.element is not None for p in forms):
                weight.layouts.append(forms)
            if buffer.name in _bound(schedule):
                weight.readers.add((key, buffer.name))
                self._read[key, buffer.name].add(value.content())


def _bound(schedule: Schedule) -> set[str]:
    """What its kernels bind, by name."""
    return {p.buffer.name for v in schedule.versions for k in v.kernels for p in k.buffers}


def _most_bound(schedule: Schedule) -> int:
    return max((len(k.buffers) for v in schedule.versions for k in v.kernels), default=0)


def _with_packed(schedule: Schedule, packed: tuple[Packed, ...]) -> Schedule:
    versions = tuple(replace(v, packed=(*v.packed, *packed)) for v in schedule.versions)
    return replace(schedule, versions=versions)
