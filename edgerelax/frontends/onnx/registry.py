"""Which function imports which ONNX operator, by domain, name and operator set version."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from edgerelax.ir.graph import Value

if TYPE_CHECKING:
    from edgerelax.frontends.onnx.node import Node

Item = Value | tuple[Value, ...] | None
"""What an ONNX name stands for: a value, a sequence of known length, or an absent optional."""

Result = Value | Sequence[Item]
Handler = Callable[["Node"], Result]

_ROWS: dict[tuple[str, str], list[tuple[int, Handler]]] = {}


def importer(*names: str, since: int = 1, domain: str = "") -> Callable[[Handler], Handler]:
    """Register a function for operators from that version on, until a later row of theirs."""

    def add(handler: Handler) -> Handler:
        for name in names:
            register(name, handler, since=since, domain=domain)
        return handler

    return add


def register(name: str, handler: Handler, *, since: int = 1, domain: str = "") -> None:
    """Add one row."""
    rows = _ROWS.setdefault((domain, name), [])
    if any(s == since for s, _ in rows):
        raise ValueError(f"two importers of {name} since {since}")
    rows.append((since, handler))
    rows.sort(key=lambda row: row[0])


def find(domain: str, name: str, version: int) -> Handler | None:
    """The row in force at that version."""
    rows = _ROWS.get((domain, name), [])
    at = bisect_right([since for since, _ in rows], version)
    return rows[at - 1][1] if at else None


def names() -> set[tuple[str, str]]:
    """Domains and names of all operators that have a row."""
    return set(_ROWS)


def nearest(domain: str, name: str) -> str:
    """A hint for an operator without a row: what it could be instead."""
    same_name = sorted({d or "ai.onnx" for d, n in _ROWS if n == name})
    if same_name:
        return f"{name} of {', '.join(same_name)} is supported"
    close = get_close_matches(name, [n for d, n in _ROWS if d == domain], 3, 0.7)
    return f"supported are {', '.join(close)}" if close else "express it by simpler operators"
