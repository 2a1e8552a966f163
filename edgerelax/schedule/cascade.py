"""Cascaded reductions in one pass over a row: what depends on a result that still changes.

A softmax sums exp(x - m) once the maximum m is known: two passes. Let S(r) be the sum over the
elements met so far of f(x, r), r the result of an earlier reduction of the same pass, as far as it
is known. Where f(x, r') = f(x, r) * c(r, r') with a c free of x, S(r') = S(r) * c(r, r'): the sum
can follow r. c is derived from the terms, as a product of what their factors give:

* exp(B(u) - B(r)), with u what r is the maximum (minimum) of: c = exp(B(r) - B(r')), the factor
  itself with r in the place of u. B is affine and the difference never positive: no f exceeds 1.
* z / r, r the maximum of |z|: c = r / r'. Here too |f| <= 1, so that neither factor overflows
  sooner than in two passes.
* A factor v(r) that has no x: c = 1. It is left out and taken once the pass is over.
* Anything without r: c = 1.

Parts of a row that others have walked are merged alike: S1 * c(r1, r) + S2 * c(r2, r). Where r is
singular (infinite, or 0 as a divisor) terms are taken with a neutral value in its place; by the
bounds above they are 0 until r is regular, and 0 needs no correction. A row that ends with r
singular is then given what its terms are at r: NaN, as in two passes.

Squares of distances from a mean have no such c: expanded into powers they cancel. They are updated
as Welford did and merged as Chan did. Sums only; what no rule fits begins a pass of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import (
    Acc,
    Cast,
    Const,
    Op,
    Scalar,
    Select,
    Value,
    compare,
    constant,
    op,
    rewrite,
    select,
    walk,
)
from edgerelax.schedule.points import count
from edgerelax.schedule.reduce import VECTOR_COMBINERS
from edgerelax.schedule.rows import RowProgram, Step
from edgerelax.schedule.scalars import Held
from edgerelax.sym import Expr, as_expr, prove_eq


@dataclass(frozen=True, slots=True)
class Reference:
    """A value of earlier members that terms are taken with: `now`, and `was` before the step.

    `value` is in terms of the earlier results; `neutral` stands for it where it is singular.
    """

    value: Scalar
    was: Held
    now: Held
    neutral: float

    @property
    def singular(self) -> Scalar:
        infinite = op("isinf", self.value)
        return infinite if self.neutral == 0.0 else op("or", infinite, op("eq", self.value, 0.0))

    @property
    def regular(self) -> Scalar:
        """The value, or what stands for it."""
        neutral = constant(self.neutral, self.value.dtype)
        return select(self.singular, neutral, self.value)


@dataclass(frozen=True, slots=True)
class Member:
    """A reduction of a pass.

    `stage` is how it runs: its body speaks of references as `now`. `correction` is c(was, now),
    `factor` what the sum is multiplied by in the end, in terms of earlier results.
    """

    step: Step
    stage: Stage
    references: tuple[Reference, ...] = ()
    correction: Scalar | None = None
    factor: Scalar | None = None

    @property
    def last_factor(self) -> Scalar | None:
        """What the finished sum is multiplied by; None for nothing."""
        one = constant(1.0, self.stage.body.dtype)
        last = self.factor
        if self.correction is not None:
            final: dict[Scalar, Scalar] = {}
            for reference in self.references:
                final[reference.was] = final[reference.now] = reference.value
            at_end = rewrite(self.correction, final.get)
            singular = [r.singular for r in self.references]
            ends = select(reduce(lambda a, b: op("or", a, b), singular), at_end, one)
            last = ends if last is None else op("mul", last, ends)
        if last is None:
            return None
        return select(compare("ge", count(self.stage.reduce), 1), last, one)


Pass = tuple[Member, ...]


def one_pass(program: RowProgram) -> tuple[Step | Pass, ...] | None:
    """The steps, those together that one pass can do; None if there are none such.

    The program's steps must name the columns they share alike (row_cache.same_columns).
    """
    found: list[Step | Pass] = []
    running: list[Member] = []

    def close() -> None:
        if len(running) > 1:
            found.append(tuple(running))
        else:
            found.extend(m.step for m in running)
        running.clear()

    for step in program.steps:
        if not _may_join(step):
            close()
            found.append(step)
            continue
        if running and running[0].step.inner != step.inner:
            close()
        member = _join(step, running)
        if member is None:
            close()
            member = Member(step, step.stage)
        running.append(member)
    close()
    return tuple(found) if any(isinstance(p, tuple) for p in found) else None


def _may_join(step: Step) -> bool:
    stage = step.stage
    plain = stage.where is None and stage.init is None and bool(step.inner)
    return plain and stage.combiner in VECTOR_COMBINERS


def _join(step: Step, running: Sequence[Member]) -> Member | None:
    """The step as a member of the pass that others run in; None if no rule allows it."""
    earlier: dict[Scalar, Member] = {Held(m.step.held, m.step.stage.out.dtype): m for m in running}
    if not any(node in earlier for node in walk(step.stage.body)):
        return Member(step, step.stage)
    if step.stage.combiner != "sum" or step.stage.body.dtype.bits < 32:
        return None
    return _squares(step, earlier) or _Rules(step, earlier).member()


# Squares of distances from a mean


def _squares(step: Step, earlier: Mapping[Scalar, Member]) -> Member | None:
    """The sum of (u - mean)², the mean being that of u."""
    match _factors(step.stage.body):
        case [(Op("sub", (u, mean)) as one, 1), (other, 1)] if one is other:
            pass
        case _:
            return None
    member = earlier.get(mean)
    if member is None or member.references or member.stage.body is not u:
        return None
    if member.stage.combiner != "sum" or not _is_mean(member.stage):
        return None

    def component(node: Scalar) -> Scalar | None:
        return Acc(node.type, 1) if isinstance(node, Acc) else None

    result = rewrite(step.stage.result, component)
    return Member(step, replace(step.stage, body=u, combiner="welford", epilogue=result))


def _is_mean(stage: Stage) -> bool:
    """Whether its result is the sum over the number of its terms."""
    number = count(stage.reduce)
    match stage.result:
        case Op("div", (Acc(), divisor)):
            whole = _whole(divisor)
            return whole is not None and prove_eq(whole, number) is True
        case Op("mul", (Acc(), Const(share))) | Op("mul", (Const(share), Acc())):
            known = number.as_int()
            return known is not None and math.isclose(share * known, 1.0, rel_tol=1e-6)
    return False


def _whole(node: Scalar) -> Expr | None:
    """An integer as an index expression; at least 1 where 0 and 1 do not differ."""
    match node:
        case Const(value) if float(value).is_integer():
            return as_expr(int(value))
        case Value(expr):
            return expr
        case Cast(arg):
            return _whole(arg)
        case Op("max", (arg, Const(1))):
            return _whole(arg)
        case Op("mul", (a, b)):
            one, other = _whole(a), _whole(b)
            return None if one is None or other is None else one * other
    return None


# Terms that follow an extreme


@dataclass(slots=True)
class _Rules:
    """Derives a member from the terms of a step and the members they depend on."""

    step: Step
    earlier: Mapping[Scalar, Member]
    references: dict[Scalar, Reference] = field(default_factory=dict)
    ratios: list[Scalar] = field(default_factory=list)

    def member(self) -> Member | None:
        body = self.step.stage.body
        factors = _factors(body)
        for factor, power in factors:
            if power > 0 and self._depends(factor) and not self._is_late(factor):
                if not self._exponential(factor):
                    return None
            elif power < 0 and self._depends(factor) and not self._is_late(factor):
                return None
        if not self._quotients(factors):
            return None
        late = [f for f, power in factors if self._is_late(f) and f not in self.references]
        if any(f in self.references and power > 0 for f, power in factors):
            return None
        rest, last = self._without(body, late)
        if rest is None or (late and not self._is_bounded(rest)):
            return None
        swaps: dict[Scalar, Scalar] = {q: r.now for q, r in self.references.items()}
        terms = rewrite(rest, swaps.get)
        if any(n in self.earlier for n in walk(terms)):
            return None
        own = tuple(self.references.values())
        correction = reduce(lambda a, b: op("mul", a, b), self.ratios) if self.ratios else None
        return Member(self.step, replace(self.step.stage, body=terms), own, correction, last)

    def _depends(self, node: Scalar) -> bool:
        return any(n in self.earlier for n in walk(node))

    def _is_late(self, node: Scalar) -> bool:
        """Whether it depends on earlier members, and not on the column."""
        return self._depends(node) and not node.axes() & set(self.step.inner)

    def _is_fixed(self, node: Scalar) -> bool:
        """Whether it is known before the pass."""
        return not self._depends(node) and not node.axes() & set(self.step.inner)

    def _refer(self, value: Scalar, neutral: float) -> Reference | None:
        known = self.references.get(value)
        if known is None:
            name = f"{self.step.held}.{len(self.references)}"
            was, now = (Held(f"{name}.{k}", value.dtype) for k in ("was", "now"))
            known = self.references[value] = Reference(value, was, now, neutral)
        return known if known.neutral == neutral else None

    # exp(B(u) - B(r))

    def _exponential(self, factor: Scalar) -> bool:
        match factor:
            case Op("exp", (exponent,)):
                gap = self._gap(exponent, 1)
            case _:
                return False
        if gap is None:
            return False
        own, late = gap
        reference = self._refer(late, 0.0)
        if reference is None:
            return False
        swaps: dict[Scalar, Scalar] = {own: reference.was, late: reference.now}
        self.ratios.append(rewrite(factor, swaps.get))
        return True

    def _gap(self, node: Scalar, sign: int) -> tuple[Scalar, Scalar] | None:
        """B(u) and B(r) of a difference that is never positive, times a constant."""
        match node:
            case Op("sub", (own, late)) if self._is_late(late) and self._mirrors(own, late, sign):
                return own, late
            case Op("sub", (late, own)) if self._is_late(late) and self._mirrors(own, late, -sign):
                return own, late
            case Op("neg", (arg,)):
                return self._gap(arg, -sign)
            case (
                Op("mul", (arg, Const(k))) | Op("mul", (Const(k), arg)) | Op("div", (arg, Const(k)))
            ) if k != 0:
                return self._gap(arg, sign if k > 0 else -sign)
        return None

    def _mirrors(self, own: Scalar, late: Scalar, sign: int) -> bool:
        """Whether sign * (own - late) <= 0, as `late` is `own` at the extreme of its variable."""
        if self._depends(own):
            return False
        for held, member in self.earlier.items():
            combiner, u = member.stage.combiner, member.stage.body
            if combiner not in ("max", "min") or u not in set(walk(own)):
                continue
            swapped = rewrite(own, {u: held}.get)
            slope = self._slope(own, u)
            falls = slope is not None and slope * sign * (1 if combiner == "max" else -1) > 0
            if (
                swapped is _unguarded(late)
                and falls
                and self._is_extreme(member.stage, guards=True)
            ):
                return True
        return False

    def _slope(self, node: Scalar, u: Scalar) -> int | None:
        """The sign of B's slope in u; None where B is not known to be affine."""
        if node is u:
            return 1
        match node:
            case Op("neg", (arg,)):
                inner, sign = self._slope(arg, u), -1
            case Op("mul" | "div", (arg, Const(k))) | Op("mul", (Const(k), arg)) if k != 0:
                inner, sign = self._slope(arg, u), 1 if k > 0 else -1
            case Op("add" | "sub", (arg, k)) if self._is_fixed(k):
                inner, sign = self._slope(arg, u), 1
            case Op("add", (k, arg)) if self._is_fixed(k):
                inner, sign = self._slope(arg, u), 1
            case _:
                return None
        return None if inner is None else inner * sign

    def _is_extreme(self, stage: Stage, *, guards: bool) -> bool:
        """Whether the result is the extreme itself, or that bounded by what is fixed.

        With `guards` from both sides, and with a constant where it is infinite.
        """
        node = _unguarded(stage.result) if guards else stage.result
        while isinstance(node, Op) and node.fn in ("max", "min"):
            if not guards and node.fn != stage.combiner:
                return False
            a, b = node.args
            node, bound = (a, b) if _has_acc(a) else (b, a)
            if _has_acc(bound) or not self._is_fixed(bound):
                return False
        return isinstance(node, Acc)

    # z / r

    def _quotients(self, factors: Sequence[tuple[Scalar, int]]) -> bool:
        """Pair divisors that are maxima of |z| with factors z; False if neither rule is clear."""
        free = [f for f, power in factors if power > 0 and not self._depends(f)]
        for divisor in (f for f, power in factors if power < 0 and self._is_late(f)):
            size = self._size_of(divisor)
            if size is None:
                continue
            own = next((f for f in free if op("abs", f) is size or f is size), None)
            reference = None if own is None else self._refer(divisor, 1.0)
            if own is None or reference is None:
                return False
            free.remove(own)
            self.ratios.append(op("div", reference.was, reference.now))
        return True

    def _size_of(self, divisor: Scalar) -> Scalar | None:
        """|z|, where the divisor is at least the maximum of it."""
        match divisor:
            case Op("max", (arg, k)) | Op("max", (k, arg)) if self._is_fixed(k):
                return self._size_of(arg)
        member = self.earlier.get(divisor)
        if member is None or member.stage.combiner != "max":
            return None
        size = member.stage.body
        positive = isinstance(size, Op) and size.fn == "abs"
        return size if positive and self._is_extreme(member.stage, guards=False) else None

    # v(r)

    def _without(self, node: Scalar, late: Sequence[Scalar]) -> tuple[Scalar | None, Scalar | None]:
        """A product without its late factors, and the product of these."""
        if node in late:
            return None, node
        match node:
            case Op("mul", (a, b)):
                (one, f), (other, g) = self._without(a, late), self._without(b, late)
                return _times(one, other), _times(f, g)
            case Op("div", (a, b)):
                (one, f), (other, g) = self._without(a, late), self._without(b, late)
                return _over(one, other), _over(f, g)
        return node, None

    def _is_bounded(self, rest: Scalar) -> bool:
        """Whether terms without their late factor are no larger than the elements are."""
        free = [
            power for f, power in _factors(rest) if not self._is_fixed(f) and not self._depends(f)
        ]
        return free in ([], [1])


def _unguarded(node: Scalar) -> Scalar:
    """The value that a choice replaces by a constant where it is infinite."""
    match node:
        case Select(Op("isinf", (tested,)), Const(), arg) if tested is arg:
            return arg
        case Select(Op("eq", (tested, Const(limit))), Const(), arg) if tested is arg:
            return arg if math.isinf(limit) else node
    return node


def _has_acc(node: Scalar) -> bool:
    return any(isinstance(n, Acc) for n in walk(node))


def _factors(node: Scalar, power: int = 1) -> list[tuple[Scalar, int]]:
    """What a product multiplies by (1) and what it divides by (-1)."""
    match node:
        case Op("mul", (a, b)):
            return [*_factors(a, power), *_factors(b, power)]
        case Op("div", (a, b)):
            return [*_factors(a, power), *_factors(b, -power)]
        case Op("pow", (a, Const(2))):
            return _factors(a, power) * 2
    return [(node, power)]


def _times(a: Scalar | None, b: Scalar | None) -> Scalar | None:
    if a is None or b is None:
        return b if a is None else a
    return op("mul", a, b)


def _over(a: Scalar | None, b: Scalar | None) -> Scalar | None:
    if b is None:
        return a
    return op("div", constant(1.0, b.dtype) if a is None else a, b)
