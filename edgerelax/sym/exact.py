"""The one form of sums with exact quotients: x//m where m divides every value of x.

x is m times x//m, so terms that differ in these alone are one multiple of a product of quotients.
It is written with as many x in place of x//m as its coefficient allows, the first in order first.
"""

from collections import Counter

from edgerelax.sym.bounds import atom_multiple
from edgerelax.sym.expr import Atom, FloorDiv, Monomial, as_expr, product_of


def canonical(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    """The form that all equal sums have."""
    totals: Counter[Monomial] = Counter()
    for monomial, k in terms.items():
        unit, scale = _divided(monomial)
        totals[unit] += k * scale
    return dict(_restored(unit, k) for unit, k in totals.items() if k)


def _quotient(atom: Atom) -> tuple[Atom, int]:
    """x//m and m for the greatest m known to divide x; (x, 1) where none is."""
    m = atom_multiple(atom)
    return (FloorDiv(atom.expr, as_expr(m)), m) if m > 1 else (atom, 1)


def _divided(monomial: Monomial) -> tuple[Monomial, int]:
    """The monomial with x//m for x, and the product of the m."""
    scale = 1
    units: list[Atom] = []
    for atom in monomial:
        unit, m = _quotient(atom)
        units.append(unit)
        scale *= m
    return product_of(units), scale


def _restored(unit: Monomial, k: int) -> tuple[Monomial, int]:
    """As many x for x//m as k allows, and what is left of k."""
    atoms: list[Atom] = []
    for atom in unit:
        whole = atom.num.atom if isinstance(atom, FloorDiv) and atom.exact else None
        if whole is not None and k % atom.exact == 0:
            atoms.append(whole)
            k //= atom.exact
        else:
            atoms.append(atom)
    return product_of(atoms), k
