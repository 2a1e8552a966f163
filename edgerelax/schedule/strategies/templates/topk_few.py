"""The few extremes of long rows, in one kernel: a row's elements lie in tiles, each with its best.

A round takes the best of all tiles' bests and then looks for the next one in its tile alone, so
that a row is read little more than once. On a GPU a workgroup has a row and each invocation a tile,
whose elements are as far apart as there are invocations; all of them search a tile again. On a CPU
tiles are runs, and a workspace keeps their bests.
"""

from collections.abc import Sequence

from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import LOCAL, WORKGROUP, KConst, Kernel, KExpr, KVar, i32, kop
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Value
from edgerelax.schedule.partials import GROUP, combine
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body
from edgerelax.schedule.strategies.templates.ordering import comes_before, index_of
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Expr, as_expr, ceildiv, proves_le

_FEW = 32
_SHORT = 1024  # elements of a row that is sorted as fast
_TILES = 256  # of a row on a CPU
_LONGEST = 1 << 20  # of a row on lavapipe, which ends a shader's loops after 65,535 turns


def fits(template: Template, target: Target) -> bool:
    """Whether few are wanted of rows that may be long."""
    (x,) = template.inputs
    k, length = as_expr(template.params["k"]).as_int(), x.dims[1]
    if k is None or k > _FEW or x.dtype.bits != 32 or proves_le(length, _SHORT):
        return False
    return not target.is_gpu or target.has_fast_barriers or proves_le(length, _LONGEST)


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """One kernel; on a CPU the workspace of the tiles."""
    few = _Few(template, Body(target, weights))
    if target.is_gpu:
        threads = target.workgroup_size if target.has_fast_barriers else GROUP
        return Emitted((few.by_threads(name, threads),))
    return Emitted((few.by_tiles(name),), few.bests)


class _Best:
    """The best element so far, a value and its place, or none: place -1."""

    def __init__(self, registers: tuple[KVar, ...], largest: bool) -> None:
        self.registers, self.largest = registers, largest

    def over(self, registers: tuple[KVar, ...]) -> "_Best":
        """The same with its state in other registers."""
        return _Best(registers, self.largest)

    def merge(self, w: Writer, other: tuple[KExpr, ...]) -> None:
        """Take the best of another part, if it has one."""
        value, at = (w.let("o", part) for part in other)
        self.take(w, value, at, kop("ge", at, i32(0)))

    def take(self, w: Writer, value: KExpr, at: KExpr, allowed: KExpr | None = None) -> None:
        """Take an element, if it is better and allowed."""
        best, place = self.registers
        better = kop("lt", place, i32(0))
        better = kop("or", better, comes_before(value, at, best, place, largest=self.largest))
        with w.when(better if allowed is None else kop("and", allowed, better)):
            w.assign(best, value)
            w.assign(place, at)


class _Few:
    """Writes the kernel."""

    def __init__(self, template: Template, body: Body) -> None:
        self.body, self.w, self.s = body, body.w, body.s
        (self.x,), (self.values, self.indices) = template.inputs, template.outputs
        self.rows, self.length = self.x.dims
        self.count = as_expr(template.params["k"])
        self.largest = bool(template.params["largest"])
        self.row = body.bind("row", self.rows, WORKGROUP)
        tiles = as_expr(_TILES)
        self.bests = (
            Buffer(f"{self.values.name}_bests", self.x.dtype, (self.rows, tiles)),
            Buffer(f"{self.values.name}_places", I32, (self.rows, tiles)),
        )

    def by_threads(self, name: str, threads: int) -> Kernel:
        """A workgroup to a row: element i belongs to tile i % threads."""
        w = self.w
        best = self._none()
        self._search(best, LOCAL, w.params.scalar(self.length), threads)
        with w.loop("k", i32(0), w.params.scalar(self.count)) as k:
            top = combine(w, best, threads)
            with w.when(kop("eq", LOCAL, i32(0))):
                self._put(k, top)
            tile = w.let(
                "tile", kop("index_mod", kop("max", top.registers[1], i32(0)), i32(threads))
            )
            start = w.let("b", kop("add", tile, kop("mul", LOCAL, i32(threads))))
            again = self._none()
            self._search(again, start, w.params.scalar(self.length), threads * threads, top)
            following = combine(w, again, threads)
            with w.when(kop("eq", LOCAL, tile)):
                self._become(best, following.registers)
        return w.kernel(name, self.rows, threads, "few extremes of long rows")

    def by_tiles(self, name: str) -> Kernel:
        """An iteration to a row: element i belongs to tile i // size."""
        w = self.w
        size = w.params.scalar(ceildiv(self.length, _TILES))

        def search(tile: KExpr, after: _Best | None = None) -> None:
            best = self._none()
            start = w.let("b", kop("mul", tile, size))
            stop = w.let("b", kop("min", kop("add", start, size), w.params.scalar(self.length)))
            self._search(best, start, stop, 1, after)
            for buffer, register in zip(self.bests, best.registers, strict=True):
                self.body.store(
                    buffer, (self.row, index_of(self.body, tile)), self.body.held(register)
                )

        with w.loop("tile", i32(0), i32(_TILES)) as tile:
            search(tile)
        with w.loop("k", i32(0), w.params.scalar(self.count)) as k:
            top = self._none()
            with w.loop("tile", i32(0), i32(_TILES)) as tile:
                at = index_of(self.body, tile)
                top.merge(w, tuple(self.s.value(b[self.row, at]) for b in self.bests))
            self._put(k, top)
            search(w.let("tile", kop("index_div", kop("max", top.registers[1], i32(0)), size)), top)
        return w.kernel(name, self.rows, 1, "few extremes of long rows")

    def _none(self) -> _Best:
        nothing = KConst(self.x.dtype, 1, 0.0 if self.x.dtype.is_float else 0)
        return _Best((self.w.var("best", nothing), self.w.var("at", i32(-1))), self.largest)

    def _search(
        self, best: _Best, start: KExpr, stop: KExpr, step: int, after: _Best | None = None
    ) -> None:
        """Every step-th element from `start`; of those only the ones that come after another."""
        w = self.w
        with w.loop("i", start, stop, step=step) as i:
            value = w.let("x", self.s.value(self.x[self.row, self.body.bind("i", self.length, i)]))
            later = None
            if after is not None:
                last, at = after.registers
                later = comes_before(last, at, value, i, largest=self.largest)
            best.take(w, value, i, later)

    def _become(self, best: _Best, registers: Sequence[KVar]) -> None:
        for own, new in zip(best.registers, registers, strict=True):
            self.w.assign(own, new)

    def _put(self, k: KExpr, top: _Best) -> None:
        body = self.body
        at: tuple[Expr, ...] = (as_expr(self.row), index_of(body, k))
        place = index_of(body, kop("max", top.registers[1], i32(0)))
        body.store(self.values, at, self.body.held(top.registers[0]))
        body.store(self.indices, at, Value(place))
