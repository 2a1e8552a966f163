"""Rows sorted on a GPU: tiles first, then pairs of sorted runs become one, pass by pass.

A tile is sorted by counting, for each element, those that come before it; where barriers are fast
and rows longer, by a bitonic network in workgroup memory. A pass gives every element a thread: its
place in the merged run is its place in its own run plus the number of elements of the sibling that
come before it, found by halving. Of each run only the first k elements live on. A workspace holds
the order as indices, [row, 2, n]: passes read one half and write the other.

No loop of a thread is longer than a tile, however long the row is. Passes are one kernel, launched
with other scalars each time; those that a row is too short for are dispatched over nothing.
"""

from dataclasses import dataclass, replace

from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    KConst,
    Kernel,
    KExpr,
    KLoad,
    KSelect,
    KStore,
    i32,
    kop,
)
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Value
from edgerelax.schedule.points import decompose
from edgerelax.schedule.reduce import convert
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body, axes_over, each
from edgerelax.schedule.strategies.templates.ordering import comes_before, index_of
from edgerelax.schedule.target import Target
from edgerelax.schedule.widen import wide_dtype
from edgerelax.sym import (
    Atom,
    Axis,
    Expr,
    ExprLike,
    Symbol,
    as_expr,
    ceildiv,
    lt,
    minimum,
    select,
    upper_bound,
)

_COUNTED = 64  # elements of a tile that is sorted by counting
_TILE = 1024  # elements of one that a workgroup sorts
_THREADS = 256
_LONGEST = 1 << 24  # elements of a row whose workspace can be bound

# What passes differ in.
_WIDTH = Symbol("sort.width", 1, _LONGEST)  # the length of runs before it
_SOURCE = Symbol("sort.source", 0, 1)  # the half of the workspace that it reads
_HALVINGS = Symbol("sort.halvings", 1, _LONGEST.bit_length())  # until a place in a run is found


@dataclass(frozen=True, slots=True)
class Sort:
    """A template's operands and how its rows are cut."""

    x: Buffer
    values: Buffer
    indices: Buffer
    k: Expr
    largest: bool
    tile: int
    counted: bool
    order: Buffer

    @classmethod
    def of(cls, template: Template, target: Target) -> "Sort":
        (x,), (values, indices) = template.inputs, template.outputs
        rows, length = x.dims
        most = upper_bound(length)
        few = most is not None and most <= _COUNTED
        counted = few or not target.has_fast_barriers or x.dtype.bits > 32
        tile = _COUNTED if counted else _TILE
        if most is not None and not counted:
            tile = min(tile, 1 << (most - 1).bit_length())
        order = Buffer(f"{values.name}_order", I32, (rows, as_expr(2), length))
        k, largest = as_expr(template.params["k"]), bool(template.params["largest"])
        return cls(x, values, indices, k, largest, tile, counted, order)

    @property
    def rows(self) -> Expr:
        return self.x.dims[0]

    @property
    def length(self) -> Expr:
        return self.x.dims[1]

    @property
    def widths(self) -> list[int]:
        """The length of runs before each pass that there may be."""
        most = upper_bound(self.length)
        longest = _LONGEST if most is None else min(most, _LONGEST)
        widths = []
        width = self.tile
        while width < longest:
            widths.append(width)
            width *= 2
        return widths

    def before(self, a: KExpr, i: KExpr, b: KExpr, j: KExpr) -> KExpr:
        return comes_before(a, i, b, j, largest=self.largest)


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """Kernels for the tiles, for each pass and for the results; just the first if it can."""
    sort = Sort.of(template, target)
    tiles = _by_counting if sort.counted else _by_network
    if not sort.widths:
        return Emitted((tiles(sort, name, weights, target),))
    merge = _merge(sort, f"{name}_merge", weights, target)
    kernels = (
        tiles(sort, f"{name}_tiles", weights, target),
        *(_pass(merge, width, number % 2) for number, width in enumerate(sort.widths)),
        _results(sort, name, weights, target),
    )
    return Emitted(kernels, (sort.order,))


def _put(body: Body, sort: Sort, row: Axis, run: Expr, place: KExpr, element: KExpr) -> None:
    """An element's place in its tile: in the results, if there is just one tile."""
    at = index_of(body, place)
    if sort.widths:
        body.store(sort.order, (row, 0, run + at), body.held(element))
    else:
        _result(body, sort, row, at, element)


def _result(body: Body, sort: Sort, row: Axis, at: Expr, element: KExpr) -> None:
    place = index_of(body, element)
    body.store(sort.values, (row, at), sort.x[row, place])
    body.store(sort.indices, (row, at), Value(place))


# tiles


def _by_counting(sort: Sort, name: str, weights: frozenset[str], target: Target) -> Kernel:
    """A thread per element, which looks at all of its tile."""
    row, column = axes_over(sort.x.dims, "i")

    def element(body: Body) -> None:
        w, s = body.w, body.s
        length = w.params.scalar(sort.length)
        own, here = w.let("x", s.value(sort.x[row, column])), s.index.value(as_expr(column))
        tile = column // sort.tile * sort.tile if sort.widths else as_expr(0)
        start = w.let("t", s.index.value(tile))
        stop = w.let("t", kop("min", kop("add", start, i32(sort.tile)), length))
        rank = w.var("rank", i32(0))
        with w.loop("j", start, stop) as j:
            other = body.bind("j", sort.length, j)
            value = w.let("x", s.value(sort.x[row, other]))
            with w.when(sort.before(value, j, own, here)):
                w.assign(rank, kop("add", rank, i32(1)))
        with w.when(kop("lt", rank, w.params.scalar(sort.k))):
            _put(body, sort, row, tile, rank, here)

    return each(name, target, weights, (row, column), element, "sort: rank in each tile")


def _by_network(sort: Sort, name: str, weights: frozenset[str], target: Target) -> Kernel:
    """A workgroup per tile."""
    body = Body(target, weights)
    tiles = ceildiv(sort.length, sort.tile)
    (row, tile) = axes_over((sort.rows, tiles), "i")
    for axis, place in zip(
        (row, tile), decompose(body.w, WORKGROUP, [sort.rows, tiles]), strict=True
    ):
        body.w.bind(axis, place)
    _Network(body, sort, row, tile.expr * sort.tile).write()
    threads = min(_THREADS, sort.tile // 2)
    return body.w.kernel(name, sort.rows * tiles, threads, f"sort: tiles of {sort.tile}, bitonic")


class _Network:
    """Sorts a tile; places past the row's end come last."""

    def __init__(self, body: Body, sort: Sort, row: Axis, first: Expr) -> None:
        self.body, self.sort, self.row, self.first = body, sort, row, first
        self.w, self.s = body.w, body.s
        self.threads = min(_THREADS, sort.tile // 2)
        self.dtype = wide_dtype(sort.x.dtype)
        self.keys = self.w.array("keys", self.dtype, sort.tile, shared=True)
        self.ids = self.w.array("ids", I32, sort.tile, shared=True)
        self.length = self.w.params.scalar(sort.length)

    def write(self) -> None:
        w, tile = self.w, self.sort.tile
        with w.loop("e", LOCAL, i32(tile), step=self.threads) as e:
            self._fill(e)
        levels = tile.bit_length() - 1
        with w.loop("level", i32(1), i32(levels + 1)) as level, w.loop("s", i32(0), level) as step:
            shift = w.let("shift", kop("sub", kop("sub", level, i32(1)), step))
            w.barrier()
            with w.loop("p", LOCAL, i32(tile // 2), step=self.threads) as pair:
                self._exchange(pair, level, shift)
        w.barrier()
        with w.loop("e", LOCAL, i32(tile), step=self.threads) as e:
            element = w.let("id", KLoad(I32, 1, self.ids, e))
            kept = kop("lt", e, w.params.scalar(self.sort.k))
            with w.when(kop("and", kept, kop("lt", element, self.length))):
                _put(self.body, self.sort, self.row, self.first, e, element)

    def _fill(self, e: KExpr) -> None:
        w = self.w
        at = w.let("at", kop("add", self.s.index.value(self.first), e))
        w.emit(KStore(self.ids, e, at))
        present = kop("lt", at, self.length)

        def fill() -> None:
            column = self.body.bind("c", self.sort.length, at)
            key = convert(self.s.value(self.sort.x[self.row, column]), self.dtype)
            w.emit(KStore(self.keys, e, key))

        nothing = KConst(self.dtype, 1, 0.0 if self.dtype.is_float else 0)
        w.branch(present, fill, lambda: w.emit(KStore(self.keys, e, nothing)))

    def _exchange(self, pair: KExpr, level: KExpr, shift: KExpr) -> None:
        """Put a pair of places in order, rising or falling by the part of the tile it is in."""
        w = self.w
        stride = w.let("stride", kop("shl", i32(1), shift))
        block = kop("shl", kop("shr", pair, shift), kop("add", shift, i32(1)))
        low = w.let("a", kop("add", block, kop("bit_and", pair, kop("sub", stride, i32(1)))))
        high = w.let("b", kop("add", low, stride))
        falls = kop("eq", kop("bit_and", kop("shr", low, level), i32(1)), i32(1))
        first, second = (
            (
                w.let("x", KLoad(self.dtype, 1, self.keys, at)),
                w.let("i", KLoad(I32, 1, self.ids, at)),
            )
            for at in (low, high)
        )
        rises = w.let("rises", self._before(*first, *second))
        with w.when(kop("eq", rises, falls)):
            for array, k in ((self.keys, 0), (self.ids, 1)):
                w.emit(KStore(array, low, second[k]))
                w.emit(KStore(array, high, first[k]))

    def _before(self, a: KExpr, i: KExpr, b: KExpr, j: KExpr) -> KExpr:
        """By value where both exist, else by place: what exists first."""
        exist = kop("lt", kop("max", i, j), self.length)
        return KSelect(exist.dtype, 1, exist, self.sort.before(a, i, b, j), kop("lt", i, j))


# passes


def _pass(merge: Kernel, width: int, source: int) -> Kernel:
    """The launch of the merging kernel for runs of a width."""
    values: dict[Atom, ExprLike] = {_WIDTH: width, _SOURCE: source, _HALVINGS: width.bit_length()}
    scalars = tuple((name, expr.subs(values)) for name, expr in merge.scalars)
    return replace(merge, grid=merge.grid.subs(values), scalars=scalars)


def _merge(sort: Sort, name: str, weights: frozenset[str], target: Target) -> Kernel:
    """A thread per living element of the runs."""
    width, source = _WIDTH.expr, _SOURCE.expr
    live = minimum(width, sort.k)
    runs = select(lt(width, sort.length), ceildiv(sort.length, width), 0)
    row, run, number = axes_over((sort.rows, runs, live), "i")

    def element(body: Body) -> None:
        w, s = body.w, body.s
        exists = kop("lt", s.index.value(run * width + number), w.params.scalar(sort.length))
        with w.when(exists):
            place(body)

    def place(body: Body) -> None:
        w, s = body.w, body.s
        pair = run // 2
        sibling = (pair * 4 + 1 - run) * width
        own = w.let("id", s.value(sort.order[row, source, run * width + number]))
        value = w.let("x", s.value(sort.x[row, index_of(body, own)]))
        left = w.params.scalar(sort.length)
        present = kop("sub", left, s.index.value(sibling))
        low = w.var("low", i32(0))
        high = w.var("high", kop("max", i32(0), kop("min", present, w.params.scalar(live))))
        halvings = w.params.scalar(_HALVINGS.expr)
        with w.loop("h", i32(0), halvings), w.when(kop("lt", low, high)):
            middle = w.let("m", kop("shr", kop("add", low, high), i32(1)))
            at = sibling + index_of(body, middle)
            other = w.let("id", s.value(sort.order[row, source, at]))
            compared = w.let("x", s.value(sort.x[row, index_of(body, other)]))
            w.branch(
                sort.before(compared, other, value, own),
                lambda: w.assign(low, kop("add", middle, i32(1))),
                lambda: w.assign(high, middle),
            )
        to = w.let("to", kop("add", s.index.value(as_expr(number)), low))
        with w.when(kop("lt", to, w.params.scalar(sort.k))):
            merged = pair * (2 * width) + index_of(body, to)
            body.store(sort.order, (row, 1 - source, merged), body.held(own))

    return each(name, target, weights, (row, run, number), element, "sort: pairs of runs merged")


def _results(sort: Sort, name: str, weights: frozenset[str], target: Target) -> Kernel:
    """The first k of the half that the last pass wrote."""
    row, at = axes_over((sort.rows, sort.k), "i")
    passes = sum((select(lt(w, sort.length), 1, 0) for w in sort.widths), as_expr(0))

    def element(body: Body) -> None:
        found = body.w.let("id", body.s.value(sort.order[row, passes % 2, at]))
        _result(body, sort, row, as_expr(at), found)

    return each(name, target, weights, (row, at), element, "sort: results")
