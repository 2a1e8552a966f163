"""Maps that store along one axis and load along another: transposes, whatever else they compute."""

from dataclasses import dataclass

from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import Load, walk
from edgerelax.schedule.cost import Work, typical, work
from edgerelax.schedule.index import flat_index, is_one, stride_of
from edgerelax.schedule.points import guards_store, store_flat
from edgerelax.schedule.scalars import Scalars, has_vectors
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Axis

SIDE = 4  # rows and columns of a block that registers transpose
SCATTER = 4.0  # how many times as long a load takes whose neighbours lie apart


@dataclass(frozen=True, slots=True)
class Transposed:
    """Neighbours along `along` are stored, those along `across` loaded, next to each other.

    `loads` are those that are in range everywhere.
    """

    stage: Stage
    outer: tuple[Axis, ...]
    across: Axis
    along: Axis
    loads: tuple[Load, ...]

    @property
    def scattered_bytes(self) -> float:
        """What the loads bring if each element comes once."""
        size = 1.0
        for axis in self.stage.axes:
            size *= typical(axis.extent)
        return size * sum(load.buffer.dtype.bytes for load in self.loads)


def transposed(stage: Stage, target: Target) -> Transposed | str:
    """The two axes of a stage with merged axes, those that serve most loads; or why it has none."""
    if stage.combiner is not None:
        return "it reduces"
    s = Scalars(Writer(target))
    guard = guards_store(stage, s)
    flat = store_flat(stage)
    along = next((a for a in reversed(stage.axes) if is_one(stride_of(flat, a))), None)
    if along is None:
        return "its stores have no neighbours"
    if guard is not None and along in s.axes(guard):
        return "neighbours may not be stored"
    loads = [n for n in walk(stage.body) if isinstance(n, Load)]
    loads = [n for n in loads if along in s.axes(n) and has_vectors(n.dtype) and s.is_safe(n)]
    best: Transposed | None = None
    for across in stage.axes:
        found = [n for n in loads if is_one(stride_of(flat_index(n.buffer, n.index), across))]
        if across is along or len(found) <= (len(best.loads) if best else 0):
            continue
        outer = tuple(a for a in stage.axes if a not in (across, along))
        best = Transposed(stage, outer, across, along, tuple(found))
    return best or "no load runs along another axis than the stores"


def with_scattered(total: Work, found: Transposed, times: float = SCATTER) -> Work:
    """The work where each transposed load takes so many times as long."""
    more = (times - 1.0) * found.scattered_bytes
    return Work(total.points, total.steps, total.bytes + more, total.flops)


def work_of_map(stage: Stage, target: Target) -> Work:
    """The work of a stage that goes point by point along its innermost axis."""
    found = transposed(stage, target)
    return work(stage) if isinstance(found, str) else with_scattered(work(stage), found)
