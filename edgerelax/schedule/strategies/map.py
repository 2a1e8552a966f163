"""Maps: stages without a reduction, a point per output, four outputs per thread or step."""

from edgerelax.schedule.cost import roofline
from edgerelax.schedule.in_place import at_own_place
from edgerelax.schedule.points import coalesce
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
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
    """Any single stage that reduces nothing."""
    stage = unit.stage
    if stage is None:
        return Reject("not a single stage")
    if stage.combiner is not None:
        return Reject("it reduces")
    points = Points(unit.name, coalesce(stage), unit.weights)
    if target.is_gpu and is_sub_word(stage.out.dtype) and not writes_whole_words(points):
        return Reject("its outputs share words with others")
    return points


def writes_whole_words(points: Points) -> bool:
    """Whether a sub-word output can be written so that each thread owns its words."""
    return writes_vectors(points) or points.is_dense


def configs(points: Points, target: Target) -> tuple[str, ...]:
    """One way per target and shape."""
    if not target.is_gpu:
        return ("rows",)
    if writes_vectors(points):
        return ("vec4",)
    return ("words",) if is_sub_word(points.stage.out.dtype) else ("scalar4",)


def cost(points: Points, config: str, target: Target) -> float:
    """Bound by memory; loads whose neighbours lie apart take longer."""
    total = work_of_map(points.stage, target)
    return roofline(total, target, threads=total.points / 4, reuse=4.0)


def emit(points: Points, config: str, target: Target) -> Emitted:
    """One kernel."""
    comment = f"map, {config}"
    match config:
        case "vec4":
            kernel = gpu_vector(points, target, comment)
        case "words":
            kernel = gpu_words(points, target, comment)
        case "scalar4":
            kernel = gpu_scalar(points, target, comment, each=4)
        case _:
            kernel = cpu_rows(points, target, comment)
    return Emitted((kernel,), in_place=at_own_place(points.stage))


MAP = Strategy("map", match, configs, cost, emit)
