"""Attention without stored scores: the largest score and the sums are kept while keys go by.

What a query sums up is in registers. Keys come four at a time, their scores a vector: with the
largest score m so far, sums are of exp(s - m); where m grows, what was summed is scaled down. A
real GPU has 64 queries a group, a thread and its registers each, which read keys and values from
workgroup memory that all fill together, tile by tile. Elsewhere a thread or iteration has up to
four queries, which share what it loads from storage; software adapters, which compile slowly, get
loops with no branch and few copies. The CPU takes more queries than four by attention_blocks.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.dtypes import F32
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    KConst,
    Kernel,
    KExpr,
    KLoad,
    KSelect,
    KStore,
    KVar,
    KVec,
    f32,
    i32,
    kop,
)
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Load
from edgerelax.schedule.index import is_one
from edgerelax.schedule.points import count, decompose
from edgerelax.schedule.reduce import convert, lanes_of, splat
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.attention_problem import Problem
from edgerelax.schedule.strategies.templates.grids import GROUP, Body
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Writer, plus
from edgerelax.sym import Axis, as_expr, ceildiv, divisible, proves_lt, upper_bound

_TILE = 16  # keys in workgroup memory, at most
LOWEST = float("-inf")


_SUMS = {"software": 32, "wasm": 64}
"""Vectors of sums by kind of target: more text takes software adapters seconds to compile."""


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """One kernel."""
    problem = Problem.of(template)
    body = Body(target, weights)
    if target.has_fast_barriers:
        kernel = _Shared(problem, body).kernel(name)
    else:
        walk = _Brief if target.is_gpu else Walk
        kernel = walk(problem, body, rows_of(template, target)).kernel(name)
    return Emitted((kernel,))


def rows_of(template: Template, target: Target) -> int:
    """Queries of a thread or iteration."""
    if target.has_fast_barriers:
        return 1
    problem = Problem.of(template)
    most = min(4, _SUMS[target.kind] // max(1, problem.depth // 4))
    few = upper_bound(problem.queries)
    return max(1, most if few is None else min(most, few))


@dataclass(frozen=True, slots=True)
class Piece:
    """Four columns or one: their axis, and the entry of a strip that has them."""

    axis: Axis
    entry: KExpr
    lanes: int


class Strip:
    """A row in registers: vectors of four columns, then single ones."""

    def __init__(self, w: Writer, stem: str, width: int) -> None:
        self.w = w
        self.registers = {
            lanes: [w.var(stem, splat(f32(0.0), lanes)) for _ in range(size)]
            for lanes, size in ((4, width // 4), (1, width % 4))
        }

    def get(self, piece: Piece) -> KVar:
        assert isinstance(piece.entry, KConst), "registers have no index"
        return self.registers[piece.lanes][int(piece.entry.value)]

    def set(self, piece: Piece, value: KExpr) -> None:
        self.w.assign(self.get(piece), value)

    def move(self, other: "Strip") -> None:
        """Take another row's values."""
        for lanes, registers in self.registers.items():
            for register, value in zip(registers, other.registers[lanes], strict=True):
                self.w.assign(register, value)


@dataclass(frozen=True, slots=True)
class Query:
    """One query: its number, whether it exists, and its registers; `q` if they hold it."""

    axis: Axis
    inside: KExpr
    q: Strip | None
    total: Strip
    largest: KVar
    weight: KVar


Weights = dict[int, Sequence[KExpr]]
"""A query's weights of the keys at hand, by the lanes of what they multiply."""


class Walk:
    """A thread or iteration for a few queries, keys and values from storage."""

    def __init__(self, problem: Problem, body: Body, rows: int) -> None:
        self.problem, self.body, self.rows = problem, body, rows
        self.w, self.s = body.w, body.s
        self.queries: list[Query] = []
        self.rows_of: dict[
            tuple[int, Axis], Axis
        ] = {}  # by operand and key, where tables name them
        self.rolled = True  # the loop over a key's columns, in which queries are loaded again

    def kernel(self, name: str) -> Kernel:
        problem, w = self.problem, self.w
        blocks = ceildiv(problem.queries, self.rows)
        total = count(problem.batch) * blocks
        extents = [*(a.extent for a in problem.batch), blocks]

        def run(number: KExpr) -> None:
            self._queries(decompose(w, number, extents), lambda: self._keys_from_storage())

        comment = f"attention, {self.rows} queries each"
        if not w.target.is_gpu:
            run(WORKGROUP)
            return w.kernel(name, total, 1, comment)
        number = w.let("t", kop("add", kop("mul", WORKGROUP, i32(GROUP)), LOCAL))
        with w.when(kop("lt", number, w.params.scalar(total))):
            run(number)
        return w.kernel(name, ceildiv(total, GROUP), GROUP, comment)

    def _queries(self, places: Sequence[KExpr], take_keys: Callable[[], None]) -> None:
        """The rows of a block from their start to the store; places are of batch and block."""
        w = self.w
        for axis, place in zip(self.problem.batch, places, strict=False):
            w.bind(axis, place)
        first = w.let("q", kop("mul", places[-1], i32(self.rows)))
        self.queries = [self._begin(w.let("q", plus(first, r))) for r in range(self.rows)]
        take_keys()
        self._store_all(first)

    def _keys_from_storage(self) -> None:
        w, keys = self.w, self.problem.keys
        whole = w.params.scalar(keys // 4 * 4)
        with w.loop("k", i32(0), whole, step=4) as k:
            self._take(k, 4)
        if not divisible(keys, 4):
            with w.loop("k", whole, w.params.scalar(keys)) as k:
                self._take(k, 1)

    # pieces

    def _pieces(self, width: int, act: Callable[[Piece], None], *, rolled: bool = False) -> None:
        """Run `act` for each vector and each single column of a row, in a loop if `rolled`."""
        w = self.w
        fours, rest = divmod(width, 4)
        if rolled and fours:
            with w.loop("d", i32(0), i32(fours)) as number:
                axis = Axis(w.fresh("d"), as_expr(width))
                w.bind_vector(axis, w.let("d", kop("mul", number, i32(4))))
                act(Piece(axis, number, 4))
        else:
            for d in range(fours):
                axis = Axis(w.fresh("d"), as_expr(width))
                w.bind_vector(axis, i32(4 * d))
                act(Piece(axis, i32(d), 4))
        for d in range(rest):
            axis = self.body.bind("d", width, i32(4 * fours + d))
            act(Piece(axis, i32(d), 1))

    def _value(self, load: Load, lanes: int) -> KExpr:
        return splat(convert(self.s.value(load), F32), lanes)

    # a query

    def _begin(self, number: KExpr) -> Query:
        problem, w = self.problem, self.w
        axis, inside = self._locate(number)
        total = Strip(w, "o", problem.depth)
        q = None if self.rolled else Strip(w, "q", problem.width)
        if q is not None:
            self._pieces(problem.width, lambda piece: q.set(piece, self._of_query(axis, piece)))
        return Query(axis, inside, q, total, w.var("m", f32(LOWEST)), w.var("l", f32(0.0)))

    def _locate(self, number: KExpr) -> tuple[Axis, KExpr]:
        """The axis of a query, or of the last one if it does not exist, and whether it does."""
        w, queries = self.w, self.problem.queries
        inside = w.let("in", kop("lt", number, w.params.scalar(queries)))
        near = w.let("q", kop("min", number, w.params.scalar(queries - 1)))
        return self.body.bind("q", queries, near), inside

    def _of_query(self, query: Axis, piece: Piece) -> KExpr:
        return self._value(self.problem.load(0, query, piece.axis), piece.lanes)

    def _store_all(self, first: KExpr) -> None:
        """Store what the queries sum up; `first` is the first one's number."""
        for query in self.queries:
            self._store(query)

    def _store(self, query: Query) -> None:
        finish = self._finisher(query.axis, query.weight)

        def store(piece: Piece) -> None:
            self._put(query.axis, piece, finish(query.total.get(piece)))

        with self.w.when(query.inside):
            self._pieces(self.problem.depth, store)

    def _put(self, query: Axis, piece: Piece, value: KExpr) -> None:
        """Store a piece of a query's result."""
        w, problem, out, index = self.w, self.problem, self.problem.out, self.s.index
        place = problem.place(-1, query, piece.axis)
        value = w.let("y", convert(value, out.dtype))
        if piece.lanes == 1:
            w.store(out, index.value(place), value)
        elif is_one(index.lane_stride(place)):
            first = index.value(index.in_lane(place, 0))
            w.store(out, first, value, aligned=index.is_aligned(place))
        else:
            for k, lane in enumerate(lanes_of(value)):
                w.store(out, index.value(index.in_lane(place, k)), lane)

    def _finisher(self, query: Axis, weight: KExpr) -> Callable[[KExpr], KExpr]:
        """What makes a query's results of its sums, by the sum of its weights."""
        share = self.w.let("r", self._share(weight))
        kept = self._kept(query, weight)

        def finish(total: KExpr) -> KExpr:
            value = kop("mul", total, share)
            if kept is None:
                return value
            return KSelect(F32, value.lanes, kept, value, splat(f32(0.0), value.lanes))

        return finish

    def _kept(self, query: Axis, weight: KExpr) -> KExpr | None:
        """Whether a query's result is not 0 whatever its sums are; None if nothing asks."""
        w, params = self.w, self.problem.template.params
        kept: list[KExpr] = []
        if params["nan_to_zero"]:
            kept.append(kop("gt", weight, f32(0.0)))
        if params["hidden"] >= 0:
            first = self.body.bind("k", 1, i32(0))  # it is the same for all keys
            hidden = self.problem.load(params["hidden"] + 3, query, first)
            kept.append(kop("not", self.s.value(hidden)))
        return w.let("kept", folded("and", kept)) if kept else None

    def _share(self, weight: KExpr) -> KExpr:
        """What the sums are multiplied by: 1 over the sum of weights, 0 if there are no keys."""
        share = kop("div", f32(1.0), weight)
        if proves_lt(0, self.problem.keys):
            return share
        some = kop("lt", i32(0), self.w.params.scalar(self.problem.keys))
        return KSelect(F32, 1, some, share, f32(0.0))

    # keys

    def _take(self, key: KExpr, lanes: int) -> None:
        """Four keys from `key`, a multiple of 4, or that one."""
        problem, w = self.problem, self.w
        keys = [self._key(w.let("k", plus(key, j))) for j in range(lanes)]
        column = keys[0]
        if lanes == 4:
            column = Axis(w.fresh("k"), problem.keys)
            w.bind_vector(column, key)
        self._add_keys(keys, [column])

    def _key(self, number: KExpr) -> Axis:
        """The axis of a key, whose rows are looked up."""
        key = self.body.bind("k", self.problem.keys, number)
        self._look_up(key, (1, 2))
        return key

    def _factor(self, operand: int, key: Axis) -> KExpr | None:
        """What a key (operand 1) or its value (2) is multiplied by, if by anything."""
        scale = self.problem.scale(operand)
        if scale is None:
            return None
        row = self.rows_of.get((scale, key))
        value = self._value(self.problem.load(scale, self.problem.any_query, key, row), 1)
        return self.w.let("c", value)

    def _scaled(self, value: KExpr, factor: KExpr | None) -> KExpr:
        return value if factor is None else kop("mul", value, splat(factor, value.lanes))

    def _look_up(self, key: Axis, operands: Sequence[int]) -> None:
        """Find the rows that tables name for a key, in operands and in their scales."""
        scales = [self.problem.scale(o) for o in operands]
        read = list(dict.fromkeys((*operands, *(s for s in scales if s is not None))))
        for operand in read:
            row = self.problem.row(operand, key)
            if row is None:
                continue
            same = [o for o in read if self.problem.row(o, key) == row]
            if same[0] != operand:
                self.rows_of[operand, key] = self.rows_of[same[0], key]
                continue
            number, count = (
                self.w.let("r", self.s.index.value(row)),
                self.problem.row_count(operand),
            )
            self.rows_of[operand, key] = self.body.bind("r", count, number)

    def _load_key(self, operand: int, key: Axis, column: Axis) -> Load:
        """An element of a key (operand 1) or its value (2)."""
        return self.problem.load(operand, key, column, self.rows_of.get((operand, key)))

    def _add_keys(self, keys: Sequence[Axis], columns: Sequence[Axis]) -> None:
        """Sum up keys. `columns`, by which scores are made: one for each, or one for all four."""
        products = self._products(keys)
        factors = [self._factor(2, key) for key in keys]
        weights = []
        for query, own in zip(self.queries, products, strict=True):
            parts = self._weigh(query, own, columns)
            shares = [self._scaled(p, f) for p, f in zip(parts, factors, strict=True)]
            weights.append(self._spread(shares))
        self._sum_values(keys, weights)

    def _sum_values(self, keys: Sequence[Axis], weights: Sequence[Weights]) -> None:
        """Add keys' values to each query's sums, by its weights."""
        w, nth = self.w, range(len(keys))

        def add(piece: Piece) -> None:
            values = [w.let("v", self._of_key(2, j, keys[j], piece)) for j in nth]
            for query, own in zip(self.queries, weights, strict=True):
                total: KExpr = query.total.get(piece)
                for weight, value in zip(own[piece.lanes], values, strict=True):
                    total = kop("fma", weight, value, total)
                query.total.set(piece, total)

        self._pieces(self.problem.depth, add)

    def _spread(self, weights: Sequence[KExpr]) -> Weights:
        """Weights as they multiply pieces of one lane and of four; named, to be made once."""
        if self.problem.depth < 4:
            return {1: weights}
        return {1: weights, 4: [self.w.let("p", splat(weight, 4)) for weight in weights]}

    def _of_key(self, operand: int, nth: int, key: Axis, piece: Piece) -> KExpr:
        """A piece of the nth key at hand (operand 1), or of its value (2)."""
        return self._value(self._load_key(operand, key, piece.axis), piece.lanes)

    def _products(self, keys: Sequence[Axis]) -> list[list[KExpr]]:
        """Of every query with every key."""
        w, width, nth = self.w, self.problem.width, range(len(keys))
        lanes = [n for n, present in ((4, width >= 4), (1, width % 4)) if present]
        sums = {
            n: [[w.var("s", splat(f32(0.0), n)) for _ in nth] for _ in self.queries] for n in lanes
        }

        def add(piece: Piece) -> None:
            values = [w.let("k", self._of_key(1, j, keys[j], piece)) for j in nth]
            for query, own in zip(self.queries, sums[piece.lanes], strict=True):
                q = query.q.get(piece) if query.q else w.let("q", self._of_query(query.axis, piece))
                for total, value in zip(own, values, strict=True):
                    w.assign(total, kop("fma", q, value, total))

        self._pieces(width, add, rolled=self.rolled)
        factors = [self._factor(1, key) for key in keys]

        def product(row: int, j: int) -> KExpr:
            whole = folded("add", [p for n in lanes for p in parts_of(sums[n][row][j])])
            return self._scaled(whole, factors[j])

        return [[product(row, j) for j in nth] for row in range(len(self.queries))]

    def _weigh(
        self, query: Query, products: Sequence[KExpr], columns: Sequence[Axis]
    ) -> Sequence[KExpr]:
        """The keys' weights, by the largest score with theirs."""
        w, lanes = self.w, len(products)
        if lanes > len(columns):
            products = [KVec(F32, lanes, tuple(products))]
        scored = [
            splat(self.s.value(self.problem.score(self.body.held(p), query.axis, column)), p.lanes)
            for p, column in zip(products, columns, strict=True)
        ]
        score = w.let("s", KVec(F32, lanes, tuple(scored)) if len(scored) > 1 else scored[0])
        largest = w.let("m", folded("max", [query.largest, *parts_of(score)]))
        self._rescale(query, largest)
        weight = kop("exp", kop("sub", score, splat(base_of(query.largest), lanes)))
        parts = parts_of(w.let("p", self._counted(weight)))
        w.assign(query.weight, folded("add", [query.weight, *parts]))
        return parts

    def _counted(self, weight: KExpr) -> KExpr:
        """Weights by how often their keys are to count."""
        return weight

    def _rescale(self, query: Query, largest: KExpr) -> None:
        """What was summed, to the largest score. It rarely grows, except among the first keys."""
        with self.w.when(kop("ne", largest, query.largest)):
            self._scale_down(query, largest)

    def _scale_down(self, query: Query, largest: KExpr) -> None:
        """What was summed, to a new largest score."""
        w = self.w
        scale = w.let("c", kop("exp", kop("sub", query.largest, base_of(largest))))
        w.assign(query.largest, largest)
        w.assign(query.weight, kop("mul", query.weight, scale))
        self._pieces(
            self.problem.depth,
            lambda piece: query.total.set(piece, kop("mul", query.total.get(piece), scale)),
        )


class _Brief(Walk):
    """A walk in few statements: four keys at every turn, and sums scaled whether they need it.

    What would be the same text for each key's value or each query's result is a loop, in which
    the next one's registers move up.

    Past the end stands the last key again. Its copies share its weight, since a weight of 0 would
    make infinite values NaN.
    """

    shares: KExpr | None = None

    def _keys_from_storage(self) -> None:
        w, keys = self.w, self.problem.keys
        if divisible(keys, 4):
            super()._keys_from_storage()
            return
        last = w.params.scalar(keys - 1)
        with w.loop("k", i32(0), w.params.scalar(keys), step=4) as k:
            left = w.let("n", kop("sub", last, k))
            copies = convert(kop("max", i32(1), kop("sub", i32(4), left)), F32)
            share = w.let("c", kop("div", f32(1.0), copies))
            shares = [KSelect(F32, 1, kop("lt", i32(j), left), f32(1.0), share) for j in range(4)]
            self.shares = w.let("c", KVec(F32, 4, tuple(shares)))
            places = [k, *(w.let("k", kop("min", plus(k, j), last)) for j in range(1, 4))]
            axes = [self._key(place) for place in places]
            self._add_keys(axes, axes)

    def _spread(self, weights: Sequence[KExpr]) -> Weights:
        """One register with all four, the first of which is for the key whose turn it is."""
        return {4: (self.w.var("p", KVec(F32, 4, tuple(weights))),)}

    def _sum_values(self, keys: Sequence[Axis], weights: Sequence[Weights]) -> None:
        w, problem = self.w, self.problem
        first, _ = w.lookup(keys[0])
        assert isinstance(first, KExpr), "a key is one number"
        registers = [register for own in weights for register in own[4]]
        with w.loop("j", i32(0), i32(len(keys))) as j:
            place = kop("add", first, j)
            if not divisible(problem.keys, 4):
                place = kop("min", place, w.params.scalar(problem.keys - 1))
            key = self.body.bind("k", problem.keys, w.let("k", place))
            self._look_up(key, (2,))
            turn = [super(_Brief, self)._spread(lanes_of(register)[:1]) for register in registers]
            super()._sum_values([key], turn)
            for register in registers:
                assert isinstance(register, KVar)
                _, *others = lanes_of(register)
                w.assign(register, KVec(F32, 4, (*others, others[-1])))

    def _store_all(self, first: KExpr) -> None:
        if len(self.queries) == 1:
            super()._store_all(first)
            return
        w = self.w
        with w.loop("r", i32(0), i32(len(self.queries))) as r:
            axis, inside = self._locate(w.let("q", kop("add", first, r)))
            self._store(replace(self.queries[0], axis=axis, inside=inside))
            for query, following in itertools.pairwise(self.queries):
                query.total.move(following.total)
                w.assign(query.weight, following.weight)

    def _counted(self, weight: KExpr) -> KExpr:
        return weight if self.shares is None else kop("mul", weight, self.shares)

    def _rescale(self, query: Query, largest: KExpr) -> None:
        self._scale_down(query, largest)


class _Shared(Walk):
    """A workgroup for as many queries as it has threads, keys and values from its memory."""

    def __init__(self, problem: Problem, body: Body) -> None:
        super().__init__(problem, body, 1)
        self.rolled = False
        self.near: KExpr = i32(0)  # where the keys at hand begin in the tile
        per_key = 4 * (problem.width + problem.depth)
        self.tile = min(_TILE, self.w.target.workgroup_bytes // per_key // 4 * 4)
        self.memory = {
            (operand, lanes): self.w.array(
                "kv"[operand - 1], F32, n * self.tile, shared=True, lanes=lanes
            )
            for operand, width in ((1, problem.width), (2, problem.depth))
            for lanes, n in ((4, width // 4), (1, width % 4))
            if n
        }

    def kernel(self, name: str) -> Kernel:
        problem, w = self.problem, self.w
        blocks = ceildiv(problem.queries, GROUP)
        extents = [*(a.extent for a in problem.batch), blocks]
        *outer, block = decompose(w, WORKGROUP, extents)
        thread = w.let("q", kop("add", kop("mul", block, i32(GROUP)), LOCAL))
        self._queries([*outer, thread], self._keys_by_tiles)
        return w.kernel(name, count(problem.batch) * blocks, GROUP, "attention, a query a thread")

    def _keys_by_tiles(self) -> None:
        w = self.w
        keys = w.params.scalar(self.problem.keys)
        with w.loop("t", i32(0), keys, step=self.tile) as first:
            self._fill(first)
            w.barrier()
            number = w.let("n", kop("min", i32(self.tile), kop("sub", keys, first)))
            whole = w.let("n", kop("mul", kop("index_div", number, i32(4)), i32(4)))
            for lanes, start, stop in ((4, i32(0), whole), (1, whole, number)):
                with w.loop("j", start, stop, step=lanes) as j:
                    self.near = j
                    self._take(w.let("k", kop("add", first, j)), lanes)
            w.barrier()

    def _key(self, number: KExpr) -> Axis:
        """The axis of a key at hand, which nothing is looked up for."""
        return self.body.bind("k", self.problem.keys, number)

    def _factor(self, operand: int, key: Axis) -> KExpr | None:
        """Keys at hand were multiplied when they were copied."""
        return None

    def _fill(self, first: KExpr) -> None:
        """Copy the tile's keys and values; past the end, the last key."""
        w, problem = self.w, self.problem
        last = w.params.scalar(problem.keys - 1)
        for (operand, lanes), array in self.memory.items():
            width = problem.width if operand == 1 else problem.depth
            row = width // 4 if lanes == 4 else width % 4
            with w.loop("i", LOCAL, i32(row * self.tile), step=GROUP) as i:
                near, entry = decompose(w, i, [as_expr(self.tile), as_expr(row)])
                at = w.let("k", kop("min", kop("add", first, near), last))
                key, axis = self._key(at), Axis(w.fresh("d"), as_expr(width))
                self._look_up(key, (operand,))
                if lanes == 4:
                    w.bind_vector(axis, w.let("d", kop("mul", entry, i32(4))))
                else:
                    w.bind(axis, w.let("d", plus(entry, width - row)))
                value = self._value(self._load_key(operand, key, axis), lanes)
                value = self._scaled(value, super()._factor(operand, key))
                w.emit(KStore(array, i, value))

    def _of_key(self, operand: int, nth: int, key: Axis, piece: Piece) -> KExpr:
        width = self.problem.width if operand == 1 else self.problem.depth
        row = width // 4 if piece.lanes == 4 else width % 4
        at = kop("add", kop("mul", plus(self.near, nth), i32(row)), piece.entry)
        return KLoad(F32, piece.lanes, self.memory[operand, piece.lanes], at)


def base_of(largest: KExpr) -> KExpr:
    """What scores are reduced by: 0 if all are -inf, whose difference would be no number."""
    none = kop("eq", largest, f32(LOWEST))
    return KSelect(F32, 1, none, f32(0.0), largest)


def parts_of(value: KExpr) -> Sequence[KExpr]:
    """The lanes of a named value."""
    return lanes_of(value) if value.lanes == 4 else (value,)


def folded(function: str, values: Sequence[KExpr]) -> KExpr:
    """All values combined by a function of two."""
    return functools.reduce(lambda a, b: kop(function, a, b), values)
