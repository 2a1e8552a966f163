"""Any stage: a thread per output that reduces serially, four neighbours at once where it can.

Always legal. It is also the right way to reduce over outer axes (column sums), where neighbouring
outputs read neighbouring inputs.
"""

from edgerelax.schedule.cost import is_long_for_one, roofline, rounded, typical
from edgerelax.schedule.in_place import at_own_place
from edgerelax.schedule.points import coalesce, count
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.map import writes_whole_words
from edgerelax.schedule.strategies.pointwise import (
    Points,
    cpu_rows,
    gpu_scalar,
    gpu_vector,
    gpu_words,
    is_sub_word,
    writes_vectors,
)
from edgerelax.schedule.target import Target
from edgerelax.schedule.transposed import work_of_map


def match(unit: Unit, target: Target) -> Points | Reject:
    """Any single stage; sub-word outputs on the GPU have been widened where that is needed."""
    stage = unit.stage
    if stage is None:
        return Reject("not a single stage")
    points = Points(unit.name, coalesce(stage), unit.weights)
    if target.is_gpu and is_sub_word(stage.out.dtype) and not writes_whole_words(points):
        return Reject("its outputs share words with others")
    return points


def configs(points: Points, target: Target) -> tuple[str, ...]:
    """Vectors where four neighbours adjoin, else a point per thread."""
    if not target.is_gpu:
        return ("rows",)
    if writes_vectors(points):
        return ("vec4",)
    return ("words",) if is_sub_word(points.stage.out.dtype) else ("scalar",)


def cost(points: Points, config: str, target: Target) -> float:
    """Every step loads its operands. Where it would go wrong, anything else is better."""
    if is_long_for_one(count(points.stage.reduce), target):
        return 1.0
    total = work_of_map(points.stage, target)
    alone = config == "scalar" or not (points.inner_is_vector and points.reads_neighbours)
    if alone:
        total, each = total.scaled(target.lanes), 1
    else:
        total, each = total.scaled(rounded(typical(points.stage.axes[-1].extent), 4)), 4
    return roofline(total, target, threads=total.points / each, reuse=float(each))


def emit(points: Points, config: str, target: Target) -> Emitted:
    """One kernel."""
    comment = f"point by point, {config}"
    match config:
        case "vec4":
            kernel = gpu_vector(points, target, comment)
        case "words":
            kernel = gpu_words(points, target, comment)
        case "scalar":
            kernel = gpu_scalar(points, target, comment, each=1)
        case _:
            kernel = cpu_rows(points, target, comment)
    return Emitted((kernel,), in_place=at_own_place(points.stage))


FALLBACK = Strategy("fallback", match, configs, cost, emit)
