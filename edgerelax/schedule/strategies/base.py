"""What a strategy is, and what it is given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from edgerelax.ir.kernel import Kernel
from edgerelax.ir.loop import Stage, Template
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule.target import Target


@dataclass(frozen=True, slots=True)
class Unit:
    """Stages to become kernels of one strategy. `kept` names the buffers that others read."""

    name: str
    stages: tuple[Stage | Template, ...]
    kept: frozenset[str]
    weights: frozenset[str] = frozenset()

    @property
    def stage(self) -> Stage | None:
        """The stage, if it is just one."""
        only = self.stages[0]
        return only if len(self.stages) == 1 and isinstance(only, Stage) else None


@dataclass(frozen=True, slots=True)
class Reject:
    """Why a strategy does not fit."""

    reason: str


@dataclass(frozen=True, slots=True)
class Emitted:
    """Kernels to run in order, the workspaces between them, and weights that they want packed.

    `in_place` claims operands whose place an output may take (in_place.py): in these kernels, no
    element is read by who does not write it, nor after it was written.
    """

    kernels: tuple[Kernel, ...]
    temps: tuple[Buffer, ...] = ()
    packed: tuple[Packed, ...] = ()
    in_place: frozenset[tuple[str, str]] = frozenset()


M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Strategy(Generic[M]):
    """A way to turn a unit into kernels. Configs are names; `emit` never fails for what matched."""

    name: str
    match: Callable[[Unit, Target], M | Reject]
    configs: Callable[[M, Target], tuple[str, ...]]
    cost: Callable[[M, str, Target], float]
    emit: Callable[[M, str, Target], Emitted]
