"""Program points and lifetimes of a graph function's tensors, for the memory planner.

Points number the bindings in program order, arms of an IfElse one after the other (they never run
both, so sharing memory between them is safe). A tensor lives from its first writing to its last
use, both included; results of the function to the end.

What is made before a loop and used in it lives to the loop's end. What a loop carries has a home,
the tensor that is its result: there its initial value is copied first and, at the end of each run,
the next one. The home lives from the loop's point on, the parameter that names it in the body only
to its last use there: what then becomes of it may be written over it (in_place.py).
"""

from dataclasses import dataclass, field

from edgerelax.ir.graph import (
    Binding,
    Block,
    CallLibrary,
    CallTIR,
    Constant,
    GetItem,
    GraphFunc,
    IfElse,
    MakeTuple,
    MatchCast,
    Repeat,
    Value,
    Var,
    bodies,
    operands,
    states,
)
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.types import Tensor, Tuple, as_tensor
from edgerelax.passes.classify import is_view


@dataclass(slots=True)
class Lifetimes:
    """Result of `lifetimes`. A tensor is (value, index).

    Its index-th field, or 0 for a single one.
    """

    first: dict[Value, int] = field(default_factory=dict)
    last: dict[Value, int] = field(default_factory=dict)
    device: dict[Value, str] = field(default_factory=dict)
    aliases: dict[Value, Value] = field(default_factory=dict)
    fields: dict[tuple[Value, int], Value] = field(default_factory=dict)  # tuple results by index
    point: dict[Binding, int] = field(default_factory=dict)
    carried: dict[Var, tuple[Value, Value]] = field(default_factory=dict)
    """Parameters of loop bodies: their homes, and what the next run takes instead."""
    closing: dict[Binding, int] = field(default_factory=dict)
    """Where the bodies of loops end."""
    end: int = 0

    def root(self, value: Value) -> Value:
        while value in self.aliases:
            value = self.aliases[value]
        return value


def lifetimes(func: GraphFunc, loops: dict[str, LoopFunc], main: str) -> Lifetimes:
    """Lifetimes of every tensor that a function's bindings make, and of its states.

    Tuple results live per field.
    """
    life = Lifetimes()
    walker = _Walker(life, loops, main, _clashing_views(func, loops))
    for state in states(func):
        walker.start(state, 0, 0, main)
    walker.block(func.body)
    life.end += 1
    for result in func.body.results:
        walker.use(result, life.end)
    return life


@dataclass(slots=True)
class _Walker:
    life: Lifetimes
    loops: dict[str, LoopFunc]
    main: str
    copied_views: set[Value]

    def block(self, block: Block) -> None:
        for binding in block.bindings:
            if isinstance(binding.value, IfElse):
                self._if_else(binding, binding.value)
                continue
            if isinstance(binding.value, Repeat):
                self._repeat(binding, binding.value)
                continue
            point = self._advance(binding)
            for used in operands(binding.value):
                self.use(used, point)
            self._define(binding, point)

    def _if_else(self, binding: Binding, branch: IfElse) -> None:
        point = self._advance(binding)
        if isinstance(branch.cond, Var):
            self.use(branch.cond, point)
        self.block(branch.then)
        joined = self._end_of(branch.then)
        self.block(branch.other)
        last = self._end_of(branch.other)
        self._define_results(binding.var, joined, last, self.main)

    def _repeat(self, binding: Binding, repeat: Repeat) -> None:
        life, point = self.life, self._advance(binding)
        for value in repeat.initial:
            self.use(value, point)
        outside = list(life.first)
        self._define_results(binding.var, point, point, self.main)
        homes = [life.fields[binding.var, k] for k in range(len(repeat.params))]
        for param, home, after in zip(repeat.params, homes, repeat.body.results, strict=True):
            self.start(param, point, point, self.main)
            life.carried[param] = home, after
        self.block(repeat.body)
        end = life.closing[binding] = self._end_of(repeat.body)
        used = (v for v in outside if life.last[v] > point)
        life.last.update(dict.fromkeys((*used, *homes), end))

    def _end_of(self, body: Block) -> int:
        self.life.end += 1
        for result in body.results:
            self.use(result, self.life.end)
        return self.life.end

    def _advance(self, binding: Binding) -> int:
        self.life.end += 1
        self.life.point[binding] = self.life.end
        return self.life.end

    def use(self, value: Value, point: int) -> None:
        for part in self._parts(value):
            root = self.life.root(part)
            if root in self.life.first:
                self.life.last[root] = max(self.life.last[root], point)

    def _parts(self, value: Value) -> tuple[Value, ...]:
        if isinstance(value.annotation, Tuple):
            count = len(value.annotation.fields)
            return tuple(self.life.fields.get((value, k), value) for k in range(count))
        return (value,)

    def _define(self, binding: Binding, point: int) -> None:
        var, value = binding.var, binding.value
        match value:
            case CallTIR():
                loop = self.loops[value.func]
                if is_view(loop) and var not in self.copied_views:
                    self.life.aliases[var] = value.args[0]
                    return
                self._define_results(var, point, point, value.device)
            case CallLibrary():
                self._define_results(var, point, point, value.device or self.main)
            case GetItem(source, index):
                self.life.aliases[var] = self.life.fields[(self.life.root(source), index)]
            case MatchCast(source):
                self.life.aliases[var] = source
            case MakeTuple(fields):
                for k, item in enumerate(fields):
                    self.life.fields[(var, k)] = item
            case _ if as_tensor(var.annotation) is not None:
                device = getattr(value, "device", self.main)
                self._define_results(var, point, point, device)

    def _define_results(self, var: Var, first: int, last: int, device: str) -> None:
        """A single tensor is its var; fields of a tuple get vars of their own."""
        annotation = var.annotation
        if isinstance(annotation, Tuple):
            for k, item in enumerate(annotation.fields):
                part = Var(f"{var.name}_{k}", item)
                self.life.fields[(var, k)] = part
                self.start(part, first, last, device)
        elif isinstance(annotation, Tensor):
            self.start(var, first, last, device)

    def start(self, value: Value, first: int, last: int, device: str) -> None:
        self.life.first[value], self.life.last[value] = first, last
        self.life.device[value] = device


def _clashing_views(func: GraphFunc, loops: dict[str, LoopFunc]) -> set[Value]:
    """Views that one call would bind beside the bytes they rename: those are copied instead.

    A dispatch may not bind overlapping ranges (WebGPU), nor should it hide an alias.
    """
    clashing: set[Value] = set()
    aliases: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while value in aliases:
            value = aliases[value]
        return value

    def visit(block: Block) -> None:
        for binding in block.bindings:
            value = binding.value
            for body in bodies(value):
                visit(body)
            if isinstance(value, CallTIR | CallLibrary):
                roots = [root(a) for a in value.args]
                for arg, own in zip(value.args, roots, strict=True):
                    if roots.count(own) > 1 and arg in aliases and not isinstance(own, Constant):
                        clashing.add(arg)
                if isinstance(value, CallTIR) and is_view(loops[value.func]):
                    aliases[binding.var] = value.args[0]
            elif isinstance(value, MatchCast):
                aliases[binding.var] = value.value

    visit(func.body)
    return clashing
