"""Weights in the layouts that schedules ask for, made while the program is."""

from edgerelax.ir.diagnostics import PassError
from edgerelax.ir.graph import Constant
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.plan import Packed, Schedule
from edgerelax.ir.types import Tensor


class PackedWeights:
    """The packed forms of weights, each made once, whichever programs ask for it."""

    def __init__(self) -> None:
        self._made: dict[tuple[Constant, str], Constant] = {}
        self._forms: dict[int, tuple[Packed, str]] = {}  # by identity

    def get(self, packed: Packed, source: object) -> Constant:
        """The packed form of a weight. Raises PassError if the source is no constant."""
        if not isinstance(source, Constant):
            raise PassError(f"{packed.source.name} is packed but not a constant")
        key = source, self._form(packed)
        if key not in self._made:
            buffer = packed.buffer
            (data,) = run_loop(packed.make, [source.data])
            annotation = Tensor(buffer.dims, buffer.dtype)
            self._made[key] = Constant(f"{source.name}.{buffer.name}", data, annotation)
        return self._made[key]

    def _form(self, packed: Packed) -> str:
        """What is made of the weight, as text; the layers of a network ask for the same."""
        if id(packed) not in self._forms:
            make = packed.renamed("weight", "packed").make
            self._forms[id(packed)] = packed, repr((make.stages, packed.source.dims))
        return self._forms[id(packed)][1]


def packed_of(schedule: Schedule) -> tuple[Packed, ...]:
    """The packed weights of all versions."""
    return tuple(dict.fromkeys(p for v in schedule.versions for p in v.packed))
