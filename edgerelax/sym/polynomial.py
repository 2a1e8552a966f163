"""Division of polynomials, atoms being unknowns: no bounds are asked."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from edgerelax.sym.expr import MEMO, Expr, FloorDiv, Monomial, _make, as_expr

MOST_STEPS = 64


@lru_cache(MEMO)
def divide_exactly(a: Expr, b: Expr) -> Expr | None:
    """q with a == q*b as polynomials, or None."""
    k = b.as_int()
    if k is not None:
        terms = a.terms()
        return scale_down(a, k) if k and all(c % k == 0 for c, _ in terms) else None
    quotient, rest = long_division(a, b)
    return quotient if rest.as_int() == 0 else None


def long_division(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """q and r with a == q*b + r, taking out leading terms as long as they divide."""
    lead_k, lead = b.terms()[0]
    quotient, left = as_expr(0), a
    for _ in range(MOST_STEPS):
        for k, monomial in left.terms():
            other = without(monomial, lead)
            if other is not None and k % lead_k == 0:
                step = _make({other: k // lead_k})
                quotient, left = quotient + step, left - step * b
                break
        else:
            break
    return quotient, left


def scale_down(a: Expr, g: int) -> Expr:
    """a / g, where g divides all coefficients."""
    return _make({m: c // g for c, m in a.terms()})


def without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """The other factor of a monomial, or None."""
    left = list(monomial)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


@dataclass(frozen=True, slots=True)
class Remainder:
    """A way to write a sum as rest + factor*(num % den), wherever den is positive."""

    rest: Expr
    factor: Expr
    num: Expr
    den: Expr


def remainders(e: Expr) -> Iterator[Remainder]:
    """Every `%` that stands in a sum as num - den*(num//den) and makes it shorter."""
    terms = e.terms()
    if len(terms) < 2:
        return
    quotients = [a for a in dict.fromkeys(chain(*(m for _, m in terms))) if isinstance(a, FloorDiv)]
    if not quotients:
        return
    known = {monomial: k for k, monomial in terms}
    joins = any(atom.exact for monomial in known for atom in monomial)
    for k, monomial in terms:
        for atom in monomial:
            if not isinstance(atom, FloorDiv):
                continue
            term = _make({without(monomial, (atom,)) or (): -k})
            for num, den in _readings(atom, quotients):
                factor = divide_exactly(term, den)
                if factor is None:
                    continue
                taken = factor * (num - den * atom)
                if joins or _shortens(known, taken):
                    rest = e - taken
                    if len(rest.terms()) < len(terms):
                        yield Remainder(rest, factor, num, den)


def _readings(atom: FloorDiv, quotients: Iterable[FloorDiv]) -> Iterator[tuple[Expr, Expr]]:
    """What an atom may be the quotient of, given the quotients of a sum that holds it."""
    yield atom.num, atom.den
    for inner in quotients:
        if inner is not atom:
            found = _through(atom, inner)
            if found is not None:
                yield found


@lru_cache(MEMO)
def _through(atom: FloorDiv, inner: FloorDiv) -> tuple[Expr, Expr] | None:
    """x//(p*q) is (x//p)//q too: the numerator and divisor if it is so with x//p as `inner`."""
    den = divide_exactly(atom.den, inner.den)
    offset = den and divide_exactly(atom.num - inner.num, inner.den)
    return None if den is None or offset is None else (inner + offset, den)


def _shortens(known: Mapping[Monomial, int], taken: Expr) -> bool:
    """Whether a sum less another has fewer terms than it, found without making the difference.

    True as well where it is unknown: terms with an exact division may join others.
    """
    change = 0
    for k, monomial in taken.terms():
        if any(atom.exact for atom in monomial):
            return True
        there = known.get(monomial)
        change += 1 if there is None else -1 if there == k else 0
    return change < 0
