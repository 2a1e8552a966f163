"""What annotation rules take for granted though it is not proven.

A rule that needs two sizes to agree asks `agree`, one that needs an integer other than 0 `nonzero`.
It goes on unless they contradict; while someone collects, what only a run can decide is noted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from edgerelax.sym import Expr, as_expr, eq, prove_eq, select

Pairs = dict[tuple[Expr, Expr], str]
_noted: ContextVar[Pairs | None] = ContextVar("noted", default=None)


def agree(a: Expr, b: Expr, need: str = "") -> bool:
    """Whether two sizes can be equal; `need` says in words that they must."""
    proven = prove_eq(a, b)
    pairs = _noted.get()
    if proven is None and pairs is not None:
        pairs[a, b] = need or f"{a} and {b} must be equal"
    return proven is not False


def nonzero(value: Expr, need: str) -> bool:
    """Whether an integer can be other than 0; `need` says in words that it must."""
    return agree(select(eq(value, 0), 0, 1), as_expr(1), need)


@contextmanager
def collected() -> Iterator[Pairs]:
    """What the rules called inside assume, in words."""
    pairs: Pairs = {}
    token = _noted.set(pairs)
    try:
        yield pairs
    finally:
        _noted.reset(token)
