"""The registers of a pass of cascaded reductions (cascade.py): how it steps, merges and ends."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from edgerelax.ir.kernel import KExpr, KLane, KVar, kop
from edgerelax.ir.scalar import Acc, Scalar, cast, op, rewrite, select, walk
from edgerelax.schedule.cascade import Member, Pass, Reference
from edgerelax.schedule.points import result_of
from edgerelax.schedule.reduce import Reduction, begin, convert, lanes_of, splat
from edgerelax.schedule.scalars import Held, Scalars
from edgerelax.schedule.writer import Writer

_Value = TypeVar("_Value", bound=KExpr)


@dataclass(frozen=True, slots=True)
class Running:
    """A pass under way. `states` and `was` (the references of each member) are in its order."""

    members: Pass
    s: Scalars
    states: tuple[Reduction, ...]
    was: tuple[tuple[KVar, ...], ...]

    @property
    def registers(self) -> tuple[KVar, ...]:
        """All that changes, in the order that `merge` takes it."""
        pairs = zip(self.states, self.was, strict=True)
        return tuple(r for state, was in pairs for r in (*state.registers, *was))

    def over(self, registers: tuple[KVar, ...]) -> "Running":
        """The same pass with its state in other registers."""
        states, references = [], []
        for state, own, was in self._split(registers):
            states.append(state.over(own))
            references.append(was)
        return replace(self, states=tuple(states), was=tuple(references))

    def _split(
        self, registers: tuple[_Value, ...]
    ) -> Iterator[tuple[Reduction, tuple[_Value, ...], tuple[_Value, ...]]]:
        at = 0
        for state, was in zip(self.states, self.was, strict=True):
            middle = at + len(state.registers)
            end = middle + len(was)
            yield state, registers[at:middle], registers[middle:end]
            at = end

    def step(self) -> None:
        """Take the elements that the bound columns stand for."""
        for member, state, was in zip(self.members, self.states, self.was, strict=True):
            body = member.stage.body
            if was:
                now = self._now(member)
                self._follow(member, state, was, now)
                body = _with(body, self._held(member.references, "now", now))
            state.step(self.s.w, self.s.value(body))

    def _follow(
        self, member: Member, state: Reduction, was: tuple[KVar, ...], now: list[KExpr]
    ) -> None:
        """Correct a sum whose references have changed; it is rare once a row is under way."""
        w = self.s.w
        changed = _any_lane(w, [kop("ne", n, o) for n, o in zip(now, was, strict=True)])
        with w.when(changed):
            (total,) = state.registers
            w.assign(total, self._corrected(member, total, was, now))
            for register, value in zip(was, now, strict=True):
                w.assign(register, value)

    def merge(self, w: Writer, other: tuple[KExpr, ...]) -> None:
        """Take the state of other elements of the same row."""
        parts = zip(self.members, self.was, self._split(other), strict=True)
        for member, was, (state, registers, theirs) in parts:
            if not was:
                state.merge(w, registers)
                continue
            now = self._now(member)
            (total,) = state.registers
            (added,), theirs = registers, tuple(w.let("o", t) for t in theirs)
            own = w.let("own", self._corrected(member, total, was, now))
            other_sum = self._corrected(member, w.let("o", added), theirs, now)
            w.assign(total, kop("add", own, other_sum))
            for register, value in zip(was, now, strict=True):
                w.assign(register, value)

    def merge_lanes(self, four: "Running") -> None:
        """Take the state that four lanes have gathered."""
        for k in range(4):
            lanes = (KLane(r.dtype, 1, r, k) for r in four.registers)
            self.merge(self.s.w, tuple(lanes))

    def results(self) -> Iterator[tuple[Member, Scalar]]:
        """What each member gives; the caller holds each before it asks for the next."""
        w, s = self.s.w, self.s
        for member, state in zip(self.members, self.states, strict=True):
            last = member.last_factor
            if last is not None:
                (total,) = state.registers
                w.assign(total, kop("mul", total, convert(s.value(last), total.dtype)))
            yield member, result_of(w, s, member.stage, state)

    # references

    def _now(self, member: Member) -> list[KExpr]:
        """The references by what earlier members have met so far."""
        w, s = self.s.w, self.s
        running: dict[Scalar, Scalar] = {}
        needed = {n for r in member.references for n in walk(r.value)}
        for other, state in zip(self.members, self.states, strict=True):
            leaf = Held(other.step.held, other.stage.out.dtype)
            if leaf in needed:
                running[leaf] = cast(result_of(w, s, other.stage, state), leaf.dtype)
        return [w.let("now", s.value(_with(r.regular, running))) for r in member.references]

    def _held(
        self, references: tuple[Reference, ...], which: str, values: list[KExpr]
    ) -> dict[Scalar, Scalar]:
        """Leaves of their own for these values: what was computed of earlier ones is another."""
        found: dict[Scalar, Scalar] = {}
        for reference, value in zip(references, values, strict=True):
            leaf = reference.was if which == "was" else reference.now
            found[leaf] = self._hold(leaf, value)
        return found

    def _hold(self, leaf: Scalar, value: KExpr) -> Held:
        own = Held(self.s.w.fresh("held"), leaf.dtype)
        self.s.hold(own, value)
        return own

    def _corrected(
        self, member: Member, total: KExpr, was: tuple[KExpr, ...], now: list[KExpr]
    ) -> KExpr:
        """The sum by the references `now`; 0 needs no correction."""
        assert member.correction is not None
        swaps = {
            **self._held(member.references, "was", list(was)),
            **self._held(member.references, "now", now),
        }
        whole = self._hold(Acc(total.dtype), total)
        right = op("mul", whole, cast(_with(member.correction, swaps), total.dtype))
        return self.s.value(select(op("eq", whole, 0.0), whole, right))


def start(members: Pass, s: Scalars, lanes: int) -> Running:
    """Declare the registers of a pass."""
    w = s.w
    running = Running((), s, (), ())
    for member in members:
        stage = member.stage
        assert stage.combiner is not None
        state = begin(w, stage.combiner, stage.body.dtype, lanes=lanes)
        running = replace(
            running,
            members=(*running.members, member),
            states=(*running.states, state),
            was=(*running.was, ()),
        )
        first = tuple(w.var("was", splat(v, lanes)) for v in running._now(member))
        running = replace(running, was=(*running.was[:-1], first))
    return running


def _with(tree: Scalar, swaps: Mapping[Scalar, Scalar]) -> Scalar:
    return rewrite(tree, swaps.get) if swaps else tree


def _any_lane(w: Writer, flags: list[KExpr]) -> KExpr:
    """Whether one of them is true in one of its lanes."""
    either = flags[0]
    for flag in flags[1:]:
        either = kop("or", either, flag)
    if either.lanes == 1:
        return either
    a, b, c, d = lanes_of(w.let("ne", either))
    return kop("or", kop("or", a, b), kop("or", c, d))
