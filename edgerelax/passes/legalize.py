"""Lower every operator call to loop functions (Relax 4.7).

Partial lowering happens before: what is a library call or a call_tir already stays.

Before: graph functions of operator calls with known shapes. After: no Call is left, or all that
could not be lowered are reported at once; no CallTIR binds symbols: caller and callee share them.
Constants of one element become literals of the loop body, so that they cost no binding; equal loop
functions are one; an operator whose results are filled independently of each other becomes one
function per result.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edgerelax.ir.deduce import call_site
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.graph import (
    Binding,
    Call,
    CallTIR,
    Constant,
    GraphFunc,
    MakeTuple,
    Module,
    Value,
    Var,
)
from edgerelax.ir.loop import LoopFunc, Stage, Template, outputs_of
from edgerelax.ir.rewrite import rewrite_func
from edgerelax.ir.scalar import Buffer, Load, Scalar, constant, substitute
from edgerelax.ir.types import Annotation, Tensor, Tuple, as_tensor
from edgerelax.passes.fuse_loops import map_loads
from edgerelax.sym import Atom, Axis, Expr, ExprLike, Symbol


def legalize(module: Module) -> Module:
    """Replace all calls by call_tir."""
    lowering = _Lowering(dict(module.loops))
    funcs = {name: lowering.func(f) for name, f in module.funcs.items()}
    if lowering.problems:
        raise UnsupportedError(
            f"{len(lowering.problems)} operator calls cannot be lowered to loops:\n  "
            + "\n  ".join(lowering.problems),
            hint="give the unknown dims names or bounds with --dim, or replace these nodes",
        )
    return replace(module, funcs=funcs, loops=lowering.loops)


class _Lowering:
    """Collects the loop functions of a module, each distinct one once."""

    def __init__(self, loops: dict[str, LoopFunc]) -> None:
        self.loops = loops
        self.known = {loop.content: name for name, loop in loops.items()}
        self.problems: list[str] = []

    def func(self, func: GraphFunc) -> GraphFunc:
        return rewrite_func(func, self._binding)

    def _binding(self, binding: Binding) -> Value | list[Binding]:
        call = binding.value
        if isinstance(call, CallTIR):
            loop = bind_symbols(self.loops[call.func], dict(call.symbols))
            annotation = binding.var.annotation
            return [self._call(binding.var, annotation, call.func, loop, call.args)]
        if not isinstance(call, Call):
            return [binding]
        annotation = data_annotation(binding.var.annotation)
        site = call_site(call, binding.var.name, binding.var.origin, annotation)
        known = tuple(None if a is None else data_annotation(a) for a in site.args)
        site = replace(site, args=known)
        unknown = [str(a) for a in (*site.args, annotation) if a is not None and not _is_known(a)]
        if call.op.lower is None or unknown:
            why = f"unknown shape {unknown[0]}" if unknown else "no loop program"
            self.problems.append(
                f"{call.op.name} ({binding.var.origin or binding.var.name}): {why}"
            )
            return [binding]
        loop = call.op.lower(site)
        args = tuple(a for a in call.args if a is not None)
        parts = split_outputs(loop)
        if len(parts) == 1:
            return [self._call(binding.var, annotation, call.op.name, loop, args)]
        assert isinstance(annotation, Tuple)
        made = [
            self._call(Var(f"{binding.var.name}_{k}", field), field, call.op.name, part, args)
            for k, (part, field) in enumerate(zip(parts, annotation.fields, strict=True))
        ]
        whole = Var(binding.var.name, annotation, binding.var.origin)
        return [*made, Binding(whole, MakeTuple(tuple(b.var for b in made)))]

    def _call(
        self, var: Var, annotation: Annotation, name: str, loop: LoopFunc, args: tuple[Value, ...]
    ) -> Binding:
        """A call_tir of a loop function over the arguments that it still needs."""
        bound, kept = inline_literals(loop, args)
        call = CallTIR(self._share(name, bound), kept)
        return Binding(Var(var.name, annotation, var.origin), call)

    def _share(self, name: str, loop: LoopFunc) -> str:
        """The name of an equal function that is there already, or of this one added."""
        key = loop.content
        if key not in self.known:
            unique, k = name, 0
            while unique in self.loops:
                k += 1
                unique = f"{name}_{k}"
            self.loops[unique] = replace(loop, name=unique)
            self.known[key] = unique
        return self.known[key]


def bind_symbols(loop: LoopFunc, symbols: Mapping[Symbol, Expr]) -> LoopFunc:
    """The same function with symbols replaced in dims, extents and indices."""
    if not symbols:
        return loop
    outer: dict[Atom, ExprLike] = {s: e for s, e in symbols.items()}

    def buffer(old: Buffer) -> Buffer:
        return replace(old, dims=tuple(d.subs(outer) for d in old.dims))

    def bound(stage: Stage | Template) -> Stage | Template:
        if isinstance(stage, Template):
            params = {k: _bound_attr(p, outer) for k, p in stage.params.items()}
            inputs, outputs = map(buffer, stage.inputs), map(buffer, stage.outputs)
            return Template(stage.kind, tuple(inputs), tuple(outputs), params)
        axes = {a: Axis(a.name, a.extent.subs(outer)) for a in (*stage.axes, *stage.reduce)}
        at = outer | {old: new for old, new in axes.items()}

        def scalar(node: Scalar | None) -> Scalar | None:
            return None if node is None else substitute(node, at)

        index = stage.index
        moved = Stage(
            buffer(stage.out),
            tuple(axes[a] for a in stage.axes),
            substitute(stage.body, at),
            tuple(axes[a] for a in stage.reduce),
            stage.combiner,
            scalar(stage.init),
            scalar(stage.where),
            None if index is None else tuple(e.subs(at) for e in index),
            scalar(stage.epilogue),
        )
        return map_loads(moved, lambda load: Load(buffer(load.buffer), load.index))

    inputs, outputs = map(buffer, loop.inputs), map(buffer, loop.outputs)
    stages = tuple(map(bound, loop.stages))
    return replace(loop, inputs=tuple(inputs), outputs=tuple(outputs), stages=stages)


def _bound_attr(value: Any, outer: Mapping[Atom, ExprLike]) -> Any:
    """A parameter of a template with symbols replaced, in tuples too."""
    if isinstance(value, tuple):
        return tuple(_bound_attr(v, outer) for v in value)
    return value.subs(outer) if isinstance(value, Expr) else value


def split_outputs(loop: LoopFunc) -> list[LoopFunc]:
    """One function per output where each is filled by stages of its own (split): those may fuse."""
    by_output: dict[str, list[Stage | Template]] = {b.name: [] for b in loop.outputs}
    for stage in loop.stages:
        written = outputs_of(stage)
        reads_inputs_only = all(b in loop.inputs for b in stage.reads())
        if len(written) != 1 or written[0].name not in by_output or not reads_inputs_only:
            return [loop]
        by_output[written[0].name].append(stage)
    if len(loop.outputs) == 1 or not all(by_output.values()):
        return [loop]
    return [
        replace(loop, outputs=(out,), stages=tuple(by_output[out.name])) for out in loop.outputs
    ]


def data_annotation(annotation: Annotation) -> Annotation:
    """The annotation of the bytes: known integers are a tensor like any other."""
    if isinstance(annotation, Tuple):
        return Tuple(tuple(data_annotation(f) for f in annotation.fields))
    return as_tensor(annotation) or annotation


def inline_literals(loop: LoopFunc, args: tuple[Value, ...]) -> tuple[LoopFunc, tuple[Value, ...]]:
    """Bind constant arguments: one element becomes a literal, more is marked a weight.

    An argument passed twice becomes one input, as a buffer may be bound only once; one that no
    stage reads is dropped.
    """
    literals: dict[str, Scalar] = {}
    inputs: list[Buffer] = []
    kept: list[Value] = []
    swap: dict[str, Buffer] = {}
    weights: set[str] = set()
    templated = {b.name for s in loop.stages if isinstance(s, Template) for b in s.inputs}
    for buffer, arg in zip(loop.inputs, args, strict=True):
        if buffer.name not in templated and isinstance(arg, Constant) and arg.data.size == 1:
            literals[buffer.name] = constant(arg.data.reshape(-1)[0].item(), buffer.dtype)
        elif arg in kept:
            swap[buffer.name] = inputs[kept.index(arg)]
        else:
            inputs.append(buffer)
            kept.append(arg)
            if isinstance(arg, Constant):
                weights.add(buffer.name)

    def change(load: Load) -> Scalar | None:
        name = load.buffer.name
        return Load(swap[name], load.index) if name in swap else literals.get(name)

    stages: list[Stage | Template] = []
    for stage in loop.stages:
        if isinstance(stage, Template):
            own = tuple(swap.get(b.name, b) for b in stage.inputs)
            stages.append(replace(stage, inputs=own))
        else:
            stages.append(map_loads(stage, change) if literals or swap else stage)
    read = {b.name for s in stages for b in s.reads()}
    both = [(b, a) for b, a in zip(inputs, kept, strict=True) if b.name in read]
    bound = replace(
        loop,
        inputs=tuple(b for b, _ in both),
        stages=tuple(stages),
        weights=frozenset(weights & read),
    )
    return bound, tuple(a for _, a in both)


def _is_known(annotation: Annotation) -> bool:
    if isinstance(annotation, Tuple):
        return all(_is_known(f) for f in annotation.fields)
    return not isinstance(annotation, Tensor) or (
        annotation.dims is not None and annotation.dtype is not None
    )
