"""Running schedules on the kernel interpreter and comparing them with the loop interpreter."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from edgerelax.ir.dtypes import DType
from edgerelax.ir.kernel import Kernel
from edgerelax.ir.kernel_in_place import over_operands
from edgerelax.ir.kernel_interp import run_kernel
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.plan import Schedule, Version
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule.in_place import sharing
from edgerelax.schedule.select import candidates, partition, prepare, schedule
from edgerelax.schedule.target import TARGETS, WEBGPU_SOFTWARE, Target
from edgerelax.sym import Symbol

ALL_TARGETS = tuple(TARGETS.values())


def run_version(
    version: Version,
    func: LoopFunc,
    arrays: Sequence[Any],
    symbols: Mapping[str, int],
    run: Any = run_kernel,
    pairs: Mapping[str, str] = MappingProxyType({}),
) -> list[Any]:
    """Run kernels in order on fresh outputs and workspaces, or on operands that outputs take."""
    env = {s: symbols[s.name] for s in func.symbols()}
    memory = {b.name: np.asarray(a).copy() for b, a in zip(func.inputs, arrays, strict=True)}
    for b in (*func.outputs, *version.temps):
        shape = tuple(d.eval(env) for d in b.dims)
        memory[b.name] = np.full(shape, 0x5A, np.uint8).astype(b.dtype.numpy)
    for operand, output in pairs.items():
        memory[output] = memory[operand].reshape(memory[output].shape)
    for p in version.packed:
        (memory[p.buffer.name],) = run_loop(p.make, [memory[p.source.name]])
    for kernel in (over_operands(k, pairs) for k in version.kernels):
        size = kernel.grid.eval(env)
        scalars = {name: expr.eval(env) for name, expr in kernel.scalars} if size else {}
        assert len(scalars) < 64
        if size:
            run(
                kernel,
                {p.buffer.name: memory[p.buffer.name] for p in kernel.buffers},
                scalars,
                size,
            )
    return [memory[b.name] for b in func.outputs]


def run_schedule(
    plan: Schedule, func: LoopFunc, arrays: Sequence[Any], symbols: Mapping[str, int]
) -> list[Any]:
    """Run the first version whose guards hold."""
    env = {s: symbols[s.name] for s in func.symbols()}
    version = next(v for v in plan.versions if all(c.eval(env) for c in v.guards))
    return run_version(version, func, arrays, symbols)


def random_array(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Any:
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    lo, hi = dtype.int_range
    return rng.integers(max(lo, -9), min(hi, 9), shape, endpoint=True).astype(dtype.numpy)


def inputs_for(func: LoopFunc, symbols: Mapping[str, int], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    env: dict[Symbol, int] = {s: symbols[s.name] for s in func.symbols()}
    return [random_array(rng, b.dtype, tuple(d.eval(env) for d in b.dims)) for b in func.inputs]


def assert_close(got: Any, want: Any, tolerance: float) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance
        )


def check(
    func: LoopFunc,
    symbols: Mapping[str, int],
    *,
    targets: Sequence[Target] = ALL_TARGETS,
    arrays: Sequence[Any] | None = None,
    tolerance: float = 2e-5,
) -> None:
    """Every target's schedule gives what the loop interpreter gives."""
    given = inputs_for(func, symbols) if arrays is None else arrays
    want = run_loop(func, given, dict(symbols))
    for target in targets:
        # What a software adapter may choose, a GPU may choose as well.
        others = [] if target is WEBGPU_SOFTWARE else every_choice(func, target)
        taken = schedule(func, target).versions
        for version in [*taken, *others]:
            env = {s: symbols[s.name] for s in func.symbols()}
            if not all(c.eval(env) for c in version.guards):
                continue
            got = run_version(version, func, given, symbols, watching(version))
            if any(version is t for t in taken) and (pairs := apart(version.in_place)):
                got += run_version(version, func, given, symbols, pairs=pairs)
            for k, g in enumerate(got):
                assert_close(g, want[k % len(want)], tolerance)


def watching(version: Version) -> Callable[..., None]:
    """Runs kernels and finds what would go wrong in place."""

    def run(kernel: Kernel, arrays: Any, scalars: Mapping[str, int], grid: int) -> None:
        over = {a: y for a, y in version.in_place if {a, y} <= arrays.keys()}
        run_kernel(kernel, arrays, scalars, grid, over)

    return run


def apart(in_place: Sequence[tuple[str, str]]) -> dict[str, str]:
    """As many of the pairs as can be at once, the first first."""
    chosen: dict[str, str] = {}
    for operand, output in in_place:
        if operand not in chosen and output not in chosen.values():
            chosen[operand] = output
    return chosen


def every_choice(func: LoopFunc, target: Target) -> list[Version]:
    """Versions that together take every strategy and config of every unit."""
    prepared, made = prepare(func, target)
    units = [
        [c for c in candidates(unit, target) if not isinstance(c, str)]
        for unit in partition(prepared, target)
    ]
    versions = []
    for k in range(max(map(len, units), default=0)):
        emitted = []
        for found in units:
            strategy, match, config, _ = found[min(k, len(found) - 1)]
            emitted.append(strategy.emit(match, config, target))
        kernels = tuple(kernel for e in emitted for kernel in e.kernels)
        temps = (*prepared.temps, *(t for e in emitted for t in e.temps))
        packed = (*made, *(p for e in emitted for p in e.packed))
        shares = sharing(func, kernels, [pair for e in emitted for pair in e.in_place])
        versions.append(Version(kernels, temps, packed=packed, in_place=shares))
    return versions


def check_strategy(
    name: str,
    func: LoopFunc,
    symbols: Mapping[str, int],
    *,
    targets: Sequence[Target],
    arrays: Sequence[Any] | None = None,
    tolerance: float = 2e-5,
) -> None:
    """Every config of one strategy, of which there are some, gives what it should."""
    given = inputs_for(func, symbols) if arrays is None else arrays
    want = run_loop(func, given, dict(symbols))
    for target in targets:
        versions = versions_by(name, func, target)
        assert versions, f"{name} does not fit on {target.name}"
        for version in versions:
            got = run_version(version, func, given, symbols)
            for g, w in zip(got, want, strict=True):
                assert_close(g, w, tolerance)


def versions_by(name: str, func: LoopFunc, target: Target) -> list[Version]:
    """A version for each config of a strategy: for the units that it fits; the best for others."""
    prepared, made = prepare(func, target)
    units = [
        [c for c in candidates(unit, target) if not isinstance(c, str)]
        for unit in partition(prepared, target)
    ]
    wanted = [[c for c in found if c[0].name == name] for found in units]
    versions = []
    for k in range(max(map(len, wanted), default=0)):
        taken = [
            own[min(k, len(own) - 1)] if own else min(found, key=lambda c: c[3])
            for own, found in zip(wanted, units, strict=True)
        ]
        emitted = [strategy.emit(match, config, target) for strategy, match, config, _ in taken]
        kernels = tuple(kernel for e in emitted for kernel in e.kernels)
        bound = {p.buffer.name: p.buffer for kernel in kernels for p in kernel.buffers}
        packed = (*made, *(p for e in emitted for p in e.packed))
        outer = {b.name for b in (*func.inputs, *func.outputs, *(p.buffer for p in packed))}
        temps = tuple(b for n, b in bound.items() if n not in outer)
        versions.append(Version(kernels, temps, packed=packed))
    return versions


def single(name: str, inputs: Sequence[Buffer], out: Buffer, body: Any, **more: Any) -> LoopFunc:
    """A function of one stage whose body is a function of the output's axes."""
    axes = grid(out)
    return LoopFunc(name, tuple(inputs), (out,), (Stage(out, axes, body(*axes), **more),))
