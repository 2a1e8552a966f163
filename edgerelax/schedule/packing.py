"""Weights in the layout in which a tile reads them: the values of each step side by side.

A left factor becomes [outer…, tile of rows, steps…, row in the tile], a right one [outer…, panel of
columns, steps…, column in the panel]. The copy is made once, at export.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import Buffer, Load, Scalar, loads, rewrite
from edgerelax.schedule.codes import Coded, Layout, coded
from edgerelax.schedule.contraction import Contraction, contraction, guarded
from edgerelax.schedule.points import count, substitute_stage
from edgerelax.schedule.strategies.base import Reject
from edgerelax.schedule.words import Rewritten, over_words
from edgerelax.sym import (
    Atom,
    Axis,
    Expr,
    ExprLike,
    as_expr,
    ceildiv,
    divisible,
    minimum,
    proves_le,
)

PANEL = 8


@dataclass(frozen=True, slots=True)
class Laid:
    """A contraction over packed weights. `panel` is the axis of tiles or panels.

    `apart`: no output is in two of them. `swaps`: what axes of the contraction are in terms of the
    new ones, where columns are packed.
    """

    packed: tuple[Packed, ...]
    found: Contraction
    panel: Axis
    apart: bool = True
    swaps: Mapping[Atom, ExprLike] = field(default_factory=dict)


def pack_rows(found: Contraction, height: int, weights: frozenset[str]) -> Laid | None:
    """The left factor in tiles of `height` rows; those past the end repeat the last row."""
    load = _weight(found.left, weights)
    if load is None or len(found.rows) != 1 or found.rows[0] not in load.axes():
        return None
    (row,) = found.rows
    tile, lane = Axis("tile", ceildiv(row.extent, height)), Axis("lane", as_expr(height))
    number = minimum(tile.expr * height + lane, row.extent - 1)
    places: dict[Atom, Expr] = {tile: row.expr // height, lane: row.expr % height}
    made = _packed(load, found, {row: number}, tile, lane, "rows", places)
    if made is None:
        return None
    packed, read = made
    left = _swapped(found.left, load, read)
    stage = replace(found.stage, body=found.times(left, found.right))
    return Laid((packed,), replace(found, stage=stage, left=left, lane=lane), tile)


def pack_columns(found: Contraction, weights: frozenset[str]) -> Laid | None:
    """The right factor in panels of eight columns, of which there must be so many.

    The last panel ends with the last column: where eight does not divide them, it overlaps the one
    before, and columns are computed twice rather than tested. Tiles of any height read the same
    panels, so that one packed weight does for all versions.
    """
    column = found.column
    if not proves_le(PANEL, column.extent):
        return None
    panel = Axis(f"{column.name}/{PANEL}", ceildiv(column.extent, PANEL))
    lane = Axis(f"{column.name}%{PANEL}", as_expr(PANEL))
    number = minimum(panel.expr * PANEL, column.extent - PANEL) + lane
    swaps: dict[Atom, ExprLike] = {column: number}
    places = _places(column, panel, lane)
    made = _codes(found, swaps, panel, lane, weights, places)
    if made is None:
        load = _weight(found.right, weights)
        single = (
            None
            if load is None
            else _packed(load, found, {column: number}, panel, lane, "columns", places)
        )
        if load is None or single is None:
            return None
        packed, read = single
        made = Coded(_swapped(found.right, load, read), (packed,), None, found.stage.reduce)
    if made.steps is not None:
        swaps[made.steps.axis] = made.steps.number
    left, guards = found.left.subs(swaps), tuple(g.subs(swaps) for g in found.guards)
    stage = substitute_stage(replace(found.stage, body=found.times(left, made.factor)), swaps)
    axes = (*(a for a in stage.axes if a is not column), panel, lane)
    laid = replace(
        found,
        stage=replace(stage, axes=axes, reduce=made.reduce),
        left=left,
        right=made.factor,
        guards=guards,
        column=lane,
        outer=(*found.outer, panel),
        word=None if made.steps is None else made.steps.word,
    )
    apart = divisible(column.extent, PANEL) is True
    return Laid(made.packed, laid, panel, apart, swaps)


def _places(column: Axis, panel: Axis, lane: Axis) -> dict[Atom, Expr]:
    """The panel of a column and its place there; where two panels have it, the earlier one's."""
    number, at = column.expr, column.expr // PANEL
    if divisible(column.extent, PANEL):
        return {panel: at, lane: number % PANEL}
    return {panel: at, lane: number - minimum(at * PANEL, column.extent - PANEL)}


def _codes(
    found: Contraction,
    swaps: Mapping[Atom, ExprLike],
    panel: Axis,
    lane: Axis,
    weights: frozenset[str],
    places: Mapping[Atom, ExprLike],
) -> Coded | None:
    """The right factor over words of codes."""
    if found.product != "mul" or found.guards:
        return None
    layout = Layout(f"columns{PANEL}_", (*found.outer, panel), (lane,), swaps, places)
    return coded(found.right, found.stage.reduce, layout, weights)


def _weight(factor: Scalar, weights: frozenset[str]) -> Load | None:
    """The only load of a factor, if it is of a weight of known size."""
    found = dict.fromkeys(loads(factor))
    if len(found) != 1:
        return None
    (load,) = found
    known = load.buffer.name in weights and all(d.as_int() is not None for d in load.buffer.dims)
    return load if known else None


def _packed(
    load: Load,
    found: Contraction,
    swaps: dict[Atom, Expr],
    panel: Axis,
    lane: Axis,
    what: str,
    places: dict[Atom, Expr],
) -> tuple[Packed, Load] | None:
    """The packed weight, and the load that stands for the given one.

    `swaps` are axes of the contraction by the new ones, `places` the new ones by the former.
    """
    used = load.axes()
    outer = [a for a in found.outer if a in used]
    axes = (*outer, panel, *(a for a in found.stage.reduce if a in used), lane)
    if any(a.extent.as_int() is None for a in axes) or count(axes).as_int() == 0:
        return None
    size = lane.extent.as_int()
    buffer = Buffer(
        f"{load.buffer.name}_{what}{size}", load.buffer.dtype, tuple(a.extent for a in axes)
    )
    table: dict[Atom, ExprLike] = dict(swaps)
    guards = [g for g in found.guards if g.axes() <= used]  # beyond them there may be no weight
    stage = Stage(buffer, axes, guarded(load, guards).subs(table))
    make = LoopFunc(buffer.name, (load.buffer,), (buffer,), (stage,))
    read = Load(buffer, tuple(a.expr for a in axes))
    inverse: dict[Atom, ExprLike] = dict(places)
    return Packed(make, load, read.subs(inverse)), read


def _swapped(factor: Scalar, load: Load, read: Load) -> Scalar:
    return rewrite(factor, lambda node: read if node == load else None)


def in_codes(func: LoopFunc) -> tuple[LoopFunc, tuple[Packed, ...]]:
    """The function with its products of weights of few bits over words in panels."""
    return over_words(func, _over_codes)


def _over_codes(func: LoopFunc, stage: Stage) -> Rewritten | None:
    """A stage whose panels are whole."""
    found = contraction(stage)
    laid = None if isinstance(found, Reject) else pack_columns(found, func.weights)
    if laid is None or laid.found.word is None or not laid.apart:
        return None
    return Rewritten((), laid.found.stage, laid.packed)
