"""Proofs of order and equality for all sizes. None is "unknown"; a guess is not an answer."""

from functools import lru_cache
from math import gcd

from edgerelax.sym.bounds import INF, atom_interval, interval, multiple, split
from edgerelax.sym.expr import (
    Atom,
    Axis,
    Expr,
    ExprLike,
    FloorDiv,
    Max,
    Min,
    Monomial,
    Opaque,
    Select,
    _make,
    as_expr,
)
from edgerelax.sym.polynomial import Remainder, remainders
from edgerelax.sym.witness import refuted

DEPTH = 6
BUDGET = 2000  # terms that a search may look at


def prove_eq(a: ExprLike, b: ExprLike) -> bool | None:
    """True if equal for all sizes, False if for none."""
    gap = as_expr(a) - as_expr(b)
    value = gap.as_int()
    if value is not None:
        return value == 0
    g = multiple(gap - gap.constant)
    if g and gap.constant % g:
        return False
    lo, hi = interval(gap)
    if lo > 0 or hi < 0 or prove_nonneg(gap - 1) or prove_nonneg(-gap - 1):
        return False
    return True if prove_nonneg(gap) and prove_nonneg(-gap) else None


def prove_le(a: ExprLike, b: ExprLike) -> bool | None:
    """True if a <= b for all sizes, False if for none."""
    gap = as_expr(b) - as_expr(a)
    if prove_nonneg(gap):
        return True
    return False if prove_nonneg(-gap - 1) else None


def prove_lt(a: ExprLike, b: ExprLike) -> bool | None:
    """True if a < b for all sizes, False if for none."""
    return prove_le(as_expr(a) + 1, b)


def proves_le(a: ExprLike, b: ExprLike) -> bool:
    """Whether a <= b is proved for all sizes. False is no disproof."""
    return prove_nonneg(as_expr(b) - as_expr(a))


def proves_lt(a: ExprLike, b: ExprLike) -> bool:
    """Whether a < b is proved for all sizes. False is no disproof."""
    return proves_le(as_expr(a) + 1, b)


def prove_nonneg(e: ExprLike) -> bool:
    """Whether e >= 0 is proved. False is no disproof."""
    return _is_proved(as_expr(e))


@lru_cache(maxsize=1 << 16)
def _is_proved(e: Expr) -> bool:
    try:
        return _Search().nonneg(e, DEPTH)
    except _BudgetError:
        return False


class _BudgetError(Exception):
    """The budget of a search is used up."""


class _Search:
    """One proof. Its outcome depends on the expression alone, not on what was asked before."""

    def __init__(self) -> None:
        self.budget = BUDGET
        self.proved: set[Expr] = set()
        self.failed: dict[Expr, int] = {}  # the depth up to which no proof was found

    def nonneg(self, e: Expr, depth: int) -> bool:
        lo, hi = interval(e)
        if lo >= 0 or e in self.proved:
            return True
        if hi < 0 or depth == 0 or self.failed.get(e, 0) >= depth:
            return False
        self.budget -= len(e.terms())
        if self.budget < 0:
            raise _BudgetError
        new = e not in self.failed
        if new and refuted(e):
            depth = DEPTH
        elif (new and _shifted(e)) or self._by_parts(e, depth):
            self.proved.add(e)
            return True
        self.failed[e] = depth
        return False

    def _by_parts(self, e: Expr, depth: int) -> bool:
        whole = _primitive(e)
        if whole is not e:
            return self.nonneg(whole, depth)
        atoms = _linear_atoms(e)
        for atom in atoms:
            if isinstance(atom, Axis) and _is_plain(e, atom):
                # the end of an axis loses nothing: no other way helps
                return self._by_atom(e, atom, depth)
        if any(self._by_remainder(found, depth - 1) for found in remainders(e)):
            return True
        return any(self._by_atom(e, atom, depth - 1) for atom in atoms)

    def _sign(self, e: Expr, depth: int) -> int:
        """1 where e >= 0 is proved, -1 where e <= 0 is, else 0."""
        return 1 if self.nonneg(e, depth) else -1 if self.nonneg(-e, depth) else 0

    def _by_remainder(self, found: Remainder, depth: int) -> bool:
        """0 <= num % den <= den - 1"""
        if interval(found.den)[0] < 0:
            return False
        sign = self._sign(found.factor, depth)
        end = found.rest if sign > 0 else found.rest + found.factor * (found.den - 1)
        return sign != 0 and self.nonneg(end, depth)

    def _by_atom(self, e: Expr, atom: Atom, depth: int) -> bool:
        """Replace an atom by what bounds it, on the side that its coefficient asks for."""
        factor, rest = split(e, atom)
        sign = self._sign(factor, depth)
        if sign == 0:
            return False
        rising = sign > 0
        match atom:
            case Axis():
                end = as_expr(0) if rising else atom.extent - 1
                return self.nonneg(rest + factor * end, depth)
            case Min() | Max():
                every = rising == isinstance(atom, Min)
                results = (self.nonneg(rest + factor * arg, depth) for arg in atom.args)
                return all(results) if every else any(results)
            case Select():
                arms = (atom.then, atom.other)
                return all(self.nonneg(rest + factor * arm, depth) for arm in arms)
            case FloorDiv():
                side = _side_of_quotient(atom, factor, rest, rising)
                return side is not None and self.nonneg(side, depth)
            case Opaque():
                bound = atom.lo if rising else atom.hi
                return bound is not None and self.nonneg(rest + factor * bound, depth)
        return False


def _primitive(e: Expr) -> Expr:
    """An expression that is >= 0 where e is: common factors of coefficients are taken out."""
    g = gcd(*(k for k, monomial in e.terms() if monomial))
    return _make({m: k // g for k, m in e.terms()}) if g > 1 else e


def _side_of_quotient(atom: FloorDiv, factor: Expr, rest: Expr, rising: bool) -> Expr | None:
    """num - den + 1 <= den*(num//den) <= num for den >= 1; at 0 there is no value to bound"""
    if interval(atom.den)[0] < 0:
        return None
    side = atom.num - atom.den + 1 if rising else atom.num
    return rest * atom.den + factor * side


def _is_plain(e: Expr, axis: Axis) -> bool:
    """Whether an axis stands in one term, times a constant, and nowhere inside other atoms."""
    alone = 0
    for _, monomial in e.terms():
        for atom in monomial:
            if atom is axis:
                alone += 1 if len(monomial) == 1 else 2
            elif axis in atom.expr.axes():
                return False
    return alone == 1


def _linear_atoms(e: Expr) -> list[Atom]:
    """Atoms of degree 1 that have a rule of their own, inner things last."""
    ranked: list[tuple[int, Atom]] = []
    seen: set[Atom] = set()
    for _, monomial in e.terms():
        for atom in monomial:
            if atom in seen:
                continue
            seen.add(atom)
            rank = {Min: 0, Max: 0, Select: 1, FloorDiv: 2, Opaque: 3, Axis: 4}.get(type(atom))
            if rank is not None and all(m.count(atom) <= 1 for _, m in e.terms()):
                ranked.append((rank, atom))
    return [a for _, a in sorted(ranked, key=lambda r: r[0])]


def _shifted(e: Expr) -> bool:
    """Count each atom from an end of its interval: it is proved if no coefficient is negative.

    Atoms count as unknowns of their own: nothing is put inside them, where it could be rewritten.
    """
    ends: dict[Atom, tuple[int, int]] = {}
    for atom in {a for _, m in e.terms() for a in m}:
        lo, hi = atom_interval(atom)
        falls = all(k < 0 for k, m in e.terms() if atom in m)
        if hi != INF and (falls or lo == -INF):
            ends[atom] = (int(hi), -1)
        elif lo != -INF:
            ends[atom] = (int(lo), 1)
        else:
            return False
    total: dict[Monomial, int] = {}
    for k, monomial in e.terms():
        for left, coefficient in _counted(k, monomial, ends).items():
            total[left] = total.get(left, 0) + coefficient
    return all(k >= 0 for k in total.values())


def _counted(k: int, monomial: Monomial, ends: dict[Atom, tuple[int, int]]) -> dict[Monomial, int]:
    """k times the product of `end ± distance`, as a polynomial of the distances."""
    out: dict[Monomial, int] = {(): k}
    for atom in monomial:
        end, sign = ends[atom]
        grown: dict[Monomial, int] = {}
        for left, coefficient in out.items():
            grown[left] = grown.get(left, 0) + coefficient * end
            with_atom = (*left, atom)
            grown[with_atom] = grown.get(with_atom, 0) + coefficient * sign
        out = grown
    return out
