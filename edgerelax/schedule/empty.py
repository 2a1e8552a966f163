"""What is known to be empty when compiled: stages without points, reductions without steps."""

from dataclasses import replace

from edgerelax.ir.loop import LoopFunc, Stage, Template, outputs_of
from edgerelax.ir.scalar import Acc, Scalar, cast, constant, rewrite
from edgerelax.schedule.points import count
from edgerelax.schedule.reduce import identity
from edgerelax.sym import Expr, product, upper_bound


def without_empty(func: LoopFunc) -> LoopFunc:
    """The function without stages that store nothing; reductions of nothing become maps."""
    return replace(func, stages=tuple(_stepless(s) for s in func.stages if not _is_empty(s)))


def _is_zero(size: Expr) -> bool:
    most = upper_bound(size)
    return most is not None and most <= 0


def _is_empty(stage: Stage | Template) -> bool:
    if isinstance(stage, Stage):
        return _is_zero(count(stage.axes))
    return all(_is_zero(product(b.dims)) for b in outputs_of(stage))


def _stepless(stage: Stage | Template) -> Stage | Template:
    if isinstance(stage, Template) or stage.combiner is None or not _is_zero(count(stage.reduce)):
        return stage
    skips_steps = stage.where is not None and stage.where.axes() & set(stage.reduce)
    return replace(
        stage,
        body=rewrite(stage.result, lambda node: _of_nothing(stage, node)),
        reduce=(),
        combiner=None,
        init=None,
        where=None if skips_steps else stage.where,
        epilogue=None,
    )


def _of_nothing(stage: Stage, node: Scalar) -> Scalar | None:
    """What `Acc` is after no steps: where the reduction starts; 0 for indices and counts."""
    if not isinstance(node, Acc):
        return None
    assert stage.combiner is not None
    if node.component:
        return constant(0, node.type)
    dtype = stage.body.dtype
    start = stage.init or constant(identity(stage.combiner, dtype).value, dtype)
    return cast(start, node.type)
