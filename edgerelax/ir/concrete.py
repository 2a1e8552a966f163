"""Symbols at concrete values: what symbolic integers become once shapes are known."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.diagnostics import ShapeError
from edgerelax.sym import Atom, Axis, Expr, ExprLike, Opaque, Symbol, emit, unify

Ints = npt.NDArray[np.int64]
Shaped = tuple[str, tuple[Expr, ...], tuple[int, ...]]
"""A value's name, its dims as annotated and as they came."""


def concrete(value: Any, env: Mapping[Symbol, int]) -> Any:
    """The same with every integer expression inside evaluated."""
    if isinstance(value, Expr):
        return value.eval(env)
    if isinstance(value, dict):
        return {k: concrete(v, env) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(concrete(v, env) for v in value)
    return value


def bind_dims(
    what: str, shaped: Iterable[Shaped], known: Mapping[Symbol, int] | None = None
) -> dict[Symbol, int]:
    """Symbols from shapes: bare dims first, then those that occur linearly; all dims are checked.

    Raises ShapeError naming `what`, the value and the dim that does not fit.
    """
    env = dict(known or {})
    places = [
        (name, k, dim, size)
        for name, dims, shape in _of_equal_rank(what, shaped)
        for k, (dim, size) in enumerate(zip(dims, shape, strict=True))
    ]
    for _, _, dim, size in places:
        atom = dim.atom
        if isinstance(atom, Symbol):
            env.setdefault(atom, size)
    found_so_far: dict[Atom, ExprLike] = {s: n for s, n in env.items()}
    unsolved = [(d, n) for _, _, d, n in places if not d.symbols() <= env.keys()]
    open_pairs = [(d.subs(found_so_far), n) for d, n in unsolved]
    for symbol, found in unify(open_pairs).bindings.items():
        value = found.as_int()
        if value is not None:
            env.setdefault(symbol, value)
    for name, k, dim, size in places:
        if dim.symbols() <= env.keys() and dim.eval(env) != size:
            values = ", ".join(f"{s} = {env[s]}" for s in sorted(dim.symbols(), key=str))
            because = f" ({values})" if values else ""
            raise ShapeError(f"{what}: dim {k} of {name} must be {dim}{because}, got {size}")
    for symbol, value in env.items():
        check_bounds(what, symbol, value)
    return env


def check_bounds(what: str, symbol: Symbol, value: int) -> None:
    """Raise ShapeError if a symbol may not have this value."""
    high = symbol.hi
    if value < symbol.lo or (high is not None and value > high):
        limit = "" if high is None else f" and at most {high}"
        raise ShapeError(f"{what}: {symbol} must be at least {symbol.lo}{limit}, got {value}")
    if value % symbol.multiple_of:
        raise ShapeError(
            f"{what}: {symbol} must be a multiple of {symbol.multiple_of}, got {value}"
        )


def _of_equal_rank(what: str, shaped: Iterable[Shaped]) -> Iterable[Shaped]:
    for name, dims, shape in shaped:
        if len(dims) != len(shape):
            raise ShapeError(f"{what}: {name} must have rank {len(dims)}, got shape {list(shape)}")
        yield name, dims, shape


def evaluate_index(expr: Expr, env: Mapping[Any, Any]) -> Ints:
    """An expression over arrays, one per atom, broadcast. Dividing by zero gives 0."""
    return np.asarray(emit(expr, _Arrays(env)), np.int64)


class _Arrays:
    """The emitter of numpy values."""

    def __init__(self, env: Mapping[Any, Any]) -> None:
        self.env = env

    def const(self, value: int) -> Ints:
        return np.asarray(value, np.int64)

    def atom(self, atom: Symbol | Axis | Opaque) -> Ints:
        if atom not in self.env:
            raise KeyError(f"no value for {atom}")
        return np.asarray(self.env[atom], np.int64)

    def add(self, a: Ints, b: Ints) -> Ints:
        return np.asarray(a + b)

    def sub(self, a: Ints, b: Ints) -> Ints:
        return np.asarray(a - b)

    def mul(self, a: Ints, b: Ints) -> Ints:
        return np.asarray(a * b)

    def floordiv(self, a: Ints, b: Ints, nonneg: bool) -> Ints:
        return np.asarray(np.floor_divide(a, b))

    def mod(self, a: Ints, b: Ints, nonneg: bool) -> Ints:
        return np.asarray(np.where(b == 0, a, np.mod(a, np.where(b == 0, 1, b))))

    def min(self, a: Ints, b: Ints) -> Ints:
        return np.asarray(np.minimum(a, b))

    def max(self, a: Ints, b: Ints) -> Ints:
        return np.asarray(np.maximum(a, b))

    def select(self, kind: str, test: Ints, then: Ints, other: Ints) -> Ints:
        return np.asarray(np.where(test >= 0 if kind == "ge" else test == 0, then, other))
