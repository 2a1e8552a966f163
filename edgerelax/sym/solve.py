"""Match parameter dims with actual dims: bind symbols, or say what must be checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from edgerelax.sym.choice import maximum, minimum
from edgerelax.sym.expr import Atom, Expr, ExprLike, Symbol, as_expr
from edgerelax.sym.prove import prove_eq

Pair = tuple[Expr, Expr]


@dataclass(slots=True)
class Solution:
    """`checks` must hold at run time; `contradictions` can never hold."""

    bindings: dict[Symbol, Expr] = field(default_factory=dict)
    checks: list[Pair] = field(default_factory=list)
    contradictions: list[Pair] = field(default_factory=list)
    unbound: frozenset[Symbol] = frozenset()

    def expected(self, param: Expr) -> Expr:
        """A parameter's expression in terms of the actual sizes."""
        bound: dict[Atom, ExprLike] = {s: e for s, e in self.bindings.items()}
        return param.subs(bound)


def unify(pairs: Sequence[tuple[ExprLike, ExprLike]]) -> Solution:
    """Solve parameter == actual for the parameters' symbols.

    First bare symbols, then linear `c*v + k == e` (that c divides is a check), then what is left:
    proved equalities are dropped, impossible ones are contradictions, the rest are checks. So are
    the bounds of the symbols.
    """
    solution = Solution()
    left: list[Pair] = []
    for param, actual in ((as_expr(p), as_expr(a)) for p, a in pairs):
        atom = param.atom
        if isinstance(atom, Symbol) and atom not in solution.bindings:
            solution.bindings[atom] = actual
        else:
            left.append((param, actual))
    while any(_solve_linear(param, actual, solution) for param, actual in left):
        pass
    for param, actual in left:
        if param.symbols() <= solution.bindings.keys():
            _check((param, actual), solution.expected(param), actual, solution)
    for symbol, actual in solution.bindings.items():
        _check_bounds(symbol, actual, solution)
    wanted = frozenset(s for p, _ in left for s in p.symbols())
    solution.unbound = wanted - frozenset(solution.bindings)
    return solution


def _solve_linear(param: Expr, actual: Expr, solution: Solution) -> bool:
    """Bind the only unknown symbol if it stands in one term, times a constant."""
    unknown = param.symbols() - solution.bindings.keys()
    if len(unknown) != 1:
        return False
    (symbol,) = unknown
    k = next((k for k, monomial in param.terms() if monomial == (symbol,)), 0)
    rest = param - symbol * k
    if k == 0 or symbol in rest.symbols():
        return False
    solution.bindings[symbol] = (actual - solution.expected(rest)) // k
    return True


def _check(pair: Pair, expected: Expr, actual: Expr, solution: Solution) -> None:
    equal = prove_eq(expected, actual)
    if equal is False:
        solution.contradictions.append(pair)
    elif equal is None:
        solution.checks.append((expected, actual))


def _check_bounds(symbol: Symbol, actual: Expr, solution: Solution) -> None:
    within = maximum(actual, symbol.lo)
    if symbol.hi is not None:
        within = minimum(within, symbol.hi)
    whole = actual // symbol.multiple_of * symbol.multiple_of
    for expected in dict.fromkeys((within, whole)):
        _check((symbol.expr, actual), expected, actual, solution)
