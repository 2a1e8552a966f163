"""Attention of many queries on the CPU: blocks of queries meet tiles of keys in workspaces.

A tile's keys are copied with their columns as rows and its values as they are, so that both the
scores and the sums of values are products in register tiles, four rows by eight columns. Between
them a query's scores become weights, by the largest score so far; where that grows, what was summed
is scaled down. An iteration does a run of blocks one after the other in one place: all that it
needs stays in a cache.
"""

from collections.abc import Callable, Sequence

from edgerelax.ir.dtypes import F32
from edgerelax.ir.kernel import Kernel, KExpr, KLoad, KVar, KVec, f32, i32, kop
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule.index import flat_index
from edgerelax.schedule.points import count, decompose
from edgerelax.schedule.reduce import lanes_of, splat
from edgerelax.schedule.runs import Runs
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.attention import (
    LOWEST,
    Piece,
    Walk,
    base_of,
    folded,
    parts_of,
)
from edgerelax.schedule.strategies.templates.attention_problem import Problem
from edgerelax.schedule.strategies.templates.grids import Body
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import plus
from edgerelax.sym import Axis, as_expr, ceildiv, divisible, proves_le

_QUERIES = 32  # of a block
_KEYS = 32  # of a tile
_ROWS, _COLUMNS = 4, 8  # of a register tile
_ORIGIN = as_expr(0), as_expr(0)


def fits(template: Template, target: Target) -> bool:
    """Whether there may be more queries than a walk over the keys has registers for, on the CPU."""
    return not target.is_gpu and not proves_le(Problem.of(template).queries, _ROWS)


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """One kernel and its workspaces."""
    blocks = Blocks(Problem.of(template), Body(target, weights))
    return Emitted((blocks.kernel(name),), blocks.workspaces)


class Blocks(Walk):
    """An iteration for a run of blocks of queries."""

    def __init__(self, problem: Problem, body: Body) -> None:
        super().__init__(problem, body, _QUERIES)
        self.blocks = ceildiv(problem.queries, _QUERIES)
        self.runs = Runs.of(count(problem.batch) * self.blocks)
        out = problem.template.outputs[0].name
        depth = -(-problem.depth // _COLUMNS) * _COLUMNS

        def workspace(name: str, *dims: int) -> Buffer:
            sizes = (self.runs.slot.extent, *map(as_expr, dims))
            return Buffer(f"{out}_{name}", F32, sizes)

        self.turned = workspace("keys", problem.width, _KEYS)
        self.values = workspace("values", _KEYS, depth)
        self.scores = workspace("scores", _QUERIES, _KEYS)
        self.sums = workspace("sums", _QUERIES, depth)
        self.states = workspace("states", _QUERIES, 2)
        self.depth = depth

    @property
    def workspaces(self) -> tuple[Buffer, ...]:
        return (self.turned, self.values, self.scores, self.sums, self.states)

    def kernel(self, name: str) -> Kernel:
        problem, w = self.problem, self.w
        start, stop = self.runs.bind(w)
        with w.loop("block", start, stop) as number:
            extents = [*(a.extent for a in problem.batch), self.blocks]
            *outer, block = decompose(w, number, extents)
            for axis, place in zip(problem.batch, outer, strict=True):
                w.bind(axis, place)
            first = w.let("q", kop("mul", block, i32(_QUERIES)))
            left = kop("sub", w.params.scalar(problem.queries), first)
            self._block(first, w.let("n", kop("min", i32(_QUERIES), left)))
        return w.kernel(name, self.runs.slot.extent, 1, "attention, blocks of queries")

    def _block(self, first: KExpr, rows: KExpr) -> None:
        """`rows` queries from `first`: their start, all tiles of keys, the store."""
        w = self.w
        keys = w.params.scalar(self.problem.keys)
        self._clear()
        with w.loop("tile", i32(0), keys, step=_KEYS) as tile:
            number = w.let("n", kop("min", i32(_KEYS), kop("sub", keys, tile)))
            self._copy_keys(tile, number)
            self._copy_values(tile, number)
            self._multiply_keys(first, rows, number)
            with w.loop("row", i32(0), rows) as row:
                self._weigh_row(w.let("q", kop("add", first, row)), row, tile, number)
            self._add_values(rows, number)
        with w.loop("row", i32(0), rows) as row:
            self._store_row(w.let("q", kop("add", first, row)), row)

    def _clear(self) -> None:
        with self.w.loop("row", i32(0), i32(_QUERIES)) as row:
            self._write(self.states, (row, i32(0)), f32(LOWEST))
            self._write(self.states, (row, i32(1)), f32(0.0))
            with self.w.loop("d", i32(0), i32(self.depth), step=4) as d:
                self._write(self.sums, (row, d), splat(f32(0.0), 4))

    # workspaces

    def _place(self, buffer: Buffer, at: tuple[KExpr, KExpr]) -> KExpr:
        self.w.use(buffer)
        row, column = at
        size = i32(int(buffer.dims[2].as_int() or 0))
        slot = self.s.index.value(flat_index(buffer, (self.runs.slot.expr, *_ORIGIN)))
        return kop("add", kop("add", slot, kop("mul", row, size)), column)

    def _read(self, buffer: Buffer, at: tuple[KExpr, KExpr], lanes: int) -> KExpr:
        return KLoad(F32, lanes, buffer.name, self._place(buffer, at))

    def _write(self, buffer: Buffer, at: tuple[KExpr, KExpr], value: KExpr) -> None:
        self.w.store(buffer, self._place(buffer, at), value)

    # a tile of keys

    def _column(self, width: int, first: KExpr, lanes: int) -> Piece:
        """Four columns of a row, or one."""
        axis = Axis(self.w.fresh("d"), as_expr(width))
        if lanes == 4:
            self.w.bind_vector(axis, first)
        else:
            self.w.bind(axis, first)
        return Piece(axis, first, lanes)

    def _columns(self, width: int, act: Callable[[Piece, KExpr], None]) -> None:
        """Loops over the columns of a row: by fours, then one by one."""
        whole = width // 4 * 4
        for lanes, start, stop in ((4, 0, whole), (1, whole, width)):
            with self.w.loop("d", i32(start), i32(stop), step=lanes) as d:
                act(self._column(width, d, lanes), d)

    def _copy_keys(self, tile: KExpr, number: KExpr) -> None:
        """Four keys at once, past the last one that again; a column of theirs becomes a vector."""
        w, width = self.w, self.problem.width
        last = w.params.scalar(self.problem.keys - 1)
        with w.loop("k", i32(0), number, step=4) as near:
            at = w.let("k", kop("add", tile, near))
            places = [w.let("k", kop("min", plus(at, j), last)) for j in range(4)]
            keys = [self.body.bind("k", self.problem.keys, place) for place in places]
            for key in keys:
                self._look_up(key, (1,))
            factors = [self._factor(1, key) for key in keys]

            def copy(piece: Piece, d: KExpr) -> None:
                rows = [
                    w.let(
                        "k",
                        self._scaled(self._value(self._load_key(1, k, piece.axis), piece.lanes), f),
                    )
                    for k, f in zip(keys, factors, strict=True)
                ]
                lanes = [parts_of(row) for row in rows]
                for j in range(piece.lanes):
                    column = KVec(F32, 4, tuple(own[j] for own in lanes))
                    self._write(self.turned, (plus(d, j), near), column)

            self._columns(width, copy)

    def _copy_values(self, tile: KExpr, number: KExpr) -> None:
        w = self.w
        with w.loop("k", i32(0), number) as near:
            key = self.body.bind("k", self.problem.keys, w.let("k", kop("add", tile, near)))
            self._look_up(key, (2,))
            factor = self._factor(2, key)

            def copy(piece: Piece, d: KExpr) -> None:
                value = self._value(self._load_key(2, key, piece.axis), piece.lanes)
                self._write(self.values, (near, d), self._scaled(value, factor))

            self._columns(self.problem.depth, copy)

    def _tiles(self, rows: KExpr, columns: KExpr, act: Callable[[KExpr, KExpr], None]) -> None:
        """Run `act` with the first row and column of each register tile."""
        w = self.w
        with (
            w.loop("row", i32(0), rows, step=_ROWS) as row,
            w.loop("c", i32(0), columns, step=_COLUMNS) as column,
        ):
            act(row, column)

    def _add_products(
        self,
        steps: KExpr,
        left: Callable[[int, KExpr], KExpr],
        right: Callable[[KExpr, int], KExpr],
        sums: Sequence[Sequence[KVar]],
    ) -> None:
        """Add the products of all steps to a register tile."""
        w = self.w
        with w.loop("k", i32(0), steps) as k:
            values = [w.let("b", right(k, 4 * c)) for c in range(_COLUMNS // 4)]
            for r, line in enumerate(sums):
                own = splat(w.let("a", left(r, k)), 4)
                for total, value in zip(line, values, strict=True):
                    w.assign(total, kop("fma", own, value, total))

    def _multiply_keys(self, first: KExpr, rows: KExpr, number: KExpr) -> None:
        """The products of queries and keys; those past the last ones are of no use."""
        w, width = self.w, self.problem.width

        def tile(row: KExpr, column: KExpr) -> None:
            at = w.let("q", kop("add", first, row))
            queries = [self._locate(w.let("q", plus(at, r)))[0] for r in range(_ROWS)]
            sums = [[w.var("s", splat(f32(0.0), 4)) for _ in range(_COLUMNS // 4)] for _ in queries]

            def left(r: int, k: KExpr) -> KExpr:
                return self._value(
                    self.problem.load(0, queries[r], self._column(width, k, 1).axis), 1
                )

            def right(k: KExpr, c: int) -> KExpr:
                return self._read(self.turned, (k, plus(column, c)), 4)

            self._add_products(i32(width), left, right, sums)
            for r, line in enumerate(sums):
                for c, total in enumerate(line):
                    self._write(self.scores, (plus(row, r), plus(column, 4 * c)), total)

        self._tiles(rows, number, tile)

    def _add_values(self, rows: KExpr, number: KExpr) -> None:
        """The values by the weights of their keys to the sums of all queries."""
        w = self.w

        def tile(row: KExpr, column: KExpr) -> None:
            places = [
                [(plus(row, r), plus(column, c)) for c in range(0, _COLUMNS, 4)]
                for r in range(_ROWS)
            ]
            sums = [[w.var("o", self._read(self.sums, p, 4)) for p in line] for line in places]

            def left(r: int, k: KExpr) -> KExpr:
                return self._read(self.scores, (plus(row, r), k), 1)

            def right(k: KExpr, c: int) -> KExpr:
                return self._read(self.values, (k, plus(column, c)), 4)

            self._add_products(number, left, right, sums)
            for own, line in zip(places, sums, strict=True):
                for place, total in zip(own, line, strict=True):
                    self._write(self.sums, place, total)

        self._tiles(rows, i32(self.depth), tile)

    # a row

    def _by_fours(self, number: KExpr, act: Callable[[KExpr, int], None]) -> None:
        """Run `act` with the places of a tile's keys: by fours, then one by one."""
        w = self.w
        if divisible(self.problem.keys, 4):
            with w.loop("k", i32(0), number, step=4) as k:
                act(k, 4)
            return
        whole = w.let("n", kop("mul", kop("index_div", number, i32(4)), i32(4)))
        for lanes, start, stop in ((4, i32(0), whole), (1, whole, number)):
            with w.loop("k", start, stop, step=lanes) as k:
                act(k, lanes)

    def _weigh_row(self, number: KExpr, row: KExpr, tile: KExpr, keys: KExpr) -> None:
        """Products of a query become weights, by the largest score with theirs."""
        w = self.w
        query = self.body.bind("q", self.problem.queries, number)
        before = w.let("m", self._read(self.states, (row, i32(0)), 1))
        largest = {lanes: w.var("m", splat(before, lanes)) for lanes in (4, 1)}

        def score(k: KExpr, lanes: int) -> None:
            key = Axis(w.fresh("k"), self.problem.keys)
            if lanes == 4:
                w.bind_vector(key, w.let("k", kop("add", tile, k)))
            else:
                w.bind(key, w.let("k", kop("add", tile, k)))
            product = self.body.held(self._read(self.scores, (row, k), lanes))
            scored = w.let("s", splat(self.s.value(self.problem.score(product, query, key)), lanes))
            self._write(self.scores, (row, k), scored)
            w.assign(largest[lanes], kop("max", largest[lanes], scored))

        self._by_fours(keys, score)
        most = w.let("m", folded("max", [largest[1], *lanes_of(largest[4])]))
        base = w.let("b", base_of(most))
        weight = w.var("l", self._read(self.states, (row, i32(1)), 1))
        with w.when(kop("ne", most, before)):
            self._scale_row(row, weight, w.let("c", kop("exp", kop("sub", before, base))))
        self._write(self.states, (row, i32(0)), most)
        total = {lanes: w.var("l", splat(f32(0.0), lanes)) for lanes in (4, 1)}

        def weigh(k: KExpr, lanes: int) -> None:
            scored = kop("sub", self._read(self.scores, (row, k), lanes), splat(base, lanes))
            own = w.let("p", kop("exp", scored))
            self._write(self.scores, (row, k), own)
            w.assign(total[lanes], kop("add", total[lanes], own))

        self._by_fours(keys, weigh)
        added = folded("add", [weight, total[1], *lanes_of(total[4])])
        self._write(self.states, (row, i32(1)), added)

    def _scale_row(self, row: KExpr, weight: KVar, scale: KExpr) -> None:
        """What was summed, to a new largest score."""
        w = self.w
        w.assign(weight, kop("mul", weight, scale))
        with w.loop("d", i32(0), i32(self.depth), step=4) as d:
            total = self._read(self.sums, (row, d), 4)
            self._write(self.sums, (row, d), kop("mul", total, splat(scale, 4)))

    def _store_row(self, number: KExpr, row: KExpr) -> None:
        query = self.body.bind("q", self.problem.queries, number)
        finish = self._finisher(query, self.w.let("l", self._read(self.states, (row, i32(1)), 1)))

        def store(piece: Piece, d: KExpr) -> None:
            total = self.w.let("o", self._read(self.sums, (row, d), piece.lanes))
            self._put(query, piece, finish(total))

        self._columns(self.problem.depth, store)
