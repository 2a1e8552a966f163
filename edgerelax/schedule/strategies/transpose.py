"""Transposes in blocks, inside any batch axes and with anything else that the map computes.

`4x4`: registers hold four vectors, loaded along the one axis; their lanes make four more, stored
along the other. A thread does a block; a CPU iteration does a strip of four rows. Incomplete blocks
go point by point. `16x16`: a workgroup fills a tile of its memory along the one axis and stores it
along the other; rows of 17 keep both ways free of bank conflicts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    Kernel,
    KExpr,
    KLane,
    KLoad,
    KStore,
    KVec,
    i32,
    kop,
)
from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import Load, Scalar, rewrite, substitute
from edgerelax.schedule.cost import roofline, rounded, typical, work
from edgerelax.schedule.points import (
    coalesce,
    count,
    decompose,
    map_scalars,
    substitute_stage,
    write_point,
)
from edgerelax.schedule.scalars import Held, Scalars, has_vectors
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.pointwise import GROUP, is_sub_word
from edgerelax.schedule.target import Target
from edgerelax.schedule.transposed import SCATTER, SIDE, Transposed, transposed, with_scattered
from edgerelax.schedule.writer import Writer, plus
from edgerelax.sym import Axis, as_expr, ceildiv, divisible, proves_le, upper_bound

_TILE = 16
_PITCH = _TILE + 1
_CHUNK = 256  # columns of a CPU iteration: the lines that it loads stay cached for the next strip
_SECTOR = 8  # elements that a GPU fetches at once


@dataclass(frozen=True, slots=True)
class Turn:
    """A map that transposes."""

    unit: Unit
    found: Transposed

    @property
    def in_tiles(self) -> bool:
        """Whether all transposed loads fit workgroup memory, an element a word."""
        return all(load.dtype.bits == 32 for load in self.found.loads)

    @property
    def is_whole(self) -> bool:
        """Whether there are no incomplete blocks."""
        sides = self.found.across, self.found.along
        return all(divisible(a.extent, SIDE) is True for a in sides)


def match(unit: Unit, target: Target) -> Turn | Reject:
    """A map of words with a load along another axis than its stores."""
    if unit.stage is None:
        return Reject("not a single stage")
    stage = coalesce(unit.stage)
    if is_sub_word(stage.out.dtype):
        return Reject("its outputs share words with others")
    if not (has_vectors(stage.out.dtype) and has_vectors(stage.body.dtype)):
        return Reject("its values have no vectors")
    found = transposed(stage, target)
    if isinstance(found, str):
        return Reject(found)
    for axis in (found.across, found.along):
        most = upper_bound(axis.extent)
        if most is not None and most < SIDE:
            return Reject("an axis is shorter than a block")
    axes = (*found.outer, found.across, found.along)
    ordered = replace(stage, axes=axes, index=stage.store_index)  # it goes by the old order
    return Turn(unit, replace(found, stage=ordered))


def configs(turn: Turn, target: Target) -> tuple[str, ...]:
    """Registers everywhere; tiles where barriers are fast and memory suffices."""
    needed = len(turn.found.loads) * _TILE * _PITCH * 4
    tiles = target.has_fast_barriers and turn.in_tiles and needed <= target.workgroup_bytes
    return ("4x4", "16x16") if tiles else ("4x4",)


def cost(turn: Turn, config: str, target: Target) -> float:
    """Bound by memory; what is not in whole blocks loads as a plain map does."""
    found = turn.found
    total = work(found.stage)
    height, width = typical(found.across.extent), typical(found.along.extent)
    if config == "16x16":
        idle = rounded(height, _TILE) * rounded(width, _TILE)
        return roofline(with_scattered(total, found, idle), target, threads=total.points, reuse=4.0)
    whole = (height // SIDE * SIDE) * (width // SIDE * SIDE) / max(1.0, height * width)
    blocks = min(height, _SECTOR) / SIDE if target.has_fast_barriers else 1.0
    if target.has_fast_barriers and not turn.is_whole:
        blocks = SCATTER
    times = whole * max(1.0, blocks) + (1.0 - whole) * SCATTER
    moved = with_scattered(total, found, times)
    return roofline(moved, target, threads=total.points / SIDE**2, reuse=4.0)


def emit(turn: Turn, config: str, target: Target) -> Emitted:
    """One kernel."""
    if config == "16x16":
        kernel = _tiles(turn, target)
    else:
        kernel = _blocks(turn, target) if target.is_gpu else _strips(turn, target)
    return Emitted((kernel,))


TRANSPOSE = Strategy("transpose", match, configs, cost, emit)


# registers


def _blocks(turn: Turn, target: Target) -> Kernel:
    """A GPU thread per block."""
    w, found = Writer(target, turn.unit.weights), turn.found
    s = Scalars(w)
    down, right = ceildiv(found.across.extent, SIDE), ceildiv(found.along.extent, SIDE)
    blocks = count(found.outer) * down * right
    thread = w.let("t", kop("add", kop("mul", WORKGROUP, i32(GROUP)), LOCAL))
    with w.when(kop("lt", thread, w.params.scalar(blocks))):
        extents = [*(a.extent for a in found.outer), down, right]
        *places, block_row, block_column = decompose(w, thread, extents)
        for axis, place in zip(found.outer, places, strict=True):
            w.bind(axis, place)
        row = w.let("row", kop("mul", block_row, i32(SIDE)))
        column = w.let("col", kop("mul", block_column, i32(SIDE)))
        if turn.is_whole:
            _block(w, s, found, _rows(w, found, row), column)
        else:
            w.branch(
                kop("and", _fits(w, found.across, row), _fits(w, found.along, column)),
                lambda: _block(w, s, found, _rows(w, found, row), column),
                lambda: _corner(w, s, found, row, column),
            )
    return w.kernel(turn.unit.name, ceildiv(blocks, GROUP), GROUP, "transpose, 4x4 a thread")


def _fits(w: Writer, axis: Axis, first: KExpr) -> KExpr:
    """Whether a whole block from `first` is in range."""
    return kop("le", first, w.params.scalar(axis.extent - SIDE))


@dataclass(frozen=True, slots=True)
class _Rows:
    """Four rows, bound: all at once to an axis, and one by one."""

    at_once: Axis
    single: tuple[Axis, ...]


def _rows(w: Writer, found: Transposed, first: KExpr) -> _Rows:
    extent = found.across.extent
    at_once = Axis(w.fresh("rows"), extent)
    w.bind_vector(at_once, first)
    single = tuple(Axis(w.fresh("row"), extent) for _ in range(SIDE))
    for k, axis in enumerate(single):
        w.bind(axis, w.let("row", plus(first, k)))
    return _Rows(at_once, single)


def _block(w: Writer, s: Scalars, found: Transposed, rows: _Rows, column: KExpr) -> None:
    """Four rows of four columns, all in range."""
    w.bind_vector(found.along, column)
    columns = [Axis(w.fresh("col"), found.along.extent) for _ in range(SIDE)]
    for k, axis in enumerate(columns):
        w.bind(axis, w.let("col", plus(column, k)))
    held = [_turned(w, s, found, load, rows, columns) for load in found.loads]
    for k, row in enumerate(rows.single):
        table: dict[Scalar, Scalar] = {
            load: turned[k] for load, turned in zip(found.loads, held, strict=True)
        }
        stage = substitute_stage(_with(found.stage, table), {found.across: as_expr(row)})
        write_point(w, s, stage, vector=True)


def _turned(
    w: Writer, s: Scalars, found: Transposed, load: Load, rows: _Rows, columns: list[Axis]
) -> list[Scalar]:
    """What a load gives in each row of a block: vectors along the stores."""
    across = as_expr(rows.at_once)
    vectors = [
        w.let("x", s.value(substitute(load, {found.across: across, found.along: as_expr(column)})))
        for column in columns
    ]
    return [
        _hold(w, s, KVec(load.dtype, SIDE, tuple(KLane(load.dtype, 1, v, k) for v in vectors)))
        for k in range(SIDE)
    ]


def _hold(w: Writer, s: Scalars, value: KExpr) -> Scalar:
    leaf = Held(w.fresh("turned"), value.dtype)
    s.hold(leaf, w.let("y", value))
    return leaf


def _with(stage: Stage, table: dict[Scalar, Scalar]) -> Stage:
    """The stage with other leaves in the place of loads."""
    return map_scalars(stage, lambda scalar: rewrite(scalar, table.get))


def _corner(w: Writer, s: Scalars, found: Transposed, row: KExpr, column: KExpr) -> None:
    """The points of an incomplete block."""
    bottom, end = (
        w.let("end", kop("min", plus(first, SIDE), w.params.scalar(axis.extent)))
        for axis, first in ((found.across, row), (found.along, column))
    )
    _points(w, s, found, (row, bottom), (column, end))


def _points(
    w: Writer,
    s: Scalars,
    found: Transposed,
    rows: tuple[KExpr, KExpr],
    columns: tuple[KExpr, KExpr],
) -> None:
    with w.loop("i", *rows) as i:
        w.bind(found.across, i)
        with w.loop("j", *columns) as j:
            w.bind(found.along, j)
            write_point(w, s, found.stage, vector=False)


def _strips(turn: Turn, target: Target) -> Kernel:
    """A CPU iteration per four rows of a chunk of columns; strips that share lines follow."""
    w, found = Writer(target, turn.unit.weights), turn.found
    s = Scalars(w)
    width = found.along.extent
    single = proves_le(width, _CHUNK)
    chunks = as_expr(1) if single else ceildiv(width, _CHUNK)
    strips = ceildiv(found.across.extent, SIDE)
    extents = [*(a.extent for a in found.outer), chunks, strips]
    *places, chunk, strip = decompose(w, WORKGROUP, extents)
    for axis, place in zip(found.outer, places, strict=True):
        w.bind(axis, place)
    start = w.let("start", kop("mul", chunk, i32(_CHUNK)))
    stop = w.let("stop", kop("min", plus(start, _CHUNK), w.params.scalar(width)))
    row = w.let("row", kop("mul", strip, i32(SIDE)))
    height = w.params.scalar(found.across.extent)

    def strip_of(rows: int | None) -> Callable[[], None]:
        if rows is None:
            return lambda: _points(w, s, found, (row, height), (start, stop))
        return lambda: _strip(w, s, found, row, (start, stop))

    if divisible(found.across.extent, SIDE) is True:
        strip_of(SIDE)()
    else:
        w.branch(_fits(w, found.across, row), strip_of(SIDE), strip_of(None))
    grid = count(found.outer) * chunks * strips
    return w.kernel(turn.unit.name, grid, 1, "transpose, strips of 4x4")


def _strip(
    w: Writer, s: Scalars, found: Transposed, row: KExpr, columns: tuple[KExpr, KExpr]
) -> None:
    """Four rows, in blocks and then point by point."""
    start, stop = columns
    quads = kop("mul", kop("index_div", kop("sub", stop, start), i32(SIDE)), i32(SIDE))
    end = w.let("end", kop("add", start, quads))
    rows = _rows(w, found, row)
    with w.loop("j", start, end, step=SIDE) as j:
        _block(w, s, found, rows, j)
    if divisible(found.along.extent, SIDE) is not True:
        _points(w, s, found, (row, w.let("end", plus(row, SIDE))), (end, stop))


# workgroup memory


def _tiles(turn: Turn, target: Target) -> Kernel:
    """A workgroup per tile."""
    w, found = Writer(target, turn.unit.weights), turn.found
    s = Scalars(w)
    down, right = ceildiv(found.across.extent, _TILE), ceildiv(found.along.extent, _TILE)
    extents = [*(a.extent for a in found.outer), down, right]
    *places, tile_row, tile_column = decompose(w, WORKGROUP, extents)
    for axis, place in zip(found.outer, places, strict=True):
        w.bind(axis, place)
    row = w.let("row", kop("mul", tile_row, i32(_TILE)))
    column = w.let("col", kop("mul", tile_column, i32(_TILE)))
    arrays = [w.array("tile", load.dtype, _TILE * _PITCH, shared=True) for load in found.loads]

    def each(act: Callable[[KExpr, KExpr], None]) -> None:
        """Line by line of the tile: `near` counts within a line, as neighbouring threads do."""
        with w.loop("n", LOCAL, i32(_TILE * _TILE), step=GROUP) as n:
            line, near = decompose(w, n, [as_expr(_TILE), as_expr(_TILE)])
            act(line, near)

    def inside(down_by: KExpr, right_by: KExpr) -> KExpr:
        i, j = w.let("i", kop("add", row, down_by)), w.let("j", kop("add", column, right_by))
        w.bind(found.across, i)
        w.bind(found.along, j)
        of_rows = kop("lt", i, w.params.scalar(found.across.extent))
        return kop("and", of_rows, kop("lt", j, w.params.scalar(found.along.extent)))

    def fill(line: KExpr, near: KExpr) -> None:
        with w.when(inside(near, line)):
            at = w.let("at", kop("add", kop("mul", line, i32(_PITCH)), near))
            for array, load in zip(arrays, found.loads, strict=True):
                w.emit(KStore(array, at, s.value(load)))

    def drain(line: KExpr, near: KExpr) -> None:
        with w.when(inside(line, near)):
            at = w.let("at", kop("add", kop("mul", near, i32(_PITCH)), line))
            table: dict[Scalar, Scalar] = {
                load: _hold(w, s, KLoad(load.dtype, 1, array, at))
                for array, load in zip(arrays, found.loads, strict=True)
            }
            write_point(w, s, _with(found.stage, table), vector=False)

    each(fill)
    w.barrier()
    each(drain)
    grid = count(found.outer) * down * right
    return w.kernel(turn.unit.name, grid, GROUP, "transpose, a 16x16 tile per workgroup")
