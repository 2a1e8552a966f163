"""Functions of libraries that take the place of operators: what, where, and on what terms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgerelax.ir.pattern import Match, OpPattern, holes

Function = Callable[..., None]
"""A library function in destination-passing style; docs/libraries.md says what it is given."""


def _accept(_: Match) -> str | None:
    return None


def _no_attrs(_: Match) -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Library:
    """A function that computes what a pattern matches.

    Attributes:
        name: what programs call it; hosts find the function by it.
        pattern: the calls it takes the place of. Its operands are the pattern's holes, in the
            order in which the pattern names them first, then the results of the pattern's root.
        function: what runs on this machine's hosts; None: only other hosts have it.
        check: why a match is not to be taken, in a few words; None if it is. It may look at
            `match["hole"].annotation` and at `match.attrs("operator")`.
        attrs: keyword arguments of the function, of a match: numbers, strings, bools, and tuples
            of them, known at compile time.
        device: where it runs. Programs whose main device is that one call it.
        everywhere: so do those of a GPU call one of the CPU, over copies of its operands.
    """

    name: str
    pattern: OpPattern
    function: Function | None = None
    check: Callable[[Match], str | None] = _accept
    attrs: Callable[[Match], Mapping[str, Any]] = _no_attrs
    device: Literal["cpu", "gpu"] = "cpu"
    everywhere: bool = False

    def __post_init__(self) -> None:
        names = [found.name for found in holes(self.pattern)]
        if len(set(names)) < len(names):
            raise ValueError(
                f"library {self.name}: two holes of one name; use one hole twice for one value"
            )
