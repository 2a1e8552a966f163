"""Choose the device of every call_tir and insert the copies between devices (design 5, 7).

Before: legalised functions. After: each CallTIR has a device, as each CallLibrary had already; a
value that another device needs passes a ToDevice. Parameters and constants are on every device.
For target `gpu`:

* what a GPU cannot do (f64, strings) runs on the CPU device of the same program;
* small work that only the host waits for (conditions, sizes) runs there too, if it depends on
  nothing but small parameters and constants: no round trip to the GPU.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from edgerelax.ir import scatter
from edgerelax.ir.dtypes import F64, STRING, DType
from edgerelax.ir.graph import (
    Binding,
    Block,
    CallLibrary,
    CallTIR,
    Constant,
    Expression,
    GetItem,
    IfElse,
    MatchCast,
    Module,
    ReadInts,
    Repeat,
    ToDevice,
    Value,
    Var,
    bodies,
    body_params,
    with_bodies,
)
from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.rewrite import all_bindings, substitute_operands
from edgerelax.ir.scalar import walk
from edgerelax.ir.types import Annotation, Tensor, Tuple, as_tensor
from edgerelax.sym import product, upper_bound

Device = Literal["gpu", "cpu"]
SMALL = 1024  # elements
NOT_ON_GPU = frozenset((F64, STRING))


def place(module: Module, *, device: Device) -> Module:
    """Place every graph function for programs whose main device is `device`."""
    funcs = {}
    for name, func in module.funcs.items():
        host = _host_work(module, func.body) if device == "gpu" else set()
        placer = _Placer(module, device, host)
        funcs[name] = replace(func, body=placer.block(func.body, {}, {}))
    return replace(module, funcs=funcs)


@dataclass(slots=True)
class _Placer:
    module: Module
    main: Device
    host: set[Value]
    devices: dict[Value, str] = field(default_factory=dict)  # of values that live on one device

    def block(
        self, block: Block, copies: dict[tuple[Value, str], Value], replaced: dict[Value, Value]
    ) -> Block:
        out: list[Binding] = []
        for binding in block.bindings:
            value = substitute_operands(binding.value, replaced)
            if isinstance(value, CallTIR | CallLibrary):
                device = self._device(binding.var, value)
                self.devices[binding.var] = device
                args = tuple(self._on(arg, device, copies, out) for arg in value.args)
                value = replace(value, args=args, device=device)
            elif bodies(value):
                value = self._nest(binding.var, value, copies, replaced, out)
            elif isinstance(value, GetItem | MatchCast) and value.value in self.devices:
                self.devices[binding.var] = self.devices[value.value]
            out.append(Binding(binding.var, value))
        return Block(tuple(out), tuple(replaced.get(v, v) for v in block.results))

    def _device(self, var: Var, call: CallTIR | CallLibrary) -> str:
        if isinstance(call, CallLibrary):
            return call.device or self.main
        on_cpu = var in self.host or not runs_on_gpu(self.module.loops[call.func])
        return "cpu" if on_cpu else self.main

    def _on(
        self,
        value: Value,
        device: str,
        copies: dict[tuple[Value, str], Value],
        out: list[Binding],
    ) -> Value:
        """The value on that device, copied once per scope."""
        if self.devices.get(value, device) == device:
            return value
        if (value, device) not in copies:
            var = Var(f"{value.name}_{device}", value.annotation)
            out.append(Binding(var, ToDevice(value, device)))
            self.devices[var] = device
            copies[(value, device)] = var
        return copies[(value, device)]

    def _nest(
        self,
        var: Var,
        nest: Expression,
        copies: dict[tuple[Value, str], Value],
        replaced: dict[Value, Value],
        out: list[Binding],
    ) -> Expression:
        """What nested bodies give is on the main device, and what a loop carries."""
        if isinstance(nest, Repeat):
            first = (self._on(v, self.main, copies, out) for v in nest.initial)
            nest = replace(nest, initial=tuple(first))
        self.devices.update(dict.fromkeys(body_params(nest), self.main))
        inner = []
        for body in bodies(nest):
            block = self.block(body, dict(copies), dict(replaced))
            extra: list[Binding] = []
            results = tuple(self._on(r, self.main, {}, extra) for r in block.results)
            inner.append(Block((*block.bindings, *extra), results))
        self.devices[var] = self.main
        return with_bodies(nest, inner)


def runs_on_gpu(loop: LoopFunc) -> bool:
    """Whether every element type that it touches exists on a GPU, and what its templates need."""
    templates = (s for s in loop.stages if isinstance(s, Template))
    if any(t.kind in scatter.KINDS and not scatter.is_for_gpu(t) for t in templates):
        return False
    dtypes: set[DType] = {b.dtype for b in (*loop.inputs, *loop.outputs, *loop.temps)}
    for stage in loop.stages:
        if isinstance(stage, Stage):
            dtypes |= {node.dtype for s in stage.scalars() for node in walk(s)}
    return dtypes.isdisjoint(NOT_ON_GPU)


def _host_work(module: Module, body: Block) -> set[Value]:
    """Values that only conditions and reads need, made of small parameters and constants."""
    producers: dict[Value, CallTIR] = {}
    others: set[Value] = set()
    for binding in all_bindings(body):
        others.update(body_params(binding.value))
        if isinstance(binding.value, CallTIR):
            producers[binding.var] = binding.value
        else:
            others.add(binding.var)
    small: set[Value] = set()
    for var, call in producers.items():  # in program order within each scope
        inputs_small = all(
            a in small or (a not in producers and a not in others and is_small(a.annotation))
            for a in call.args
        )
        if inputs_small and is_small(var.annotation):
            small.add(var)
    wanted: set[Value] = set()
    todo = [w for b in all_bindings(body) for w in _waits_for(b)]
    while todo:
        value = todo.pop()
        if value in small and value not in wanted:
            wanted.add(value)
            todo.extend(producers[value].args)
    return wanted


def _waits_for(binding: Binding) -> tuple[Value, ...]:
    value = binding.value
    if isinstance(value, ReadInts):
        return (value.value,)
    if isinstance(value, IfElse) and isinstance(value.cond, Var | Constant):
        return (value.cond,)
    return ()


def is_small(annotation: Annotation) -> bool:
    """Whether a value has at most SMALL elements, whatever its symbols."""
    if isinstance(annotation, Tuple):
        return all(is_small(f) for f in annotation.fields)
    tensor = as_tensor(annotation)
    if not isinstance(tensor, Tensor) or tensor.dims is None:
        return False
    bound = upper_bound(product(tensor.dims))
    return bound is not None and bound <= SMALL
