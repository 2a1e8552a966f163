"""Module → VM program: shapes, memory places, kernel launches, control flow (Relax 4.7).

Before: placed, fused, scheduled and planned graph functions. Straight-line runs of launches become
capture regions keyed by the symbols that they depend on; reads, branches and copies between devices
stand between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edgerelax.codegen.integers import Integers, cannot_fail
from edgerelax.codegen.kernel_table import Kernels
from edgerelax.codegen.libraries import Libraries, LibraryCall, dims_of, grid_of
from edgerelax.codegen.packed_weights import PackedWeights, packed_of
from edgerelax.codegen.program import (
    Binding,
    InputSpec,
    OutputSpec,
    ProgramBuilder,
    Reg,
)
from edgerelax.codegen.signature import check_symbol, match_inputs
from edgerelax.codegen.weight_table import WeightTable
from edgerelax.ir import graph
from edgerelax.ir.deduce import symbols_inside
from edgerelax.ir.diagnostics import PassError
from edgerelax.ir.graph import (
    Block,
    CallLibrary,
    CallTIR,
    Constant,
    GraphFunc,
    IfElse,
    MatchCast,
    Module,
    ReadInts,
    Repeat,
    ToDevice,
    Value,
    Var,
    body_symbols,
    inputs_of,
    module_states,
    results_of,
    states,
)
from edgerelax.ir.kernel import Kernel
from edgerelax.ir.plan import MemoryPlan, Place, Schedule, crossing, shared_slabs
from edgerelax.ir.types import Shape, Tensor, Tuple, as_tensor, tensor_bytes
from edgerelax.sym import Expr, Symbol, prove_eq, prove_nonneg

Schedules = Mapping[tuple[str, str], Schedule]  # (loop function, device)


@dataclass(slots=True)
class Lowered:
    """A program and what its host needs beside it."""

    program: bytes
    gpu_kernels: list[Kernel]
    cpu_kernels: list[Kernel]
    weights_on_gpu: list[int]
    weights_on_cpu: list[int]
    libraries: list[LibraryCall]


def lower(
    module: Module,
    schedules: Schedules,
    weights: WeightTable,
    packed: PackedWeights,
    *,
    main: str,
    capture: bool = True,
) -> Lowered:
    """Make the program of a module whose main device is `main`.

    Programs of one artifact share `weights` and `packed`. `capture=False` leaves out regions, so
    that nothing is replayed (ablation).
    """
    builder = ProgramBuilder()
    kernels = Kernels()
    libraries = Libraries()
    plans: dict[str, MemoryPlan] = module.attrs["plans"]
    shared = module_states(module.funcs.values())
    table, numbers = shared_slabs([plans[name].slabs for name in module.funcs])
    first = [0] * len(table)  # what each has when a run begins: functions ensure what sizes decide
    for name, own in zip(module.funcs, numbers, strict=True):
        for k, slab in zip(own, plans[name].slabs, strict=True):
            first[k] = max(first[k], slab.size.as_int() or 0)
    for slab, size in zip(table, first, strict=True):
        builder.slab(slab.device, size)
    for func, slabs in zip(module.funcs.values(), numbers, strict=True):
        _Function(
            builder, module, func, plans[func.name], schedules, weights, packed, kernels,
            libraries, main, capture, shared, slabs,
        )  # fmt: skip
    devices = {0: "gpu", 1: "cpu"}
    on = {
        d: [k for k, w in enumerate(builder.weights) if w.places >> b & 1]
        for b, d in devices.items()
    }
    data = builder.encode()
    called = [*libraries.of["gpu"], *libraries.of["cpu"]]
    return Lowered(data, kernels.of["gpu"], kernels.of["cpu"], on["gpu"], on["cpu"], called)


class _Function:
    """Emits one graph function."""

    def __init__(
        self,
        builder: ProgramBuilder,
        module: Module,
        func: GraphFunc,
        plan: MemoryPlan,
        schedules: Schedules,
        weights: WeightTable,
        packed: PackedWeights,
        kernels: Kernels,
        libraries: Libraries,
        main: str,
        capture: bool,
        shared: Sequence[Var],
        slabs: Sequence[int],
    ) -> None:
        self.builder, self.module, self.func, self.plan = builder, module, func, plan
        self.schedules, self.weights, self.kernels = schedules, weights, kernels
        self.packed, self.libraries = packed, libraries
        self.main, self.capture = main, capture
        self.states = states(func)
        self.results = results_of(func)
        places = [s.name for s in shared]
        inputs = inputs_of(func)
        self.params = {p: places.index(p.name) for p in self.states}
        self.params |= {p: len(shared) + k for k, p in enumerate(inputs)}
        self.f = builder.function(
            func.name,
            [InputSpec(p.name, *_dtype_rank(p)) for p in (*shared, *inputs)],
            [OutputSpec(name, _dtype_rank(v)[0]) for name, v in self.results.items()],
        )
        self.integers = Integers(self.f)
        self.reads: dict[Value, tuple[Reg, ...]] = {}
        self.checked: set[Expr] = set()  # dims that are not negative
        self.slabs = slabs
        self.varying: set[Symbol] = set()  # symbols that have another value in each run of a loop
        self.grown = {k for k, s in enumerate(plan.slabs) if s.size.as_int() is not None}
        match_inputs(self.f, self.integers, self.params)
        self._ensure_known_slabs()
        self.block(func.body)
        self._keep_states()
        self._outputs()
        self.f.ret()

    def block(self, block: Block) -> None:
        """Runs of launches on one device become regions; everything else stands alone."""
        run: list[tuple[graph.Binding, CallTIR | CallLibrary]] = []
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, CallTIR | CallLibrary):
                if binding.var in self.plan.aliases:
                    continue
                if run and self._device(run[-1][1]) != self._device(value):
                    self._flush(run)
                run.append((binding, value))
                continue
            if isinstance(value, graph.GetItem | graph.MakeTuple | graph.MakeShape):
                continue
            if isinstance(value, MatchCast) and not self._asserts(binding, value):
                continue
            self._flush(run)
            self._single(binding)
        self._flush(run)

    def _device(self, call: CallTIR | CallLibrary) -> str:
        return call.device or self.main

    def _single(self, binding: graph.Binding) -> None:
        match binding.value:
            case MatchCast() as cast:
                self._match_cast(binding, cast)
            case ReadInts(value):
                self._read(binding, value)
            case ToDevice(value, device):
                self._to_device(binding, value, device)
            case IfElse() as branch:
                self._if_else(binding, branch)
            case Repeat() as repeat:
                self._repeat(binding, repeat)
            case other:
                raise PassError(f"{type(other).__name__} cannot be lowered to the VM")

    # Launches

    def _flush(self, run: list[tuple[graph.Binding, CallTIR | CallLibrary]]) -> None:
        if not run:
            return
        calls, device = list(run), self._device(run[0][1])
        run.clear()
        for binding, _ in calls:
            self._check_sizes(binding)
        self._ensure_slabs(calls)
        if not self.capture:
            self._launch_all(calls)
            return
        keys, late = self._keys(calls)
        with self.integers.scope(), self.f.region(device, keys, late):
            self._launch_all(calls)

    def _check_sizes(self, binding: graph.Binding) -> None:
        """Sizes that data decides may come out negative."""
        for value in self._results(binding):
            tensor = as_tensor(value.annotation)
            for dim in (tensor.dims if tensor is not None else None) or ():
                if dim not in self.checked and prove_nonneg(dim) is not True:
                    where = binding.var.origin or binding.var.name
                    text = f"{where}: a dimension ({dim}) is negative"
                    self.f.check_le(self.f.const(0), self.integers.reg(dim), text)
                self.checked.add(dim)

    def _launch_all(self, calls: Sequence[tuple[graph.Binding, CallTIR | CallLibrary]]) -> None:
        for binding, call in calls:
            if isinstance(call, CallTIR):
                self._launch(binding, call)
            else:
                self._library(call, self._results(binding))

    def _library(self, call: CallLibrary, results: Sequence[Value]) -> None:
        device, values = self._device(call), (*call.args, *results)
        places = [self._own_range(v, device) for v in values]
        dims = [self.integers.reg(d) for v in values for d in dims_of(v)]
        number = self.libraries.number(call, device, results)
        if device == "gpu":
            self.f.library(str(number), places, dims)
            return
        kernel = self.builder.library(number, len(places), len(dims))
        self.f.dispatch(kernel, self.integers.reg(grid_of(results)), places, dims)

    def _keys(
        self, calls: Sequence[tuple[graph.Binding, CallTIR | CallLibrary]]
    ) -> tuple[list[Reg], list[Reg]]:
        """What a region depends on, and scalars alone that change with the runs of a loop."""
        symbols: set[Symbol] = set()
        varying: dict[Expr, None] = {}
        for binding, call in calls:
            symbols |= self._symbols(binding, call)
            if isinstance(call, CallTIR):
                schedule = self.schedules[call.func, call.device]
                kernels = (k for v in schedule.versions for k in v.kernels)
                scalars = (e for k in kernels for e in self.kernels.scalars(k))
                varying |= dict.fromkeys(e for e in scalars if e.symbols() & self.varying)
        symbols |= {s for e in varying if not cannot_fail(e) for s in e.symbols()}
        late = {self.integers.reg(e): None for e in varying if not e.symbols() <= symbols}
        keys = [self.integers.symbols[s] for s in sorted(symbols, key=lambda s: s.name)]
        return keys, list(late)

    def _symbols(self, binding: graph.Binding, call: CallTIR | CallLibrary) -> set[Symbol]:
        """What a launch depends on, but for scalars that vary."""
        values = (*call.args, *self._results(binding))
        exprs = [e for v in values for e in self._place_exprs(v)]
        exprs += [e for v in values if isinstance(call, CallLibrary) for e in dims_of(v)]
        if isinstance(call, CallTIR):
            exprs += [e for p in self.plan.workspaces.get(binding, ()) for e in (p.offset, p.bytes)]
            for version in self.schedules[call.func, call.device].versions:
                exprs += [c.expr for c in version.guards]
                exprs += [k.grid for k in version.kernels]
                scalars = (e for k in version.kernels for _, e in k.scalars)
                exprs += [e for e in scalars if e.symbols().isdisjoint(self.varying)]
        return {s for e in exprs for s in e.symbols()}

    def _ensure_slabs(self, calls: Sequence[tuple[graph.Binding, CallTIR | CallLibrary]]) -> None:
        for binding, call in calls:
            for value in (*call.args, *self._results(binding)):
                place = self.plan.places.get(self.plan.root(value))
                if place is not None:
                    self._ensure(place)
            for place in self.plan.workspaces.get(binding, ()):
                self._ensure(place)

    def _ensure_known_slabs(self) -> None:
        """Grow what the inputs' sizes determine before anything is recorded.

        Growing forgets recorded lists.
        """
        for number in range(len(self.slabs)):
            self._ensure_whole(number)

    def _ensure(self, place: Place) -> None:
        """Have its slab hold a place, before anything is in it.

        The slab's size may be known in one arm of a branch alone, and the place be used elsewhere.
        """
        if not self._ensure_whole(place.slab):
            self.f.ensure(self.slabs[place.slab], self.integers.reg(place.offset + place.bytes))

    def _ensure_whole(self, number: int) -> bool:
        """Grow a slab to its size, once; False where that is not known here."""
        size = self.plan.slabs[number].size
        if number in self.grown:
            return True
        if not self.integers.is_defined(size):
            return False
        self.grown.add(number)
        self.f.ensure(self.slabs[number], self.integers.reg(size))
        return True

    def _launch(self, binding: graph.Binding, call: CallTIR) -> None:
        schedule = self.schedules[call.func, call.device]
        buffers, pairs = self._buffers(binding, call), self.plan.in_place.get(binding, {})
        places = self.plan.workspaces.get(binding, ())
        lifted = dict(zip(schedule.workspaces, places, strict=True))
        done = self.f.label()
        self.integers.ahead(self.kernels.integers(schedule))  # not in branches: layers are alike
        for version in schedule.versions:
            skip = self.f.label()
            buffers |= {t.name: lifted[t] for t in version.temps}  # versions may share names
            with self.integers.scope():
                for guard in version.guards:
                    self.f.jump_if_zero(self.integers.cond(guard), skip)
                for kernel in version.kernels:
                    own = self.kernels.over(kernel, pairs)
                    if own is not None:
                        self._dispatch(call, own, buffers)
                if version.guards:
                    self.f.jump(done)
            self.f.place(skip)
        self.f.place(done)

    def _buffers(self, binding: graph.Binding, call: CallTIR) -> dict[str, Value | Place]:
        """What the buffers of a call's kernels stand for, by name, but for workspaces."""
        callee = self.module.loops[call.func]
        by_name: dict[str, Value | Place] = {}
        by_name.update({b.name: v for b, v in zip(callee.inputs, call.args, strict=True)})
        by_name.update(zip((b.name for b in callee.outputs), self._results(binding), strict=True))
        schedule = self.schedules[call.func, call.device]
        for packed in packed_of(schedule):
            by_name[packed.buffer.name] = self.packed.get(packed, by_name[packed.source.name])
        return by_name

    def _dispatch(
        self, call: CallTIR, kernel: Kernel, by_name: Mapping[str, Value | Place]
    ) -> None:
        if kernel.grid.as_int() == 0:
            return
        places = [self._binding(by_name[b.buffer.name], call.device) for b in kernel.buffers]
        scalars = [self.integers.reg(e) for e in self.kernels.scalars(kernel)]
        steps = len(scalars) if kernel.device == "cpu" else 0
        number = self.builder.kernel(
            kernel.device, self.kernels.number(kernel), len(places), len(scalars), steps
        )
        self.f.dispatch(number, self.integers.reg(kernel.grid), places, scalars)

    # Places

    def _results(self, binding: graph.Binding) -> tuple[Value, ...]:
        annotation = binding.var.annotation
        if isinstance(annotation, Tuple):
            return tuple(self.plan.fields[binding.var, k] for k in range(len(annotation.fields)))
        return (binding.var,)

    def _place_exprs(self, value: Value) -> tuple[Expr, ...]:
        root = self.plan.root(value)
        place = self.plan.places.get(root)
        return (_bytes(root),) if place is None else (place.offset, place.bytes)

    def _binding(self, value: Value | Place, device: str) -> Binding:
        if isinstance(value, Place):
            return self._slab_binding(value)
        root = self.plan.root(value)
        place = self.plan.places.get(root)
        if place is not None:
            return self._slab_binding(place)
        size = self.integers.reg(_bytes(root))
        if isinstance(root, Constant):
            return Binding("weight", self._weight(root), size)
        return Binding("input", self.params[self.plan.states.get(root, root)], size)

    def _weight(self, constant: Constant) -> int:
        """The weight's number; the program knows all that were numbered before."""
        number = self.weights.index(constant)
        for known in self.weights.weights[len(self.builder.weights) : number + 1]:
            self.builder.weight(known.data.nbytes)
        return number

    def _slab_binding(self, place: Place) -> Binding:
        offset = place.offset
        return Binding(
            "slab",
            self.slabs[place.slab],
            self.integers.reg(place.bytes),
            None if offset.as_int() == 0 else self.integers.reg(offset),
        )

    def _own_range(self, value: Value, device: str) -> Binding:
        """The binding of a value alone, where a view is the beginning of something larger."""
        found, size = self._binding(value, device), _bytes(value)
        if prove_eq(size, _bytes(self.plan.root(value))) is True:
            return found
        return replace(found, bytes=self.integers.reg(size))

    def _home(self, value: Value) -> str:
        """The device that holds a value: parameters and constants are at hand on the main one."""
        return self.plan.devices.get(self.plan.root(value), self.main)

    # Everything between regions

    def _asserts(self, binding: graph.Binding, cast: MatchCast) -> bool:
        """Whether a match_cast checks or defines anything."""
        if cast.value in self.reads:
            return True
        have, want = as_tensor(cast.value.annotation), as_tensor(binding.var.annotation)
        if have is None or want is None or want.dims is None or have.dims is None:
            return True
        return any(prove_eq(a, b) is not True for a, b in zip(have.dims, want.dims, strict=True))

    def _match_cast(self, binding: graph.Binding, cast: MatchCast) -> None:
        annotation = binding.var.annotation
        wanted = annotation.dims if isinstance(annotation, Tensor | Shape) else None
        if wanted is None:
            raise PassError(f"match_cast of {binding.var.name} to {annotation} cannot be checked")
        sizes = self.reads.get(cast.value)
        if sizes is None:
            have = cast.value.annotation
            dims = have.dims if isinstance(have, Tensor | Shape) else None
            if dims is None:
                raise PassError(
                    f"match_cast of {cast.value.name}: its dims are not known at run time"
                )
            sizes = tuple(self.integers.reg(d) for d in dims)
            least = 0 if isinstance(have, Tensor) else -(1 << 63)
        else:
            self.reads[binding.var] = sizes
            least = -(1 << 63)
        where = binding.var.origin or binding.var.name
        checks: list[tuple[Expr, Reg]] = []
        for dim, size in zip(wanted, sizes, strict=True):
            atom = dim.atom
            if isinstance(atom, Symbol) and atom not in self.integers.symbols:
                self.integers.define(atom, size)
                check_symbol(self.f, self.integers, atom, f"{where} ({dim})", least)
            else:
                checks.append((dim, size))
        is_check = isinstance(cast.value.annotation, Shape) and len(checks) == len(wanted)
        for k, (dim, size) in enumerate(checks):  # the origin of a mere check says all
            text = where if is_check else f"{where}: dimension {k} does not fit the expected {dim}"
            self.f.check_eq(size, self.integers.reg(dim), text)

    def _read(self, binding: graph.Binding, value: Value) -> None:
        tensor = as_tensor(value.annotation)
        rank = binding.var.annotation.rank if isinstance(binding.var.annotation, Shape) else None
        assert tensor is not None and tensor.dtype is not None and rank is not None
        device = self._home(value)
        if rank:
            source = self._binding(value, device)
            self.reads[binding.var] = self.f.read(device, source, tensor.dtype, rank)
        else:
            self.reads[binding.var] = ()

    def _to_device(self, binding: graph.Binding, value: Value, device: str) -> None:
        place = self.plan.places[self.plan.root(binding.var)]
        self._ensure(place)
        source = self._own_range(value, self._home(value))
        move = self.f.to_cpu if device == "cpu" else self.f.to_gpu
        move(self._slab_binding(place), source)

    def _if_else(self, binding: graph.Binding, branch: IfElse) -> None:
        other, done = self.f.label(), self.f.label()
        if isinstance(branch.cond, Expr):
            cond = self.integers.reg(branch.cond)
        else:
            tensor = as_tensor(branch.cond.annotation)
            assert tensor is not None and tensor.dtype is not None
            device = self._home(branch.cond)
            (cond,) = self.f.read(device, self._binding(branch.cond, device), tensor.dtype, 1)
        merged = {s: self.f.register() for s in branch.symbols}
        self.f.jump_if_zero(cond, other)
        self._arm(binding, branch.then, merged, branch.symbols, branch.then_symbols)
        self.f.jump(done)
        self.f.place(other)
        self._arm(binding, branch.other, merged, branch.symbols, branch.other_symbols)
        self.f.place(done)
        for symbol, register in merged.items():
            self.integers.define(symbol, register)

    def _arm(
        self,
        binding: graph.Binding,
        arm: Block,
        merged: Mapping[Symbol, Reg],
        symbols: Sequence[Symbol],
        values: Sequence[Expr],
    ) -> None:
        grown, checked = set(self.grown), set(self.checked)
        with self.integers.scope():
            self.block(arm)
            for symbol, value in zip(symbols, values, strict=True):
                self.f.move(self.integers.reg(value), merged[symbol])
            for target, source in zip(self._results(binding), arm.results, strict=True):
                if as_tensor(source.annotation) is not None:
                    self._copy(target, source)
        self.grown, self.checked = grown, checked

    def _repeat(self, binding: graph.Binding, repeat: Repeat) -> None:
        f, homes = self.f, self._results(binding)
        for home, value in zip(homes, repeat.initial, strict=True):
            self._ensure(self.plan.places[home])
            self._carry(home, value)
        trips, counter = self.integers.reg(repeat.trips), f.move(f.const(0))
        integers = [f.move(self.integers.reg(e)) for e in repeat.first]
        head, done = f.label(), f.label()
        f.place(head)
        f.jump_if_zero(f.ge(trips, f.add(counter, f.const(1))), done)
        grown, checked, varying = set(self.grown), set(self.checked), set(self.varying)
        with self.integers.scope():
            self.integers.define(repeat.counter, counter)
            for symbol, register in zip(repeat.symbols, integers, strict=True):
                self.integers.define(symbol, register)
            self.varying |= symbols_inside(repeat.body) | set(body_symbols(repeat))
            self.block(repeat.body)
            after = [f.move(self.integers.reg(e)) for e in repeat.next]
            going = None if repeat.going is None else self.integers.reg(repeat.going)
            self._next(binding, repeat)
        self.grown, self.checked, self.varying = grown, checked, varying
        for source, register in zip(after, integers, strict=True):
            f.move(source, register)
        f.add(counter, f.const(1), counter)
        if going is not None:
            f.jump_if_zero(going, done)
        f.jump(head)
        f.place(done)
        for symbol, register in zip(repeat.after, integers, strict=True):
            self.integers.define(symbol, register)

    def _next(self, binding: graph.Binding, repeat: Repeat) -> None:
        """Bring to its places what the next run takes: what crosses by way of a workspace."""
        homes, results = self._results(binding), repeat.body.results
        aside = dict(
            zip(
                crossing(repeat, self.plan.root),
                self.plan.workspaces.get(binding, ()),
                strict=True,
            )
        )
        for k, place in aside.items():
            self._ensure(place)
            device = self.plan.slabs[place.slab].device
            self.f.copy(device, self._slab_binding(place), self._own_range(results[k], device))
        for k, home in enumerate(homes):
            if k not in aside:
                self._carry(home, results[k])
        for k, place in aside.items():
            device, target = self.plan.slabs[place.slab].device, self.plan.places[homes[k]]
            self.f.copy(device, self._slab_binding(target), self._slab_binding(place))

    def _carry(self, home: Value, value: Value) -> None:
        """Copy a value to the place of what a loop carries, if it is not there already."""
        place = self.plan.places[home]
        if self.plan.places.get(self.plan.root(value)) != place:
            device = self.plan.slabs[place.slab].device
            self.f.copy(device, self._slab_binding(place), self._own_range(value, device))

    def _copy(self, target: Value, source: Value) -> None:
        place = self.plan.places[target]
        size = self.integers.reg(_bytes(source))
        slab = self.plan.slabs[place.slab]
        if not self._ensure_whole(place.slab):  # its size follows from which arm it was
            self.builder.keep(self.slabs[place.slab])
            self.f.ensure(self.slabs[place.slab], size)
        offset = None if place.offset.as_int() == 0 else self.integers.reg(place.offset)
        destination = Binding("slab", self.slabs[place.slab], size, offset)
        self.f.copy(slab.device, destination, self._own_range(source, slab.device))

    def _keep_states(self) -> None:
        """Copy to its place what a state becomes elsewhere."""
        for state, after in self.states.items():
            root = self.plan.root(after)
            if root is not state and root not in self.plan.states:
                size = self.integers.reg(_bytes(state))
                target = Binding("input", self.params[state], size)
                self.f.copy(self.main, target, self._own_range(after, self.main))

    def _outputs(self) -> None:
        for k, value in enumerate(self.results.values()):
            tensor = as_tensor(value.annotation)
            assert tensor is not None and tensor.dims is not None
            dims = [self.integers.reg(d) for d in tensor.dims]
            device = self._home(value)
            self.f.output(k, device, self._binding(value, device), dims)


def _dtype_rank(value: Value) -> tuple:  # type: ignore[type-arg]
    tensor = as_tensor(value.annotation)
    assert tensor is not None and tensor.dtype is not None
    return tensor.dtype, tensor.rank


def _bytes(value: Value) -> Expr:
    return tensor_bytes(value.annotation)
