"""FuseTensorIR: merge a group's loop functions into one by substitution (Relax 4.2; relax.md (6)).

Before: private graph functions that fuse.py outlined (attribute `primitive`), holding only
CallTIRs. After: each is one LoopFunc and each call of it a CallTIR. A map stage disappears into
the stages that load from it; a map over a reduction's result becomes its epilogue; what neither
fits stays a stage with a local buffer. It never changes what is computed per element. Equal
results, as of the layers of a network, are one function: kernels are compiled once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from edgerelax.ir.graph import Binding, CallGraph, CallTIR, GraphFunc, Module, Value, Var
from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.names import Names
from edgerelax.ir.rewrite import all_bindings, rewrite_module
from edgerelax.ir.scalar import Buffer, Load, Scalar, loads, replace_loads, substitute
from edgerelax.sym import Atom, Expr, ExprLike, Opaque, as_expr


def fuse_loops(module: Module) -> Module:
    """Turn every primitive graph function into a loop function."""
    loops = dict(module.loops)
    funcs: dict[str, GraphFunc] = {}
    shared: dict[str, str] = {}  # by content, the first with it
    wired: dict[tuple[object, ...], str] = {}  # by wiring, the first with it
    merged: dict[str, str] = {}  # by primitive function, the loop function that it became
    for func in module.funcs.values():
        if func.attrs.get("primitive"):
            wiring = _wiring(func)
            if wiring not in wired:  # a layer is like the one before: merging takes long
                loop = merge(func, module.loops)
                wired[wiring] = shared.setdefault(loop.content, func.name)
                loops[func.name] = loop
            merged[func.name] = wired[wiring]
        else:
            funcs[func.name] = func

    def to_tir(binding: Binding) -> list[Binding]:
        call = binding.value
        if isinstance(call, CallGraph) and call.func in merged:
            device = _device_of(module.funcs[call.func])
            return [Binding(binding.var, CallTIR(merged[call.func], call.args, device=device))]
        return [binding]

    fused = rewrite_module(replace(module, funcs=funcs), to_tir)
    calls = (b.value for f in fused.funcs.values() for b in all_bindings(f.body))
    used = {call.func for call in calls if isinstance(call, CallTIR)}
    return replace(fused, loops={n: f for n, f in loops.items() if n in used})


def _wiring(func: GraphFunc) -> tuple[object, ...]:
    """What `merge` makes of a primitive function hangs on this, names left out."""
    numbers: dict[Value, int] = {p: k for k, p in enumerate(func.params)}
    calls: list[tuple[object, ...]] = []
    for binding in func.body.bindings:
        call = binding.value
        assert isinstance(call, CallTIR), "a primitive function holds only call_tir"
        calls.append((call.func, *(numbers[a] for a in call.args)))
        numbers[binding.var] = len(numbers)
    return len(func.params), tuple(calls), tuple(numbers[v] for v in func.body.results)


def merge(func: GraphFunc, loops: dict[str, LoopFunc]) -> LoopFunc:
    """One loop function that does what a primitive graph function does."""
    names = Names()
    buffers: dict[Value, tuple[Buffer, ...]] = {}
    weights: set[str] = set()
    for param in func.params:
        callee_buffer = _buffer_of(param, func, loops)
        renamed = Buffer(names.pick(callee_buffer.name), callee_buffer.dtype, callee_buffer.dims)
        buffers[param] = (renamed,)
    stages: list[Stage | Template] = []
    for binding in func.body.bindings:
        call = binding.value
        assert isinstance(call, CallTIR), "a primitive function holds only call_tir"
        callee = loops[call.func]
        swap: dict[str, Buffer] = {}
        for buffer, arg in zip(callee.inputs, call.args, strict=True):
            swap[buffer.name] = buffers[arg][0]
            if buffer.name in callee.weights:
                weights.add(swap[buffer.name].name)
        for buffer in (*callee.temps, *callee.outputs):
            swap[buffer.name] = Buffer(names.pick(buffer.name), buffer.dtype, buffer.dims)
        buffers[binding.var] = tuple(swap[b.name] for b in callee.outputs)
        stages.extend(rename(stage, swap) for stage in callee.stages)
    outputs = tuple(b for result in func.body.results for b in buffers[result])
    inputs = tuple(buffers[p][0] for p in func.params)
    merged = inline(stages, inputs, outputs)
    return LoopFunc(func.name, inputs, outputs, merged, frozenset(weights))


def rename(stage: Stage | Template, swap: dict[str, Buffer]) -> Stage | Template:
    """The same stage over other buffers. Dims may be spelled differently; indices are kept."""
    if isinstance(stage, Template):
        return replace(
            stage,
            inputs=tuple(swap[b.name] for b in stage.inputs),
            outputs=tuple(swap[b.name] for b in stage.outputs),
        )
    return map_loads(
        replace(stage, out=swap[stage.out.name]),
        lambda load: Load(swap[load.buffer.name], load.index),
    )


def inline(
    stages: Sequence[Stage | Template], inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> tuple[Stage | Template, ...]:
    """Substitute map stages into their consumers and maps over reductions into epilogues."""
    kept = list(stages)
    outer = {b.name for b in (*inputs, *outputs)}
    changed = True
    while changed:
        changed = False
        for k, stage in enumerate(kept):
            if isinstance(stage, Template) or stage.out.name in outer:
                continue
            readers = [
                j for j, s in enumerate(kept) if any(b.name == stage.out.name for b in s.reads())
            ]
            merged = _inline_map(kept, k, readers) or _into_epilogue(kept, k, readers)
            if merged is not None:
                kept, changed = merged, True
                break
    return tuple(kept)


def _inline_map(
    stages: list[Stage | Template], k: int, readers: list[int]
) -> list[Stage | Template] | None:
    """Substitute map stage k into all that load from it; None if it is no plain map."""
    producer = stages[k]
    assert isinstance(producer, Stage)
    writers = [s for s in stages if isinstance(s, Stage) and s.out.name == producer.out.name]
    if (
        producer.combiner
        or producer.where is not None
        or producer.index is not None
        or len(writers) > 1
    ):
        return None
    if any(isinstance(stages[j], Template) for j in readers):
        return None

    def body_at(load: Load) -> Scalar | None:
        if load.buffer.name != producer.out.name:
            return None
        at: dict[Atom, ExprLike] = dict(zip(producer.axes, load.index, strict=True))
        return substitute(producer.body, at)

    out = list(stages)
    for j in readers:
        reader = stages[j]
        assert isinstance(reader, Stage)
        out[j] = map_loads(reader, body_at)
    del out[k]
    return out


def _into_epilogue(
    stages: list[Stage | Template], k: int, readers: list[int]
) -> list[Stage | Template] | None:
    """Make the one map that reads reduction k its epilogue.

    None if it reads it elsewhere than at its own point.
    """
    producer = stages[k]
    assert isinstance(producer, Stage)
    if not producer.combiner or producer.where is not None or producer.index is not None:
        return None
    if len(readers) != 1:
        return None
    reader = stages[readers[0]]
    if isinstance(reader, Template) or reader.combiner or reader.where is not None:
        return None
    if reader.index is not None or len(reader.axes) != len(producer.axes):
        return None
    if any(a.extent != b.extent for a, b in zip(reader.axes, producer.axes, strict=True)):
        return None
    own = tuple(as_expr(a) for a in reader.axes)
    own_loads = [x for x in loads(reader.body) if x.buffer.name == producer.out.name]
    if any(load.index != own for load in own_loads):
        return None
    result = producer.result
    axes: dict[Atom, ExprLike] = dict(zip(reader.axes, producer.axes, strict=True))
    body = replace_loads(
        reader.body, lambda load: result if load.buffer.name == producer.out.name else None
    )
    fused = replace(producer, out=reader.out, epilogue=substitute(body, axes))
    out = list(stages)
    out[readers[0]] = fused
    del out[k]
    return out


def map_loads(stage: Stage, change: Callable[[Load], Scalar | None]) -> Stage:
    """Rewrite every load of a stage, those that gather store indices included."""

    def scalar(node: Scalar | None) -> Scalar | None:
        return None if node is None else replace_loads(node, change)

    index = stage.index
    if index is not None:
        index = tuple(_change_expr(e, change) for e in index)
    return replace(
        stage,
        body=replace_loads(stage.body, change),
        init=scalar(stage.init),
        where=scalar(stage.where),
        epilogue=scalar(stage.epilogue),
        index=index,
    )


def _change_expr(expr: Expr, change: Callable[[Load], Scalar | None]) -> Expr:
    swaps: dict[Atom, ExprLike] = {
        atom: as_expr(Opaque(replace_loads(atom.payload, change), atom.lo, atom.hi))
        for atom in expr.atoms()
        if isinstance(atom, Opaque) and isinstance(atom.payload, Scalar)
    }
    return expr.subs(swaps) if swaps else expr


def _buffer_of(param: Var, func: GraphFunc, loops: dict[str, LoopFunc]) -> Buffer:
    """The callee's buffer that a parameter is first passed to."""
    for binding in func.body.bindings:
        call = binding.value
        if isinstance(call, CallTIR) and param in call.args:
            return loops[call.func].inputs[call.args.index(param)]
    raise AssertionError(f"{func.name}: parameter {param.name} is unused")


def _device_of(func: GraphFunc) -> str:
    """Where a primitive function runs: fuse groups calls of one device only."""
    first = func.body.bindings[0].value
    assert isinstance(first, CallTIR)
    return first.device
