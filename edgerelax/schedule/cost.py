"""The roofline by which strategies are compared: bytes, operations, parallelism, launches.

Symbols stand for a representative value: 256, kept within their bounds. Rough by design; only the
order of the results matters, and it is the same on every run.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import Buffer, Op, walk
from edgerelax.schedule.target import Target
from edgerelax.sym import Expr, Symbol, proves_lt

_TYPICAL = 256
SLOW = frozenset(("exp", "log", "tanh", "erf", "sigmoid", "pow", "sin", "cos", "sqrt", "div"))

LONGEST_ALONE = 1 << 14
"""Steps that one thread may take where a CPU plays the GPU, several times over: llvmpipe ends the
loops of an invocation after 65,535 turns in all, without a word."""


@dataclass(frozen=True, slots=True)
class Work:
    """What running a stage takes, all loads counted as if nothing was cached."""

    points: float
    steps: float
    bytes: float
    flops: float

    def scaled(self, by: float) -> "Work":
        """The same with so many times the operations, as where sizes are rounded up to tiles."""
        return Work(self.points, self.steps, self.bytes, self.flops * by)


def rounded(size: float, step: int) -> float:
    """How many times as much is done if a size is rounded up to a multiple of `step`."""
    return step * -(-size // step) / max(size, 1.0)


def typical(expr: Expr) -> float:
    """The value of a size expression for representative symbols."""
    return float(max(0, expr.eval({s: _typical_symbol(s) for s in expr.symbols()})))


def _typical_symbol(symbol: Symbol) -> int:
    value = _TYPICAL
    if symbol.hi is not None:
        value = min(value, symbol.hi)
    multiple = symbol.multiple_of
    return max(symbol.lo, value // multiple * multiple)


def work(stage: Stage) -> Work:
    """Operations and bytes of one stage."""
    points, steps = 1.0, 1.0
    for axis in stage.axes:
        points *= typical(axis.extent)
    for axis in stage.reduce:
        steps *= typical(axis.extent)
    ops = 1.0
    for node in walk(stage.body):
        if isinstance(node, Op):
            ops += 8.0 if node.fn in SLOW else 1.0
    moved = traffic(stage.reads()) + points * stage.out.dtype.bytes
    return Work(points, steps, moved, ops * points * steps)


def traffic(buffers: Iterable[Buffer]) -> float:
    """Bytes of buffers that are read once."""
    moved = 0.0
    for buffer in buffers:
        size = float(buffer.dtype.bytes)
        for dim in buffer.dims:
            size *= typical(dim)
        moved += size
    return moved


def parts_to_fill(threads: float, most: float, target: Target) -> int:
    """In how many parts work of so many threads fills the device: a power of two up to `most`."""
    parts = 1
    while threads * parts < target.parallel_threads and 2 * parts <= most:
        parts *= 2
    return parts


def roofline(total: Work, target: Target, *, threads: float, reuse: float) -> float:
    """Seconds: the slower of memory and arithmetic, over how well `threads` fill the device.

    `reuse` is how many operations each loaded value serves in registers or shared memory.
    """
    loads = total.flops * 4.0 / max(reuse, 1.0)
    cached = 8.0 * target.bytes_per_second
    seconds = loads / cached + max(
        total.bytes / target.bytes_per_second, total.flops / target.flops_per_second
    )
    filled = min(1.0, max(threads, 1.0) / target.parallel_threads)
    return seconds / filled + target.launch_seconds


def is_long_for_one(length: Expr, target: Target) -> bool:
    """Whether a thread must not go so far by itself there."""
    return target.is_gpu and not target.has_fast_barriers and proves_lt(LONGEST_ALONE, length)
