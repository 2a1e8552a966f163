"""Contractions in register tiles: products and convolutions of any strides, batches, epilogues.

GPU: a thread owns 1, 4 or 8 rows by four columns, 64 threads a group laid out over the output's
tiles. CPU: an iteration owns up to four rows by a chunk of columns, in groups of eight, four and
one. A convolution tests its padding once per row and tap; columns whose windows touch the padding
on the left or right are computed one by one, the others in vectors without tests.
"""

from dataclasses import dataclass

from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import LOCAL, WORKGROUP, Kernel, KExpr, KSelect, i32, kop
from edgerelax.ir.scalar import Op, Scalar, Value
from edgerelax.schedule.contraction import Contraction, contraction, is_contiguous
from edgerelax.schedule.cost import Work, roofline, typical, work
from edgerelax.schedule.index import stride_of
from edgerelax.schedule.points import count, decompose
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.pointwise import is_sub_word
from edgerelax.schedule.target import Target
from edgerelax.schedule.tile import Group, Tile
from edgerelax.schedule.writer import Writer, plus
from edgerelax.sym import (
    Axis,
    Expr,
    as_expr,
    bounds,
    ceildiv,
    divisible,
    maximum,
    minimum,
    product,
    prove_lt,
    upper_bound,
)

GROUP = 64
_CHUNK = 16  # columns of a CPU iteration


@dataclass(frozen=True, slots=True)
class Gemm:
    """A contraction and the unit it comes from."""

    unit: Unit
    found: Contraction


def match(unit: Unit, target: Target) -> Gemm | Reject:
    """A sum of products of two factors."""
    if unit.stage is None:
        return Reject("not a single stage")
    found = contraction(unit.stage)
    if isinstance(found, Reject):
        return found
    packed = target.is_gpu and is_sub_word(found.stage.out.dtype)
    if packed and not found.stores_vectors:
        return Reject("its outputs share words with others")
    return Gemm(unit, found)


def configs(gemm: Gemm, target: Target) -> tuple[str, ...]:
    """By how many rows there can be."""
    one = upper_bound(gemm.found.height) == 1
    if target.is_gpu:
        if one:
            return ("1x4",)
        # Scalar stores of eight rows are too much text: software adapters compile it for seconds.
        return ("4x4", "8x4") if gemm.found.stores_vectors else ("4x4",)
    if runs_along_steps(gemm.found):
        return ("1x8 dot",) if one else ("2x4 dot",)
    if one:
        return ("1x16",) if gemm.found.is_windowed else ("1x32",)
    return ("4x8",)


def runs_along_steps(found: Contraction) -> bool:
    """Whether both factors adjoin along the innermost reduced axis, the right one only there."""
    inner = found.stage.reduce[-1]
    return (
        not found.guards
        and is_contiguous(found.left, inner)
        and is_contiguous(found.right, inner)
        and not is_contiguous(found.right, found.column)
        and not prove_lt(inner.extent, 8)
    )


def _size(config: str) -> tuple[int, int]:
    """Rows and columns of a tile."""
    rows, columns = config.split()[0].split("x")
    return int(rows), int(columns)


def cost(gemm: Gemm, config: str, target: Target) -> float:
    """A value that is loaded serves a row or a column of the tile."""
    found = gemm.found
    total = work(found.stage)
    rows, columns = _size(config)
    tall = typical(found.height)
    idle = rows * -(-tall // rows) / max(tall, 1.0)
    wide = typical(found.width)
    idle *= 4 * -(-wide // 4) / max(wide, 1.0)
    if config.endswith("dot"):
        reuse = 8.0 * rows * columns / (rows + columns)
    else:
        groups = columns // 4
        splats = rows / 4 if target.is_gpu else rows / 2
        each = 1 if is_contiguous(found.right, found.column) else 4
        reuse = 8.0 * rows * groups / (splats + groups * each)
    threads = total.points / (rows * columns)
    return roofline(_scaled(total, idle), target, threads=threads, reuse=reuse)


def _scaled(total: Work, by: float) -> Work:
    return Work(total.points, total.steps, total.bytes, total.flops * by)


def emit(gemm: Gemm, config: str, target: Target) -> Emitted:
    """One kernel."""
    kernel = _emit_gpu if target.is_gpu else _emit_cpu
    return Emitted((kernel(gemm, config, target),))


def _emit_gpu(gemm: Gemm, config: str, target: Target) -> Kernel:
    w, found = Writer(target, gemm.unit.weights), gemm.found
    s = Scalars(w)
    height, _ = _size(config)
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
        Tile(w, s, found).write(first_row, height, [group])
    grid = count(found.outer) * blocks_down * blocks_across
    return w.kernel(gemm.unit.name, grid, GROUP, f"{_what(found)}, {config} per thread")


def _what(found: Contraction) -> str:
    return "windowed contraction" if found.is_windowed else "contraction"


# CPU


def _emit_cpu(gemm: Gemm, config: str, target: Target) -> Kernel:
    w, found = Writer(target, gemm.unit.weights), gemm.found
    s = Scalars(w)
    height, widest = _size(config)
    inner = _interior(found)
    split = inner is not None
    chunk = found.width if split else as_expr(max(_CHUNK, widest))
    chunks, row_tiles = ceildiv(found.width, chunk), ceildiv(found.height, height)
    if split:
        chunks = as_expr(1)
    extents = [a.extent for a in found.outer]
    places = decompose(w, WORKGROUP, [*extents, chunks, row_tiles])
    for axis, place in zip(found.outer, places, strict=False):
        w.bind(axis, place)
    first_row = w.let("row", kop("mul", places[-1], i32(height)))
    width = w.params.scalar(found.width)
    columns = _Columns(w, s, found, first_row, height, widest, config.endswith("dot"))
    if inner is not None:
        low, high, free = inner
        start, stop = w.params.scalar(low), w.params.scalar(high)
        columns.one_by_one(i32(0), start)
        rest = columns.in_vectors(start, stop, free)
        columns.one_by_one(rest, width)
    else:
        start = w.let("col", kop("mul", places[-2], w.params.scalar(chunk)))
        stop = w.let("end", kop("min", width, kop("add", start, w.params.scalar(chunk))))
        columns.one_by_one(columns.in_vectors(start, stop, ()), stop)
    grid = count(found.outer) * chunks * row_tiles
    return w.kernel(gemm.unit.name, grid, 1, f"{_what(found)}, {config}")


@dataclass(frozen=True, slots=True)
class _Columns:
    """Runs of columns of one tile of rows."""

    w: Writer
    s: Scalars
    found: Contraction
    first_row: KExpr
    height: int
    widest: int
    dot: bool

    def in_vectors(self, start: KExpr, stop: KExpr, free: tuple[Scalar, ...]) -> KExpr:
        """Groups of four, several at once, where there are enough; gives where the rest begins.

        The last groups overlap those before and compute some columns again: nothing is left over.
        """
        w = self.w
        lanes = 1 if self.dot else 4
        for width in (self.widest,) if self.dot else (self.widest, 4):
            length = w.let("n", kop("sub", stop, start))
            fits = w.let("fits", kop("ge", length, i32(width)))
            tiles = kop("index_div", kop("add", length, i32(width - 1)), i32(width))
            last = w.let("last", kop("sub", stop, i32(width)))
            none = i32(0)
            with w.loop("tile", none, KSelect(I32, 1, fits, tiles, none)) as tile:
                place = kop("add", start, kop("mul", tile, i32(width)))
                first = w.let("col", kop("min", place, last))
                firsts = [w.let("col", plus(first, k)) for k in range(0, width, lanes)]
                whole = divisible(self.found.width, width) and not self.found.is_windowed
                groups = [Group(f, lanes, whole=True, aligned=whole) for f in firsts]
                self._tile(free).write(self.first_row, self.height, groups)
            start = w.let("col", KSelect(I32, 1, fits, stop, start))
        return start

    def one_by_one(self, start: KExpr, stop: KExpr) -> None:
        """Every column by itself, with all its guards."""
        with self.w.loop("col", start, stop) as first:
            self._tile(()).write(self.first_row, self.height, [Group(first, 1, whole=True)])

    def _tile(self, free: tuple[Scalar, ...]) -> Tile:
        return Tile(self.w, self.s, self.found, free_guards=free, dot=self.dot)


def _interior(found: Contraction) -> tuple[Expr, Expr, tuple[Scalar, ...]] | None:
    """Columns [low, high) for which guards on columns always hold, and these guards.

    None if there are none. Guards of which that cannot be told stay, as masks on vectors.
    """
    guards = tuple(g for g in found.guards if found.column in g.axes())
    if not guards:
        return None
    low, high = as_expr(0), found.width
    settled = []
    for guard in guards:
        limits = _limits(guard, found.column, set(found.stage.reduce))
        if limits is not None:
            low, high = maximum(low, limits[0]), minimum(high, limits[1] or high)
            settled.append(guard)
    low = minimum(low, found.width)
    return low, minimum(maximum(high, low), found.width), tuple(settled)


def _limits(guard: Scalar, column: Axis, steps: set[Axis]) -> tuple[Expr, Expr | None] | None:
    """Columns for which a comparison holds at every step: from the first, below the second."""
    if not isinstance(guard, Op) or guard.fn not in ("ge", "lt"):
        return None
    a, b = guard.operands
    if not (isinstance(a, Value) and isinstance(b, Value)):
        return None
    room = a.expr - b.expr if guard.fn == "ge" else b.expr - a.expr - 1  # holds where room >= 0
    stride = stride_of(room, column)
    pace = None if stride is None else stride.as_int()
    if not pace:
        return None
    least = _least(room - as_expr(column) * pace, steps)
    if least is None:
        return None
    if pace > 0:
        return ceildiv(-least, pace), None
    return as_expr(0), least // -pace + 1


def _least(expr: Expr, steps: set[Axis]) -> Expr | None:
    """A bound below an expression that no axis moves: each step at the end that makes it least."""
    for axis in expr.axes() & steps:
        stride = stride_of(expr, axis)
        pace = None if stride is None else stride.as_int()
        if pace is not None:
            expr = expr.subs({axis: axis.extent - 1 if pace < 0 else as_expr(0)})
    moving = [product(atoms) * k for k, atoms in expr.terms() if product(atoms).axes()]
    rest = sum(moving, as_expr(0))
    least = bounds(rest)[0]
    return None if least is None else expr - rest + least


GEMM = Strategy("gemm", match, configs, cost, emit)
