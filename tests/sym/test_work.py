"""Work stays small where expressions share parts or proofs branch; what is not found is unknown."""

from edgerelax.sym import (
    Atom,
    Axis,
    Expr,
    as_expr,
    axis,
    maximum,
    prove_eq,
    prove_le,
    prove_lt,
    select,
    symbol,
)
from edgerelax.sym.choice import ge

N, M = symbol("n"), symbol("m")


def tower(base: Expr, height: int) -> Expr:
    """Each floor holds the one below three times."""
    for _ in range(height):
        base = select(ge(base, 10), (base * base) // 7, base + 3)
    return base


def test_shared_parts_are_valued_once() -> None:
    value = 4
    for _ in range(40):
        value = value * value // 7 if value >= 10 else value + 3
        value %= 1000
    expr = N
    for _ in range(40):
        expr = select(ge(expr, 10), (expr * expr) // 7, expr + 3) % 1000
    assert expr.eval({"n": 4}) == value


def test_shared_parts_are_replaced_once() -> None:
    n = N.atom
    assert n is not None
    replaced = tower(N, 40).subs({n: M + 1})
    assert replaced is tower(M + 1, 40)


def test_axes_inside_values_from_memory_are_replaced() -> None:
    i = axis("i", N)
    atom = i.atom
    assert isinstance(atom, Axis)
    assert (i * M + 3).subs({atom: as_expr(2)}) is 2 * M + 3
    assert (M + 3).subs({atom: as_expr(2)}) is M + 3


def wrapped(rank: int) -> tuple[Expr, Expr]:
    """The row-major index of padding by copies of the tensor, and the number of elements."""
    flat, total = as_expr(0), as_expr(1)
    for k in range(rank):
        size = symbol(f"d{k}")
        before, after = symbol(f"before{k}", -(2**31)), symbol(f"after{k}", -(2**31))
        at = axis(f"i{k}", size + before + after) - maximum(before, 0)
        kept = size - maximum(-before, 0) - maximum(-after, 0)
        flat = flat * size + maximum(-before, 0) + at % maximum(kept, 1)
        total = total * size
    return flat, total


def test_a_search_ends() -> None:
    flat, total = wrapped(5)
    assert prove_lt(flat, total) is None
    assert prove_le(0, flat) is not False


def test_a_search_does_not_depend_on_others() -> None:
    flat, total = wrapped(3)
    alone = prove_le(flat, total * 2)
    atoms: list[Atom] = sorted(flat.atoms(), key=lambda a: a.order)
    for atom in atoms:
        prove_le(atom, flat)
    assert prove_le(flat + 0, total + total) is alone


def test_remainders_are_below_their_divisors() -> None:
    flat = axis("flat", 4 * M * N)
    assert flat // 4 // M is flat // (4 * M)
    assert prove_lt(flat // 4 % M, M) is True
    assert prove_le(0, flat // 4 % M * N) is True


def test_common_factors_decide() -> None:
    assert prove_eq(2 * N, 2 * M + 1) is False
    assert prove_eq(symbol("q", 0, None, 4), 4 * N + 2) is False
    assert prove_eq(2 * N, 2 * M) is None
