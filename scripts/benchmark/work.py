"""What the kernels of a model have to do at given sizes: bytes moved, operations, the bound.

Counted from the loop functions that the compiler scheduled, one figure for each: every buffer is
moved once (or, where fewer, one element for each load), every operation of a body counts one. It
is what any kernel for them must do, not what ours happen to do.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from edgerelax import pipeline
from edgerelax.ir.loop import LoopFunc, Stage, outputs_of
from edgerelax.ir.scalar import Op, Scalar, walk
from edgerelax.schedule.target import Target
from edgerelax.sym import Expr

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Work:
    """Of one call of a loop function. `flops` is None where a template does the work."""

    bytes: int
    flops: int | None

    def seconds(self, target: Target) -> tuple[float, str]:
        """The least time on a device of the target's speeds, and what bounds it."""
        memory = self.bytes / target.bytes_per_second
        compute = (self.flops or 0) / target.flops_per_second
        return (compute, "compute") if compute > memory else (memory, "memory")


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A loop function with the names of its kernels, and the target they were made for."""

    func: LoopFunc
    target: Target
    kernels: frozenset[str]
    strategies: tuple[str, ...]


@contextmanager
def scheduling() -> Iterator[list[Scheduled]]:
    """Gives what is scheduled while a model is compiled inside."""
    found: list[Scheduled] = []
    original: Any = pipeline.schedule  # type: ignore[attr-defined]

    def recording(func: LoopFunc, target: Target) -> Any:
        made = original(func, target)
        names = frozenset(k.name for version in made.versions for k in version.kernels)
        found.append(Scheduled(func, target, names, made.strategies))
        return made

    with mock.patch.object(pipeline, "schedule", recording):
        yield found


def work(func: LoopFunc, sizes: Sizes) -> Work | None:
    """The work of one call; None where a size is not among `sizes` (known only at run time)."""
    if any(symbol.name not in sizes for symbol in func.symbols()):
        return None
    values = {symbol: sizes[symbol.name] for symbol in func.symbols()}

    def size(dims: tuple[Expr, ...]) -> int:
        total = 1
        for dim in dims:
            total *= max(0, dim.eval(values))
        return total

    moved = sum(size(b.dims) * b.dtype.bytes for b in func.outputs)
    flops: int | None = 0
    loaded: dict[str, int] = {}
    for stage in func.stages:
        if isinstance(stage, Stage):
            points = size(tuple(a.extent for a in stage.axes))
            steps = points * size(tuple(a.extent for a in stage.reduce))
            if flops is not None:
                flops += operations(stage, points, steps)
            for load in stage.loads():
                loaded[load.buffer.name] = loaded.get(load.buffer.name, 0) + steps
        else:
            flops = None
            loaded.update((b.name, size(b.dims)) for b in stage.reads())
    inner = {b.name for s in func.stages for b in outputs_of(s)}
    for buffer in func.inputs:
        if buffer.name not in inner:
            count = min(size(buffer.dims), loaded.get(buffer.name, 0))
            moved += count * buffer.dtype.bytes
    return Work(moved, flops)


def operations(stage: Stage, points: int, steps: int) -> int:
    """One for each operator of the body at each step, the combiner's too; the epilogue's after."""
    each = _count(stage.body) + (1 if stage.combiner else 0)
    after = 0 if stage.epilogue is None else _count(stage.epilogue)
    return each * steps + after * points


def _count(scalar: Scalar) -> int:
    return sum(isinstance(node, Op) for node in walk(scalar))
