"""Sub-word outputs on the GPU: compute into 32-bit workspaces, then narrow with a map.

A GPU invocation must own the whole words that it writes. Where a bool, 8-bit or 16-bit buffer is
filled by stages that cannot (reductions by group, offset writes), they write a 32-bit twin, readers
read the twin, and a last map packs it.
"""

from dataclasses import replace

from edgerelax.ir.dtypes import F32, I32, U32, DType
from edgerelax.ir.loop import LoopFunc, Stage, Template, grid, outputs_of
from edgerelax.ir.scalar import Buffer, Load, Scalar, cast, replace_loads
from edgerelax.schedule.contraction import contraction
from edgerelax.schedule.points import coalesce, map_scalars
from edgerelax.schedule.strategies.base import Reject
from edgerelax.schedule.strategies.map import writes_whole_words
from edgerelax.schedule.strategies.pointwise import Points, is_sub_word
from edgerelax.schedule.strategies.templates.attention_problem import stores_vectors
from edgerelax.sym import as_expr


def widen_subword_outputs(func: LoopFunc) -> LoopFunc:
    """The same function with 32-bit twins for sub-word buffers that need them."""
    for buffer in {b.name: b for s in func.stages for b in outputs_of(s)}.values():
        if is_sub_word(buffer.dtype) and not _owns_words(func, buffer):
            func = _with_twin(func, buffer)
    return func


def _owns_words(func: LoopFunc, buffer: Buffer) -> bool:
    writers = [s for s in func.stages if any(b.name == buffer.name for b in outputs_of(s))]
    return all(_writes_words(func, stage) for stage in writers)


def _writes_words(func: LoopFunc, stage: Stage | Template) -> bool:
    if isinstance(stage, Template):
        return stage.kind == "attention" and stores_vectors(stage)
    if stage.combiner is not None:
        found = contraction(stage)
        return not isinstance(found, Reject) and found.stores_vectors
    return writes_whole_words(Points(func.name, coalesce(stage), func.weights))


def wide_dtype(dtype: DType) -> DType:
    """The type itself, or one of 32 bits that holds every value."""
    if dtype.bits >= 32:
        return dtype
    if dtype.is_float:
        return F32
    return U32 if dtype.kind == "uint" else I32


def _with_twin(func: LoopFunc, buffer: Buffer) -> LoopFunc:
    twin = Buffer(f"{buffer.name}_wide", wide_dtype(buffer.dtype), buffer.dims)
    last = max(
        k for k, s in enumerate(func.stages) if any(b.name == buffer.name for b in outputs_of(s))
    )
    stages = [_over(s, buffer, twin) if k <= last else s for k, s in enumerate(func.stages)]
    axes = grid(buffer)
    packed = cast(Load(twin, tuple(as_expr(a) for a in axes)), buffer.dtype)
    stages.insert(last + 1, Stage(buffer, axes, packed))
    return replace(func, stages=tuple(stages))


def _over(stage: Stage | Template, buffer: Buffer, twin: Buffer) -> Stage | Template:
    """The stage with the buffer's place taken by its twin."""
    if isinstance(stage, Template):
        outputs = tuple(twin if b.name == buffer.name else b for b in stage.outputs)
        return replace(stage, outputs=outputs)

    def load(node: Load) -> Scalar | None:
        if node.buffer.name != buffer.name:
            return None
        return cast(Load(twin, node.index), buffer.dtype)

    changed = map_scalars(stage, lambda s: replace_loads(s, load))
    if stage.out.name != buffer.name:
        return changed
    if stage.combiner is None:
        return replace(changed, out=twin, body=cast(changed.body, twin.dtype))
    return replace(changed, out=twin, epilogue=cast(changed.result, twin.dtype))
