"""Other expressions in place of atoms, at any depth, simplified."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from edgerelax.sym.expr import (
    MEMO,
    Atom,
    Expr,
    ExprLike,
    Monomial,
    Opaque,
    _make,
    as_expr,
    product,
)


def substitute(expr: Expr, mapping: Mapping[Atom, ExprLike]) -> Expr:
    """The expression with atoms replaced."""
    atoms = expr.atoms()
    if expr.has_opaque:  # its payload may hold atoms that are none of the expression's
        return _replaced(expr, mapping, {})
    used = tuple((atom, as_expr(new)) for atom, new in mapping.items() if atom in atoms)
    return _remembered(expr, used) if used else expr


@lru_cache(MEMO)
def _remembered(expr: Expr, used: tuple[tuple[Atom, Expr], ...]) -> Expr:
    return _replaced(expr, dict(used), {})


def _replaced(expr: Expr, mapping: Mapping[Atom, ExprLike], memo: dict[Any, Expr]) -> Expr:
    """`memo` holds what became of each part so far."""
    if expr in memo:
        return memo[expr]
    kept: dict[Monomial, int] = {}
    changed: list[Expr] = []
    for k, monomial in expr.terms():
        factors = [_atom(a, mapping, memo) for a in monomial]
        if all(f is a.expr for f, a in zip(factors, monomial, strict=True)):
            kept[monomial] = k
        else:
            changed.append(product(factors) * k)
    memo[expr] = sum(changed, _make(kept)) if changed else expr
    return memo[expr]


def _atom(atom: Atom, mapping: Mapping[Atom, ExprLike], memo: dict[Any, Expr]) -> Expr:
    if atom in mapping:
        return as_expr(mapping[atom])
    if atom in memo:
        return memo[atom]
    parts = atom.parts()
    if not parts and not isinstance(atom, Opaque):
        return atom.expr
    new = tuple(_replaced(p, mapping, memo) for p in parts)
    same = not isinstance(atom, Opaque) and all(a is b for a, b in zip(new, parts, strict=True))
    memo[atom] = atom.expr if same else atom.rebuild(new, mapping)
    return memo[atom]
