"""Whatever `sym` simplifies or proves agrees with brute-force evaluation of random expressions."""

from collections.abc import Callable, Iterator

from hypothesis import HealthCheck, assume, given, settings

from edgerelax.sym import (
    Atom,
    Expr,
    bounds,
    divisible,
    eq,
    ge,
    holds,
    maximum,
    minimum,
    multiple,
    prove_eq,
    prove_le,
    prove_lt,
    prove_nonneg,
    select,
    upper_bound,
)
from tests.sym.trees import Tree, assignments, build, trees, value

checked = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
Env = dict[Atom, int]


def built(tree: Tree) -> Expr:
    """The tree's expression; trees that divide by a constant 0 are not of interest."""
    try:
        return build(tree)
    except ZeroDivisionError:
        assume(False)
        raise


def values(*exprs: Expr) -> Iterator[tuple[int, ...]]:
    """What expressions are worth together, wherever all have a value."""
    for env in assignments(*exprs):
        try:
            yield tuple(e.eval(env) for e in exprs)
        except ZeroDivisionError:
            continue


@checked
@given(trees)
def test_simplification_keeps_the_value(tree: Tree) -> None:
    expr = built(tree)
    leaves = _leaves(tree)
    for env in assignments(*leaves):
        try:
            expected = value(tree, env)
        except ZeroDivisionError:
            continue
        assert expr.eval(env) == expected, f"{tree} became {expr}, differs at {env}"


def _leaves(tree: Tree) -> list[Expr]:
    if isinstance(tree.leaf, Expr):
        return [tree.leaf]
    return [leaf for arg in tree.args for leaf in _leaves(arg)]


@checked
@given(trees)
def test_bounds_hold(tree: Tree) -> None:
    expr = built(tree)
    low, high = bounds(expr)
    assert upper_bound(expr) == high
    for (found,) in values(expr):
        assert low is None or low <= found, f"{expr} >= {low}"
        assert high is None or found <= high, f"{expr} <= {high}"


@checked
@given(trees)
def test_multiples_divide(tree: Tree) -> None:
    expr = built(tree)
    k = multiple(expr)
    assert (k == 0) == (expr.as_int() == 0)
    for factor in (2, 3, 4, 5, 8):
        assert divisible(expr, factor) == (k % factor == 0)
    for (found,) in values(expr):
        assert found == 0 or found % k == 0, f"{k} divides {expr}"


PROOFS: dict[Callable[..., bool | None], Callable[[int, int], bool]] = {
    prove_eq: lambda a, b: a == b,
    prove_le: lambda a, b: a <= b,
    prove_lt: lambda a, b: a < b,
    lambda a, b: holds(ge(a, b)): lambda a, b: a >= b,
    lambda a, b: holds(eq(a, b)): lambda a, b: a == b,
}


@checked
@given(trees, trees)
def test_proofs_are_true(left: Tree, right: Tree) -> None:
    _check_proofs(built(left), built(right))


@checked
@given(trees)
def test_proofs_near_constants_are_true(tree: Tree) -> None:
    """The values that an expression really takes are where a proof that is off by one shows."""
    expr = built(tree)
    found = [v for (v,) in values(expr)]
    assume(found)
    for constant in (min(found), min(found) + 1, max(found), max(found) - 1, 0):
        _check_proofs(expr, build(Tree("leaf", leaf=constant)))


def _check_proofs(a: Expr, b: Expr) -> None:
    seen = list(values(a, b))
    for prove, truth in PROOFS.items():
        answer = prove(a, b)
        if answer is not None:
            assert all(truth(x, y) == answer for x, y in seen), f"{a} against {b}: {answer}"
    if prove_nonneg(a - b):
        assert all(x >= y for x, y in seen), f"{a} >= {b}"


@checked
@given(trees, trees, trees)
def test_choices_keep_the_value(first: Tree, second: Tree, third: Tree) -> None:
    a, b, c = built(first), built(second), built(third)
    least, greatest = minimum(a, b, c), maximum(a, b, c)
    chosen = select(ge(a, b), b, c)
    for x, y, z, low, high, one in values(a, b, c, least, greatest, chosen):
        assert low == min(x, y, z)
        assert high == max(x, y, z)
        assert one == (y if x >= y else z)
    assert minimum(c, b, a) is least
    assert maximum(c, a, b) is greatest


@checked
@given(trees)
def test_one_value_for_equal_expressions(tree: Tree) -> None:
    expr = built(tree)
    assert expr - expr is build(Tree("leaf", leaf=0))
    assert prove_eq(expr, expr) is True
    assert expr + expr is 2 * expr
    assert 0 - (0 - expr) is expr
    assert prove_lt(expr, expr) is False


@checked
@given(trees, trees)
def test_distributes(left: Tree, right: Tree) -> None:
    a, b = built(left), built(right)
    assert a * b is b * a
    assert (a + 1) * (b - 2) is a * b - 2 * a + b - 2
    assert (a + b) * (a - b) is a * a - b * b
