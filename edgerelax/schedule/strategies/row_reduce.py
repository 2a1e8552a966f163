"""Reductions along rows, and chains of them with maps over the same rows, in one kernel.

group: 64 threads share a row and combine their parts through workgroup memory, in two rounds of
eight; thread: a thread per row, no barriers; rows: a CPU iteration per row. Where the innermost
axis is contiguous the row is read in vectors of four. quads: an invocation takes four rows at once
where these are neighbours in memory, as in a softmax over channels. What later steps need again of
an element is kept (row_cache.py); `once` does not keep, but reduces in one pass what algebra lets
run together (cascade.py): for rows too long to stay near.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest

from edgerelax.ir.kernel import LOCAL, WORKGROUP, KExpr, KLoad, KStore, i32, kop
from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import Buffer, Load, Op, Scalar, walk
from edgerelax.schedule.cascade import Member, Pass, one_pass
from edgerelax.schedule.cost import (
    SLOW,
    Work,
    is_long_for_one,
    roofline,
    traffic,
    typical,
    work,
)
from edgerelax.schedule.in_place import Pair, is_at, stores_all
from edgerelax.schedule.index import flat_index, is_one, stride_of
from edgerelax.schedule.partials import GROUP, combine
from edgerelax.schedule.points import (
    decompose,
    guards_store,
    result_of,
    store_flat,
    take_step,
)
from edgerelax.schedule.reduce import (
    VECTOR_COMBINERS,
    Reduction,
    begin,
    convert,
    fold_lanes,
    splat,
)
from edgerelax.schedule.row_cache import Keeping, keep, same_columns
from edgerelax.schedule.rows import RowProgram, Step, row_count, row_length, row_program
from edgerelax.schedule.running import start
from edgerelax.schedule.scalars import Held, Scalars, has_vectors
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.pointwise import is_sub_word
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Cell, Writer
from edgerelax.sym import Atom, Expr, ExprLike, as_expr, ceildiv, divisible, proves_lt

_SCATTERED = 4.0  # times the bytes where threads of a group do not read neighbours
_LONG = 16  # elements of an innermost row that vectors are good for
_SHARE = 2  # of workgroup memory that a row may take, in parts: groups run side by side
_ONCE = " once"
_NEAR = 1 << 18  # bytes of a row that a CPU reads again without waiting
_COMPARED, _COMPARED_ON_CPU = 4.0, 28.0  # operations to see that a reference is as it was
_WELFORD, _WELFORD_ON_CPU = 16.0, 64.0  # there each division waits for the one before
_FROM_CACHE = 0.9  # of the time for what is fetched again, where it is near
_SLOW_ON_CPU = 100.0  # operations of a function that is computed again as it is not kept


@dataclass(frozen=True, slots=True)
class RowMatch:
    """A row program and the unit it comes from."""

    unit: Unit
    program: RowProgram


def match(unit: Unit, target: Target) -> RowMatch | Reject:
    """One reduction, or a chain of stages over the same rows."""
    program = row_program(unit.stages, unit.kept)
    if isinstance(program, Reject):
        return program
    for step in program.steps:
        packed = step.stored and is_sub_word(step.stage.out.dtype)
        if target.is_gpu and packed and not (step.columns and _vector(step)):
            return Reject("its outputs share words with others")
    return RowMatch(unit, program)


def configs(found: RowMatch, target: Target) -> tuple[str, ...]:
    """Groups where barriers are fast or rows long; four rows at once where that makes vectors."""
    quads = ("quads",) if _in_quads(found.program) else ()
    ways: tuple[str, ...] = ("rows",)
    long = any(is_long_for_one(row_length(s), target) for s in found.program.steps)
    if target.is_gpu:
        ways = ("group", "thread") if target.has_fast_barriers else ("thread",)
        if long:
            ways, quads = ("group",), ()
    once = one_pass(_shared_columns(found.program)) is not None
    ways = (*ways, *quads)
    return (*ways, *(f"{way}{_ONCE}" for way in ways if once))


def cost(found: RowMatch, config: str, target: Target) -> float:
    """Rows times length; a group wastes the threads that a short row leaves idle."""
    way = config.removesuffix(_ONCE)
    rows = typical(row_count(found.program))
    threads = {"group": rows * GROUP, "quads": rows / 4}.get(way, rows)
    seconds = 0.0
    for steps, one in _works(found, config, target):
        step, contiguous = steps[0], all(map(_is_contiguous, steps))
        scattered = way == "group" and not contiguous
        moved = one.bytes * (_SCATTERED if scattered else 1.0)
        length = typical(row_length(step))
        idle = GROUP * -(-length // GROUP) / max(length, 1.0) if way == "group" else 1.0
        long = contiguous and typical(step.inner[-1].extent) >= _LONG
        in_vectors = long or way == "quads"
        idle *= 1 if in_vectors else target.lanes
        total = Work(rows, length, moved, one.flops * idle)
        spent = roofline(total, target, threads=threads, reuse=4.0 if in_vectors else 1.0)
        seconds += spent - target.launch_seconds
    if way != config and target.kind != "gpu":
        kept = _kept(found, way, target).program
        again = rows * (_slow(found.program) - _slow(kept))
        seconds += again * _SLOW_ON_CPU / target.flops_per_second
    return seconds + target.launch_seconds


def _works(found: RowMatch, config: str, target: Target) -> Iterator[tuple[tuple[Step, ...], Work]]:
    """What each step takes, and those of a pass together."""
    if not config.endswith(_ONCE):
        yield from (((s,), work(s.stage)) for s in _kept(found, config, target).program.steps)
        return
    for part in _passes(_kept(found, config, target).program):
        if isinstance(part, Step):
            yield (part,), work(part.stage)
            continue
        works = [work(m.step.stage) for m in part]
        first = works[0]
        flops = sum(w.flops for w in works)
        flops += sum(_following(m, target) for m in part) * first.points * first.steps
        moved = traffic(dict.fromkeys(b for m in part for b in m.stage.reads()))
        if not _is_far(part, target):
            moved += (sum(w.bytes for w in works) - moved) * _FROM_CACHE
        yield tuple(m.step for m in part), Work(first.points, first.steps, moved, flops)


def _following(member: Member, target: Target) -> float:
    """Operations per element that a member takes in one pass beyond those of its own pass."""
    if member.stage.combiner == "welford":
        return _WELFORD if target.kind == "gpu" else _WELFORD_ON_CPU
    each = _COMPARED if target.kind == "gpu" else _COMPARED_ON_CPU
    return each * len(member.references)


def _slow(program: RowProgram) -> float:
    """How many slow functions a row takes."""
    return sum(
        typical(row_length(step))
        for step in program.steps
        for node in walk(step.stage.body)
        if isinstance(node, Op) and node.fn in SLOW - {"div", "sqrt"}
    )


def _is_far(part: Pass, target: Target) -> bool:
    """Whether a second pass would fetch the row again: a CPU's cache keeps it if it is short."""
    if target.kind == "gpu":
        return True
    width = sum(b.dtype.bytes for b in dict.fromkeys(b for m in part for b in m.stage.reads()))
    return typical(row_length(part[0].step)) * width > _NEAR


def emit(found: RowMatch, config: str, target: Target) -> Emitted:
    """One kernel."""
    w = Writer(target, found.unit.weights)
    program, rows = _kept(found, config, target), row_count(found.program)
    comment = f"rows, {config}: {len(found.program.steps)} steps{program.describe()}"
    way = config.removesuffix(_ONCE)
    shared, quads = way == "group", way == "quads"
    if quads:
        rows = rows // 4
    parts = program.program.steps if way == config else _passes(program.program)
    writer, name = _Rows(w, program, parts, shared=shared, quads=quads), found.unit.name
    if shared or not target.is_gpu:
        writer.write(WORKGROUP)
        kernel = w.kernel(name, rows, GROUP if shared else 1, comment)
    else:
        row = w.let("t", kop("add", kop("mul", WORKGROUP, i32(GROUP)), LOCAL))
        with w.when(kop("lt", row, w.params.scalar(rows))):
            writer.write(row)
        kernel = w.kernel(name, ceildiv(rows, GROUP), GROUP, comment)
    return Emitted((kernel,), in_place=_in_place(program, shared=shared))


def _in_place(keeping: Keeping, *, shared: bool) -> frozenset[Pair]:
    """Operands of which a row is read where it is stored, up to the step that stores it.

    What is kept in the place of the result is stored there by the step that first keeps it. Where
    a group shares a row, barriers stand behind reductions alone, and what it stores once per row
    all have computed, unless it is the last. Reductions in one pass all read before any stores.
    """
    steps = keeping.program.steps
    keeps = next((k for k, leaves in enumerate(keeping.leaves) if leaves is not None), len(steps))
    found: set[Pair] = set()
    for at, step in enumerate(steps):
        by_first = step.stage.combiner is not None and step.stage.init is None
        by_first &= at == len(steps) - 1
        alone = bool(step.columns) or by_first or not shared
        if not step.stored or not stores_all(step.stage) or not alone:
            continue
        home = isinstance(keeping.leaf, Load) and keeping.leaf.buffer == step.stage.out
        last = min(at, keeps) if home else at
        for buffer in {b for s in steps for b in s.stage.reads()}:
            readers = [k for k, s in enumerate(steps) if buffer in s.stage.reads()]
            ordered = all(steps[k].stage.combiner is not None for k in readers if k < last)
            if buffer == step.stage.out or max(readers) > last or (shared and not ordered):
                continue
            if all(_reads_at(steps[k], buffer, step) for k in readers):
                found.add((buffer.name, step.stage.out.name))
    return frozenset(found)


def _reads_at(step: Step, buffer: Buffer, writer: Step) -> bool:
    """Whether a step reads of a buffer what the writer stores over at the same columns."""
    own, columns = step.inner, writer.inner
    if [a.extent for a in own] != [a.extent for a in columns]:
        return False
    swaps: dict[Atom, ExprLike] = dict(zip(columns, own, strict=True))
    place = store_flat(writer.stage).subs(swaps)
    return all(is_at(load, place) for load in step.stage.loads() if load.buffer == buffer)


def _kept(found: RowMatch, config: str, target: Target) -> Keeping:
    """The program with what it keeps of a row."""
    if config.endswith(_ONCE):
        return Keeping(_shared_columns(found.program), None, (), None)
    shared = config == "group"
    room = target.workgroup_bytes // 4 // _SHARE if shared else 0
    in_vectors = _vector if target.is_gpu else _is_contiguous
    if config == "quads":
        in_vectors = _never
    kept = keep(found.program, in_vectors, shared=shared, room=room)
    return kept or Keeping(found.program, None, (None,) * len(found.program.steps), None)


def _shared_columns(program: RowProgram) -> RowProgram:
    return replace(program, steps=same_columns(program.steps))


def _passes(program: RowProgram) -> tuple[Step | Pass, ...]:
    """The steps of a program of `once`, those in one pass that can be."""
    passes = one_pass(program)
    assert passes is not None
    return passes


def _never(step: Step) -> bool:
    return False


def _in_quads(program: RowProgram) -> bool:
    """Whether four neighbouring rows are neighbours in all that is read and stored."""
    if not program.rows or divisible(program.rows[-1].extent, 4) is not True:
        return False
    row = program.rows[-1]
    for stage in (step.stage for step in program.steps):
        plain = stage.combiner is None or stage.combiner in VECTOR_COMBINERS
        if not plain or stage.where is not None or stage.init is not None:
            return False
        if not has_vectors(stage.out.dtype) or not has_vectors(stage.body.dtype):
            return False
        places = [flat_index(load.buffer, load.index) for load in stage.loads()]
        if not all(is_one(stride_of(at, row)) for at in places if row in at.axes()):
            return False
    return all(is_one(stride_of(store_flat(s.stage), row)) for s in program.steps if s.stored)


def _is_contiguous(step: Step) -> bool:
    """Whether stepping along the innermost axis reads neighbours, and has a vector form."""
    stage = step.stage
    if not step.inner or not has_vectors(stage.body.dtype):
        return False
    if stage.combiner is not None and stage.combiner not in VECTOR_COMBINERS:
        return False
    inner = step.inner[-1]
    if proves_lt(inner.extent, 4):
        return False
    if stage.combiner is None:
        guarded = stage.where is not None and inner in stage.where.axes()
        if guarded or not is_one(stride_of(store_flat(stage), inner)):
            return False
        if not has_vectors(stage.out.dtype):
            return False
    strides = [
        stride_of(flat_index(load.buffer, load.index), inner)
        for load in stage.loads()
        if inner in load.axes()
    ]
    return all(is_one(s) for s in strides)


def _vector(step: Step) -> bool:
    """Whether the whole row can be taken in aligned vectors."""
    if not _is_contiguous(step) or divisible(step.inner[-1].extent, 4) is not True:
        return False
    if step.stage.combiner is not None:
        return True
    others = store_flat(step.stage) - step.inner[-1]
    return divisible(others, 4) is True


class _Rows:
    """Writes all steps for one row (or four), by one invocation or by a group that shares it."""

    def __init__(
        self,
        w: Writer,
        keeping: Keeping,
        parts: Sequence[Step | Pass],
        *,
        shared: bool,
        quads: bool,
    ) -> None:
        self.w, self.keeping, self.shared, self.quads = w, keeping, shared, quads
        self.parts = parts
        self.s = Scalars(w)
        self.array: str | None = None  # where elements are kept, and the one at hand
        self.place: KExpr = i32(0)
        self.lanes = 1

    def write(self, row: KExpr) -> None:
        program = self.keeping.program
        extents = [a.extent for a in program.rows]
        if self.quads:
            extents[-1] = extents[-1] // 4
        places = decompose(self.w, row, extents)
        for axis, value in zip(program.rows, places, strict=True):
            self.w.bind(axis, value)
        if self.quads:
            first = self.w.let("v", kop("mul", places[-1], i32(4)))
            self.w.bind_vector(program.rows[-1], first)
        for step, leaves in zip_longest(self.parts, self.keeping.leaves):
            if isinstance(step, tuple):
                self._reduce_once(step)
            elif step.stage.combiner is not None:
                self._reduce(step, leaves)
            elif step.columns:
                self._map(step, leaves)
            else:
                self._by_first(step, partial(self.s.value, step.stage.body))

    # reductions

    def _reduce(self, step: Step, leaves: Scalar | None) -> None:
        w, s, stage = self.w, self.s, step.stage
        assert stage.combiner is not None
        alone = self.shared and stage.init is not None  # only one part starts from `init`
        init = None if stage.init is None or alone else s.value(stage.init)
        lanes = 4 if self.quads else 1
        state = begin(w, stage.combiner, stage.body.dtype, lanes=lanes, init=init)

        def take(part: Reduction) -> None:
            self._keep(leaves, lambda: take_step(w, s, stage, part))

        if self._runs_in_vectors(step):
            four = begin(w, stage.combiner, stage.body.dtype, lanes=4)
            self._columns(step, lambda: take(four), lambda: take(state))
            state.merge(w, fold_lanes(w, four).registers)
        else:
            self._columns(step, None, lambda: take(state))
        if self.shared:
            state = combine(w, state)
            if stage.init is not None:
                state.step(w, s.value(stage.init))
        self._settle(step, result_of(w, s, stage, state))

    def _reduce_once(self, members: Pass) -> None:
        """All reductions of a pass."""
        steps = [member.step for member in members]
        state = start(members, self.s, 4 if self.quads else 1)
        if all(self._runs_in_vectors(step) for step in steps):
            four = start(members, self.s, 4)
            self._columns(steps[0], four.step, state.step)
            state.merge_lanes(four)
        else:
            self._columns(steps[0], None, state.step)
        if self.shared:
            state = combine(self.w, state)
        for member, result in state.results():
            self._settle(member.step, result)

    def _settle(self, step: Step, result: Scalar) -> None:
        """Hold what a step has reduced, and store it if others read it."""
        if step.stored and step is self.keeping.program.steps[-1]:
            # Whoever stores it reads what else it needs, and nobody reads that afterwards.
            self._by_first(step, lambda: self.s.value(result))
            return
        dtype = step.stage.out.dtype
        value = self.w.let("r", convert(self.s.value(result), dtype))
        self.s.hold(Held(step.held, dtype), value)
        if step.stored:
            self._by_first(step, lambda: value)

    # maps and stores

    def _map(self, step: Step, leaves: Scalar | None) -> None:
        stage = step.stage

        def store(*, vector: bool) -> None:
            self._guarded(stage, lambda: self._store(stage, vector=vector))

        def write(*, vector: bool) -> None:
            self._keep(leaves, lambda: store(vector=vector))

        if self._runs_in_vectors(step):
            self._columns(step, lambda: write(vector=True), lambda: write(vector=False))
        else:
            self._columns(step, None, lambda: write(vector=self.quads))

    def _store(self, stage: Stage, *, vector: bool) -> None:
        value = convert(self.s.value(stage.body), stage.out.dtype)
        self._put_at(stage.out, store_flat(stage), value, vector=vector)

    def _put_at(self, buffer: Buffer, flat: Expr, value: KExpr, *, vector: bool) -> None:
        w, index = self.w, self.s.index
        if vector:
            first = index.value(index.in_lane(flat, 0))
            w.store(buffer, first, splat(value, 4), aligned=index.is_aligned(flat))
        else:
            w.store(buffer, index.value(flat), value)

    def _keep(self, leaves: Scalar | None, work: Callable[[], None]) -> None:
        """Do the work of an element or of four, then keep of it what later steps read.

        Computed first, so that the work finds it; stored last, so that it reads what was before.
        """
        w, s, leaf = self.w, self.s, self.keeping.leaf
        if leaves is None:
            work()
            return
        value = w.let("kept", s.value(leaves))
        w.blocks[-1].memo[leaves] = Cell(value, w.depth)
        work()
        if isinstance(leaf, Load):
            flat = flat_index(leaf.buffer, leaf.index)
            self._put_at(leaf.buffer, flat, value, vector=bool(s.index.lane_axes(flat)))
        else:
            assert self.array is not None
            w.emit(KStore(self.array, self.place, splat(value, self.lanes)))

    def _by_first(self, step: Step, value: Callable[[], KExpr]) -> None:
        """Store a value of the whole row."""
        stage = step.stage

        def store() -> None:
            stored = convert(value(), stage.out.dtype)
            self._put_at(stage.out, store_flat(stage), stored, vector=self.quads)

        def guarded() -> None:
            self._guarded(stage, store)

        if self.shared:
            with self.w.when(kop("eq", LOCAL, i32(0))):
                guarded()
        else:
            guarded()

    def _guarded(self, stage: Stage, write: Callable[[], None]) -> None:
        guard = guards_store(stage, self.s)
        if guard is None:
            write()
        else:
            with self.w.when(self.s.value(guard)):
                write()

    # walking a row

    def _runs_in_vectors(self, step: Step) -> bool:
        if self.quads:
            return False
        return _vector(step) if self.w.target.is_gpu else _is_contiguous(step)

    def _columns(
        self, step: Step, four: Callable[[], None] | None, one: Callable[[], None]
    ) -> None:
        if self.shared:
            self._columns_shared(step, four, one)
        else:
            self._columns_serial(step, four, one)

    def _columns_shared(
        self, step: Step, four: Callable[[], None] | None, one: Callable[[], None]
    ) -> None:
        """Elements (or vectors) local, local + 64, … of the row, numbered row-major."""
        w = self.w
        if not step.inner:
            with w.when(kop("eq", LOCAL, i32(0))):
                one()
            return
        extents = [a.extent for a in step.inner]
        if four is not None:
            extents[-1] = extents[-1] // 4
        total = as_expr(1)
        for extent in extents:
            total = total * extent
        with w.loop("c", LOCAL, w.params.scalar(total), step=GROUP) as number:
            self._at(step, number, 1 if four is None else 4)
            *outer, last = decompose(w, number, extents)
            for axis, value in zip(step.inner, outer, strict=False):
                w.bind(axis, value)
            if four is not None:
                w.bind_vector(step.inner[-1], w.let("v", kop("mul", last, i32(4))))
                four()
            else:
                w.bind(step.inner[-1], last)
                one()

    def _at(self, step: Step, number: KExpr, lanes: int) -> None:
        """The element (or vector) of a row that is at hand, and what is kept of it."""
        w, leaf, size = self.w, self.keeping.leaf, self.keeping.size
        if size is None or not isinstance(leaf, Held):
            return
        self.place, self.lanes = number, lanes
        if self.array is None:
            self.array = w.array("row", leaf.dtype, -(-size // lanes), shared=True, lanes=lanes)
        if leaf in walk(step.stage.body):
            self.s.hold(leaf, w.let("kept", KLoad(leaf.dtype, lanes, self.array, number)))

    def _columns_serial(
        self, step: Step, four: Callable[[], None] | None, one: Callable[[], None]
    ) -> None:
        """Nested loops, the innermost in vectors with a scalar tail."""
        w = self.w

        def nest(k: int) -> None:
            axis = step.inner[k]
            stop, start = w.params.scalar(axis.extent), i32(0)
            if k < len(step.inner) - 1:
                with w.loop("k", start, stop) as i:
                    w.bind(axis, i)
                    nest(k + 1)
                return
            end: KExpr = start
            if four is not None:
                end = w.params.scalar(axis.extent // 4 * 4)
                with w.loop("k", start, end, step=4) as i:
                    w.bind_vector(axis, i)
                    four()
            if four is None or divisible(axis.extent, 4) is not True:
                with w.loop("k", end, stop) as i:
                    w.bind(axis, i)
                    one()

        if step.inner:
            nest(0)
        else:
            one()


ROW_REDUCE = Strategy("row_reduce", match, configs, cost, emit)
