"""Proofs of order and equality for all sizes. None is "unknown"; a guess is not an answer."""

from edgerelax.sym.bounds import INF, atom_interval, interval, split
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
    as_expr,
)
from edgerelax.sym.witness import refuted

DEPTH = 6


def prove_eq(a: ExprLike, b: ExprLike) -> bool | None:
    """True if equal for all sizes, False if for none."""
    gap = as_expr(a) - as_expr(b)
    value = gap.as_int()
    if value is not None:
        return value == 0
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


# What was tried: 0 proved, else the depth up to which no proof was found.
_tried: dict[Expr, int] = {}
_PROVED = 0


def prove_nonneg(e: Expr) -> bool:
    """Whether e >= 0 is proved. False is no disproof."""
    return _nonneg(e, DEPTH)


def _nonneg(e: Expr, depth: int) -> bool:
    lo, hi = interval(e)
    if lo >= 0:
        return True
    if hi < 0 or depth == 0:
        return False
    known = _tried.get(e)
    if known is not None and (known == _PROVED or known >= depth):
        return known == _PROVED
    if known is None and refuted(e):
        _tried[e] = DEPTH
        return False
    proved = _search(e, depth)
    _tried[e] = _PROVED if proved else depth
    return proved


def _search(e: Expr, depth: int) -> bool:
    if _shifted(e):
        return True
    atoms = _linear_atoms(e)
    for atom in atoms:
        if isinstance(atom, Axis) and _is_plain(e, atom):
            return _by_atom(e, atom, depth)  # the end of an axis loses nothing: no other way helps
    return any(_by_atom(e, atom, depth - 1) for atom in atoms)


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


def _by_atom(e: Expr, atom: Atom, depth: int) -> bool:
    """Replace an atom by what bounds it, on the side that its coefficient asks for."""
    factor, rest = split(e, atom)
    rising = _nonneg(factor, depth)
    falling = not rising and _nonneg(-factor, depth)
    if not rising and not falling:
        return False
    match atom:
        case Axis():
            end = as_expr(0) if rising else atom.extent - 1
            return _nonneg(rest + factor * end, depth)
        case Min() | Max():
            every = rising == isinstance(atom, Min)
            results = (_nonneg(rest + factor * arg, depth) for arg in atom.args)
            return all(results) if every else any(results)
        case Select():
            arms = (atom.then, atom.other)
            return all(_nonneg(rest + factor * arm, depth) for arm in arms)
        case FloorDiv():
            return _by_division(atom, factor, rest, rising, depth)
        case Opaque():
            bound = atom.lo if rising else atom.hi
            return bound is not None and _nonneg(rest + factor * bound, depth)
    return False


def _by_division(atom: FloorDiv, factor: Expr, rest: Expr, rising: bool, depth: int) -> bool:
    """num - den + 1 <= den*(num//den) <= num for den >= 1; at 0 there is no value to bound"""
    if interval(atom.den)[0] < 0:
        return False
    side = atom.num - atom.den + 1 if rising else atom.num
    return _nonneg(rest * atom.den + factor * side, depth)


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
