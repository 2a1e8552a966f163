"""From a loop function to kernels: partition into units, then the cheapest strategy for each.

The choice is deterministic: strategies and configs are tried in the order of their tables, and
only a lower cost replaces an earlier one. `fallback` matches any stage, so there always is one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.kernel import Kernel
from edgerelax.ir.loop import LoopFunc, Stage, Template, outputs_of
from edgerelax.ir.plan import Packed, Schedule, Version
from edgerelax.schedule.contraction import Contraction, contraction
from edgerelax.schedule.empty import without_empty
from edgerelax.schedule.in_place import Pair, sharing
from edgerelax.schedule.packing import in_codes
from edgerelax.schedule.pairs import in_pairs
from edgerelax.schedule.quads import in_quads
from edgerelax.schedule.side_by_side import side_by_side
from edgerelax.schedule.specialise import cases, general, specialise
from edgerelax.schedule.strategies.base import Emitted, Reject, Strategy, Unit
from edgerelax.schedule.strategies.column_reduce import COLUMN_REDUCE
from edgerelax.schedule.strategies.fallback import FALLBACK
from edgerelax.schedule.strategies.gemm import GEMM
from edgerelax.schedule.strategies.gemm_cpu import GEMM_CPU
from edgerelax.schedule.strategies.gemm_shared import GEMM_SHARED
from edgerelax.schedule.strategies.gemm_split import GEMM_SPLIT
from edgerelax.schedule.strategies.map import MAP
from edgerelax.schedule.strategies.row_reduce import ROW_REDUCE
from edgerelax.schedule.strategies.split_reduce import SPLIT_REDUCE
from edgerelax.schedule.strategies.template import TEMPLATE
from edgerelax.schedule.strategies.templates.attention_split import few_queries
from edgerelax.schedule.strategies.transpose import TRANSPOSE
from edgerelax.schedule.target import Target
from edgerelax.schedule.widen import widen_subword_outputs

STRATEGIES: tuple[Strategy[Any], ...] = (
    TEMPLATE,
    MAP,
    TRANSPOSE,
    GEMM_SHARED,
    GEMM,
    GEMM_SPLIT,
    GEMM_CPU,
    ROW_REDUCE,
    COLUMN_REDUCE,
    SPLIT_REDUCE,
    FALLBACK,
)
PLAIN: tuple[Strategy[Any], ...] = (TEMPLATE, FALLBACK)
"""What is always legal: what the others are measured against."""
_PAYS = 0.8  # of the cost without, for a version of its own


def schedule(func: LoopFunc, target: Target) -> Schedule:
    """Kernels for every stage of a loop function, with the reasons for the choice.

    Cases of few rows or of long reductions get versions of their own where these pay, and so does
    attention of few queries.
    """
    made = _schedule(func, target)
    versions = list(_of_few_queries(func, made.choices, target))
    for case in cases(func, target):
        special = specialise(func, case)
        own = _schedule(special, target)
        if own.choices != made.choices and own.cost < _PAYS * own.cost_of(made.choices):
            versions.append(general(own.version, case))
    return Schedule((*versions, made.version), made.strategies, made.reasons)


def schedule_plainly(func: LoopFunc, target: Target) -> Schedule:
    """Kernels without strategies: one for each stage by itself, in the way that is always legal."""
    func = without_empty(func)
    prepared = widen_subword_outputs(func) if target.is_gpu else func
    units = [_unit(prepared, k, k + 1) for k in range(len(prepared.stages))]
    made = _assembled(prepared, [choose(unit, target, PLAIN) for unit in units], target)
    return Schedule((made.version,), made.strategies, made.reasons)


def _of_few_queries(func: LoopFunc, usual: tuple[str, ...], target: Target) -> Iterator[Version]:
    """Versions of attention for one query and for a few, where these are done another way."""
    for guards, special in few_queries(func):
        own = _schedule(special, target)
        if own.choices != usual:
            yield replace(own.version, guards=guards)


@dataclass(frozen=True, slots=True)
class Choice:
    """The cheapest candidate for a unit: its name and kernels; what each costs, or why not."""

    unit: str
    name: str
    emitted: Emitted
    costs: Mapping[str, float]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Made:
    """A version, the strategy of each kernel, and what was chosen for each unit."""

    version: Version
    strategies: tuple[str, ...]
    chosen: tuple[Choice, ...]

    @property
    def choices(self) -> tuple[str, ...]:
        """The name of each unit's choice."""
        return tuple(c.name for c in self.chosen)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why, for the report."""
        return tuple(f"{c.unit}: {reason}" for c in self.chosen for reason in c.reasons)

    @property
    def cost(self) -> float:
        """Seconds."""
        return self.cost_of(self.choices)

    def cost_of(self, choices: Sequence[str]) -> float:
        """What other choices would cost; infinite if one does not fit its unit."""
        if len(choices) != len(self.chosen):
            return inf
        return sum(c.costs.get(n, inf) for c, n in zip(self.chosen, choices, strict=True))


def _schedule(func: LoopFunc, target: Target) -> _Made:
    prepared, packed = prepare(func, target)
    chosen = [choose(u, target) for u in partition(prepared, target)]
    return _assembled(func, chosen, target, packed)


def _assembled(
    func: LoopFunc, chosen: Sequence[Choice], target: Target, packed: Sequence[Packed] = ()
) -> _Made:
    """One version of the kernels of all units, in an order that does the same as theirs."""
    strategies: list[str] = []
    kernels: list[Kernel] = []
    claims: set[Pair] = set()
    for choice in chosen:
        at_work = [k for k in choice.emitted.kernels if k.grid.as_int() != 0]
        kernels.extend(at_work)
        packed = (*packed, *choice.emitted.packed)
        claims |= choice.emitted.in_place
        strategies.extend(choice.name for _ in at_work)
    outer = {b.name for b in (*func.inputs, *func.outputs, *(p.buffer for p in packed))}
    bound = {p.buffer.name: p.buffer for k in kernels for p in k.buffers}
    temps = tuple(b for n, b in bound.items() if n not in outer)
    shares = sharing(func, kernels, claims)
    kernels, strategies = side_by_side(kernels, strategies, shares, target.storage_buffers)
    version = Version(tuple(kernels), temps, packed=tuple(packed), in_place=shares)
    return _Made(version, tuple(strategies), tuple(chosen))


def prepare(func: LoopFunc, target: Target) -> tuple[LoopFunc, tuple[Packed, ...]]:
    """The function as the strategies want it, and the weights that it then reads."""
    func = without_empty(func)
    if not target.is_gpu:
        return in_pairs(func)
    func, words = in_quads(widen_subword_outputs(func), target.storage_buffers)
    func, codes = in_codes(func)
    return func, (*words, *codes)


def partition(func: LoopFunc, target: Target) -> Iterator[Unit]:
    """Split the stages into runs that become kernels of one strategy: row chains, single stages."""
    start = 0
    while start < len(func.stages):
        stop = _end_of_chain(func, start, target)
        yield _unit(func, start, stop)
        start = stop


def _unit(func: LoopFunc, start: int, stop: int) -> Unit:
    """A run of stages."""
    name = func.name if stop - start == len(func.stages) else f"{func.name}_{start}"
    return Unit(name, func.stages[start:stop], _kept(func, start, stop), func.weights)


def _kept(func: LoopFunc, start: int, stop: int) -> frozenset[str]:
    """What the stages write for others: outputs, and what stages outside the run read."""
    written = {b.name for s in func.stages[start:stop] for b in outputs_of(s)}
    others = (*func.stages[:start], *func.stages[stop:])
    wanted = {b.name for b in func.outputs} | {b.name for s in others for b in s.reads()}
    return frozenset(written & wanted)


def _end_of_chain(func: LoopFunc, start: int, target: Target) -> int:
    """The end of the longest run from `start` that one row kernel can do, products left out."""
    last = start
    while last < len(func.stages) and not _is_product(func.stages[last]):
        last += 1
    for stop in range(last, start + 1, -1):
        unit = _unit(func, start, stop)
        if _buffers(unit) <= target.storage_buffers and _pays_as_rows(unit, target):
            return stop
    return start + 1


def _pays_as_rows(unit: Unit, target: Target) -> bool:
    """Whether one kernel for all stages costs no more than one each: not for few long rows."""
    match = ROW_REDUCE.match(unit, target)
    if isinstance(match, Reject):
        return False
    together = min(ROW_REDUCE.cost(match, c, target) for c in ROW_REDUCE.configs(match, target))
    apart = 0.0
    for stage in unit.stages:
        kept = frozenset(b.name for b in outputs_of(stage))
        single = Unit(unit.name, (stage,), kept, unit.weights)
        found = [c for c in candidates(single, target) if not isinstance(c, str)]
        apart += min((c[3] for c in found), default=float("inf"))
    return together <= apart


def _is_product(stage: Stage | Template) -> bool:
    """Whether it is a contraction whose rows share columns, which tiles do better than rows."""
    found = contraction(stage) if isinstance(stage, Stage) else None
    return isinstance(found, Contraction) and bool(found.rows)


def _buffers(unit: Unit) -> int:
    inside = {b.name for s in unit.stages for b in outputs_of(s)} - unit.kept
    return len({b.name for s in unit.stages for b in (*s.reads(), *outputs_of(s))} - inside)


def candidates(
    unit: Unit, target: Target, strategies: Sequence[Strategy[Any]] = STRATEGIES
) -> Iterator[tuple[Strategy[Any], Any, str, float] | str]:
    """Every strategy and config that fits, with its cost; or why a strategy does not fit."""
    for strategy in strategies:
        match = strategy.match(unit, target)
        if isinstance(match, Reject):
            yield f"not {strategy.name}: {match.reason}"
            continue
        for config in strategy.configs(match, target):
            yield strategy, match, config, strategy.cost(match, config, target)


def choose(unit: Unit, target: Target, strategies: Sequence[Strategy[Any]] = STRATEGIES) -> Choice:
    """The cheapest candidate."""
    best: tuple[Strategy[Any], Any, str, float] | None = None
    reasons: list[str] = []
    costs: dict[str, float] = {}
    for found in candidates(unit, target, strategies):
        if isinstance(found, str):
            reasons.append(found)
            continue
        costs[f"{found[0].name} {found[2]}"] = found[3]
        reasons.append(f"{found[0].name} {found[2]}: {found[3] * 1e6:.3g} us")
        if best is None or found[3] < best[3]:
            best = found
    if best is None:
        raise UnsupportedError(
            f"no kernel for {unit.name} on {target.name}: {'; '.join(reasons)}", node=unit.name
        )
    strategy, match, config, _ = best
    emitted = strategy.emit(match, config, target)
    return Choice(unit.name, f"{strategy.name} {config}", emitted, costs, tuple(reasons))
