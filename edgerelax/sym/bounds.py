"""What is known of an expression's value: intervals and divisors. None means unbounded."""

from math import gcd

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
    Symbol,
    as_expr,
)

INF = float("inf")
Number = int | float  # an int, or ±INF
Interval = tuple[Number, Number]


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
        e.bounds_memo = _terms_interval(e)
        e.bounds_memo = _narrow_mod(e, e.bounds_memo)
    return e.bounds_memo


def multiple(e: ExprLike) -> int:
    """A divisor of every value: the largest that coefficients and symbols show; 0 for the zero."""
    return gcd(*(abs(k) * _monomial_multiple(m) for k, m in as_expr(e).terms()))


def divisible(e: ExprLike, k: int) -> bool:
    """Whether k provably divides every value."""
    return multiple(e) % k == 0


def _monomial_multiple(monomial: Monomial) -> int:
    out = 1
    for atom in monomial:
        if isinstance(atom, Symbol):
            out *= atom.multiple_of
        elif isinstance(atom, Min | Max):
            out *= gcd(*(multiple(a) for a in atom.args))
        elif isinstance(atom, Select):
            out *= gcd(multiple(atom.then), multiple(atom.other))
        elif isinstance(atom, FloorDiv) and atom.exact:
            k = atom.den.as_int()
            assert k is not None
            out *= multiple(atom.num) // k
    return out


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
            return _divide(interval(atom.num), interval(atom.den))
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


def _divide(num: Interval, den: Interval) -> Interval:
    """Floor division; the divisor is positive wherever the quotient has a meaning that matters."""
    if den[1] < 0:
        return _divide((-num[1], -num[0]), (-den[1], -den[0]))
    if den[0] < 0:
        return (-INF, INF)
    low = max(den[0], 1)
    corners = [_floor(a, b) for a in num for b in (low, den[1])]
    return (min(corners), max(corners))


def _floor(a: Number, b: Number) -> Number:
    if a in (INF, -INF):
        return a
    if b == INF:
        return 0 if a >= 0 else -1
    return int(a) // int(b)


def _narrow_mod(e: Expr, found: Interval) -> Interval:
    """Use 0 <= x - k*(x//k) <= k - 1 where an expression holds that pattern."""
    for coefficient, monomial in e.terms():
        for atom in monomial:
            if not isinstance(atom, FloorDiv):
                continue
            den = interval(atom.den)
            if den[0] < 1:
                continue
            rest = list(monomial)
            rest.remove(atom)
            factor = _cofactor(coefficient, rest, atom)
            if factor is None:
                continue
            remainder = factor * (atom.num - atom.den * atom)
            left = e - remainder
            if len(list(left.terms())) >= len(list(e.terms())):
                continue
            inside = _times(_terms_interval(factor), (0, den[1] - 1))
            outside = interval(left)
            lo, hi = inside[0] + outside[0], inside[1] + outside[1]
            found = (max(found[0], lo), min(found[1], hi))
    return found


def _cofactor(coefficient: int, rest: list[Atom], atom: FloorDiv) -> Expr | None:
    """c such that the term is -c * den * (num//den); None if there is none."""
    term = as_expr(-coefficient)
    for factor in rest:
        term = term * factor
    den = atom.den.as_int()
    if den is not None:
        return term // den if coefficient % den == 0 else None
    from edgerelax.sym.divide import divide_exactly

    return divide_exactly(term, atom.den)
