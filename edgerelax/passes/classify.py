"""Classify loop functions by analysis of their loops (Relax 4.2, algorithm 1). Never by name.

Before: any LoopFunc. Gives a `Kind`, ordered so that `max` combines. What it does not do: decide
what fuses; that is fuse.py, from these kinds alone.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum

from edgerelax.ir.cut import cut_axes
from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.scalar import Buffer, Cast, Load, Op, Scalar
from edgerelax.sym import Atom, Axis, Expr, as_expr, product


class Kind(IntEnum):
    """Pattern kinds, from the easiest to fuse to what never fuses."""

    ELEMENTWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    REDUCTION = 3
    ROW = 4  # reductions over the same rows and maps over them: softmax, norms
    OUT_FUSIBLE = 5
    OPAQUE = 6


def classify(func: LoopFunc) -> Kind:
    """The kind of a whole function; several outputs or stages that do not chain are OPAQUE."""
    if len(func.outputs) != 1 or any(isinstance(s, Template) for s in func.stages):
        return Kind.OPAQUE
    stages = [s for s in func.stages if isinstance(s, Stage)]
    if len(stages) == 1:
        return classify_stage(stages[0])
    if stages[-1].out != func.outputs[0] or any(s.index is not None for s in stages):
        return Kind.OPAQUE
    return Kind.ROW if _is_row_chain(stages) else Kind.OPAQUE


def classify_stage(stage: Stage) -> Kind:
    """The kind of one loop nest."""
    if stage.where is not None or stage.index is not None:
        return Kind.OPAQUE
    if stage.combiner is None:
        return _classify_map(stage)
    if is_contraction(stage) or _has_window(stage):
        return Kind.OUT_FUSIBLE
    return Kind.REDUCTION


def classify_operand(func: LoopFunc, operand: Buffer) -> Kind:
    """How a function uses one operand.

    A map by that operand's own loads, else the function's kind.
    """
    stage = func.stages[0]
    if len(func.stages) > 1 or isinstance(stage, Template) or stage.combiner:
        return classify(func)
    if stage.where is not None or stage.index is not None:
        return Kind.OPAQUE
    kinds = [
        _classify_load(load, stage.store_index)
        for load in stage.loads()
        if load.buffer.name == operand.name
    ]
    return max(kinds, default=Kind.ELEMENTWISE)


def is_contraction(stage: Stage) -> bool:
    """Whether it sums products of two loads that are each reused along a spatial axis."""
    if stage.combiner != "sum":
        return False
    match strip_casts(stage.body):
        case Op("mul", (left, right)):
            loads = [strip_casts(left), strip_casts(right)]
        case _:
            return False
    spatial = set(stage.axes)
    for load in loads:
        if not isinstance(load, Load):
            return False
        axes = frozenset().union(*(e.axes() for e in load.index)) if load.index else frozenset()
        if not axes & set(stage.reduce) or not spatial - axes:
            return False
    return True


def strip_casts(node: Scalar) -> Scalar:
    """The operand below any conversions."""
    while isinstance(node, Cast):
        node = node.arg
    return node


def is_view(func: LoopFunc) -> bool:
    """Whether it only renames bytes: every element goes to the same flat position (reshape)."""
    if len(func.stages) != 1 or not isinstance(func.stages[0], Stage):
        return False
    stage = func.stages[0]
    if stage.combiner or stage.where is not None or not isinstance(stage.body, Load):
        return False
    load = stage.body
    if load.dtype != stage.out.dtype or func.inputs != (load.buffer,):
        return False
    return flat(load.buffer, load.index) == flat(stage.out, stage.store_index)


def is_move(func: LoopFunc) -> bool:
    """Whether every element of the result is an element of the operand, as it is."""
    only = func.stages[0]
    if len(func.stages) != 1 or not isinstance(only, Stage) or not isinstance(only.body, Load):
        return False
    guarded = only.combiner is not None or only.where is not None or only.index is not None
    return not guarded and only.body.dtype == only.out.dtype


def stored_operands(func: LoopFunc) -> frozenset[str]:
    """What a function only stores over a copy of another operand, at places that it computes.

    Each element is read once, by the point that stores it.
    """
    if len(func.stages) != 2 or len(func.outputs) != 1:
        return frozenset()
    copy, store = func.stages
    if not isinstance(copy, Stage) or not isinstance(store, Stage):
        return frozenset()
    is_copy = classify_stage(copy) is Kind.ELEMENTWISE and copy.out == store.out == func.outputs[0]
    if not is_copy or store.combiner is not None or store.index is None:
        return frozenset()
    loads = list(store.loads())
    own = tuple(as_expr(a) for a in store.axes)
    read_by_copy = {b.name for b in copy.reads()}
    once = {
        load.buffer.name
        for load in loads
        if load.index == own and sum(x.buffer.name == load.buffer.name for x in loads) == 1
    }
    return frozenset(once - read_by_copy)


def loads_stay_contiguous(before: LoopFunc, after: LoopFunc) -> bool:
    """Whether moves that one stage took in left its loads affine, and of stride 1 where they were.

    `after` is `before` with some buffers read through moves.
    """
    (one, *more), (other, *others) = before.stages, after.stages
    if more or others or not isinstance(one, Stage) or not isinstance(other, Stage):
        return False
    was, now = list(one.loads()), list(other.loads())
    if len(was) != len(now) or one.axes != other.axes or one.reduce != other.reduce:
        return False
    for old, new in zip(was, now, strict=True):
        if old.index == new.index and old.buffer.dims == new.buffer.dims:
            continue
        place = flat(new.buffer, new.index)
        if not _is_affine(place) or not _unit_axes(flat(old.buffer, old.index)) <= _unit_axes(
            place
        ):
            return False
    return True


def _is_affine(expr: Expr) -> bool:
    """Whether it is a sum of axes, each times something free of axes."""
    for _, mono in expr.terms():
        moving = [a for a in mono if as_expr(a).axes()]
        if len(moving) > 1 or any(not isinstance(a, Axis) for a in moving):
            return False
    return True


def _unit_axes(place: Expr) -> frozenset[Axis]:
    """The axes along which a place moves by 1."""
    return frozenset(a for a in place.axes() if a not in (place - a).axes())


def flat(buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
    """Row-major position of an element."""
    position = as_expr(0)
    for dim, at in zip(buffer.dims, index, strict=True):
        position = position * dim + at
    return position


def _classify_map(stage: Stage) -> Kind:
    stored = stage.store_index
    kind, has_elementwise = Kind.ELEMENTWISE, False
    for load in stage.loads():
        own = _classify_load(load, stored)
        has_elementwise |= own is Kind.ELEMENTWISE
        kind = max(kind, own)
    if kind is Kind.BROADCAST and has_elementwise:
        return Kind.ELEMENTWISE
    if not has_elementwise and kind is Kind.ELEMENTWISE:
        return Kind.BROADCAST  # no loads: a generator
    return kind


def _classify_load(load: Load, stored: tuple[Expr, ...]) -> Kind:
    if load.index == stored:
        return Kind.ELEMENTWISE
    return Kind.BROADCAST if _is_subsequence(load, stored) else Kind.INJECTIVE


def _is_subsequence(load: Load, stored: tuple[Expr, ...]) -> bool:
    """Whether the index is the stored axes in order, some left out.

    Unit dims (index 0) count as left out.
    """
    rest = iter(stored)
    return all(any(at == s for s in rest) for at in load.index if at.as_int() != 0)


def _has_window(stage: Stage) -> bool:
    """Whether a reduce axis is used other than as an index by itself (pooling, convolution)."""
    reduce = set(stage.reduce)
    return any(
        e.axes() & reduce and e.atom not in reduce for load in stage.loads() for e in load.index
    )


def _is_row_chain(stages: list[Stage]) -> bool:
    """Reductions over the same axes of the same rows, and maps over these rows (softmax, norms).

    Rows may lie anywhere among a map's axes. What a stage reads of another is at its own row.
    """
    first = next((s for s in stages if s.combiner), None)
    if first is None or any(s.where is not None for s in stages):
        return False
    rows, columns = _wide(first.axes), _wide(first.reduce)
    written: set[str] = set()
    for stage in (cut_axes(s, written) for s in stages):
        own = _wide(stage.axes)
        found = [load for load in stage.loads() if load.buffer.name in written]
        if not stage.combiner and found and len(own) > len(rows):
            own = _wide(a for a in own if any(a.expr in load.index for load in found))
        elif not stage.combiner:
            own = own[: len(rows)]
        elif not _same_extents(_wide(stage.reduce), columns):
            return False
        if not _same_extents(own, rows) or any(_wide_index(x) != own for x in found):
            return False
        rest = _wide(a for a in stage.axes if a not in own)
        if not stage.combiner and rest and _points(rest) != _points(columns):
            return False
        written.add(stage.out.name)
    return True


def _wide(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    return tuple(a for a in axes if a.extent.as_int() != 1)


def _wide_index(load: Load) -> tuple[Atom | None, ...]:
    """The axes that index a load, None for what is no axis; places of unit dims left out."""
    dims = zip(load.index, load.buffer.dims, strict=True)
    return tuple(at.atom for at, dim in dims if dim.as_int() != 1)


def _points(axes: Sequence[Axis]) -> Expr:
    return product(a.extent for a in axes)


def _same_extents(some: Sequence[Axis], others: Sequence[Axis]) -> bool:
    return [a.extent for a in some] == [a.extent for a in others]
