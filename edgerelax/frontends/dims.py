"""What callers want of a model's dims: a size, or bounds, by name."""

from collections.abc import Iterable, Iterator, Mapping

from edgerelax.ir.diagnostics import InputError
from edgerelax.sym import Expr, as_expr, symbol

DimSpec = int | tuple[int, int | None] | tuple[int, int | None, int]
"""A size; or its least and greatest (None: no limit) and, if wanted, what it is a multiple of."""

LARGEST = 2**63 - 1  # what the VM's integers hold


class Dims:
    """The wishes of one import, each to be used."""

    def __init__(self, wanted: Mapping[str, DimSpec] | None) -> None:
        self._wanted = {name: _checked(name, spec) for name, spec in (wanted or {}).items()}
        self._used: set[str] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._wanted

    def __iter__(self) -> Iterator[str]:
        return iter(self._wanted)

    def make(self, key: str, name: str, hi: int | None = None) -> Expr:
        """The dim that is wanted by `key`: a number, or a symbol of that name.

        `hi` is what it can be at most. Raises InputError where more is wanted.
        """
        self._used.add(key)
        spec = self._wanted.get(key, (0, hi, 1))
        least = spec if isinstance(spec, int) else spec[0]
        most = spec if isinstance(spec, int) else spec[1]
        if hi is not None and (most is None or most > hi):
            raise InputError(f"dim {key} is wanted up to {most or 'any size'}; it ends at {hi}")
        if isinstance(spec, int):
            return as_expr(spec)
        return symbol(name, least, most, spec[2])

    def finish(self, known: Iterable[str]) -> None:
        """Complain of wanted dims that the model does not have."""
        unknown = sorted(set(self._wanted) - self._used)
        if unknown:
            names = ", ".join(sorted(known)) or "none: all its dims are fixed"
            raise InputError(
                f"the model has no dim {', '.join(map(repr, unknown))}", hint=f"its dims: {names}"
            )


def _checked(name: str, spec: DimSpec) -> int | tuple[int, int | None, int]:
    """A dim's specification in one form. Raises InputError for one that no size satisfies."""
    if isinstance(spec, int):
        if _are_sizes(spec) and spec <= LARGEST:
            return spec
    elif isinstance(spec, tuple) and len(spec) in (2, 3):
        lo, hi, multiple = spec if len(spec) == 3 else (*spec, 1)
        if _are_sizes(lo, multiple, *(() if hi is None else (hi,))) and multiple >= 1:
            top = LARGEST if hi is None else min(hi, LARGEST)
            if -(-lo // multiple) * multiple <= top:
                return lo, None if hi is None else top, multiple
    raise InputError(
        f"dim {name}: {spec!r} is no size",
        hint="give a number, or (least, greatest or None), or (least, greatest, multiple of)",
    )


def _are_sizes(*numbers: object) -> bool:
    return all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
