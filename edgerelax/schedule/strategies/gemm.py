"""Contractions in register tiles: products and convolutions of any strides, batches, epilogues.

On the GPU: a thread owns 1, 4 or 8 rows by four columns, 64 threads a group laid out over the
output's tiles. A convolution tests its padding once per row and tap.
"""

from dataclasses import dataclass

from edgerelax.ir.kernel import LOCAL, WORKGROUP, Kernel, KExpr, i32, kop
from edgerelax.schedule.contraction import Contraction, contraction, describe, is_contiguous
from edgerelax.schedule.cost import Work, roofline, rounded, typical, work
from edgerelax.schedule.in_place import at_own_place
from edgerelax.schedule.points import count, decompose
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.pointwise import is_sub_word
from edgerelax.schedule.target import Target
from edgerelax.schedule.tile import Group, Span, Tile
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Axis, as_expr, ceildiv, divisible, upper_bound

GROUP = 64


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
    """By how many rows there can be."""
    if upper_bound(gemm.found.height) == 1:
        return ("1x4",)
    # Scalar stores of eight rows are too much text: software adapters compile it for seconds.
    return ("4x4", "8x4") if gemm.found.stores_vectors else ("4x4",)


def cost(gemm: Gemm, config: str, target: Target) -> float:
    """A value that is loaded serves a row or a column of the tile."""
    return tile_cost(gemm.found, config, work(gemm.found.stage), target, threads=1.0)


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
    kernel = tile_kernel(gemm.unit.name, gemm, config, target)
    return Emitted((kernel,), in_place=at_own_place(gemm.found.stage))


def tile_kernel(
    name: str, gemm: Gemm, config: str, target: Target, part: Part | None = None
) -> Kernel:
    """A thread for each tile; of part of its steps if one of the outer axes numbers parts."""
    w, found = Writer(target, gemm.unit.weights), gemm.found
    s = Scalars(w)
    height = _rows(config)
    row_tiles, column_tiles = ceildiv(found.height, height), ceildiv(found.width, 4)
    down = 1 if height == 1 else 8
    across = GROUP // down
    blocks_down, blocks_across = ceildiv(row_tiles, down), ceildiv(column_tiles, across)
    extents = [a.extent for a in found.outer]
    places = decompose(w, WORKGROUP, [*extents, blocks_down, blocks_across])
    for axis, place in zip(found.outer, places, strict=False):
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
        first = w.let("col", kop("mul", column_tile, i32(4)))
        group = Group(first, 4, whole=divisible(found.width, 4), aligned=True)
        span = None if part is None else part.span(w)
        Tile(w, s, found, span=span).write(first_row, height, [group])
    grid = count(found.outer) * blocks_down * blocks_across
    return w.kernel(name, grid, GROUP, f"{describe(found)}, {config} per thread")


GEMM = Strategy("gemm", match, configs, cost, emit)
