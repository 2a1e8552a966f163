"""Contractions in register tiles: products and convolutions of any strides, batches, epilogues.

On the GPU: a thread owns 1, 4 or 8 rows by four columns, 64 threads a group laid out over the
output's tiles. A convolution tests its padding once per row and tap.
"""

from dataclasses import dataclass

from edgerelax.ir.kernel import LOCAL, WORKGROUP, Kernel, KExpr, KLoad, KStore, i32, kop
from edgerelax.schedule.coded_tile import CodedTile
from edgerelax.schedule.contraction import Contraction, contraction, describe, is_contiguous
from edgerelax.schedule.cost import Work, roofline, rounded, typical, work
from edgerelax.schedule.in_place import at_own_place
from edgerelax.schedule.points import count, decompose
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.pointwise import is_sub_word
from edgerelax.schedule.target import Target
from edgerelax.schedule.tile import Group, Span, Tile
from edgerelax.schedule.writer import Writer, plus
from edgerelax.sym import Axis, as_expr, ceildiv, divisible, upper_bound

GROUP = 64
_GROUP = " group"
_SLICES = 16  # of the steps, which a group's threads share out among them


@dataclass(frozen=True, slots=True)
class Gemm:
    """A contraction and the unit it comes from."""

    unit: Unit
    found: Contraction


@dataclass(frozen=True, slots=True)
class Part:
    """An outer axis that numbers the parts of a reduced axis, each a multiple of 4 steps long."""

    number: Axis
    steps: Axis

    def span(self, w: Writer) -> Span:
        """The steps of the part that is bound; past the end there are none."""
        number, _ = w.lookup(self.number)
        assert isinstance(number, KExpr)
        length = ceildiv(ceildiv(self.steps.extent, self.number.extent), 4) * 4
        size = w.params.scalar(length)
        start = w.let("k", kop("mul", number, size))
        end = kop("min", kop("add", start, size), w.params.scalar(self.steps.extent))
        return Span(self.steps, start, w.let("k", end))


def match(unit: Unit, target: Target) -> Gemm | Reject:
    """A sum of products of two factors, on a GPU."""
    if not target.is_gpu:
        return Reject("made for GPUs")
    if unit.stage is None:
        return Reject("not a single stage")
    found = contraction(unit.stage)
    if isinstance(found, Reject):
        return found
    if is_sub_word(found.stage.out.dtype) and not found.stores_vectors:
        return Reject("its outputs share words with others")
    return Gemm(unit, found)


def configs(gemm: Gemm, target: Target) -> tuple[str, ...]:
    """Each tile; those of codes also by groups that share the steps of one."""
    ways = tiles_of(gemm)
    shares = target.has_fast_barriers and gemm.found.word is not None
    return (*ways, *(f"{way}{_GROUP}" for way in ways if shares))


def tiles_of(gemm: Gemm) -> tuple[str, ...]:
    """By how many rows there can be."""
    if upper_bound(gemm.found.height) == 1:
        return ("1x4",)
    # Scalar stores of eight rows are too much text: software adapters compile it for seconds.
    return ("4x4", "8x4") if gemm.found.stores_vectors else ("4x4",)


def cost(gemm: Gemm, config: str, target: Target) -> float:
    """A value that is loaded serves a row or a column of the tile."""
    threads = float(_SLICES) if config.endswith(_GROUP) else 1.0
    return tile_cost(gemm.found, config, work(gemm.found.stage), target, threads=threads)


def tile_cost(
    found: Contraction, config: str, total: Work, target: Target, *, threads: float
) -> float:
    """The cost of tiles, each the work of so many `threads`."""
    rows = _rows(config)
    idle = rounded(typical(found.height), rows) * rounded(typical(found.width), 4)
    each = 1 if is_contiguous(found.right, found.column) else 4
    reuse = 8.0 * rows / (rows / 4 + each)
    threads *= tiles(found, config)
    return roofline(total.scaled(idle), target, threads=threads, reuse=reuse)


def tiles(found: Contraction, config: str) -> float:
    """About how many tiles there are."""
    return typical(count(found.stage.axes)) / (_rows(config) * 4)


def _rows(config: str) -> int:
    return int(config.split("x")[0])


def emit(gemm: Gemm, config: str, target: Target) -> Emitted:
    """One kernel."""
    make = group_kernel if config.endswith(_GROUP) else tile_kernel
    kernel = make(gemm.unit.name, gemm, config, target)
    return Emitted((kernel,), in_place=at_own_place(gemm.found.stage))


def tile_kernel(
    name: str, gemm: Gemm, config: str, target: Target, part: Part | None = None
) -> Kernel:
    """A thread for each tile; of part of its steps if one of the outer axes numbers parts."""
    w, found = Writer(target, gemm.unit.weights), gemm.found
    height = _rows(config)
    panels, outer = _panels(found)
    quads = ceildiv(found.width, 4)
    row_tiles, column_tiles = ceildiv(found.height, height), count(panels) * quads
    down = 1 if height == 1 else 8
    across = GROUP // down
    blocks_down, blocks_across = ceildiv(row_tiles, down), ceildiv(column_tiles, across)
    extents = [a.extent for a in outer]
    places = decompose(w, WORKGROUP, [*extents, blocks_down, blocks_across])
    for axis, place in zip(outer, places, strict=False):
        w.bind(axis, place)
    y, x = decompose(w, LOCAL, [as_expr(down), as_expr(across)])
    row_tile = w.let("y", kop("add", kop("mul", places[-2], i32(down)), y))
    column_tile = w.let("x", kop("add", kop("mul", places[-1], i32(across)), x))
    inside = kop(
        "and",
        kop("lt", row_tile, w.params.scalar(row_tiles)),
        kop("lt", column_tile, w.params.scalar(column_tiles)),
    )
    with w.when(inside):
        first_row = w.let("row", kop("mul", row_tile, i32(height)))
        group = _bind_tile(w, found, column_tile)
        _tile(w, found, None if part is None else part.span(w)).write(first_row, height, [group])
    grid = count(outer) * blocks_down * blocks_across
    return w.kernel(name, grid, GROUP, f"{describe(found)}, {config} per thread")


def group_kernel(name: str, gemm: Gemm, config: str, target: Target) -> Kernel:
    """A workgroup for four tiles of codes, each of which 16 threads share: slices of the steps.

    Their sums meet in workgroup memory, where the first slice adds them up.
    """
    w, found = Writer(target, gemm.unit.weights), gemm.found
    height, across = _rows(config), GROUP // _SLICES
    panels, outer = _panels(found)
    tiles = count(panels) * ceildiv(found.width, 4)
    row_tiles, blocks = ceildiv(found.height, height), ceildiv(tiles, across)
    places = decompose(w, WORKGROUP, [*(a.extent for a in outer), row_tiles, blocks])
    for axis, place in zip(outer, places, strict=False):
        w.bind(axis, place)
    part, x = decompose(w, LOCAL, [as_expr(_SLICES), as_expr(across)])
    number = w.let("x", kop("add", kop("mul", places[-1], i32(across)), x))
    group = _bind_tile(w, found, kop("min", number, w.params.scalar(tiles - 1)))
    tile = _tile(w, found, _slice(w, found.stage.reduce[0], part))
    sums = tile.sum(w.let("row", kop("mul", places[-2], i32(height))), height, [group])
    totals = [total for line in sums for total in line]
    dtype = totals[0].registers[0].dtype
    shared = w.array("parts", dtype, GROUP * len(totals), shared=True, lanes=4)
    place = w.let("p", kop("mul", LOCAL, i32(len(totals))))
    for k, total in enumerate(totals):
        w.emit(KStore(shared, plus(place, k), total.registers[0]))
    w.barrier()
    first = kop("lt", part, i32(1))
    with w.when(kop("and", first, kop("lt", number, w.params.scalar(tiles)))):
        with w.loop("s", i32(1), i32(_SLICES)) as other:
            at = kop("mul", kop("add", kop("mul", other, i32(across)), x), i32(len(totals)))
            begin = w.let("p", at)
            for k, total in enumerate(totals):
                total.merge(w, (KLoad(dtype, 4, shared, plus(begin, k)),))
        tile.store(sums)
    grid = count(outer) * row_tiles * blocks
    return w.kernel(name, grid, GROUP, f"{describe(found)}, {config}: {_SLICES} slices of steps")


def _slice(w: Writer, steps: Axis, part: KExpr) -> Span:
    """As many of the steps as of others, or one less."""

    def end(number: KExpr) -> KExpr:
        size = w.params.scalar(steps.extent)
        return w.let("k", kop("index_div", kop("mul", number, size), i32(_SLICES)))

    return Span(steps, end(part), end(plus(part, 1)))


def _panels(found: Contraction) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
    """The outer axes that count panels of codes, which are further columns, and the others."""
    right, left = found.right.axes(), found.left.axes()
    coded = found.word is not None
    panels = tuple(a for a in found.outer if coded and a in right and a not in left)
    return panels, tuple(a for a in found.outer if a not in panels)


def _bind_tile(w: Writer, found: Contraction, number: KExpr) -> Group:
    """The columns of a tile, its panel being bound."""
    panels, _ = _panels(found)
    extents = [*(a.extent for a in panels), ceildiv(found.width, 4)]
    *places, quad = decompose(w, number, extents)
    for axis, place in zip(panels, places, strict=True):
        w.bind(axis, place)
    first = w.let("col", kop("mul", quad, i32(4)))
    return Group(first, 4, whole=divisible(found.width, 4), aligned=True)


def _tile(w: Writer, found: Contraction, span: Span | None) -> Tile:
    if found.word is None:
        return Tile(w, Scalars(w), found, span=span)
    return CodedTile(w, Scalars(w), found, found.word, span)


GEMM = Strategy("gemm", match, configs, cost, emit)
