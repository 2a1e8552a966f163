"""Counterexamples: what is negative at a sample point has no proof, so none need be sought."""

from zlib import crc32

from edgerelax.sym.bounds import HUGE
from edgerelax.sym.expr import (
    Atom,
    Axis,
    Expr,
    FloorDiv,
    Max,
    Min,
    Opaque,
    Select,
    Symbol,
)

# How far from its least size a point may place a symbol. In the first points all symbols stand
# at that end; axes stand at their last in the first, at 0 in the second.
SPANS = (1, 5000, 5000, 0, 7, 60, 2, 3)
AT_END = 3
_values: tuple[dict[Atom, int | None], ...] = tuple({} for _ in SPANS)


def refuted(e: Expr) -> bool:
    """Whether an expression is negative for some sizes within their bounds."""
    for point in range(len(SPANS)):
        found = _value(e, point)
        if found is not None and found < 0:
            return True
    return False


def _value(e: Expr, point: int) -> int | None:
    """The value at a point; None if something has no value there."""
    known = _values[point]
    total = 0
    for k, monomial in e.terms():
        for atom in monomial:
            if atom not in known:
                known[atom] = _atom_value(atom, point)
            factor = known[atom]
            if factor is None:
                return None
            k *= factor
            if not -HUGE < k < HUGE:
                return None
        total += k
    return total


def _atom_value(atom: Atom, point: int) -> int | None:
    match atom:
        case Symbol():
            return _symbol_value(atom, point)
        case Axis():
            return _between(atom, point, 0, _value(atom.extent - 1, point))
        case Opaque():
            low = None if atom.lo is None else _value(atom.lo, point)
            high = None if atom.hi is None else _value(atom.hi, point)
            if atom.lo is None:
                low = -SPANS[point] if high is None else high - SPANS[point]
            if atom.hi is None and low is not None:
                high = low + 2 * SPANS[point]
            return _between(atom, point, low, high)
    parts = [_value(part, point) for part in atom.parts()]
    values = [v for v in parts if v is not None]
    return None if len(values) < len(parts) else _function_value(atom, values)


def _symbol_value(symbol: Symbol, point: int) -> int | None:
    """Near the least size, or near 0 where sizes may be negative."""
    m, span = symbol.multiple_of, SPANS[point]
    low = max(-(-symbol.lo // m), -span)
    high = low + span if symbol.lo >= 0 else span
    if symbol.hi is not None:
        high = min(high, symbol.hi // m)
        low = min(low, max(high - span, -(-symbol.lo // m)))
    found = high if low <= high and point < AT_END else _between(symbol, point, low, high)
    return None if found is None else found * m


def _function_value(atom: Atom, values: list[int]) -> int | None:
    match atom:
        case FloorDiv():
            return values[0] // values[1] if values[1] else None
        case Min():
            return min(values)
        case Max():
            return max(values)
        case Select():
            holds = values[0] >= 0 if atom.cond.kind == "ge" else values[0] == 0
            return values[1] if holds else values[2]
    return None


def _between(atom: Atom, point: int, low: int | None, high: int | None) -> int | None:
    if low is None or high is None or high < low:
        return None
    return low + _pick(atom, point, high - low)


def _pick(atom: Atom, point: int, span: int) -> int:
    """A number up to span, often an end, that differs between atoms and points."""
    if point < 2:
        return span if point == 0 else 0
    mixed = (crc32(str(atom).encode()) * 2654435761 + point * 40503 + 12345) % 2**32 >> 7
    return (0, span, mixed // 4 % (span + 1), span)[mixed % 4]
