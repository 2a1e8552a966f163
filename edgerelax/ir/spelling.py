"""How symbols, sizes, annotations and attributes are spelled in IR text."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from edgerelax.ir.deduce import substitute_annotation
from edgerelax.ir.dtypes import DTYPES, DType, from_numpy
from edgerelax.ir.names import Names
from edgerelax.ir.types import Annotation
from edgerelax.sym import Atom, Expr, ExprLike, Symbol

_WORDS = frozenset(
    ("object", "shape", "tensor", "ints", "prim", "tuple", "callable", "rank", "dim", "acc")
)
RESERVED = frozenset(DTYPES) | _WORDS
"""Names that no symbol may take."""


class Spelling:
    """Gives every symbol of a module an identifier of its own."""

    def __init__(self, symbols: Iterable[Symbol]) -> None:
        names = Names(RESERVED)
        self.symbols = {s: names.pick(s.name) for s in dict.fromkeys(symbols)}
        self._renamed: dict[Atom, ExprLike] = {
            s: Symbol(name, s.lo, s.hi, s.multiple_of)
            for s, name in self.symbols.items()
            if s.name != name
        }

    def header(self) -> list[str]:
        """One line per symbol."""
        return [f"{name} = {dim_text(symbol, name)}" for symbol, name in self.symbols.items()]

    def expr(self, expr: Expr) -> str:
        return str(expr.subs(self._renamed) if self._renamed else expr)

    def exprs(self, exprs: Iterable[Expr]) -> str:
        """Several, comma-separated."""
        return ", ".join(map(self.expr, exprs))

    def annotation(self, annotation: Annotation) -> str:
        return str(substitute_annotation(annotation, self._renamed))

    def literal(self, value: Any) -> str:
        """An attribute's value."""
        match value:
            case Expr():
                return self.expr(value)
            case Symbol():
                return self.expr(value.expr)
            case DType():
                return value.name
            case bool() | str() | None:
                return repr(value)
            case float() | np.floating():
                return float_text(float(value))
            case int() | np.integer():
                return str(int(value))
            case tuple() | list():
                inner = ", ".join(map(self.literal, value))
                return f"({inner},)" if len(value) == 1 else f"({inner})"
            case dict():
                pairs = (f"{self.literal(k)}: {self.literal(v)}" for k, v in value.items())
                return f"{{{', '.join(pairs)}}}"
            case np.ndarray():
                return array_text(value)
        return f"opaque({repr(value)!r})"

    def keywords(self, attrs: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
        """Attributes as keyword arguments, those at their default left out."""
        return [
            f"{k}={self.literal(v)}"
            for k, v in attrs.items()
            if k not in defaults or self.literal(v) != self.literal(defaults[k])
        ]


def dim_text(symbol: Symbol, name: str) -> str:
    """A symbol's declaration."""
    parts = [] if symbol.name == name else [repr(symbol.name)]
    parts += [f"lo={symbol.lo}"] if symbol.lo else []
    parts += [f"hi={symbol.hi}"] if symbol.hi is not None else []
    parts += [f"multiple_of={symbol.multiple_of}"] if symbol.multiple_of != 1 else []
    return f"dim({', '.join(parts)})"


def float_text(value: float) -> str:
    """A float that Python reads back; infinities and NaN as calls."""
    return repr(value) if math.isfinite(value) else f"float('{value}')"


def array_text(array: np.ndarray[Any, Any]) -> str:
    """All of an array: array(f32, [2, 1], [0.5, 1.0])."""
    dtype = from_numpy(array.dtype)
    flat = array.reshape(-1)
    if dtype.is_float:
        items = [float_text(float(v)) for v in flat]
    elif dtype.kind == "string":
        items = [repr(v) for v in flat]
    else:
        items = [str(bool(v) if dtype.kind == "bool" else int(v)) for v in flat]
    return f"array({dtype}, {list(array.shape)}, [{', '.join(items)}])"
