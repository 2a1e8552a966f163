"""Integer meanings of elementwise operators, for operands that are known symbolic integers.

Each gives an `Expr`, or None where the result cannot be said for all values.
"""

from edgerelax.sym import (
    Expr,
    as_expr,
    eq,
    ge,
    lt,
    prove_eq,
    prove_lt,
    proves_le,
    proves_lt,
    select,
)

MAX_POWER = 8


def absolute(a: Expr) -> Expr:
    """|a|."""
    return select(ge(a, 0), a, -a)


def sign(a: Expr) -> Expr:
    """-1, 0 or 1."""
    return select(ge(a, 1), 1, select(ge(a, 0), 0, -1))


def quotient(a: Expr, b: Expr) -> Expr | None:
    """Division that truncates toward zero; x / 0 is 0."""
    if prove_eq(b, 0) is True:
        return as_expr(0)
    if proves_lt(b, 0):
        a, b = -a, -b
    if not proves_lt(0, b):
        return None
    if proves_le(0, a):
        return a // b
    if proves_le(a, 0):
        return -(-a // b)
    return select(ge(a, 0), a // b, -(-a // b))


def remainder(a: Expr, b: Expr) -> Expr | None:
    """The remainder with the divisor's sign; 0 for a divisor 0."""
    if prove_eq(b, 0) is True:
        return as_expr(0)
    if proves_lt(0, b):
        return a % b
    return -(-a % -b) if proves_lt(b, 0) else None


def truncated_remainder(a: Expr, b: Expr) -> Expr | None:
    """The remainder with the dividend's sign; 0 for a divisor 0."""
    whole = quotient(a, b)
    return None if whole is None or prove_eq(b, 0) is True else a - whole * b


def power(a: Expr, b: Expr) -> Expr | None:
    """Powers of small constant exponents."""
    exponent = b.as_int()
    if exponent is None or not 0 <= exponent <= MAX_POWER:
        return None
    result = as_expr(1)
    for _ in range(exponent):
        result = result * a
    return result


def equal(a: Expr, b: Expr) -> Expr:
    """1 where equal, else 0."""
    proven = prove_eq(a, b)
    return select(eq(a, b), 1, 0) if proven is None else as_expr(int(proven))


def less(a: Expr, b: Expr) -> Expr:
    """1 where a < b, else 0."""
    proven = prove_lt(a, b)
    return select(lt(a, b), 1, 0) if proven is None else as_expr(int(proven))


def choice(cond: Expr, then: Expr, other: Expr) -> Expr:
    """`then` where the condition is not 0."""
    proven = prove_eq(cond, 0)
    if proven is None:
        return select(eq(cond, 0), other, then)
    return other if proven else then
