"""Floor division with simplification. Every rule holds wherever the divisor is not 0."""

from functools import lru_cache
from math import gcd

from edgerelax.sym.bounds import atom_multiple, divide, divisible, interval
from edgerelax.sym.expr import Expr, FloorDiv, Monomial, _make, as_expr
from edgerelax.sym.polynomial import long_division, scale_down, without


@lru_cache(maxsize=1 << 16)
def floordiv(a: Expr, b: Expr) -> Expr:
    """a // b in canonical form. Raises ZeroDivisionError for a constant 0 divisor."""
    k = b.as_int()
    if k is None:
        return _by_expr(a, b)
    if k == 0:
        raise ZeroDivisionError(f"({a})//0")
    return _by_int(-a, -k) if k < 0 else _by_int(a, k)


def _by_int(a: Expr, k: int) -> Expr:
    """Division by a positive constant."""
    if k == 1:
        return a
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for c, monomial in a.terms():
        if c % k == 0:
            whole[monomial] = c // k
        elif c > k or not monomial:
            whole[monomial] = c // k
            rest[monomial] = c % k
        else:
            rest[monomial] = c
    out, left = _make(whole), _make(rest)
    exact, left = _split_exact(left, k)
    return out + exact + _small_by_int(left, k)


def _split_exact(a: Expr, k: int) -> tuple[Expr, Expr]:
    """Take out terms that the atoms' multiples make divisible by k."""
    out, left = as_expr(0), as_expr(0)
    for c, monomial in a.terms():
        term = _make({monomial: c})
        if monomial and divisible(term, k):
            out = out + _exact_quotient(c, monomial, k)
        else:
            left = left + term
    return out, left


def _exact_quotient(c: int, monomial: Monomial, k: int) -> Expr:
    """c*monomial/k with each atom x that has to divide as m * (x//m), m its whole multiple."""
    shared = gcd(c, k)
    out, k = as_expr(c // shared), k // shared
    for atom in monomial:
        m = atom_multiple(atom)
        shared = gcd(m, k)
        part = atom.expr if shared == 1 else FloorDiv(atom.expr, as_expr(m)) * (m // shared)
        out, k = out * part, k // shared
    return out


def _small_by_int(a: Expr, k: int) -> Expr:
    """Division where no term divides by itself."""
    constant = _constant_quotient(a, as_expr(k))
    if constant is not None:
        return constant
    merged = _merge_nested(a, k)
    if merged is not None:
        return merged
    reduced = _drop_residue(a, k)
    if reduced is not None:
        return reduced
    return FloorDiv(a, as_expr(k)).expr


def _constant_quotient(a: Expr, b: Expr) -> Expr | None:
    lo, hi = divide(interval(a), interval(b))
    return as_expr(int(lo)) if lo == hi else None


def _merge_nested(a: Expr, k: int) -> Expr | None:
    """(x//p + c)//k == (x + c*p)//(p*k)"""
    terms = list(a.terms())
    nested = [(c, m) for c, m in terms if m]
    if len(nested) != 1 or nested[0][0] != 1 or len(nested[0][1]) != 1:
        return None
    atom = nested[0][1][0]
    if not isinstance(atom, FloorDiv) or interval(atom.den)[0] < 0:
        return None
    offset = a - atom
    return floordiv(atom.num + offset * atom.den, atom.den * k)


def _drop_residue(a: Expr, k: int) -> Expr | None:
    """(g*y + r)//k == y//(k/g) where g divides k and 0 <= r < g"""
    candidates = sorted({gcd(c, k) for c, m in a.terms() if m}, reverse=True)
    for g in candidates:
        if g == 1:
            continue
        large = _make({m: c for c, m in a.terms() if c % g == 0})
        small = a - large
        constant = small.as_int()
        if constant is not None:
            large, small = large + constant // g * g, as_expr(constant % g)
        lo, hi = interval(small)
        if lo >= 0 and hi < g:
            return floordiv(scale_down(large, g), as_expr(k // g))
    return None


def _by_expr(a: Expr, b: Expr) -> Expr:
    """Division by a polynomial."""
    if a.as_int() == 0:
        return a
    if interval(b)[0] < 0 >= interval(b)[1]:
        return floordiv(-a, -b)
    quotient, rest = long_division(a, b)
    if rest.as_int() == 0:
        return quotient
    constant = _constant_quotient(rest, b)
    if constant is not None:
        return quotient + constant
    from edgerelax.sym.prove import proves_le, proves_lt

    if proves_le(0, rest) and proves_lt(rest, b):
        return quotient
    common = _common(rest, b)
    if common:
        small_rest, small_b = _strip(rest, common), _strip(b, common)
        return quotient + floordiv(small_rest, small_b)
    g = gcd(*(c for c, _ in rest.terms()), *(c for c, _ in b.terms()))
    if g > 1:
        rest, b = scale_down(rest, g), scale_down(b, g)
        return quotient + floordiv(rest, b)
    atom = rest.atom
    if isinstance(atom, FloorDiv) and interval(atom.den)[0] >= 0 and interval(b)[0] >= 0:
        return quotient + floordiv(atom.num, atom.den * b)
    return quotient + FloorDiv(rest, b).expr


def _common(a: Expr, b: Expr) -> Monomial:
    """Atoms that divide every term of both."""
    monomials = [m for _, m in (*a.terms(), *b.terms())]
    common = list(monomials[0])
    for monomial in monomials[1:]:
        left = list(monomial)
        kept = []
        for atom in common:
            if atom in left:
                left.remove(atom)
                kept.append(atom)
        common = kept
    return tuple(common)


def _strip(a: Expr, common: Monomial) -> Expr:
    out: dict[Monomial, int] = {}
    for c, monomial in a.terms():
        rest = without(monomial, common)
        assert rest is not None
        out[rest] = c
    return _make(out)
