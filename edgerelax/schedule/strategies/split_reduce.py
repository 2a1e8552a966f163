"""Few long reductions in two kernels: parts of each into workspaces, then the parts as one.

For real GPUs, which a reduction alone would leave mostly idle. A config is `SLICESxPARTS`:
a group of 64 threads takes 64 / SLICES parts, each in SLICES slices that meet in workgroup
memory. 64 is for reductions over neighbours, 8 for outputs whose neighbours read neighbours, 1
needs no barriers. Only the second kernel knows the reduction's start and epilogue.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.kernel import LOCAL, WORKGROUP, Kernel, KExpr, i32, kop
from edgerelax.ir.loop import Stage
from edgerelax.schedule.contraction import is_contiguous
from edgerelax.schedule.cost import Work, parts_to_fill, roofline, typical, work
from edgerelax.schedule.in_place import at_own_place
from edgerelax.schedule.partials import GROUP, SharedStates, StoredStates, combine
from edgerelax.schedule.points import (
    coalesce,
    count,
    decompose,
    guards_store,
    store_reduced,
    take_step,
)
from edgerelax.schedule.reduce import VECTOR_COMBINERS, Reduction, begin, fold_lanes
from edgerelax.schedule.scalars import Scalars, has_vectors
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.pointwise import Points, is_sub_word, writes_vectors
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Axis, Expr, as_expr, ceildiv, divisible, upper_bound

_LEAST = 4  # steps (or vectors of them) of a slice, lest parts cost more than they save
_LEAST_ALONE = 16  # of a part that is one thread's
_MOST = 256  # parts
_GROUPED = 32  # parts for which a group shares the second kernel's work
_SCATTERED = 4.0  # times the bytes where threads of a group do not read neighbours


def match(unit: Unit, target: Target) -> Points | Reject:
    """One reduction, all of whose outputs are stored."""
    stage = unit.stage
    if stage is None or stage.combiner is None:
        return Reject("not a single reduction")
    if not target.has_fast_barriers:
        return Reject("threads that read far apart gain nothing where a CPU plays the GPU")
    points = Points(unit.name, coalesce(stage), unit.weights)
    if not points.stage.reduce:
        return Reject("one step")
    if guards_store(points.stage, Scalars(Writer(target))) is not None:
        return Reject("some outputs are not stored")
    if is_sub_word(stage.out.dtype):
        return Reject("its outputs share words with others")
    most = upper_bound(count(points.stage.reduce))
    if most is not None and most < 2 * _LEAST_ALONE:
        return Reject("too few steps")
    return points


def configs(points: Points, target: Target) -> tuple[str, ...]:
    """As many parts as fill the device, if their steps are worth it."""
    ways = (8, 1) if _is_column(points.stage) else (GROUP,)
    layouts = [_Layout.of(points, slices) for slices in ways]
    found = [(layout, _parts(layout, target)) for layout in layouts]
    return tuple(f"{layout.slices}x{parts}" for layout, parts in found if parts > 1)


def _is_column(stage: Stage) -> bool:
    """Whether neighbouring outputs read neighbours, and neighbouring steps do not."""
    rows = is_contiguous(stage.body, stage.reduce[-1])
    return not rows and bool(stage.axes) and is_contiguous(stage.body, stage.axes[-1])


def _parts(layout: "_Layout", target: Target) -> int:
    least = _LEAST_ALONE if layout.slices == 1 else _LEAST * layout.slices
    threads = typical(layout.units) * layout.slices
    return parts_to_fill(threads, min(_MOST, typical(layout.steps) / least), target)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a thread takes at once: four steps (`deep`), four columns (`wide`), or one of one."""

    stage: Stage
    slices: int
    deep: bool
    wide: bool

    @staticmethod
    def of(points: Points, slices: int) -> "_Layout":
        stage = points.stage
        inner = stage.reduce[-1]
        deep = (
            slices != 8
            and stage.combiner in VECTOR_COMBINERS
            and has_vectors(stage.body.dtype)
            and divisible(inner.extent, 4)
            and is_contiguous(stage.body, inner)
        )
        return _Layout(stage, slices, deep, slices != GROUP and not deep and writes_vectors(points))

    @property
    def across(self) -> int:
        """Parts of a group."""
        return GROUP // self.slices

    @property
    def lanes(self) -> int:
        """Columns of a thread."""
        return 4 if self.wide else 1

    @property
    def units(self) -> Expr:
        """How many points there are, or quads of them."""
        return _number(self.stage.axes, self.wide)

    @property
    def steps(self) -> Expr:
        """How many steps a reduction has, or vectors of them."""
        return _number(self.stage.reduce, self.deep)

    def bind_unit(self, w: Writer, number: KExpr) -> None:
        """Bind the spatial axes to a point, or to four neighbours."""
        _bind(w, self.stage.axes, number, self.wide)

    def bind_step(self, w: Writer, number: KExpr) -> None:
        """Bind the reduced axes to a step, or to four."""
        _bind(w, self.stage.reduce, number, self.deep)


def _number(axes: Sequence[Axis], vector: bool) -> Expr:
    return count(axes[:-1]) * (axes[-1].extent // 4) if vector else count(axes)


def _bind(w: Writer, axes: Sequence[Axis], number: KExpr, vector: bool) -> None:
    extents = [a.extent for a in axes]
    if vector:
        extents[-1] = extents[-1] // 4
    places = decompose(w, number, extents)
    for axis, place in zip(axes, places, strict=True):
        w.bind(axis, place)
    if vector:
        w.bind_vector(axes[-1], w.let("v", kop("mul", places[-1], i32(4))))


def cost(points: Points, config: str, target: Target) -> float:
    """Both kernels; the second reads what the first has written."""
    slices, parts = _read(config)
    layout = _Layout.of(points, slices)
    total, one = work(points.stage), points.stage.body.dtype.bytes
    near = layout.deep or layout.wide or _reads_neighbours(points.stage)
    states = total.points * parts * max(one, 4)
    threads = typical(layout.units) * slices * parts
    first = Work(total.points * parts, total.steps / parts, total.bytes + states, total.flops)
    if not near:
        first = replace(first, bytes=total.bytes * _SCATTERED + states)
    second = Work(total.points, parts, states, 2.0 * total.points * parts)
    reuse = 4.0 if layout.deep or layout.wide else 1.0
    finishing = typical(_finishing(layout, parts).units)
    if _is_grouped(parts):
        finishing *= GROUP
    return roofline(first, target, threads=threads, reuse=reuse) + roofline(
        second, target, threads=finishing, reuse=1.0
    )


def _reads_neighbours(stage: Stage) -> bool:
    """Whether neighbouring threads, or a thread's neighbouring steps, read what adjoins."""
    return is_contiguous(stage.body, stage.reduce[-1]) or _is_column(stage)


def _read(config: str) -> tuple[int, int]:
    slices, parts = config.split("x")
    return int(slices), int(parts)


def _is_grouped(parts: int) -> bool:
    """Whether a group shares the work of the second kernel."""
    return parts >= _GROUPED


def _finishing(layout: _Layout, parts: int) -> _Layout:
    """The second kernel's layout: a group takes one point."""
    return replace(layout, wide=layout.wide and not _is_grouped(parts))


def emit(points: Points, config: str, target: Target) -> Emitted:
    """The parts, then the whole."""
    slices, parts = _read(config)
    layout = _Layout.of(points, slices)
    first, states = _parts_kernel(points, layout, parts, target)
    finishing = _finishing(layout, parts)
    second = _whole_kernel(points, finishing, parts, states, target)
    return Emitted((first, second), states.buffers, in_place=at_own_place(points.stage))


def _parts_kernel(
    points: Points, layout: _Layout, parts: int, target: Target
) -> tuple[Kernel, StoredStates]:
    w = Writer(target, points.weights)
    pairs = layout.units * parts
    number = kop("mul", WORKGROUP, i32(layout.across))
    own = kop("index_mod", LOCAL, i32(layout.across)) if layout.across > 1 else i32(0)
    pair = w.let("n", kop("add", number, own))
    exists = w.let("in", kop("lt", pair, w.params.scalar(pairs)))
    inside = w.let("n", kop("min", pair, w.params.scalar(pairs - 1)))
    part, unit = decompose(w, inside, [as_expr(parts), layout.units])
    layout.bind_unit(w, unit)
    slice_ = w.let("slice", kop("index_div", LOCAL, i32(layout.across)))
    total = _reduce_part(w, points.stage, layout, parts, part, slice_)
    states = StoredStates.of(points.name, total, parts, count(points.stage.axes))
    if layout.slices == GROUP:
        total = combine(w, total)
        exists = kop("eq", LOCAL, i32(0))
    elif layout.slices > 1:
        shared = SharedStates(w, total, GROUP)
        shared.put(LOCAL, total)
        w.barrier()
        exists = kop("and", exists, kop("eq", slice_, i32(0)))
    with w.when(exists):
        if 1 < layout.slices < GROUP:
            shared.merge_column(total, layout.across, layout.slices)
        states.put(w, w.let("at", kop("mul", inside, i32(layout.lanes))), total)
    comment = f"{parts} parts of a reduction, {layout.slices} threads each"
    name, grid = f"{points.name}_parts", ceildiv(pairs, layout.across)
    return w.kernel(name, grid, GROUP, comment), states


def _reduce_part(
    w: Writer, stage: Stage, layout: _Layout, parts: int, part: KExpr, slice_: KExpr
) -> Reduction:
    """Every so many-th step of a part, from the slice's own."""
    s = Scalars(w)
    assert stage.combiner is not None
    lanes = 4 if layout.deep else layout.lanes
    total = begin(w, stage.combiner, stage.body.dtype, lanes=lanes)
    length = w.params.scalar(ceildiv(layout.steps, parts))
    first = w.let("k", kop("mul", part, length))
    end = kop("min", kop("add", first, length), w.params.scalar(layout.steps))
    start, stop = w.let("k", kop("add", first, slice_)), w.let("k", end)
    with w.loop("k", start, stop, step=layout.slices) as k:
        layout.bind_step(w, k)
        take_step(w, s, stage, total)
    return fold_lanes(w, total) if layout.deep else total


def _whole_kernel(
    points: Points, layout: _Layout, parts: int, states: StoredStates, target: Target
) -> Kernel:
    """A group or a thread per point (or quad of points) merges its parts and finishes."""
    w, stage = Writer(target, points.weights), points.stage
    s = Scalars(w)
    assert stage.combiner is not None
    grouped = _is_grouped(parts)
    size = w.params.scalar(count(stage.axes))
    comment = f"{parts} parts of a reduction as one"

    def merge(unit: KExpr, start: KExpr, step: int) -> Reduction:
        assert stage.combiner is not None
        total = begin(w, stage.combiner, stage.body.dtype, lanes=layout.lanes)
        first = kop("mul", unit, i32(layout.lanes))
        with w.loop("j", start, i32(parts), step=step) as j:
            at = w.let("at", kop("add", kop("mul", j, size), first))
            total.merge(w, states.get(w, at, layout.lanes))
        return total

    if grouped:
        layout.bind_unit(w, WORKGROUP)
        total = combine(w, merge(WORKGROUP, LOCAL, GROUP))
        with w.when(kop("eq", LOCAL, i32(0))):
            store_reduced(w, s, stage, total)
        return w.kernel(points.name, layout.units, GROUP, comment)
    unit = w.let("t", kop("add", kop("mul", WORKGROUP, i32(GROUP)), LOCAL))
    with w.when(kop("lt", unit, w.params.scalar(layout.units))):
        layout.bind_unit(w, unit)
        store_reduced(w, s, stage, merge(unit, i32(0), 1))
    return w.kernel(points.name, ceildiv(layout.units, GROUP), GROUP, comment)


SPLIT_REDUCE = Strategy("split_reduce", match, configs, cost, emit)
