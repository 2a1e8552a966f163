"""Row programs: runs of stages that all work row by row, to be done by one kernel.

Softmax and the norms are such: reductions over the trailing axes of the same rows, and maps over
the same rows. The results of reductions stay in registers (`Held`); rows that a map computes for
later stages are computed again where they are read, by substitution.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.cut import cut_axes
from edgerelax.ir.loop import Stage, Template
from edgerelax.ir.scalar import (
    Acc,
    Buffer,
    Load,
    Scalar,
    Value,
    cast,
    constant,
    op,
    replace_loads,
    rewrite,
)
from edgerelax.schedule.index import flat_index
from edgerelax.schedule.points import (
    coalesce_axes,
    count,
    linear,
    map_scalars,
    store_flat,
    substitute_stage,
)
from edgerelax.schedule.reduce import state_dtype
from edgerelax.schedule.scalars import Held
from edgerelax.schedule.strategies.base import Reject
from edgerelax.sym import Atom, Axis, Expr, ExprLike, prove_eq


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a row program: its axes are the rows and, for a map, then `columns`.

    `held` names the register that keeps a reduction's result; `stored` is whether others read the
    output.
    """

    stage: Stage
    columns: tuple[Axis, ...]
    held: str
    stored: bool

    @property
    def inner(self) -> tuple[Axis, ...]:
        """What one row runs over."""
        return self.columns if self.stage.combiner is None else self.stage.reduce


@dataclass(frozen=True, slots=True)
class RowProgram:
    """Steps over the same rows."""

    rows: tuple[Axis, ...]
    steps: tuple[Step, ...]


def row_program(stages: Sequence[Stage | Template], kept: frozenset[str]) -> RowProgram | Reject:
    """The stages as one row program, if they are one."""
    plain = [s for s in stages if isinstance(s, Stage)]
    if len(plain) < len(stages):
        return Reject("it holds a template")
    if len({s.out.name for s in plain}) < len(plain):
        return Reject("two stages write one buffer")
    first = next((s for s in plain if s.combiner is not None), None)
    if first is None:
        return Reject("nothing is reduced")
    inlined = _inline_rows(plain, kept)
    rows = tuple(Axis(f"row@{k}", a.extent) for k, a in enumerate(_wide_axes(first.axes)))
    held: dict[str, Buffer] = {}
    steps: list[Step] = []
    for stage in inlined:
        aligned = _over_rows(stage, rows, held)
        if isinstance(aligned, Reject):
            return aligned
        settled = _hold_rows(aligned, rows, held)
        foreign = {s.out.name for s in plain} & {b.name for b in settled.reads()}
        if foreign:
            return Reject(f"it reads {', '.join(sorted(foreign))} across rows")
        if len(settled.axes) == len(rows) and _stores_rows(settled, rows):
            held[stage.out.name] = stage.out
        steps.extend(_steps(settled, len(rows), stage.out.name in kept))
    return RowProgram(rows, tuple(steps))


def _wide_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    return tuple(a for a in axes if prove_eq(a.extent, 1) is not True)


def _inline_rows(stages: list[Stage], kept: frozenset[str]) -> list[Stage]:
    """Substitute maps into the stages that read them; those that others read stay as well."""
    maps: dict[str, Stage] = {}
    out: list[Stage] = []

    def load(node: Load) -> Scalar | None:
        producer = maps.get(node.buffer.name)
        if producer is None:
            return None
        swaps: dict[Atom, ExprLike] = dict(zip(producer.axes, node.index, strict=True))
        return cast(producer.body.subs(swaps), node.dtype)

    for stage in stages:
        changed = map_scalars(stage, lambda s: replace_loads(s, load))
        plain_map = stage.combiner is None and stage.index is None and stage.where is None
        if plain_map:
            maps[stage.out.name] = changed
        if not plain_map or stage.out.name in kept:
            out.append(changed)
    return out


def _over_rows(stage: Stage, rows: tuple[Axis, ...], held: Mapping[str, Buffer]) -> Stage | Reject:
    """The stage with its own axes named as the rows, in front, and axes of extent 1 gone."""
    stage = cut_axes(stage, held)
    axes = _wide_axes(stage.axes)
    if len(axes) < len(rows) or (stage.combiner is not None and len(axes) > len(rows)):
        return Reject("its stages run over different rows")
    swaps: dict[Atom, ExprLike] = {a: 0 for a in stage.axes if a not in axes}
    own = _own_rows(stage, axes, len(rows), held)
    for axis, row in zip(own, rows, strict=False):
        if prove_eq(axis.extent, row.extent) is not True:
            return Reject("its stages run over different rows")
        swaps[axis] = row
    columns = tuple(a for a in axes if a not in own)
    return replace(substitute_stage(stage, swaps), axes=(*rows, *columns))


def _own_rows(
    stage: Stage, axes: tuple[Axis, ...], count: int, held: Mapping[str, Buffer]
) -> tuple[Axis, ...]:
    """Which axes are the rows: those that index earlier results, else the leading ones."""
    for load in stage.loads():
        if load.buffer.name in held:
            index = {e.atom for e in load.index}
            found = tuple(a for a in axes if a in index)
            if len(found) == count:
                return found
    return axes[:count]


def _stores_rows(stage: Stage, rows: tuple[Axis, ...]) -> bool:
    everywhere = stage.where is None or bool(stage.where.axes() & set(stage.reduce))
    return everywhere and prove_eq(store_flat(stage), linear(rows)) is True


def _hold_rows(stage: Stage, rows: tuple[Axis, ...], held: dict[str, Buffer]) -> Stage:
    """Loads of values that earlier steps left in registers become those registers."""
    here = linear(rows)

    def load(node: Load) -> Scalar | None:
        kept = held.get(node.buffer.name)
        if kept is None or prove_eq(flat_index(kept, node.index), here) is not True:
            return None
        return Held(kept.name, kept.dtype)

    return map_scalars(stage, lambda s: replace_loads(s, load))


def _steps(stage: Stage, depth: int, stored: bool) -> list[Step]:
    """The stage as steps, its inner axes merged, Welford's reduction taken apart."""
    if stage.combiner is None:
        columns, merged = coalesce_axes(stage, stage.axes[depth:])
        whole = replace(merged, axes=(*stage.axes[:depth], *columns))
        return [Step(whole, columns, stage.out.name, stored)]
    parts = _two_passes(stage) if stage.combiner == "welford" else [stage]
    steps = []
    for part in parts:
        reduce, merged = coalesce_axes(part, part.reduce)
        last = part.out is stage.out
        steps.append(Step(replace(merged, reduce=reduce), (), part.out.name, stored and last))
    return steps


def _two_passes(stage: Stage) -> list[Stage]:
    """Mean first, then squared differences: two sums in place of a division per step."""
    dtype = state_dtype("welford", stage.body.dtype)
    body = cast(stage.body, dtype)
    name = stage.out.name
    found: list[Stage] = []

    def summed(what: str, terms: Scalar, result: Scalar) -> Held:
        out = Buffer(f"{name}.{what}", dtype, stage.out.dims)
        found.append(replace(stage, out=out, body=terms, combiner="sum", epilogue=result))
        return Held(out.name, dtype)

    one = constant(1.0, dtype)
    if stage.where is None:
        number: Scalar = cast(Value(count(stage.reduce)), dtype)
    else:
        number = summed("count", one, Acc(dtype))
    mean = summed("mean", body, Acc(dtype) / op("max", number, one))
    square = (body - mean) * (body - mean)

    def component(node: Scalar) -> Scalar | None:
        if not isinstance(node, Acc):
            return None
        return cast((mean, Acc(dtype), number)[node.component], node.type)

    epilogue = rewrite(stage.result, component)
    return [*found, replace(stage, body=square, combiner="sum", epilogue=epilogue)]


def row_count(program: RowProgram) -> Expr:
    """How many rows there are."""
    return count(program.rows)


def row_length(step: Step) -> Expr:
    """How many elements of a row a step runs over."""
    return count(step.inner)
