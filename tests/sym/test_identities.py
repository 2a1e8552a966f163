"""Facts that shapes and index arithmetic live by, each proved for all sizes."""

import pytest

from edgerelax.sym import (
    Expr,
    Symbol,
    as_expr,
    axis,
    bounds,
    ceildiv,
    divisible,
    eq,
    ge,
    holds,
    lt,
    maximum,
    minimum,
    multiple,
    product,
    prove_eq,
    prove_le,
    prove_lt,
    select,
    symbol,
    upper_bound,
)
from edgerelax.sym.bounds import _interval as interval_of

N, M, H, W = (symbol(name) for name in ("n", "m", "h", "w"))
ONE = symbol("one", 1)
TALL = symbol("tall", 32)
Q = symbol("q", 0, None, 32)
D = symbol("d", 1, 64)
I = axis("i", 32)  # noqa: E741
J = axis("j", 4)
K = axis("k", 3)
ROW, COLUMN = axis("row", M), axis("column", N)
FLAT = axis("flat", M * N)
BLOCKED = axis("blocked", 4 * M * N)
TILE, LANE = axis("tile", ceildiv(N, 64)), axis("lane", 64)


def conv(size: Expr, kernel: int, stride: int, pad: int) -> Expr:
    return (size + 2 * pad - kernel) // stride + 1


SAME: dict[str, tuple[Expr, Expr | int]] = {
    "expanded": ((N + 1) * (M + 2), N * M + 2 * N + M + 2),
    "constant under a quotient": ((4 * N + 3) // 4, N),
    "split index": ((I * 4 + J) // 4, I),
    "split index, remainder": ((I * 4 + J) % 4, J),
    "sum over itself": (((W + H) * 65) // (W + H), 65),
    "flat index": ((ROW * N + COLUMN) // N, ROW),
    "flat index, remainder": ((ROW * N + COLUMN) % N, COLUMN),
    "three axes": ((ROW * 4 * N + 4 * COLUMN + J) // (4 * N), ROW),
    "nested quotients": (N // 2 // 3, N // 6),
    "nested symbolic quotients": (N // D // 4, N // (4 * D)),
    "rounding up twice": (ceildiv(ceildiv(N, 2), 2), ceildiv(N, 4)),
    "conv of stride 2 twice": (conv(conv(N, 3, 2, 1), 3, 2, 1), ceildiv(N, 4)),
    "conv that keeps the size": (conv(conv(N, 3, 1, 1), 5, 1, 2), N),
    "pool of a multiple": (conv(4 * N, 4, 4, 0), N),
    "upsampled and pooled": (conv(2 * N, 2, 2, 0), N),
    "multiple of 32": (Q // 32 * 32, Q),
    "multiple of 32 by 4": (Q // 4 * 4, Q),
    "multiple of 32, remainder": (Q % 16, 0),
    "tokens of heads": ((12 * 64 * N) // 64 // N, 12),
    "attention bytes": (2 * (32 * N) * (128 * M), 8192 * M * N),
    "reshape and back": (N * M * H // H, N * M),
    "put together": (BLOCKED // (4 * M) * (4 * M) + BLOCKED // 4 % M * 4 + BLOCKED % 4, BLOCKED),
    "common factor": ((6 * N * M) // (4 * N), 3 * M // 2),
    "negative divisor": (N // -4, -N // 4),
    "nothing": (0 // N, 0),
    "by itself and one": (N // (N + 1), 0),
    "minimum of itself": (minimum(N, N - 1, N), N - 1),
    "selected either way": (select(lt(N, M), N + 1, 1 + N), N + 1),
    "maximum of nested": (maximum(maximum(N, M), N + 1), maximum(M, N + 1)),
}


@pytest.mark.parametrize("name", SAME)
def test_is_the_same_expression(name: str) -> None:
    found, expected = SAME[name]
    assert found is as_expr(expected)


CONV_ROW = axis("conv_row", conv(H, 3, 2, 0))
CLAMPED_ROW = axis("clamped_row", maximum(conv(H, 3, 2, 0), 0))
PADDED_ROW = axis("padded_row", conv(H, 3, 2, 1))
JOINED = axis("joined", N + M)

LESS: dict[str, tuple[Expr, Expr]] = {
    "flat index": (ROW * N + COLUMN, M * N),
    "column of a flat index": (FLAT % N, N),
    "middle of three": (BLOCKED // 4 % M, M),
    "conv rows": (2 * CONV_ROW + K, H),
    "padded conv rows": (2 * PADDED_ROW + K - 1, H + 1),
    "dilated conv rows": (axis("dilated", H - 4) + 2 * K, H),
    "start of a tile": (TILE * 64, N),
    "inside of a tile": (TILE * 64 + LANE, N + 64),
    "clamped tile": (minimum(TILE * 64 + LANE, N - 1), N),
    "vectors": (4 * axis("vector", N // 4) + J, N),
    "second of two joined": (select(ge(JOINED, N), JOINED - N, -1), M),
    "reversed": (N - 1 - COLUMN, N),
    "remainder": (N % D, D),
    "rounded up": (ceildiv(N, 4) * 4, N + 4),
}


@pytest.mark.parametrize("name", LESS)
def test_is_less(name: str) -> None:
    a, b = LESS[name]
    assert prove_lt(a, b) is True
    assert prove_le(b, a) is False


AT_MOST: dict[str, tuple[Expr | int, Expr]] = {
    "rounded down": (N // 4 * 4, N),
    "rounded up": (N, ceildiv(N, 4) * 4),
    "two convs": (conv(conv(TALL, 3, 2, 1), 3, 2, 1), conv(TALL, 3, 2, 1)),
    "products": (N * M, (N + 1) * (M + 1)),
    "halves": (4 * (N // 2) * (M // 2), N * M),
    "padded conv rows": (-1, 2 * PADDED_ROW + K - 1),
    "clamped": (0, minimum(maximum(COLUMN - 1, 0), maximum(N - 1, 0))),
    "either": (minimum(N, M), maximum(N, M)),
    "reversed": (0, N - 1 - COLUMN),
    "a square": (2 * N - 1, N * N + N * 2),
}


@pytest.mark.parametrize("name", AT_MOST)
def test_is_at_most(name: str) -> None:
    a, b = AT_MOST[name]
    assert prove_le(a, b) is True
    assert prove_lt(b, a) is False


def test_what_fails_for_some_size_is_not_proved() -> None:
    assert prove_eq(N, M) is None
    assert prove_lt(0, N) is None
    assert prove_le(N * M, N) is None
    assert prove_lt(2 * PADDED_ROW + K - 1, H) is None
    assert prove_eq(N // 4 * 4, N) is None
    assert prove_lt(minimum(TILE * 64 + LANE, N - 2), N - 2) is None


def test_unequal_for_all_sizes() -> None:
    assert prove_eq(N, N + 1) is False
    assert prove_eq(2 * N, 2 * M + 1) is False
    assert prove_eq(Q, 16) is False
    assert prove_eq(D, 65) is False
    assert prove_eq(TALL * TALL, 1000) is False


def test_bounds_of_sizes() -> None:
    assert bounds(conv(TALL, 3, 2, 1)) == (16, None)
    assert bounds(conv(conv(TALL, 3, 2, 1), 3, 2, 1)) == (8, None)
    assert bounds(N % 7) == (0, 6)
    assert bounds(N % D) == (0, 63)
    assert bounds(H - H // 2) == (0, None)
    assert bounds(D * D - 3) == (-2, 4093)
    assert bounds(symbol("p", -3, 2) * symbol("p", -3, 2)) == (0, 9)
    assert bounds(2 * (N // 2) - N) == (-1, 0)
    assert upper_bound(128 * D + 4 * symbol("b", 0, 10)) == 8232
    assert upper_bound(N) is None


def test_bounds_of_remainders_within_remainders_take_bounded_work() -> None:
    """Where a window of patches lies that two sizes divide: MobileViT's compiling took for ever."""
    rows, columns = ceildiv(H, 16), ceildiv(W, 16)
    area = rows * columns
    y, x = axis("y", 64 * N * rows), axis("x", 2 * columns)
    point = columns * (y // 2) + x // 2
    place = 64 * (point // (16 * area)) * area + point // area % 16 + 16 * (point % area)
    place = place + 16 * area * (x % 2) + 32 * area * (y % 2)
    before = interval_of.cache_info().misses
    assert bounds(place - 2 * y * columns - x) == (None, None)
    assert interval_of.cache_info().misses - before < 1000


def test_multiples() -> None:
    assert multiple(Q * 3 + 64) == 32
    assert divisible(Q * N, 32)
    assert not divisible(N, 2)
    assert divisible(maximum(4 * N, 8 * M), 4)


def test_choices_are_decided_by_proof() -> None:
    assert holds(ge(N, 0)) is True
    assert holds(lt(N, 0)) is False
    assert holds(eq(2 * N, 1)) is False
    assert holds(eq(N, 1)) is None
    assert select(lt(COLUMN, N), 1, 2) is as_expr(1)
    assert minimum(COLUMN, N) is COLUMN


def test_substitution_simplifies() -> None:
    n, m = N.atom, M.atom
    assert n is not None and m is not None
    assert (N // 4 + M).subs({n: 8}) is M + 2
    assert maximum(N, M).subs({n: M + 1}) is M + 1
    assert (N * M).subs({n: M, m: N}) is N * M
    assert select(ge(N, M), N, M).subs({n: M}) is M
    assert product([N, M, 2]).subs({n: 3, m: 4}).as_int() == 24


def test_division_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        N // 0
    with pytest.raises(ZeroDivisionError, match="n is 0"):
        (M // N).eval({"n": 0, "m": 3})


def test_symbols_state_their_bounds() -> None:
    with pytest.raises(ValueError, match="below the lower bound"):
        Symbol("n", 3, 2)
    with pytest.raises(ValueError, match="multiple_of"):
        Symbol("n", 0, None, 0)
    assert symbol("n") is N
    assert symbol("n", 1) is not N


def test_symbols_of_one_name_and_different_bounds_differ() -> None:
    assert prove_le(symbol("n", 1), symbol("n", 0)) is None
    assert prove_eq(symbol("n", 1), symbol("n", 0)) is None
