"""Whether a loop function is well-formed; what the interpreter would only find on some input."""

from collections.abc import Iterator

from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.dtypes import BOOL
from edgerelax.ir.functions import FUNCTIONS
from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.printer import loop_text
from edgerelax.ir.scalar import PREDICATES, Acc, Buffer, Op, Scalar, Select, gathers, loads, walk
from edgerelax.ir.templates import TEMPLATES
from edgerelax.sym import Axis, Expr, prove_eq

_INPUT = -1


def verify_loop(func: LoopFunc) -> None:
    """Raise VerifyError, with the function's text, for the first thing that is wrong."""
    for problem in _problems(func):
        raise VerifyError(f"loop function {func.name}: {problem}", node=loop_text(func))


def _problems(func: LoopFunc) -> Iterator[str]:
    buffers: dict[str, Buffer] = {}
    for buffer in (*func.inputs, *func.outputs):
        if buffer.name in buffers:
            yield f"two parameters are named {buffer.name}"
        buffers[buffer.name] = buffer
    for name in sorted(func.weights - {b.name for b in func.inputs}):
        yield f"weight {name} is no input"
    written = {b.name: _INPUT for b in func.inputs}
    for number, stage in enumerate(func.stages):
        where = f"stage {number}"
        for buffer in stage.reads():
            if buffers.setdefault(buffer.name, buffer) != buffer:
                yield f"{where} reads {buffer}, declared as {buffers[buffer.name]}"
            if buffer.name not in written:
                yield f"{where} reads {buffer.name} before anything writes it"
        outputs = stage.outputs if isinstance(stage, Template) else (stage.out,)
        for buffer in outputs:
            if buffers.setdefault(buffer.name, buffer) != buffer:
                yield f"{where} writes {buffer}, declared as {buffers[buffer.name]}"
            if written.get(buffer.name) == _INPUT:
                yield f"{where} writes the input {buffer.name}"
            whole = isinstance(stage, Template) or (stage.index is None and stage.where is None)
            if whole and buffer.name in written:
                yield f"{where} writes all of {buffer.name} again"
            written[buffer.name] = number
        if isinstance(stage, Stage):
            yield from (f"{where}: {p}" for p in _stage_problems(stage))
        elif stage.kind not in TEMPLATES:
            yield f"{where}: no template {stage.kind}; known: {', '.join(TEMPLATES)}"
    for buffer in func.outputs:
        if buffer.name not in written:
            yield f"nothing writes the output {buffer.name}"


def _stage_problems(stage: Stage) -> Iterator[str]:
    axes = (*stage.axes, *stage.reduce)
    if len(set(axes)) < len(axes):
        yield f"an axis is listed twice: {', '.join(map(str, axes))}"
    for axis in axes:
        if axis.extent.axes():
            yield f"the extent of {axis} is {axis.extent}"
    if stage.reduce and stage.combiner is None:
        yield "reduce axes without a combiner"
    if stage.combiner is None and (stage.init is not None or stage.epilogue is not None):
        yield "init or epilogue without a combiner"
    if stage.init is not None and stage.combiner not in ("sum", "prod", "max", "min", "any", "all"):
        yield f"init of {stage.combiner}"
    yield from _store_problems(stage)
    spatial, whole = frozenset(stage.axes), frozenset(axes)
    parts: list[tuple[str, Scalar | None, frozenset[Axis]]] = [
        ("body", stage.body, whole),
        ("init", stage.init, spatial),
        ("where", stage.where, whole),
        ("epilogue", stage.epilogue, spatial),
    ]
    for name, scalar, allowed in parts:
        if scalar is not None:
            yield from (f"{name}: {p}" for p in _scalar_problems(scalar))
            stray = _axes(scalar) - allowed
            if stray:
                yield f"{name} uses {', '.join(sorted(map(str, stray)))}, no axis of it"
            if name != "epilogue" and any(isinstance(n, Acc) for n in walk(scalar)):
                yield f"{name} uses the reduced value"


def _store_problems(stage: Stage) -> Iterator[str]:
    out = stage.out
    if len(stage.store_index) != out.rank:
        yield f"{len(stage.store_index)} indices into {out}"
    elif stage.index is None:
        for axis, dim in zip(stage.axes, out.dims, strict=True):
            if prove_eq(axis.extent, dim) is False:
                yield f"axis {axis} of extent {axis.extent} stores along a dim of {dim}"
    for expr in stage.store_index:
        stray = _expr_axes(expr) - set(stage.axes)
        if stray:
            yield f"the store index uses {', '.join(sorted(map(str, stray)))}"
    if stage.result.dtype != out.dtype:
        yield f"stores {stage.result.dtype} into {out}"
    if stage.where is not None and stage.where.dtype != BOOL:
        yield f"where is {stage.where.dtype}"
    if stage.init is not None and stage.init.dtype != stage.body.dtype:
        yield f"init is {stage.init.dtype}, body {stage.body.dtype}"
    if stage.combiner in ("any", "all") and stage.body.dtype != BOOL:
        yield f"{stage.combiner} of {stage.body.dtype}"


def _scalar_problems(root: Scalar) -> Iterator[str]:
    for node in walk(root):
        if isinstance(node, Op):
            yield from _op_problems(node)
        elif isinstance(node, Select):
            if node.cond.dtype != BOOL:
                yield f"a choice by {node.cond.dtype}"
            if node.then.dtype != node.other.dtype:
                yield f"a choice between {node.then.dtype} and {node.other.dtype}"


def _op_problems(node: Op) -> Iterator[str]:
    function = FUNCTIONS.get(node.fn)
    if function is None:
        yield f"no function {node.fn}"
        return
    if len(node.operands) != function.arity:
        yield f"{node.fn} of {len(node.operands)} operands"
    dtypes = {a.dtype for a in node.operands}
    if len(dtypes) > 1:
        yield f"{node.fn} on {', '.join(sorted(map(str, dtypes)))}"
    if node.type != (BOOL if node.fn in PREDICATES else node.operands[0].dtype):
        yield f"{node.fn} on {node.operands[0].dtype} as {node.type}"


def _axes(root: Scalar) -> set[Axis]:
    """Axes of a scalar, those inside gathers included."""
    found = set(root.axes())
    for load in loads(root):
        for expr in load.index:
            found |= expr.axes()
    return found


def _expr_axes(expr: Expr) -> set[Axis]:
    return set(expr.axes()).union(*(_axes(g) for g in gathers(expr)))
