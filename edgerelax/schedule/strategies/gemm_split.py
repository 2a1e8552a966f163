"""Contractions of few tiles and many steps: partial sums over parts of the steps, then their sum.

For GPUs that the tiles alone would leave idle, as a product of few rows does. A config is a
register tile of gemm.py and a number of parts. The partial sums lie in a workspace, in f32 for
short floats; the second kernel adds them up as any other sum and has the epilogue.
"""

from dataclasses import dataclass, replace
from typing import Any

from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import Acc, Buffer, Load
from edgerelax.schedule.cost import parts_to_fill, typical, work
from edgerelax.schedule.points import count, linear
from edgerelax.schedule.reduce import state_dtype
from edgerelax.schedule.strategies import gemm
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.column_reduce import COLUMN_REDUCE
from edgerelax.schedule.strategies.fallback import FALLBACK
from edgerelax.schedule.strategies.gemm import Gemm, Part
from edgerelax.schedule.target import Target
from edgerelax.sym import Axis, as_expr, upper_bound

_LEAST = 64  # steps of a part
_MOST = 64  # parts


@dataclass(frozen=True, slots=True)
class SplitGemm:
    """A contraction and the reduced axis whose steps are shared out."""

    whole: Gemm
    steps: Axis


@dataclass(frozen=True, slots=True)
class _Halves:
    """Partial sums of a contraction, and the sum of them, by a strategy for ordinary sums."""

    first: Gemm
    part: Part
    second: Strategy[Any]
    match: Any
    config: str
    cost: float


def match(unit: Unit, target: Target) -> SplitGemm | Reject:
    """A contraction with one long reduced axis."""
    found = gemm.match(unit, target)
    if isinstance(found, Reject):
        return found
    if not found.found.stage.reduce:
        return Reject("one step")
    steps = max(found.found.stage.reduce, key=lambda a: typical(a.extent))
    most = upper_bound(steps.extent)
    if most is not None and most < 2 * _LEAST:
        return Reject("too few steps")
    return SplitGemm(found, steps)


def configs(split: SplitGemm, target: Target) -> tuple[str, ...]:
    """Each tile, with as many parts as fill the device."""
    enough = min(_MOST, typical(split.steps.extent) / _LEAST)
    found = []
    for tile in gemm.tiles_of(split.whole):
        parts = parts_to_fill(gemm.tiles(split.whole.found, tile), enough, target)
        if parts > 1:
            found.append(f"{tile}/{parts}")
    return tuple(found)


def cost(split: SplitGemm, config: str, target: Target) -> float:
    """Both kernels; the second reads what the first has written."""
    tile, parts = _read(config)
    halves = _halve(split, parts, target)
    total = work(split.whole.found.stage)
    total = replace(total, bytes=total.bytes + total.points * parts * 4)
    first = gemm.tile_cost(split.whole.found, tile, total, target, threads=float(parts))
    return first + halves.cost


def emit(split: SplitGemm, config: str, target: Target) -> Emitted:
    """The partial sums, then the sum."""
    tile, parts = _read(config)
    halves = _halve(split, parts, target)
    name = f"{split.whole.unit.name}_parts"
    first = gemm.tile_kernel(name, halves.first, tile, target, halves.part)
    second = halves.second.emit(halves.match, halves.config, target)
    temps = halves.first.found.stage.out, *second.temps
    return Emitted((first, *second.kernels), temps, in_place=second.in_place)


def _read(config: str) -> tuple[str, int]:
    tile, parts = config.split("/")
    return tile, int(parts)


def _halve(split: SplitGemm, parts: int, target: Target) -> _Halves:
    """The contraction with the part as one more outer axis, and the sum over that axis."""
    unit, found = split.whole.unit, split.whole.found
    stage, axes = found.stage, (*found.outer, *found.rows, found.column)
    held = state_dtype("sum", stage.body.dtype)
    out = Buffer(f"{unit.name}_sums", held, (as_expr(parts), count(axes)))
    number = Axis("part", as_expr(parts))
    place = number.expr, linear(axes)
    partial = replace(stage, out=out, index=place, init=None, epilogue=Acc(held))
    first = replace(found, stage=partial, outer=(number, *found.outer))
    total = Stage(
        stage.out,
        axes,
        Load(out, place),
        (number,),
        "sum",
        init=stage.init,
        index=stage.store_index,
        epilogue=stage.result,
    )
    second = _cheapest(Unit(unit.name, (total,), unit.kept, unit.weights), target)
    return _Halves(Gemm(unit, first), Part(number, split.steps), *second)


def _cheapest(unit: Unit, target: Target) -> tuple[Strategy[Any], Any, str, float]:
    """The better of the strategies for sums over an outer axis."""
    found = []
    for strategy in (COLUMN_REDUCE, FALLBACK):
        matched = strategy.match(unit, target)
        if not isinstance(matched, Reject):
            for config in strategy.configs(matched, target):
                found.append((strategy, matched, config, strategy.cost(matched, config, target)))
    return min(found, key=lambda f: f[3])


GEMM_SPLIT = Strategy("gemm_split", match, configs, cost, emit)
