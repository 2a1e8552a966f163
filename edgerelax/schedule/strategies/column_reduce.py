"""Reductions whose neighbouring outputs read neighbours: column sums, vector-matrix products.

GPU only: a group owns eight columns (or quads of columns) and splits the reduction over eight
slices, whose parts meet in workgroup memory. Reads stay together and few outputs still fill the
device.
"""

from edgerelax.ir.kernel import LOCAL, WORKGROUP, KExpr, i32, kop
from edgerelax.schedule.cost import Work, roofline, typical, work
from edgerelax.schedule.in_place import at_own_place
from edgerelax.schedule.partials import SharedStates
from edgerelax.schedule.points import (
    coalesce,
    count,
    decompose,
    guards_store,
    store_reduced,
    take_step,
)
from edgerelax.schedule.reduce import Reduction, begin
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.pointwise import Points, is_sub_word, writes_vectors
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Writer
from edgerelax.sym import ceildiv

_ACROSS = 8
_SLICES = 8


def match(unit: Unit, target: Target) -> Points | Reject:
    """One reduction of several outputs, all of them stored."""
    stage = unit.stage
    if stage is None or stage.combiner is None:
        return Reject("not a single reduction")
    if not target.has_fast_barriers:
        return Reject("barriers are slow or absent")
    points = Points(unit.name, coalesce(stage), unit.weights)
    stage = points.stage
    if not stage.axes or not stage.reduce:
        return Reject("one output, or one step")
    if guards_store(stage, Scalars(Writer(target))) is not None:
        return Reject("some outputs are not stored")
    if is_sub_word(stage.out.dtype) and not writes_vectors(points):
        return Reject("its outputs share words with others")
    return points


def configs(points: Points, target: Target) -> tuple[str, ...]:
    """Quads of columns where they are stored as vectors."""
    return ("vec4",) if writes_vectors(points) else ("scalar",)


def cost(points: Points, config: str, target: Target) -> float:
    """Eight threads to a column; columns in the last group may be missing."""
    total = work(points.stage)
    each = 4 if config == "vec4" else 1
    wide = typical(points.stage.axes[-1].extent) / each
    idle = _ACROSS * -(-wide // _ACROSS) / max(wide, 1.0)
    threads = total.points / each * _SLICES
    scaled = Work(total.points, total.steps, total.bytes, total.flops * idle)
    return roofline(scaled, target, threads=threads, reuse=float(each))


def emit(points: Points, config: str, target: Target) -> Emitted:
    """One kernel."""
    w, stage = Writer(target, points.weights), points.stage
    s = Scalars(w)
    vector = config == "vec4"
    *outer, column = stage.axes
    width = column.extent // 4 if vector else column.extent
    blocks = ceildiv(width, _ACROSS)
    *places, block = decompose(w, WORKGROUP, [*(a.extent for a in outer), blocks])
    for axis, place in zip(outer, places, strict=True):
        w.bind(axis, place)
    own = w.let("x", kop("index_mod", LOCAL, i32(_ACROSS)))
    part = w.let("slice", kop("index_div", LOCAL, i32(_ACROSS)))
    number = w.let("n", kop("add", kop("mul", block, i32(_ACROSS)), own))
    inside = w.let("n", kop("min", number, w.params.scalar(width - 1)))
    if vector:
        w.bind_vector(column, w.let("v", kop("mul", inside, i32(4))))
    else:
        w.bind(column, inside)
    total = _reduce_slice(w, s, points, part, 4 if vector else 1)
    states = SharedStates(w, total, _ACROSS * _SLICES)
    states.put(LOCAL, total)
    w.barrier()
    exists = kop("and", kop("eq", part, i32(0)), kop("lt", number, w.params.scalar(width)))
    with w.when(exists):
        states.merge_column(total, _ACROSS, _SLICES)
        store_reduced(w, s, stage, total)
    grid = count(outer) * blocks
    comment = f"column reduction, {config}"
    kernel = w.kernel(points.name, grid, _ACROSS * _SLICES, comment)
    return Emitted((kernel,), in_place=at_own_place(stage))


def _reduce_slice(w: Writer, s: Scalars, points: Points, part: KExpr, lanes: int) -> Reduction:
    """Every eighth step, from the slice's own."""
    stage = points.stage
    assert stage.combiner is not None
    total = begin(w, stage.combiner, stage.body.dtype, lanes=lanes)
    steps = w.params.scalar(count(stage.reduce))
    with w.loop("k", part, steps, step=_SLICES) as k:
        extents = [a.extent for a in stage.reduce]
        for axis, place in zip(stage.reduce, decompose(w, k, extents), strict=True):
            w.bind(axis, place)
        take_step(w, s, stage, total)
    return total


COLUMN_REDUCE = Strategy("column_reduce", match, configs, cost, emit)
