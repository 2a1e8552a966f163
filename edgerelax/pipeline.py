"""THE list of passes, and the way from a module to an artifact.

Each pass is a function Module → Module; the comment says why it stands where it stands. `without`
skips passes by name, for ablation; `dump` gets the module after every pass; `verify` checks it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edgerelax.artifact.manifest import Source
from edgerelax.artifact.pack import Compiled, pack
from edgerelax.artifact.store import Artifact
from edgerelax.codegen.lower import Lowered, Schedules, lower
from edgerelax.codegen.packed_weights import PackedWeights
from edgerelax.codegen.shared_weights import share_weights
from edgerelax.codegen.wasm import assemble, print_wat
from edgerelax.codegen.weight_table import WeightTable
from edgerelax.codegen.wgsl import print_wgsl
from edgerelax.codegen.wgsl_halves import uses_halves
from edgerelax.frontends.nn.quantise import QuantisedTensor
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError, PassError
from edgerelax.ir.graph import CallTIR, Module
from edgerelax.ir.kernel import SUBGROUPS, Kernel, for_features
from edgerelax.ir.kernel_in_place import over_operands
from edgerelax.ir.kernel_verify import verify_kernel
from edgerelax.ir.library import Library
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.outcome import taken
from edgerelax.ir.plan import MemoryPlan, Schedule
from edgerelax.ir.printer import write
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import symbols_of
from edgerelax.ir.verify import verify
from edgerelax.passes.canonicalize import canonicalize
from edgerelax.passes.check_plan import Played, check_plan
from edgerelax.passes.combine_matmuls import combine_matmuls
from edgerelax.passes.cse import cse
from edgerelax.passes.dce import dce
from edgerelax.passes.dispatch_library import dispatch_library, for_device
from edgerelax.passes.fold_constants import fold_constants
from edgerelax.passes.fold_scales import fold_scales
from edgerelax.passes.fold_transposes import fold_transposes
from edgerelax.passes.fuse import fuse
from edgerelax.passes.fuse_attention import fuse_attention
from edgerelax.passes.fuse_loops import fuse_loops
from edgerelax.passes.fuse_siblings import fuse_siblings
from edgerelax.passes.guard import guard
from edgerelax.passes.inline import inline
from edgerelax.passes.integer_products import integer_products
from edgerelax.passes.layout import layout
from edgerelax.passes.legalize import legalize
from edgerelax.passes.mixed_precision import mixed_precision
from edgerelax.passes.place import Device, place
from edgerelax.passes.plan_memory import plan_memory
from edgerelax.passes.round_weights import round_weights
from edgerelax.passes.sink_factors import sink_factors
from edgerelax.passes.split_weights import split_weights
from edgerelax.passes.tie_weights import tie_weights
from edgerelax.schedule.select import schedule, schedule_plainly
from edgerelax.schedule.target import VARIANTS, WASM, Target, Variant
from edgerelax.sym import Symbol
from edgerelax.version import VERSION

Pass = Callable[[Module], Module]

GRAPH: tuple[Pass, ...] = (
    inline,  # first: passes see one function, and no size is hidden behind a signature
    canonicalize,  # every later pass may rely on its form
    integer_products,  # before fold_constants, which makes floats of quantised weights
    fold_constants,  # before cse: folded values are equal by content
    canonicalize,  # takes apart the tuples that folding made
    cse,  # before legalize: operators compare by name and attributes, loops by text
    dce,  # what folding left behind must not be lowered, nor count as a use below
    tie_weights,  # after fold_constants, which turns tables; before what asks who uses a weight
    fold_transposes,  # before the passes that follow a value from use to use
    fold_scales,  # after cse: a weight that two operators share is one constant
    sink_factors,  # before combine_matmuls: a slice shares its weight with others
    combine_matmuls,  # after fold_scales: biases and scales are where it looks for them
    split_weights,  # after combine_matmuls: of what it joins, nothing is cut again
    fuse_attention,  # after combine_matmuls: heads are views of the product it made
    guard,  # needs the operators' rules; what nothing uses needs no check
    dispatch_library,  # before legalize: patterns are of operators; from here on per device
    legalize,  # from here on only loop functions; the rest is per device
    canonicalize,  # takes apart the tuples of operators that became one function per result
    dce,  # operands that became literals
    layout,  # after legalize: which orders go together is seen in the loops; before place
)

_PRECISION: Mapping[Device, Pass] = {
    "gpu": mixed_precision,
    "cpu": round_weights,  # it has no f16
}
"""What the option fp16 puts before `guard`."""

OPTIONAL = frozenset(
    (
        "integer_products",
        "fold_constants",
        "cse",
        "dce",
        "tie_weights",
        "fold_transposes",
        "fold_scales",
        "sink_factors",
        "combine_matmuls",
        "split_weights",
        "fuse_attention",
        "dispatch_library",
        "layout",
        "fuse",
        "fuse_siblings",
        "in_place",
        "strategies",
        "share_weights",
        "reuse",
        "capture",
    )
)
"""What may be left out: passes by name, all strategies but the plainest, results in the place of
operands, reuse of memory, capture and replay of command lists."""


PLACES = frozenset(
    [p.__name__ for p in GRAPH if GRAPH.count(p) == 1]
    + ["place", "fuse", "fuse_loops", "fuse_siblings"]
)
"""Passes that others may be put before: those that stand in one place."""


@dataclass(frozen=True, slots=True)
class Options:
    """How to compile.

    `target` is `webgpu` or `cpu`; `fallback` adds the programs of the CPU to those of a GPU.
    `variants` are the names in VARIANTS to make a program for; none: all that target and fallback
    call for. `fp16` stores weights, and a GPU's activations, as f16 where that is safe. `libraries`
    may take the place of operators. `passes` are passes of the caller's, each with the name of the
    pass that it runs before.
    """

    target: str = "webgpu"
    fallback: bool = True
    variants: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    dump: Path | None = None
    verify: bool = False
    fp16: bool = False
    libraries: tuple[Library, ...] = ()
    passes: tuple[tuple[str, Pass], ...] = ()


@dataclass(slots=True)
class Report:
    """What the compiler did: seconds by pass; by variant each loop function's strategies."""

    seconds: dict[str, float] = field(default_factory=dict)
    strategies: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    passes: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    """By pass, what it did and what it skipped and why, with counts."""
    quantised: list[QuantisedTensor] = field(default_factory=list)
    """The weights that a frontend stored as the caller chose."""
    steps: int = 0


def compile_module(module: Module, source: Source, options: Options) -> tuple[Artifact, Report]:
    """Compile once, then for each variant that the options ask for."""
    unknown = options.without - OPTIONAL
    if unknown:
        raise InputError(
            f"--without {', '.join(sorted(unknown))}: not known, or not optional",
            hint=f"what can be left out: {', '.join(sorted(OPTIONAL))}",
        )
    for before, _ in options.passes:
        if before not in PLACES:
            raise InputError(
                f"no pass can be put before {before!r}",
                hint=f"what passes can be put before: {', '.join(sorted(PLACES))}",
            )
    wanted = variants_of(options)
    runner = _Runner(options, Report())
    at = GRAPH.index(guard)  # attention is one operator by then; casts need no check
    module = runner.run_all(module, GRAPH[:at])
    variants = _Variants(module, GRAPH[at:], runner)
    artifact = pack(
        list(module.funcs.values()),
        _distinct([variants.compile(variant) for variant in wanted]),
        variants.weights.weights,
        source,
        f"edgerelax {VERSION}",
        module.attrs,
    )
    return artifact, runner.report


def variants_of(options: Options) -> list[Variant]:
    """What to make programs for, in the order in which loaders prefer them."""
    devices = {"webgpu": ("gpu", "cpu") if options.fallback else ("gpu",), "cpu": ("cpu",)}
    if options.target not in devices:
        raise InputError(f"unknown target {options.target!r}; known: {', '.join(devices)}")
    offered = {n: v for n, v in VARIANTS.items() if v.target.device in devices[options.target]}
    unknown = [name for name in options.variants if name not in offered]
    if unknown:
        raise InputError(
            f"target {options.target} has no variant {', '.join(unknown)}",
            hint=f"its variants are {', '.join(offered)}",
        )
    return [v for n, v in offered.items() if not options.variants or n in options.variants]


class _Variants:
    """Makes a module's programs. What several variants have in common is done once."""

    def __init__(self, module: Module, lowering: Sequence[Pass], runner: "_Runner") -> None:
        self.module, self.lowering, self.runner = module, lowering, runner
        self._lowered: dict[tuple[tuple[Library, ...], Pass | None], Module] = {}
        self.weights, self.packed = WeightTable(), PackedWeights()
        self._fused: dict[tuple[Device, int], Module] = {}
        self._schedules: dict[tuple[int, Target], Schedule] = {}  # by identity of a fused loop
        self._made: dict[Target, _Made] = {}
        self._texts: dict[tuple[int, ...], str] = {}  # by identity of scheduled kernels
        self._kernels: dict[tuple[int, bool], Kernel] = {}  # the same with and without subgroups
        self._wgsl: dict[tuple[int, bool], str] = {}  # by identity of a kernel, and its f16

    def compile(self, variant: Variant) -> Compiled:
        """The program of a variant."""
        name, target, runner = variant.name, variant.target, self.runner
        if target not in self._made:
            self._made[target] = self._make(target)
        made = self._made[target]
        with runner.timed(f"{name}-codegen"):
            kernels = [self._for_features(k, variant) for k in made.lowered.gpu_kernels]
            texts = [(k, self._print(k, variant.halves)) for k in kernels]
        with runner.timed(f"{name}-wasm"):
            wasm = self._build_wasm(made.lowered.cpu_kernels, variant.relaxed)
        _note(runner.report, name, made)
        return Compiled(
            variant,
            made.lowered.program,
            texts,
            made.lowered.cpu_kernels,
            wasm,
            made.lowered.weights_on_gpu,
            made.lowered.weights_on_cpu,
            made.plans,
            made.lowered.libraries,
        )

    def _make(self, target: Target) -> "_Made":
        """What a target's variants have in common."""
        name, device, runner = target.name, target.device, self.runner
        module = self._fuse(device, target.storage_buffers)
        with runner.timed(f"{name}-schedule"):
            schedules = self._schedule_all(module, target)
            if runner.wants("share_weights"):
                schedules = self._share(module, schedules, target)
        temps = {key: s.workspaces for key, s in schedules.items()}
        allowed = {k: s.in_place for k, s in schedules.items() if runner.wants("in_place")}
        plan = _named(
            "plan_memory",
            lambda m: plan_memory(
                m, workspaces=temps, main=device, in_place=allowed, reuse=runner.wants("reuse")
            ),
        )
        module = runner.run(module, plan, prefix=f"{name}-")
        plans: dict[str, MemoryPlan] = module.attrs["plans"]
        if runner.options.verify:
            _check(module, plans, schedules)
        with runner.timed(f"{name}-codegen"):
            capture = runner.wants("capture")
            lowered = lower(
                module, schedules, self.weights, self.packed, main=device, capture=capture
            )
        return _Made(module, schedules, list(plans.values()), lowered)

    def _fuse(self, device: Device, max_buffers: int) -> Module:
        """What depends on the target's device and limit alone, so that variants may share it."""
        key = device, max_buffers
        if key not in self._fused:
            passes: tuple[Pass, ...] = (
                _named("place", lambda m: place(m, device=device)),  # fuse must not cross devices
                _named("fuse", lambda m: fuse(m, max_buffers=max_buffers)),  # decides the groups
                fuse_loops,  # merges each into one loop function
                _named(  # after fuse_loops: what is left are launches
                    "fuse_siblings", lambda m: fuse_siblings(m, max_buffers=max_buffers)
                ),
                dce,  # loop functions that were merged away
            )
            module = self._lower(device)
            self._fused[key] = self.runner.run_all(module, passes, prefix=f"{device}-")
        return self._fused[key]

    def _lower(self, device: Device) -> Module:
        """The module without operators.

        Once for devices that may call the same libraries and compute in the same precision.
        """
        options = self.runner.options
        libraries = for_device(options.libraries, device)
        narrow = _PRECISION[device] if options.fp16 else None
        key = libraries, narrow
        if key not in self._lowered:
            dispatch = _named(
                "dispatch_library", lambda m: dispatch_library(m, libraries=libraries)
            )
            own = () if narrow is None else (narrow,)
            passes = (*own, *(dispatch if p is dispatch_library else p for p in self.lowering))
            prefix = f"{device}-" if own or options.libraries else ""
            self._lowered[key] = self.runner.run_all(self.module, passes, prefix)
        return self._lowered[key]

    def _schedule_all(self, module: Module, target: Target) -> dict[tuple[str, str], Schedule]:
        """A schedule for each loop function on each device that calls it."""
        make = schedule if self.runner.wants("strategies") else schedule_plainly
        out: dict[tuple[str, str], Schedule] = {}
        for func in module.funcs.values():
            for binding in all_bindings(func.body):
                call = binding.value
                if isinstance(call, CallTIR) and (call.func, call.device) not in out:
                    loop, on = module.loops[call.func], _target_on(call.device, target)
                    key = id(loop), on
                    if key not in self._schedules:
                        self._schedules[key] = make(loop, on)
                    out[call.func, call.device] = self._schedules[key]
        return out

    def _share(
        self, module: Module, schedules: Schedules, target: Target
    ) -> dict[tuple[str, str], Schedule]:
        """The schedules, those that read a weight by index in the layout that others want."""

        def make(loop: LoopFunc, device: str) -> Schedule:
            return schedule(loop, _target_on(device, target))

        return share_weights(module, schedules, make, target.storage_buffers)

    def _for_features(self, kernel: Kernel, variant: Variant) -> Kernel:
        key = id(kernel), variant.subgroups
        if key not in self._kernels:
            features = frozenset((SUBGROUPS,) if variant.subgroups else ())
            self._kernels[key] = for_features(kernel, features)
        return self._kernels[key]

    def _print(self, kernel: Kernel, halves: bool) -> str:
        key = id(kernel), halves and uses_halves(kernel)
        if key not in self._wgsl:
            self._wgsl[key] = print_wgsl(kernel, enable_line=True, halves=halves)
        return self._wgsl[key]

    def _build_wasm(self, kernels: Sequence[Kernel], relaxed: bool) -> bytes | None:
        """Printing takes most of the time: once for all variants with these kernels."""
        if not kernels:
            return None
        key = tuple(id(k) for k in kernels)
        if key not in self._texts:
            self._texts[key] = print_wat(kernels)
        return assemble(self._texts[key], relaxed)


def _target_on(device: str, target: Target) -> Target:
    """What launches on a device of a program for the target are made for."""
    return target if device == target.device else WASM


def _distinct(programs: Sequence[Compiled]) -> list[Compiled]:
    """Without those that need more of a machine than an equal one that comes later."""
    kept: list[Compiled] = []
    for at, program in enumerate(programs):
        if not any(_same_code(program, later) for later in programs[at + 1 :]):
            kept.append(program)
    return kept


def _same_code(one: Compiled, other: Compiled) -> bool:
    if one.variant.target != other.variant.target or one.wasm != other.wasm:
        return False
    return [text for _, text in one.gpu_kernels] == [text for _, text in other.gpu_kernels]


@dataclass(frozen=True, slots=True)
class _Made:
    """A module as scheduled and lowered for a target."""

    module: Module
    schedules: Mapping[tuple[str, str], Schedule]
    plans: Sequence[MemoryPlan]
    lowered: Lowered


def _check(
    module: Module, plans: Mapping[str, MemoryPlan], schedules: Mapping[tuple[str, str], Schedule]
) -> None:
    """Kernels are well formed; plans hold at the least sizes, at odd ones and at the greatest."""
    for schedule_ in schedules.values():
        for version in schedule_.versions:
            for kernel in version.kernels:
                verify_kernel(kernel)
                verify_kernel(over_operands(kernel, dict(version.in_place)))
    for name, plan in plans.items():
        func = module.funcs[name]
        symbols = {s for b in all_bindings(func.body) for s in symbols_of(b.var.annotation)}
        symbols |= {s for p in func.params for s in symbols_of(p.annotation)}
        played: set[Played] = set()
        for above in (7, 0, 1, 1 << 20):  # calls in place are played at the first that fits
            sizes = {s: _size(s, above) for s in symbols}
            check_plan(func, plan, sizes, module.loops, schedules, played)


def _size(symbol: Symbol, above: int) -> int:
    """A size that the symbol may have, `above` steps over its least."""
    step = symbol.multiple_of
    least = -(-symbol.lo // step) * step
    top = least + min(above, 40) * step
    return top if symbol.hi is None else min(least + above * step, symbol.hi // step * step)


def _note(report: Report, name: str, made: _Made) -> None:
    report.strategies[name] = {func: s.strategies for (func, _), s in made.schedules.items()}
    calls = [
        b.value
        for f in made.module.funcs.values()
        for b in all_bindings(f.body)
        if isinstance(b.value, CallTIR)
    ]
    report.launches[name] = sum(
        len(made.schedules[c.func, c.device].versions[-1].kernels) for c in calls
    )


def _named(name: str, run: Pass) -> Pass:
    run.__name__ = name
    return run


class _Runner:
    """Runs passes, keeps times, dumps and verifies."""

    def __init__(self, options: Options, report: Report) -> None:
        self.options, self.report = options, report

    def wants(self, feature: str) -> bool:
        """Whether something that is no pass of its own was not left out."""
        return feature not in self.options.without

    def run_all(self, module: Module, passes: Sequence[Pass], prefix: str = "") -> Module:
        for step in passes:
            module = self.run(module, step, prefix)
        return module

    def run(self, module: Module, step: Pass, prefix: str = "") -> Module:
        name = step.__name__
        for before, own in self.options.passes:
            if before == name:
                module = self._run_own(module, own, prefix)
        if name in self.options.without:
            return module
        try:
            with self.timed(f"{prefix}{name}"):
                module, outcome = taken(step(module))
            if outcome is not None:
                self.report.passes[f"{prefix}{name}"] = outcome.summary()
            if self.options.verify:
                verify(module)
        except EdgeRelaxError:
            raise
        except Exception as error:
            raise PassError(
                f"pass {prefix}{name} failed: {type(error).__name__}: {error}",
                hint="this is a fault of edgerelax: please report it with the model, or --dump",
            ) from error
        self._dump(module, f"{prefix}{name}")
        return module

    def _run_own(self, module: Module, own: Pass, prefix: str) -> Module:
        """Run a pass of the caller's; what it makes is checked always."""
        name = f"{prefix}{getattr(own, '__name__', 'pass')}"
        with self.timed(name):
            module, outcome = taken(own(module))
        if outcome is not None:
            self.report.passes[name] = outcome.summary()
        try:
            verify(module)
        except EdgeRelaxError as error:
            raise PassError(f"pass {name} made an ill-formed program: {error}") from error
        self._dump(module, name)
        return module

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.report.seconds[name] = self.report.seconds.get(name, 0.0) + spent

    def _dump(self, module: Module, name: str) -> None:
        folder = self.options.dump
        self.report.steps += 1
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{self.report.steps:02d}-{name}.py").write_text(write(module))
