"""Horizontal fusion: maps that read one value and need nothing of each other are one call.

    q = rope(qkv)                  q, keys', values' = one call of qkv, keys, values
    keys' = store(qkv, keys)   →
    values' = store(qkv, values)

The schedule makes one launch of their kernels (schedule/side_by_side.py). Before: loop functions,
each call placed. A call moves down to the last that it joins, so no use of it may stand between,
and no launch of another kind of work than kernels of its device. Left alone: what would bind more
buffers than the target allows, and what could no longer lie over an operand because another of the
group reads it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.graph import (
    Binding,
    Block,
    CallTIR,
    Constant,
    GetItem,
    GraphFunc,
    MakeTuple,
    Module,
    Value,
    Var,
    bodies,
    operands,
    with_bodies,
)
from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.names import Names
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.types import Tensor, Tuple
from edgerelax.passes.classify import is_view
from edgerelax.passes.fuse_loops import merge

_FREE = (GetItem, MakeTuple)  # what launches nothing and asks the host nothing


def fuse_siblings(module: Module, *, max_buffers: int = 8) -> Module:
    """Join siblings in every graph function."""
    joiner = _Joiner(module, max_buffers)
    funcs = {n: replace(f, body=joiner.block(f.body)) for n, f in module.funcs.items()}
    return joiner.outcome.on(replace(module, funcs=funcs, loops=joiner.loops))


@dataclass(slots=True)
class _Group:
    """Calls that may be one: their numbers in the block."""

    members: list[int]
    open: bool = True


class _Joiner:
    def __init__(self, module: Module, max_buffers: int) -> None:
        self.loops = dict(module.loops)
        self.max_buffers = max_buffers
        self.outcome = Outcome()
        self.names = Names((*module.loops, *module.funcs))
        self._made: dict[tuple[object, ...], str] = {}  # by functions and what they share

    def block(self, block: Block) -> Block:
        """Join inside nested bodies first, then this block's own calls."""
        bindings = [self._inside(b) for b in block.bindings]
        groups = [g.members for g in self._groups(bindings) if len(g.members) > 1]
        moved = {k for members in groups for k in members}
        at_last = {members[-1]: members for members in groups}
        out: list[Binding] = []
        for k, binding in enumerate(bindings):
            if k in at_last:
                out.extend(self._joined([bindings[m] for m in at_last[k]]))
            elif k not in moved:
                out.append(binding)
        return Block(tuple(out), block.results)

    def _inside(self, binding: Binding) -> Binding:
        inner = [self.block(body) for body in bodies(binding.value)]
        return Binding(binding.var, with_bodies(binding.value, inner)) if inner else binding

    def _groups(self, bindings: Sequence[Binding]) -> list[_Group]:
        """Each map in the first open group that it fits, else in one of its own."""
        groups: list[_Group] = []
        of: dict[Value, _Group] = {}  # by result of a member
        device = ""
        for k, binding in enumerate(bindings):
            call = binding.value
            for used in operands(call):
                if used in of:
                    of[used].open = False
            if not isinstance(call, CallTIR):
                if not isinstance(call, _FREE):
                    _close(groups)
                continue
            if call.device != device:
                _close(groups)
                device = call.device
            if not _is_maps(self.loops[call.func]) or isinstance(binding.var.annotation, Tuple):
                continue
            for group in groups:
                if group.open and self._fits([bindings[m] for m in group.members], binding):
                    group.members.append(k)
                    break
            else:
                group = _Group([k])
                groups.append(group)
            of[binding.var] = group
        return groups

    def _fits(self, group: Sequence[Binding], new: Binding) -> bool:
        read: set[Value] = {v for b in group for v in _values(b)}
        own = set(_values(new))
        bound = {v for b in (*group, new) for v in (b.var, *self._read_last(b))}
        if not read & own or len(bound) > self.max_buffers:
            return False
        return not any(self._lies_over(new, v) for v in read & own) and not any(
            self._lies_over(b, v) for b in group for v in set(_values(b)) & own
        )

    def _read_last(self, binding: Binding) -> list[Value]:
        """What the last stage reads: those before are kernels of their own."""
        call = _call(binding)
        loop = self.loops[call.func]
        names = {b.name for b in loop.stages[-1].reads()}
        return [a for b, a in zip(loop.inputs, call.args, strict=True) if b.name in names]

    def _lies_over(self, binding: Binding, value: Value) -> bool:
        """Whether a call's result could take the place of an operand."""
        call = _call(binding)
        loop = self.loops[call.func]
        names = {b.name for b, a in zip(loop.inputs, call.args, strict=True) if a is value}
        found, result = value.annotation, binding.var.annotation
        assert isinstance(found, Tensor) and isinstance(result, Tensor)
        if found.dtype != result.dtype:
            return False
        return any(
            load.index == stage.store_index and load.buffer.dims == stage.out.dims
            for stage in loop.stages
            if isinstance(stage, Stage)
            for load in stage.loads()
            if load.buffer.name in names
        )

    def _joined(self, group: Sequence[Binding]) -> list[Binding]:
        """One call for a group, and the result of each."""
        args = dict.fromkeys(a for b in group for a in _call(b).args)
        numbers = {a: k for k, a in enumerate(args)}
        shared = tuple((_call(b).func, *(numbers[a] for a in _call(b).args)) for b in group)
        if shared not in self._made:
            self._made[shared] = self._make(group, list(args))
        self.outcome.did(f"{len(group)} maps joined")
        first = group[0].var
        whole = Var(f"{first.name}_all", Tuple(tuple(b.var.annotation for b in group)))
        call = CallTIR(self._made[shared], tuple(args), device=_call(group[0]).device)
        fields = [Binding(b.var, GetItem(whole, k)) for k, b in enumerate(group)]
        return [Binding(whole, call), *fields]

    def _make(self, group: Sequence[Binding], args: Sequence[Value]) -> str:
        """The loop function of a group."""
        params = {a: Var(a.name, a.annotation) for a in args}
        bindings = tuple(
            Binding(b.var, replace(_call(b), args=tuple(params[a] for a in _call(b).args)))
            for b in group
        )
        results = tuple(b.var for b in group)
        name = self.names.pick(f"{_call(group[0]).func[:50]}_and_{len(group) - 1}")
        body = Block(bindings, results)
        func = GraphFunc(name, tuple(params.values()), body, tuple(v.name for v in results))
        self.loops[name] = merge(func, self.loops)
        return name


def _close(groups: Sequence[_Group]) -> None:
    for group in groups:
        group.open = False


def _call(binding: Binding) -> CallTIR:
    assert isinstance(binding.value, CallTIR)
    return binding.value


def _values(binding: Binding) -> list[Value]:
    """What a call reads, weights left out."""
    return [a for a in _call(binding).args if not isinstance(a, Constant)]


def _is_maps(loop: LoopFunc) -> bool:
    """Whether every stage is a map that launches: no reduction, no template, no renaming."""
    plain = all(isinstance(s, Stage) and s.combiner is None for s in loop.stages)
    return plain and not is_view(loop)
