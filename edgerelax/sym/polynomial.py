"""Division of polynomials, atoms being unknowns: no bounds are asked."""

from collections.abc import Iterator
from dataclasses import dataclass

from edgerelax.sym.expr import Expr, FloorDiv, Monomial, _make, as_expr

MOST_STEPS = 64


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
    for k, monomial in terms if len(terms) > 1 else ():
        for atom in monomial:
            if not isinstance(atom, FloorDiv):
                continue
            term = _make({without(monomial, (atom,)) or (): -k})
            for num, den in _readings(e, atom):
                factor = divide_exactly(term, den)
                if factor is None:
                    continue
                rest = e - factor * (num - den * atom)
                if len(rest.terms()) < len(terms):
                    yield Remainder(rest, factor, num, den)


def _readings(e: Expr, atom: FloorDiv) -> Iterator[tuple[Expr, Expr]]:
    """What an atom may be the quotient of: x//(p*q) is (x//p)//q too, which a sum may hold."""
    yield atom.num, atom.den
    for _, monomial in e.terms():
        for inner in monomial:
            if isinstance(inner, FloorDiv) and inner is not atom:
                den = divide_exactly(atom.den, inner.den)
                offset = den and divide_exactly(atom.num - inner.num, inner.den)
                if den is not None and offset is not None:
                    yield inner + offset, den
