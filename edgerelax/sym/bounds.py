"""What is known of an expression's value: intervals and divisors. None means unbounded."""

from functools import lru_cache
from math import gcd, prod

from edgerelax.sym.expr import (
    MEMO,
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
    Symbol,
    _make,
    as_expr,
)
from edgerelax.sym.polynomial import remainders

INF = float("inf")
Number = int | float  # an int, or ±INF
Interval = tuple[Number, Number]
WIDEST = 12  # terms of a sum worth a closer look
NESTED = 3  # closer looks within one another: each looks at sums that it makes itself
HUGE = 1 << 80  # what lies beyond is unbounded: squares of squares must not cost their digits


def bounds(e: ExprLike) -> tuple[int | None, int | None]:
    """Least and greatest value over all sizes, as far as known."""
    lo, hi = interval(as_expr(e))
    return (None if lo == -INF else int(lo), None if hi == INF else int(hi))


def upper_bound(e: ExprLike) -> int | None:
    """The greatest value, if bounded."""
    return bounds(e)[1]


def interval(e: Expr) -> Interval:
    """Interval evaluation, memoised on the expression."""
    if e.bounds_memo is None:
        e.bounds_memo = _interval(e, NESTED)
    return e.bounds_memo


@lru_cache(MEMO)
def _interval(e: Expr, nested: int) -> Interval:
    """With so many closer looks within one another; at 0 there is none at the sum as a whole."""
    lo, hi = _terms_interval(e)
    for narrow in (_narrow_mod, _narrow_quotient) if nested else ():
        lo, hi = _meet((lo, hi), narrow(e, nested - 1))
    return (-INF if lo < -HUGE else min(lo, HUGE), INF if hi > HUGE else max(hi, -HUGE))


def multiple(e: ExprLike) -> int:
    """A divisor of every value: the largest that coefficients and symbols show; 0 for the zero."""
    return gcd(*(abs(k) * _monomial_multiple(m) for k, m in as_expr(e).terms()))


def divisible(e: ExprLike, k: int) -> bool:
    """Whether k provably divides every value."""
    return multiple(e) % k == 0


def _monomial_multiple(monomial: Monomial) -> int:
    return prod(atom_multiple(atom) for atom in monomial)


def atom_multiple(atom: Atom) -> int:
    """A divisor of every value of an atom."""
    match atom:
        case Symbol():
            return atom.multiple_of
        case Min() | Max():
            return gcd(*(multiple(a) for a in atom.args))
        case Select():
            return gcd(multiple(atom.then), multiple(atom.other))
        case FloorDiv() if atom.exact:
            return multiple(atom.num) // atom.exact
    return 1


def _terms_interval(e: Expr) -> Interval:
    lo: Number = 0
    hi: Number = 0
    for k, monomial in e.terms():
        a, b = scale(_monomial_interval(monomial), k)
        lo, hi = lo + a, hi + b
    return lo, hi


def _monomial_interval(monomial: Monomial) -> Interval:
    out: Interval = (1, 1)
    k = 0
    while k < len(monomial):
        power = 1
        while k + power < len(monomial) and monomial[k + power] is monomial[k]:
            power += 1
        out = _times(out, _power(atom_interval(monomial[k]), power))
        k += power
    return out


def _power(base: Interval, power: int) -> Interval:
    lo, hi = base
    if power % 2 == 0 and lo < 0 < hi:
        return (0, max(_mul(lo, lo), _mul(hi, hi)) ** (power // 2))
    out = base
    for _ in range(power - 1):
        out = _times(out, base)
    return out


def atom_interval(atom: Atom) -> Interval:
    """Bounds of one atom."""
    match atom:
        case Symbol():
            m = atom.multiple_of
            lo = -(-atom.lo // m) * m
            return (lo, INF if atom.hi is None else atom.hi // m * m)
        case Axis():
            return (0, max(interval(atom.extent)[1] - 1, 0))
        case FloorDiv():
            return divide(interval(atom.num), interval(atom.den))
        case Min():
            parts = [interval(a) for a in atom.args]
            return (min(p[0] for p in parts), min(p[1] for p in parts))
        case Max():
            parts = [interval(a) for a in atom.args]
            return (max(p[0] for p in parts), max(p[1] for p in parts))
        case Select():
            a, b = interval(atom.then), interval(atom.other)
            return (min(a[0], b[0]), max(a[1], b[1]))
        case Opaque():
            low = -INF if atom.lo is None else interval(atom.lo)[0]
            return (low, INF if atom.hi is None else interval(atom.hi)[1])
    return (-INF, INF)


def scale(value: Interval, k: int) -> Interval:
    """An interval times a constant."""
    a, b = _mul(value[0], k), _mul(value[1], k)
    return (a, b) if k >= 0 else (b, a)


def _mul(a: Number, b: Number) -> Number:
    return 0 if a == 0 or b == 0 else a * b


def _times(x: Interval, y: Interval) -> Interval:
    corners = [_mul(a, b) for a in x for b in y]
    return (min(corners), max(corners))


def divide(num: Interval, den: Interval) -> Interval:
    """Floor division; the divisor is positive wherever the quotient has a meaning that matters."""
    if den[1] < 0:
        return divide((-num[1], -num[0]), (-den[1], -den[0]))
    if den[0] < 0:
        most = max(abs(num[0]), abs(num[1]))
        return (-most, most)
    low, high = max(den[0], 1), max(den[1], 1)
    corners = [_floor(a, b) for a in num for b in (low, high)]
    return (min(corners), max(corners))


def _floor(a: Number, b: Number) -> Number:
    if a in (INF, -INF):
        return a
    if b == INF:
        return 0 if a >= 0 else -1
    return int(a) // int(b)


def _narrow_mod(e: Expr, nested: int) -> Interval:
    """Use 0 <= num % den <= den - 1 where a sum holds that."""
    found = (-INF, INF)
    for mod in remainders(e):
        lo, hi = interval(mod.den)
        if lo >= 0:
            remainder = _times(_interval(mod.factor, nested), (0, max(hi - 1, 0)))
            found = _meet(found, _plus(remainder, _interval(mod.rest, nested)))
    return found


def _narrow_quotient(e: Expr, nested: int) -> Interval:
    """Use k*(x//k) == x - r, 0 <= r < k, where x and the other terms have atoms in common."""
    terms = e.terms()
    for _, monomial in terms if 1 < len(terms) <= WIDEST else ():
        for atom in monomial:
            if isinstance(atom, FloorDiv) and not atom.exact and _is_correlated(e, atom):
                return _by_remainder(e, atom, nested)
    return (-INF, INF)


def _is_correlated(e: Expr, atom: FloorDiv) -> bool:
    return atom.den.is_const and any(
        other is not atom and not other.expr.atoms().isdisjoint(atom.num.atoms())
        for _, monomial in e.terms()
        for other in monomial
    )


def _by_remainder(e: Expr, atom: FloorDiv, nested: int) -> Interval:
    """Bounds of e == factor*(num//k) + rest from k*e == factor*num + k*rest - factor*r"""
    k = atom.den.as_int()
    assert k is not None
    factor, rest = split(e, atom)
    remainder = scale(_times(_interval(factor, nested), (0, k - 1)), -1)
    lo, hi = _plus(_interval(factor * atom.num + k * rest, nested), remainder)
    return (lo if lo == -INF else -(-lo // k), hi if hi == INF else hi // k)


def split(e: Expr, atom: Atom) -> tuple[Expr, Expr]:
    """factor and rest with e == factor*atom + rest"""
    factor: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for k, monomial in e.terms():
        if atom in monomial:
            others = list(monomial)
            others.remove(atom)
            factor[tuple(others)] = k
        else:
            rest[monomial] = k
    return _make(factor), _make(rest)


def _plus(x: Interval, y: Interval) -> Interval:
    return (x[0] + y[0], x[1] + y[1])


def _meet(x: Interval, y: Interval) -> Interval:
    return (max(x[0], y[0]), min(x[1], y[1]))
