"""Contractions on the CPU: register tiles over packed weights and copied windows.

A tile keeps about eight vectors of sums, so that a step's loads are fewer than its products. Rows
share the right factor; where there are none, as in a depthwise convolution, lines of the image
take their place and share the left one. What a convolution would have to test is copied with its
padding first (staging.py); weights lie in the order in which tiles read them (packing.py), and
those of few bits are computed once for all rows (unpacking.py). An iteration is a run of columns of
one tile of rows; iterations that follow one another share it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import WORKGROUP, Kernel, KExpr, KSelect, i32, kop
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule.coded_tile import CodedTile
from edgerelax.schedule.contraction import Contraction, contraction, describe, is_contiguous
from edgerelax.schedule.cost import roofline, rounded, typical, work
from edgerelax.schedule.in_place import at_own_place
from edgerelax.schedule.packing import PANEL, Laid, pack_columns, pack_rows
from edgerelax.schedule.points import count, decompose
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.staging import copy_kernel, stage
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.target import Target
from edgerelax.schedule.tile import Group, Tile
from edgerelax.schedule.unpacking import Panels, unpack
from edgerelax.schedule.writer import Writer, plus
from edgerelax.sym import Axis, as_expr, ceildiv, divisible, proves_lt, upper_bound

_PANEL = 32768  # elements of the right factor that an iteration reads, at most: part of an L2
_PANELS = 4  # that a single row takes at once
_CODED_PANELS = 2  # of codes: each vector of columns has a sum of its own for a group
_WIDEST = {4: 8, 3: 8, 2: 16, 1: 32}
"""Columns of a tile by its rows. Sums, a step's right factors, a left one and a product take at
most 15 vector registers, what V8 has on x86: 6x8 needs 16 and is a third slower than 4x8."""


@dataclass(frozen=True, slots=True)
class Product:
    """A contraction and the unit it comes from."""

    unit: Unit
    found: Contraction


def match(unit: Unit, target: Target) -> Product | Reject:
    """A sum of products of two factors, on the CPU."""
    if target.is_gpu:
        return Reject("made for the CPU")
    if unit.stage is None:
        return Reject("not a single stage")
    found = contraction(unit.stage)
    if isinstance(found, Reject):
        return found
    if not found.rows:
        found = _with_lines(found)
    return Product(unit, found)


def _with_lines(found: Contraction) -> Contraction:
    """With an axis as rows along which only the right factor varies."""
    lines = [a for a in found.outer if a in found.right.axes() and a not in found.left.axes()]
    if not lines:
        return found
    rows = max(lines, key=lambda a: typical(a.extent))
    return replace(found, rows=(rows,), outer=tuple(a for a in found.outer if a is not rows))


def configs(product: Product, target: Target) -> tuple[str, ...]:
    """Tiles of rows x columns; `dot` has its vectors along the reduced axis."""
    found = product.found
    one = upper_bound(found.height) == 1
    if found.shares_left:
        return ("4x8", "4x4", "2x16", "1x32")
    laid = _pack(found, 1, product.unit.weights)
    if laid is None and _runs_along_steps(found):
        return ("1x8 dot",) if one else ("2x4 dot",)
    if one:
        return ("1x32",)
    if laid is not None and laid.found.lane is None:  # by columns
        return tuple(f"{h}x{PANEL}" for h in range(4, 1, -1))
    return tuple(f"{h}x{w}" for h, w in _WIDEST.items())


def _runs_along_steps(found: Contraction) -> bool:
    """Whether both factors adjoin along the innermost reduced axis, the right one only there."""
    inner = found.stage.reduce[-1]
    return (
        not found.guards
        and is_contiguous(found.left, inner)
        and is_contiguous(found.right, inner)
        and not is_contiguous(found.right, found.column)
        and not proves_lt(inner.extent, 8)
    )


def _size(config: str) -> tuple[int, int]:
    """Rows and columns of a tile."""
    rows, columns = config.split()[0].split("x")
    return int(rows), int(columns)


def cost(product: Product, config: str, target: Target) -> float:
    """Products done in vain at the edges, and loads per product."""
    found = product.found
    total = work(replace(found.stage, body=found.times(found.left, found.right)))  # guards go
    rows, columns = _size(config)
    idle = rounded(typical(found.height), rows)
    wide = typical(found.width)
    idle *= rounded(wide, columns if wide >= columns else 4)
    lefts = 1 if found.shares_left else rows
    vectors = columns // 4
    rights = vectors * (rows if found.shares_left else 1)
    if config.endswith("dot"):
        lefts, rights, vectors = rows, columns, columns
    reuse = 8.0 * rows * vectors / (lefts + rights)
    threads = total.points / (rows * columns)
    return roofline(total.scaled(idle), target, threads=threads, reuse=reuse)


def emit(product: Product, config: str, target: Target) -> Emitted:
    """One kernel, after the copy if there is one."""
    unit, found = product.unit, product.found
    height, widest = _size(config)
    dot = config.endswith("dot")
    kernels: list[Kernel] = []
    temps: tuple[Buffer, ...] = ()
    found = found if dot else _longest_innermost(found)
    staged = None if dot else stage(found, f"{unit.name}_window")
    if staged is not None:
        kernels.append(copy_kernel(staged, f"{unit.name}_copy", target, unit.weights))
        temps, found = (staged.copy,), staged.found
    laid = None if dot or found.shares_left else _pack(found, height, unit.weights)
    packed = () if laid is None else laid.packed
    read_only = unit.weights | {p.buffer.name for p in packed}
    if laid is not None:
        made = unpack(found, laid, f"{unit.name}_panels") if height > 1 else None
        if made is not None:
            panels = Panels(Writer(target, read_only), made, height)
            own = at_own_place(product.found.stage) if laid.apart else frozenset()
            kernels.append(panels.kernel(unit.name, config))
            return Emitted(tuple(kernels), (*temps, made.copy), packed, own)
        found = laid.found
        if not found.rows:
            found, widest = _with_lines(found), PANEL
            most = _PANELS if found.word is None else _CODED_PANELS
            height = min(most, found.height.as_int() or most)
    body = _Body(Writer(target, read_only), found, height, widest, dot)
    kernels.append(body.kernel(unit.name, None if laid is None else laid.panel, config))
    once = body.computes_once() and (laid is None or laid.apart)
    own = at_own_place(product.found.stage) if once else frozenset()
    return Emitted(tuple(kernels), temps, packed, own)


def _longest_innermost(found: Contraction) -> Contraction:
    """The steps in an order that gives the innermost loop the most of them."""
    axes = sorted(found.stage.reduce, key=lambda a: typical(a.extent))
    return replace(found, stage=replace(found.stage, reduce=tuple(axes)))


def _pack(found: Contraction, height: int, weights: frozenset[str]) -> Laid | None:
    """Packed rows where the left factor is a weight, else packed columns."""
    rows = pack_rows(found, height, weights)
    return pack_columns(found, weights) if rows is None else rows


class _Body:
    """Writes the kernel."""

    def __init__(self, w: Writer, found: Contraction, height: int, widest: int, dot: bool) -> None:
        self.w, self.found, self.height, self.widest, self.dot = w, found, height, widest, dot
        self.s = Scalars(w)
        self.first_row: KExpr = i32(0)

    def kernel(self, name: str, panel: Axis | None, config: str) -> Kernel:
        """The kernel; `panel` is bound here if it counts tiles of rows."""
        w, found = self.w, self.found
        chunk = as_expr(self._chunk())
        row_tiles = ceildiv(found.height, self.height)
        chunks = ceildiv(found.width, chunk)
        extents = [a.extent for a in found.outer]
        places = decompose(w, WORKGROUP, [*extents, chunks, row_tiles])
        for axis, place in zip(found.outer, places, strict=False):
            w.bind(axis, place)
        if found.lane is not None:
            assert panel is not None
            w.bind(panel, places[-1])
        self.first_row = w.let("row", kop("mul", places[-1], i32(self.height)))
        width = w.params.scalar(found.width)
        start = w.let("col", kop("mul", places[-2], w.params.scalar(chunk)))
        stop = w.let("end", kop("min", width, kop("add", start, w.params.scalar(chunk))))
        self._one_by_one(self._in_vectors(start, stop), stop)
        grid = count(found.outer) * chunks * row_tiles
        return w.kernel(name, grid, 1, f"{describe(found)}, {config}")

    def computes_once(self) -> bool:
        """Whether no columns are left over for groups that overlap others."""
        return divisible(self.found.width, self.widest)

    def _chunk(self) -> int:
        """Columns of an iteration: its rows stay in the first cache, its columns in the second."""
        steps = count(self.found.stage.reduce).as_int()
        tiles = 2 if steps is None else _PANEL // max(1, steps * self.widest)
        return self.widest * min(max(tiles, 1), 64)

    def _in_vectors(self, start: KExpr, stop: KExpr) -> KExpr:
        """Groups of four, several at once where there are enough; gives where the rest begins.

        The last groups overlap those before and compute some columns again: nothing is left over.
        """
        w = self.w
        for width in self._widths():
            length = w.let("n", kop("sub", stop, start))
            fits = w.let("fits", kop("ge", length, i32(width)))
            tiles = kop("index_div", kop("add", length, i32(width - 1)), i32(width))
            last = w.let("last", kop("sub", stop, i32(width)))
            none = i32(0)
            with w.loop("tile", none, KSelect(I32, 1, fits, tiles, none)) as tile:
                place = kop("add", start, kop("mul", tile, i32(width)))
                first = w.let("col", kop("min", place, last))
                self._tile(first, width)
            start = w.let("col", KSelect(I32, 1, fits, stop, start))
        return start

    def _widths(self) -> Iterator[int]:
        if self.dot:
            yield self.widest
            return
        width = self.widest
        while width > 4:
            yield width
            width = width // 8 * 4
        yield 4

    def _tile(self, first: KExpr, width: int) -> None:
        lanes = 1 if self.dot else 4
        whole = divisible(self.found.width, width) is True
        places = [self.w.let("col", plus(first, k)) for k in range(0, width, lanes)]
        groups = [Group(p, lanes, whole=True, aligned=whole) for p in places]
        self._write(groups)

    def _one_by_one(self, start: KExpr, stop: KExpr) -> None:
        if divisible(self.found.width, 4) is True and not self.dot:
            return
        with self.w.loop("col", start, stop) as first:
            self._write([Group(first, 1, whole=True)])

    def _write(self, groups: Sequence[Group]) -> None:
        word = self.found.word
        if word is None:
            tile = Tile(self.w, self.s, self.found, dot=self.dot)
        else:
            tile = CodedTile(self.w, self.s, self.found, word)
        tile.write(self.first_row, self.height, groups)


GEMM_CPU = Strategy("gemm_cpu", match, configs, cost, emit)
