"""Sizes that annotation rules take to be equal though it is not proven.

A rule that needs two sizes to agree asks `agree`. It goes on unless they contradict; while someone
collects, pairs that only a run can decide are noted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from edgerelax.sym import Expr, prove_eq

Pairs = dict[tuple[Expr, Expr], str]
_noted: ContextVar[Pairs | None] = ContextVar("noted", default=None)


def agree(a: Expr, b: Expr, need: str = "") -> bool:
    """Whether two sizes can be equal; `need` says in words that they must."""
    proven = prove_eq(a, b)
    pairs = _noted.get()
    if proven is None and pairs is not None:
        pairs[a, b] = need or f"{a} and {b} must be equal"
    return proven is not False


@contextmanager
def collected() -> Iterator[Pairs]:
    """What the rules called inside assume, in words."""
    pairs: Pairs = {}
    token = _noted.set(pairs)
    try:
        yield pairs
    finally:
        _noted.reset(token)
