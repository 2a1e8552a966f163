"""Minimum, maximum, selection and the conditions they ask."""

from collections.abc import Callable, Sequence

from edgerelax.sym.bounds import bounds
from edgerelax.sym.expr import Cond, Expr, ExprLike, Max, Min, Select, as_expr
from edgerelax.sym.prove import prove_eq, prove_le, proves_le


def minimum(*args: ExprLike, search: bool = True) -> Expr:
    """The least of all; arguments that are provably not the least are dropped.

    Without `search` bounds alone decide what is dropped: for estimates, of which there are many.
    """
    is_le = proves_le if search else _is_le_by_bounds
    kept = _extremes(args, Min, is_le)
    return kept[0] if len(kept) == 1 else Min(kept).expr


def maximum(*args: ExprLike, search: bool = True) -> Expr:
    """The greatest of all; arguments that are provably not the greatest are dropped.

    Without `search` bounds alone decide what is dropped.
    """
    is_le = proves_le if search else _is_le_by_bounds
    kept = _extremes(args, Max, lambda a, b: is_le(b, a))
    return kept[0] if len(kept) == 1 else Max(kept).expr


def _is_le_by_bounds(a: ExprLike, b: ExprLike) -> bool:
    least, _ = bounds(as_expr(b) - as_expr(a))
    return least is not None and least >= 0


def _extremes(
    args: Sequence[ExprLike], kind: type[Min | Max], wins: Callable[[Expr, Expr], bool]
) -> tuple[Expr, ...]:
    if not args:
        raise ValueError(f"{kind.word} of nothing")
    flat: list[Expr] = []
    for arg in map(as_expr, args):
        atom = arg.atom
        flat.extend(atom.args if isinstance(atom, kind) else (arg,))
    kept: list[Expr] = []
    for arg in sorted(set(flat), key=lambda e: e.order):
        if any(wins(other, arg) for other in kept):
            continue
        kept = [other for other in kept if not wins(arg, other)]
        kept.append(arg)
    return tuple(kept)


def ge(a: ExprLike, b: ExprLike) -> Cond:
    """a >= b"""
    return Cond("ge", as_expr(a) - b)


def gt(a: ExprLike, b: ExprLike) -> Cond:
    """a > b"""
    return Cond("ge", as_expr(a) - b - 1)


def le(a: ExprLike, b: ExprLike) -> Cond:
    """a <= b"""
    return ge(b, a)


def lt(a: ExprLike, b: ExprLike) -> Cond:
    """a < b"""
    return gt(b, a)


def eq(a: ExprLike, b: ExprLike) -> Cond:
    """a == b"""
    return Cond("eq", as_expr(a) - b)


def holds(cond: Cond) -> bool | None:
    """Whether a condition is true for all sizes, false for all, or neither is proved."""
    return prove_le(0, cond.expr) if cond.kind == "ge" else prove_eq(cond.expr, 0)


def select(cond: Cond, then: ExprLike, other: ExprLike) -> Expr:
    """`then` where the condition holds, else `other`; folded where it is decided."""
    a, b = as_expr(then), as_expr(other)
    if a is b:
        return a
    decided = holds(cond)
    if decided is not None:
        return a if decided else b
    return Select(cond, a, b).expr


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """a / b rounded up."""
    return (as_expr(a) + b - 1) // b
