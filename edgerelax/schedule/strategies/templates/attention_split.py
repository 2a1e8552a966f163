"""Attention of few queries, split over the keys: one kernel for the chunks, one that joins them.

A workgroup has up to four queries of a batch point and a chunk of keys, 64 at a time: each thread
scores one key, then has one column (or one in 64) of the sums. Per query and chunk it leaves the
largest score m, the sum of exp(s - m) and the values' sums by those weights. The second kernel
scales what the chunks left to the largest m of all.

Chunks hold 64 keys or, beyond 4,096 keys, a multiple: the workspace stays small, and nothing but
the number of chunks sets the grids.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.dtypes import F32
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    Kernel,
    KExpr,
    KLoad,
    KStore,
    KVar,
    f32,
    i32,
    kop,
)
from edgerelax.ir.loop import LoopFunc, Template
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule.cost import Work, roofline, typical
from edgerelax.schedule.index import numel
from edgerelax.schedule.points import count, decompose
from edgerelax.schedule.reduce import splat
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.attention import (
    LOWEST,
    Piece,
    Query,
    Strip,
    Walk,
    base_of,
    folded,
)
from edgerelax.schedule.strategies.templates.attention_problem import Problem
from edgerelax.schedule.strategies.templates.grids import GROUP, Body
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import plus
from edgerelax.sym import (
    Axis,
    Cond,
    Expr,
    as_expr,
    ceildiv,
    eq,
    le,
    maximum,
    minimum,
    product,
    proves_le,
    proves_lt,
    upper_bound,
)

FEW = 16  # queries for which keys are split
_ROWS = 4
_CHUNKS = 64
_LARGEST = 1 << 27  # bytes that a device binds at once


@dataclass(frozen=True, slots=True)
class Split:
    """The workspaces, [queries of all the batch, chunks, ...]: sums, and (m, sum of weights)."""

    problem: Problem
    rows: int
    chunks: Expr
    tiles: Expr  # of 64 keys, in a chunk
    sums: Buffer
    states: Buffer

    @classmethod
    def of(cls, template: Template) -> "Split":
        problem = Problem.of(template)
        few = upper_bound(problem.queries)
        rows = _ROWS if few is None else max(1, min(_ROWS, few))
        every = ceildiv(problem.keys, GROUP)
        tiles = maximum(ceildiv(every, _CHUNKS), 1)
        chunks = minimum(ceildiv(every, tiles), _CHUNKS)
        lines = (count(problem.batch) * problem.queries, chunks)
        out = template.outputs[0].name
        sums = Buffer(f"{out}_sums{rows}", F32, (*lines, as_expr(problem.depth)))
        states = Buffer(f"{out}_states{rows}", F32, (*lines, as_expr(2)))
        return cls(problem, rows, chunks, tiles, sums, states)

    @property
    def bytes(self) -> Expr:
        """The size of the larger workspace."""
        return numel(self.sums) * 4

    def line(self, query: Axis) -> Expr:
        """The number of a query of the bound batch point."""
        at = as_expr(0)
        for axis in self.problem.batch:
            at = at * axis.extent + axis
        return at * self.problem.queries + query


def refusal(template: Template, target: Target) -> str | None:
    """Why the keys are not to be split."""
    if not target.has_fast_barriers:
        return "barriers are slow or absent"
    split = Split.of(template)
    few = upper_bound(split.problem.queries)
    if few is None or few > FEW:
        return "many queries"
    if proves_lt(_LARGEST, split.bytes):
        return "its workspace is too large"
    return None


def cost(template: Template, target: Target, *, split: bool) -> float:
    """Keys and values come once per block of queries."""
    problem = Problem.of(template)
    batch, queries, keys = (
        typical(e) for e in (count(problem.batch), problem.queries, problem.keys)
    )
    columns = problem.width + problem.depth
    loads = 4.0 * batch * keys * columns
    flops = 2.0 * batch * queries * keys * columns
    points = batch * queries
    if not split:
        return roofline(Work(points, keys, loads, flops), target, threads=points, reuse=4.0)
    threads = batch * max(1.0, keys)
    one = roofline(Work(points, keys, loads, flops), target, threads=threads, reuse=4.0)
    return one + target.launch_seconds


def few_queries(func: LoopFunc) -> Iterator[tuple[tuple[Cond, ...], LoopFunc]]:
    """The function for one query, and for a few, where there may be that many or more.

    Not where there are then few keys: attention of a sequence to itself, without what came before.
    """
    (stage, *others) = func.stages
    if others or not isinstance(stage, Template) or stage.kind != "attention":
        return
    queries, *sizes = stage.params["sizes"]
    more = (sizes[0] - queries).as_int()
    for most, suffix in ((1, "_one"), (FEW, "_few")):
        if proves_le(queries, most) or proves_lt(most, queries):
            continue
        if more is not None and most + more <= GROUP:
            continue  # then keys are as few
        # Under the guard they are as many as before, but now with a bound.
        few = as_expr(1) if most == 1 else minimum(queries, most)
        special = replace(stage, params={**stage.params, "sizes": (few, *sizes)})
        size = Split.of(special).bytes
        guards = [eq(queries, 1) if most == 1 else le(queries, most)]
        if not proves_le(size, _LARGEST):
            guards.append(le(size, _LARGEST))
        yield tuple(guards), replace(func, name=func.name + suffix, stages=(special,))


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """Two kernels and two workspaces."""
    split = Split.of(template)
    kernels = (
        _Chunk(split, Body(target, weights)).kernel(f"{name}_chunks"),
        _Join(split, Body(target, weights)).kernel(name),
    )
    return Emitted(kernels, (split.sums, split.states))


class _Chunk(Walk):
    """A workgroup for a chunk of keys; its threads have the same scores' maxima in registers."""

    def __init__(self, split: Split, body: Body) -> None:
        super().__init__(split.problem, body, split.rows)
        self.split = split
        size = split.rows * GROUP
        self.scores = self.w.array("scores", F32, size, shared=True)
        self.weights = self.w.array("weights", F32, size, shared=True)
        self.columns: list[Axis] = []
        self.sums: list[list[KVar]] = []  # by query and column

    def kernel(self, name: str) -> Kernel:
        split, problem, w = self.split, self.problem, self.w
        blocks = ceildiv(problem.queries, self.rows)
        extents = [*(a.extent for a in problem.batch), blocks, split.chunks]
        *outer, block, chunk = decompose(w, WORKGROUP, extents)
        for axis, place in zip(problem.batch, outer, strict=True):
            w.bind(axis, place)
        self._begin_columns()
        first = w.let("q", kop("mul", block, i32(self.rows)))
        self.queries = [self._begin(w.let("q", plus(first, r))) for r in range(self.rows)]
        self.sums = [[w.var("o", f32(0.0)) for _ in self.columns] for _ in self.queries]
        start = w.let("t", kop("mul", chunk, w.params.scalar(split.tiles)))
        stop = w.let("t", kop("add", start, w.params.scalar(split.tiles)))
        with w.loop("t", start, stop) as tile:
            self._take_tile(w.let("k", kop("mul", tile, i32(GROUP))))
        self._leave(self.body.bind("c", split.chunks, chunk))
        grid = count(problem.batch) * blocks * split.chunks
        return w.kernel(name, grid, GROUP, f"attention, chunks of keys, {self.rows} queries each")

    def _begin(self, number: KExpr) -> Query:
        """No more than its state; the columns of its sums are spread over the threads."""
        axis, inside = self._locate(number)
        w = self.w
        return Query(
            axis, inside, None, Strip(w, "o", 0), w.var("m", f32(LOWEST)), w.var("l", f32(0.0))
        )

    def _begin_columns(self) -> None:
        """A thread's columns; past the last one, that one."""
        w, depth = self.w, self.problem.depth
        for first in range(0, depth, GROUP):
            at: KExpr = plus(LOCAL, first)
            if first + GROUP > depth:
                at = kop("min", at, i32(depth - 1))
            self.columns.append(self.body.bind("d", depth, w.let("d", at)))

    def _take_tile(self, first: KExpr) -> None:
        """A key a thread, then a column a thread."""
        w, keys = self.w, self.w.params.scalar(self.problem.keys)
        left = w.let("n", kop("max", kop("sub", keys, first), i32(0)))
        number = w.let("n", kop("min", left, i32(GROUP)))
        own = kop("min", kop("add", first, LOCAL), w.params.scalar(self.problem.keys - 1))
        key = self.body.bind("k", self.problem.keys, w.let("k", own))
        self._look_up(key, (1,))
        scores = []
        for query, (found,) in zip(self.queries, self._products([key]), strict=True):
            scored = self.problem.score(self.body.held(found), query.axis, key)
            scores.append(w.let("s", self.s.value(scored)))
        self._share_out(self.scores, scores)
        weights = [
            self._weigh_own(r, query, scores[r], number) for r, query in enumerate(self.queries)
        ]
        self._share_out(self.weights, weights)
        self._each(number, lambda near: self._add(first, near))

    def _share_out(self, array: str, values: Sequence[KExpr]) -> None:
        """What each thread has of each query, for all to read."""
        for r, value in enumerate(values):
            self.w.emit(KStore(array, plus(LOCAL, r * GROUP), value))
        self.w.barrier()

    def _each(self, number: KExpr, act: Callable[[Sequence[KExpr]], None]) -> None:
        """Run `act` with the places of four keys of a tile, then with single ones."""
        w = self.w
        whole = w.let("n", kop("mul", kop("index_div", number, i32(4)), i32(4)))
        for step, start, stop in ((4, i32(0), whole), (1, whole, number)):
            with w.loop("j", start, stop, step=step) as j:
                act([plus(j, k) for k in range(step)])

    def _weigh_own(self, row: int, query: Query, score: KExpr, number: KExpr) -> KExpr:
        """The weight of the thread's key, by the largest score with the tile's."""
        w = self.w
        largest = w.var("m", query.largest)

        def compare(near: Sequence[KExpr]) -> None:
            read = [self._read(self.scores, row, at) for at in near]
            w.assign(largest, folded("max", [largest, *read]))

        self._each(number, compare)
        base = w.let("b", base_of(largest))
        scale = w.let("c", kop("exp", kop("sub", query.largest, base)))
        w.assign(query.largest, largest)
        for register in (query.weight, *self.sums[row]):
            w.assign(register, kop("mul", register, scale))
        return kop("exp", kop("sub", score, base))

    def _read(self, array: str, row: int, at: KExpr) -> KExpr:
        return KLoad(F32, 1, array, plus(at, row * GROUP))

    def _add(self, first: KExpr, near: Sequence[KExpr]) -> None:
        """The values of some keys of the tile to the sums of the thread's columns."""
        w, problem = self.w, self.problem
        keys = [self.body.bind("k", problem.keys, w.let("k", kop("add", first, at))) for at in near]
        for key in keys:
            self._look_up(key, (2,))
        factors = [self._factor(2, key) for key in keys]
        values = [
            [
                w.let("v", self._scaled(self._value(self._load_key(2, key, column), 1), factor))
                for key, factor in zip(keys, factors, strict=True)
            ]
            for column in self.columns
        ]
        for row, query in enumerate(self.queries):
            weights = [w.let("p", self._read(self.weights, row, at)) for at in near]
            w.assign(query.weight, folded("add", [query.weight, *weights]))
            for total, own in zip(self.sums[row], values, strict=True):
                added: KExpr = total
                for weight, value in zip(weights, own, strict=True):
                    added = kop("fma", weight, value, added)
                w.assign(total, added)

    def _leave(self, chunk: Axis) -> None:
        """Store what the chunk comes to."""
        w, split, depth = self.w, self.split, self.problem.depth
        for query, sums in zip(self.queries, self.sums, strict=True):
            line = split.line(query.axis)
            for k, (total, column) in enumerate(zip(sums, self.columns, strict=True)):
                stored = query.inside
                if (k + 1) * GROUP > depth:
                    stored = kop("and", stored, kop("lt", plus(LOCAL, k * GROUP), i32(depth)))
                with w.when(stored):
                    self.body.store(split.sums, (line, chunk, column), self.body.held(total))
            with w.when(kop("and", query.inside, kop("eq", LOCAL, i32(0)))):
                for k, register in enumerate((query.largest, query.weight)):
                    self.body.store(split.states, (line, chunk, k), self.body.held(register))


class _Join(Walk):
    """A thread per query and four columns, or one."""

    def __init__(self, split: Split, body: Body) -> None:
        super().__init__(split.problem, body, 1)
        self.split = split

    def kernel(self, name: str) -> Kernel:
        problem, w = self.problem, self.w
        lanes = 4 if problem.depth % 4 == 0 else 1
        extents = [
            *(a.extent for a in problem.batch), problem.queries, as_expr(problem.depth // lanes)
        ]  # fmt: skip
        total = product(extents)
        number = w.let("t", kop("add", kop("mul", WORKGROUP, i32(GROUP)), LOCAL))
        with w.when(kop("lt", number, w.params.scalar(total))):
            *outer, query, entry = decompose(w, number, extents)
            for axis, place in zip(problem.batch, outer, strict=True):
                w.bind(axis, place)
            column = Axis(w.fresh("d"), as_expr(problem.depth))
            if lanes == 4:
                w.bind_vector(column, w.let("d", kop("mul", entry, i32(4))))
            else:
                w.bind(column, entry)
            self._join(self.body.bind("q", problem.queries, query), Piece(column, entry, lanes))
        return w.kernel(name, ceildiv(total, GROUP), GROUP, "attention, chunks of keys joined")

    def _join(self, query: Axis, piece: Piece) -> None:
        w, split = self.w, self.split
        line = split.line(query)
        largest, weight = w.var("m", f32(LOWEST)), w.var("l", f32(0.0))
        total = w.var("o", splat(f32(0.0), piece.lanes))

        def state(chunk: Axis, k: int) -> KExpr:
            return self.s.value(split.states[line, chunk, k])

        self.body.loop(
            "c", split.chunks, lambda c: w.assign(largest, kop("max", largest, state(c, 0)))
        )
        base = w.let("b", base_of(largest))

        def add(chunk: Axis) -> None:
            scale = w.let("c", kop("exp", kop("sub", state(chunk, 0), base)))
            w.assign(weight, kop("fma", scale, state(chunk, 1), weight))
            own = self.s.value(split.sums[line, chunk, piece.axis])
            w.assign(total, kop("fma", splat(scale, piece.lanes), own, total))

        self.body.loop("c", split.chunks, add)
        self._put(query, piece, self._finisher(query, weight)(total))
