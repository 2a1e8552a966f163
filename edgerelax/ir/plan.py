"""Records that late passes leave on a module: schedules of loop functions and the memory plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from edgerelax.ir.graph import Binding, Repeat, Value, Var
from edgerelax.ir.kernel import Kernel
from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.scalar import Buffer, Load, Scalar, rewrite
from edgerelax.sym import Cond, Expr, maximum


@dataclass(frozen=True, slots=True)
class Packed:
    """A weight in another layout, made once, at export: `make` has one input and one output.

    What `element` reads of the weight, wherever its axes are, `read` finds in the new layout.
    Both None: that is not known.
    """

    make: LoopFunc
    element: Scalar | None = None
    read: Scalar | None = None

    @property
    def source(self) -> Buffer:
        """The weight as the loop function has it."""
        return self.make.inputs[0]

    @property
    def buffer(self) -> Buffer:
        """What kernels bind instead."""
        return self.make.outputs[0]

    def renamed(self, source: str, buffer: str) -> "Packed":
        """The same of a weight of another name, and under another name."""
        swap = {
            self.source.name: replace(self.source, name=source),
            self.buffer.name: replace(self.buffer, name=buffer),
        }

        def change(root: Scalar) -> Scalar:
            return rewrite(
                root,
                lambda n: Load(swap[n.buffer.name], n.index) if isinstance(n, Load) else None,
            )

        stages = tuple(
            replace(s, out=swap[s.out.name], body=change(s.body))
            for s in self.make.stages
            if isinstance(s, Stage)
        )
        inputs, outputs = (swap[self.source.name],), (swap[self.buffer.name],)
        return Packed(
            LoopFunc(buffer, inputs, outputs, stages),
            None if self.element is None else change(self.element),
            None if self.read is None else change(self.read),
        )


@dataclass(frozen=True, slots=True)
class Version:
    """Kernels to run in order, valid where all guards hold. `temps` are workspaces between them.

    `in_place` pairs operands with outputs that may take their place, by the names of buffers.
    """

    kernels: tuple[Kernel, ...]
    temps: tuple[Buffer, ...] = ()
    guards: tuple[Cond, ...] = ()
    packed: tuple[Packed, ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a loop function runs on a device: versions by preference, the last without guards."""

    versions: tuple[Version, ...]
    strategies: tuple[str, ...] = ()  # one per kernel of the last version, for the report
    reasons: tuple[str, ...] = ()  # why other strategies were not taken

    @property
    def workspaces(self) -> tuple[Buffer, ...]:
        """The workspaces of all versions, in the order in which the plan places them."""
        return tuple(dict.fromkeys(t for v in self.versions for t in v.temps))

    @property
    def in_place(self) -> tuple[tuple[str, str], ...]:
        """The operands and outputs that every version lets share a place."""
        first, *others = (v.in_place for v in self.versions)
        return tuple(pair for pair in first if all(pair in other for other in others))


@dataclass(frozen=True, slots=True)
class Slab:
    """A block of device memory. A constant size is known before download."""

    device: str
    size: Expr


def shared_slabs(plans: Sequence[Sequence[Slab]]) -> tuple[list[Slab], list[list[int]]]:
    """One table of slabs for functions that never run at once, and each function's numbers in it.

    The nth slab of a device is the nth of all functions, as large as the largest.
    """
    table: list[Slab] = []
    numbers: list[list[int]] = []
    for slabs in plans:
        free = {d: [k for k, s in enumerate(table) if s.device == d] for d in ("gpu", "cpu")}
        own: list[int] = []
        for slab in slabs:
            if free[slab.device]:
                k = free[slab.device].pop(0)
                table[k] = Slab(slab.device, maximum(table[k].size, slab.size))
            else:
                k = len(table)
                table.append(slab)
            own.append(k)
        numbers.append(own)
    return table, numbers


def crossing(repeat: Repeat, root: Callable[[Value], Value]) -> tuple[int, ...]:
    """Which of what a loop carries is, in the next run, what another of it was in this one.

    These leave their places before the others are written there. `root` gives the value that owns
    the bytes of another.
    """
    params = {p: k for k, p in enumerate(repeat.params)}
    roots = map(root, repeat.body.results)
    before = (params.get(r) if isinstance(r, Var) else None for r in roots)
    return tuple(k for k, j in enumerate(before) if j is not None and j != k)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies: `bytes` from `offset` in a slab."""

    slab: int
    offset: Expr
    bytes: Expr


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Places of values and of workspaces (by binding, in the order of the schedule's temps).

    `aliases` maps a view to the value whose bytes it renames, `fields` a tuple result and an index
    to the planned value, `devices` a planned value to where it lives. `in_place` maps a call to the
    outputs that take the place of operands, by the names of its function's buffers (operand:
    output). `states` maps values that lie over a state's bytes to the state. What a loop carries
    has one place, that of the loop's result: so have the body's parameter, and an initial or next
    value where it needs no copy. A loop's workspaces are for what is `crossing`. `lower_bound` and
    `unplanned` are bytes: the largest sum of live tensors, and their total if nothing is reused;
    None where a size is unbounded.
    """

    slabs: tuple[Slab, ...] = ()
    places: dict[Value, Place] = field(default_factory=dict)
    workspaces: dict[Binding, tuple[Place, ...]] = field(default_factory=dict)
    aliases: dict[Value, Value] = field(default_factory=dict)
    fields: dict[tuple[Value, int], Value] = field(default_factory=dict)
    devices: dict[Value, str] = field(default_factory=dict)
    in_place: dict[Binding, dict[str, str]] = field(default_factory=dict)
    states: dict[Value, Var] = field(default_factory=dict)
    lower_bound: int | None = None
    unplanned: int | None = None

    def root(self, value: Value) -> Value:
        """The value that owns the bytes: a planned one, a parameter or a constant."""
        while value in self.aliases:
            value = self.aliases[value]
        return value
