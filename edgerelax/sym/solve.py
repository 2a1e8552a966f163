"""Match parameter dims with actual dims: bind symbols, or say what must be checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from edgerelax.sym.expr import Atom, Expr, ExprLike, Symbol, as_expr
from edgerelax.sym.prove import prove_eq


@dataclass(slots=True)
class Solution:
    """`checks` must hold at run time; `contradictions` can never hold."""

    bindings: dict[Symbol, Expr] = field(default_factory=dict)
    checks: list[tuple[Expr, Expr]] = field(default_factory=list)
    contradictions: list[tuple[Expr, Expr]] = field(default_factory=list)
    unbound: frozenset[Symbol] = frozenset()


def unify(pairs: Sequence[tuple[ExprLike, ExprLike]]) -> Solution:
    """Solve parameter == actual for the parameters' symbols.

    First bare symbols, then linear `c*v + k == e` (that c divides is a check), then what is left:
    proved equalities are dropped, impossible ones are contradictions, the rest are checks.
    """
    solution = Solution()
    left: list[tuple[Expr, Expr]] = []
    for param, actual in ((as_expr(p), as_expr(a)) for p, a in pairs):
        atom = param.atom
        if isinstance(atom, Symbol) and atom not in solution.bindings:
            solution.bindings[atom] = actual
        else:
            left.append((param, actual))
    for param, actual in left:
        _solve_linear(param, actual, solution)
    for param, actual in left:
        _check(param, actual, solution)
    for symbol, actual in list(solution.bindings.items()):
        _check_bounds(symbol, actual, solution)
    wanted = frozenset(s for p, _ in left for s in p.symbols())
    solution.unbound = wanted - frozenset(solution.bindings)
    return solution


def _solve_linear(param: Expr, actual: Expr, solution: Solution) -> None:
    unknown = [s for s in param.symbols() if s not in solution.bindings]
    if len(unknown) != 1:
        return
    symbol = unknown[0]
    bound: dict[Atom, ExprLike] = {**solution.bindings}
    terms = [(k, m) for k, m in param.terms() if symbol in m]
    if len(terms) != 1 or terms[0][1] != (symbol,):
        return
    k = terms[0][0]
    rest = (param - symbol * k).subs(bound)
    if symbol in rest.symbols():
        return
    solution.bindings[symbol] = (actual - rest) // k


def _check(param: Expr, actual: Expr, solution: Solution) -> None:
    bound: dict[Atom, ExprLike] = {**solution.bindings}
    if any(s not in solution.bindings for s in param.symbols()):
        return
    expected = param.subs(bound)
    equal = prove_eq(expected, actual)
    if equal is False:
        solution.contradictions.append((param, actual))
    elif equal is None:
        solution.checks.append((expected, actual))


def _check_bounds(symbol: Symbol, actual: Expr, solution: Solution) -> None:
    value = actual.as_int()
    if value is None:
        return
    too_large = symbol.hi is not None and value > symbol.hi
    if value < symbol.lo or too_large or value % symbol.multiple_of:
        solution.contradictions.append((symbol.expr, actual))
