"""Outputs that may take the place of operands: what strategies claim, and what becomes of it.

A point may be stored over the element of an operand that it reads if nobody else reads that. A
strategy claims so of its kernels; what other kernels of the schedule do is looked up here.
"""

from collections.abc import Iterable, Iterator, Sequence

from edgerelax.ir.kernel import Kernel
from edgerelax.ir.kernel_in_place import loads_from, stores_into
from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.scalar import Load
from edgerelax.schedule.index import flat_index, in_bounds, numel
from edgerelax.schedule.points import store_flat
from edgerelax.sym import Expr, prove_eq

Pair = tuple[str, str]  # operand, output


def at_own_place(stage: Stage) -> frozenset[Pair]:
    """The operands of which every point reads but the element that it is stored over.

    For kernels in which each point is computed once, and stored by who read what it needs.
    """
    if not stores_all(stage):
        return frozenset()
    place = store_flat(stage)
    return frozenset(
        (buffer.name, stage.out.name)
        for buffer in stage.reads()
        if all(is_at(load, place) for load in stage.loads() if load.buffer == buffer)
    )


def stores_all(stage: Stage) -> bool:
    """Whether every point is stored, and there are points to tell apart."""
    skips = stage.where is not None and not stage.where.axes() & set(stage.reduce)
    return not skips and any(prove_eq(a.extent, 1) is not True for a in stage.axes)


def is_at(load: Load, place: Expr) -> bool:
    """Whether a load reads the element of that number, and nothing else in any lane."""
    return prove_eq(flat_index(load.buffer, load.index), place) is True and in_bounds(load)


def sharing(func: LoopFunc, kernels: Sequence[Kernel], claims: Iterable[Pair]) -> tuple[Pair, ...]:
    """The claims that hold for the whole schedule of a function, in the order of its operands."""
    return tuple(_sharing(func, kernels, frozenset(claims)))


def _sharing(func: LoopFunc, kernels: Sequence[Kernel], claims: frozenset[Pair]) -> Iterator[Pair]:
    for operand in func.inputs:
        for output in func.outputs:
            if (operand.name, output.name) not in claims or operand.name in func.weights:
                continue
            same = operand.dtype == output.dtype and prove_eq(numel(operand), numel(output))
            writers = [k for k, one in enumerate(kernels) if stores_into(one, output.name)]
            if not same or not writers:
                continue
            if not any(loads_from(one, operand.name) for one in kernels[writers[0] + 1 :]):
                yield operand.name, output.name
