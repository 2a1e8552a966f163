"""How a loop function commutes with permutations of its buffers' dims.

The one place that knows, and it knows it of the loops: an operator that runs over axes in some
order may run over them in another, its buffers' dims following their axes.

    y[i, j, k] = x[i, j, k] + b[k]     in the order (i, k, j):    y[i, k, j] = x[i, k, j] + b[k]
    y[i, k] = sum_j x[i, j, k]         x stored as [i, k, j]:     y[i, k] = sum_j x[i, k, j]

Any permutation of any buffer is a loop function with the same results (`permuted`). Which go
together without a copy follows from the axes that index the dims (`carried`): of elementwise
operators, concatenations, slices, pads, reductions, windows, softmax alike. Sums of products are
left as they are: their schedules want what they have.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.scalar import Buffer, Load
from edgerelax.passes.classify import classify, is_move
from edgerelax.passes.fuse_loops import map_loads
from edgerelax.sym import Axis, Expr

T = TypeVar("T")

Perm = tuple[int, ...]
Layouts = Mapping[str, Perm]
"""By buffer, which of its dims stands at each place; buffers that are left out stay."""

Mains = tuple[Axis | None, ...]
"""By dim of a buffer, the axis that moves along it; None for one that no axis moves along."""


def identity(rank: int) -> Perm:
    """Every dim at its place."""
    return tuple(range(rank))


def composed(outer: Perm, inner: Perm) -> Perm:
    """The permutation of a transpose by `outer` and then by `inner`."""
    return tuple(outer[p] for p in inner)


def inverse(perm: Perm) -> Perm:
    """The permutation that undoes another."""
    return tuple(sorted(range(len(perm)), key=lambda p: perm[p]))


def transposition(loop: LoopFunc) -> Perm | None:
    """The permutation, if the function is a transpose of its operand and nothing else."""
    if not is_move(loop) or len(loop.inputs) != 1:
        return None
    stage = loop.stages[0]
    assert isinstance(stage, Stage) and isinstance(stage.body, Load)
    index, rank = stage.body.index, len(stage.axes)
    if len(index) != rank:
        return None
    perm: list[int | None] = [
        next((d for d, at in enumerate(index) if at.atom is axis), None) for axis in stage.axes
    ]
    left = [d for d in range(rank) if d not in perm]
    free = [k for k, d in enumerate(perm) if d is None]
    ones = [stage.body.buffer.dims[d] for d in left] + [stage.axes[k].extent for k in free]
    if any(size.as_int() != 1 for size in ones):
        return None
    for k, d in zip(free, left, strict=True):
        perm[k] = d
    found = tuple(d for d in perm if d is not None)
    same = all(stage.out.dims[k] == stage.body.buffer.dims[d] for k, d in enumerate(found))
    return found if same else None  # else a slice from the start


def carried(loop: LoopFunc, name: str, perm: Perm) -> Layouts | None:
    """The layouts of all buffers that go with one of the named buffer.

    None for a function that is not to be turned, or not so.
    """
    stages = [s for s in loop.stages if isinstance(s, Stage)]
    if len(stages) < len(loop.stages) or any(map(_reuses, stages)):
        return None
    sequences = [_sequence(stage) for stage in stages]
    if any(sequence is None for sequence in sequences):
        return None
    layouts: dict[str, Perm] = {name: perm}
    open_stages = list(zip(stages, sequences, strict=True))
    while open_stages:
        for at, (stage, sequence) in enumerate(open_stages):
            assert sequence is not None
            known = next((b for b in _touched(stage) if b.name in layouts), None)
            if known is None:
                continue
            order = _order(sequence, _mains(stage, known), layouts[known.name])
            for buffer in _touched(stage):
                mains = _mains(stage, buffer)
                chosen = layouts.setdefault(buffer.name, _perm(mains, order))
                places = [order.index(a) for a in _wide(mains[d] for d in chosen)]
                if places != sorted(places):  # two ways to it, which ask for different ones
                    return None
            del open_stages[at]
            break
        else:
            break  # what is left has nothing to do with that buffer
    turned = permuted(loop, layouts)
    if classify(turned) is not classify(loop) or not _rows_stay(loop, turned):
        return None
    return layouts


def permuted(loop: LoopFunc, layouts: Layouts) -> LoopFunc:
    """The same function over buffers whose dims stand in other places."""

    def buffer(old: Buffer) -> Buffer:
        return replace(old, dims=_at(old.dims, layouts.get(old.name)))

    def load(old: Load) -> Load:
        return Load(buffer(old.buffer), _at(old.index, layouts.get(old.buffer.name)))

    stages = []
    for stage in loop.stages:
        assert isinstance(stage, Stage), "templates are not turned"
        perm = layouts.get(stage.out.name)
        index = None if stage.index is None else _at(stage.index, perm)
        axes = _at(stage.axes, perm) if index is None else stage.axes
        turned = replace(stage, out=buffer(stage.out), axes=axes, index=index)
        stages.append(_reordered(map_loads(turned, load)))
    return replace(
        loop,
        inputs=tuple(map(buffer, loop.inputs)),
        outputs=tuple(map(buffer, loop.outputs)),
        stages=tuple(stages),
    )


def _reuses(stage: Stage) -> bool:
    """Whether it reduces over loads that it repeats along a spatial axis, as products do."""
    spatial = {a for a in stage.axes if a.extent.as_int() != 1}
    for load in stage.loads():
        axes = frozenset().union(*(at.axes() for at in load.index))
        if axes & set(stage.reduce) and spatial - axes:
            return True
    return False


def _at(items: tuple[T, ...], perm: Perm | None) -> tuple[T, ...]:
    return items if perm is None else tuple(items[p] for p in perm)


def _reordered(stage: Stage) -> Stage:
    """With axes in the order of the dims that they move along, where that is theirs to choose."""
    reduce, axes = stage.reduce, stage.axes
    ordered = stage.combiner is not None and stage.combiner.startswith("arg")
    for mains in (_mains_of(load.index, stage) for load in stage.loads()):
        if not ordered and mains is not None and set(reduce) <= set(mains):
            reduce = tuple(sorted(reduce, key=mains.index))
            break
    stored = _mains_of(stage.store_index, stage)
    if stage.index is not None and stored is not None and set(axes) <= set(stored):
        axes = tuple(sorted(axes, key=stored.index))
    return replace(stage, axes=axes, reduce=reduce)


def _touched(stage: Stage) -> tuple[Buffer, ...]:
    return tuple(dict.fromkeys((stage.out, *stage.reads())))


def _indices(stage: Stage, buffer: Buffer) -> Iterator[Sequence[Expr]]:
    if buffer == stage.out:
        yield stage.store_index
    yield from (load.index for load in stage.loads() if load.buffer == buffer)


def _mains(stage: Stage, buffer: Buffer) -> Mains:
    found = _mains_of(next(_indices(stage, buffer)), stage)
    assert found is not None, "the stage has a sequence"
    return found


def _mains_of(index: Sequence[Expr], stage: Stage) -> Mains | None:
    """None if a dim moves with several axes, or two dims with one."""
    found: list[Axis | None] = []
    for at in index:
        moving = {a for a in at.axes() if a.extent.as_int() != 1}
        moving = moving & set(stage.axes) or moving & set(stage.reduce)
        if len(moving) > 1:
            return None
        found.append(next(iter(moving), None))
    used = [a for a in found if a is not None]
    return tuple(found) if len(set(used)) == len(used) else None


def _sequence(stage: Stage) -> list[Axis] | None:
    """The order of all axes in which the dims of every buffer stand; None if there is none."""
    indices = [index for buffer in _touched(stage) for index in _indices(stage, buffer)]
    every = [_mains_of(index, stage) for index in indices]
    if any(mains is None for mains in every):
        return None
    sequence = [a for a in every[0] or () if a is not None]
    for mains in sorted((m for m in every if m is not None), key=len, reverse=True):
        sequence = _order(_wide(mains), tuple(sequence), identity(len(sequence)))
    for known in every:
        places = [sequence.index(a) for a in _wide(known or ())]
        if places != sorted(places):
            return None
    for buffer in _touched(stage):
        if len({_mains_of(index, stage) for index in _indices(stage, buffer)}) > 1:
            return None
    return sequence


def _wide(mains: Iterable[Axis | None]) -> list[Axis]:
    return [a for a in mains if a is not None]


def _order(sequence: Sequence[Axis], mains: Mains, perm: Perm) -> list[Axis]:
    """The axes in the order of a buffer's dims; others after what they followed."""
    order = _wide(mains[p] for p in perm)
    for before, axis in zip((None, *sequence), sequence, strict=False):
        if axis not in order:
            order.insert(0 if before is None else order.index(before) + 1, axis)
    return order


def _perm(mains: Mains, order: Sequence[Axis]) -> Perm:
    """The dims of a buffer in the order of axes; those of no axis after the dim before them."""
    keys: list[int] = []
    for axis in mains:
        keys.append(order.index(axis) if axis is not None else keys[-1] if keys else -1)
    return tuple(sorted(range(len(mains)), key=lambda d: (keys[d], d)))


def _rows_stay(before: LoopFunc, after: LoopFunc) -> bool:
    """Whether chains of reductions still go along rows where they did: those are kept at hand."""
    if len(before.stages) < 2:
        return True
    return _row_stages(before) <= _row_stages(after)


def _row_stages(loop: LoopFunc) -> set[int]:
    found = set()
    for k, stage in enumerate(loop.stages):
        assert isinstance(stage, Stage)
        for load in stage.loads() if stage.combiner else ():
            wide = _wide(_mains_of(load.index, stage) or ())
            if wide and wide[-1] in stage.reduce:
                found.add(k)
    return found
