"""The value of an expression at given sizes. An atom that stands in many places is valued once."""

from collections.abc import Mapping
from typing import Any

from edgerelax.sym.expr import Atom, Axis, Cond, Expr, FloorDiv, Max, Min, Select, Symbol

Env = Mapping[Any, int]
Known = dict[Atom, int]


def evaluate(expr: Expr, env: Env, known: Known) -> int:
    """The value where each symbol and axis is given, by atom or by name.

    `known` holds what was found so far. Raises KeyError for a missing atom, ZeroDivisionError
    naming the expression.
    """
    total = 0
    for k, monomial in expr.terms():
        for atom in monomial:
            if atom not in known:
                known[atom] = _atom(atom, env, known)
            k *= known[atom]
        total += k
    return total


def _atom(atom: Atom, env: Env, known: Known) -> int:
    match atom:
        case Symbol() | Axis():
            return int(env[atom] if atom in env else env[atom.name])
        case FloorDiv():
            den = evaluate(atom.den, env, known)
            if den == 0:
                raise ZeroDivisionError(f"{atom}: {atom.den} is 0")
            return evaluate(atom.num, env, known) // den
        case Min():
            return min(evaluate(a, env, known) for a in atom.args)
        case Max():
            return max(evaluate(a, env, known) for a in atom.args)
        case Select():
            arm = atom.then if _holds(atom.cond, env, known) else atom.other
            return evaluate(arm, env, known)
    return int(env[atom])


def _holds(cond: Cond, env: Env, known: Known) -> bool:
    value = evaluate(cond.expr, env, known)
    return value >= 0 if cond.kind == "ge" else value == 0
