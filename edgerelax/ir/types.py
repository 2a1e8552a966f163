"""Annotations: what is known about a value before it exists (Relax, table 1).

Every value of the graph level carries one. `IntTensor` is our addition: an integer (or bool) tensor
of rank 0 or 1 whose elements are known symbolic integers, so that shape arithmetic folds on import.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from edgerelax.ir.dtypes import I64, DType, from_numpy
from edgerelax.sym import Expr, Symbol, as_expr, product
from edgerelax.sym import ExprLike as ExprLike


@dataclass(frozen=True, slots=True)
class Object:
    """Anything at all."""

    def __str__(self) -> str:
        return "object"


@dataclass(frozen=True, slots=True)
class Shape:
    """A shape as a value. `dims` is None if only the rank is known; both None if neither."""

    dims: tuple[Expr, ...] | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.dims is not None:
            object.__setattr__(self, "rank", len(self.dims))

    def __str__(self) -> str:
        if self.dims is not None:
            return f"shape[{', '.join(map(str, self.dims)) or '()'}]"
        return "shape" if self.rank is None else f"shape(rank={self.rank})"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. Each of dims, rank and dtype may be unknown (None); dims fix the rank."""

    dims: tuple[Expr, ...] | None = None
    dtype: DType | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.dims is not None:
            object.__setattr__(self, "rank", len(self.dims))

    def __str__(self) -> str:
        name = "tensor" if self.dtype is None else str(self.dtype)
        if self.dims is not None:
            return f"{name}[{', '.join(map(str, self.dims))}]" if self.dims else f"{name}[()]"
        return f"{name}(rank={'None' if self.rank is None else self.rank})"


@dataclass(frozen=True, slots=True)
class IntTensor:
    """An integer or bool tensor of rank 0 or 1 whose elements are known symbolic integers."""

    values: tuple[Expr, ...]
    rank: int = 1
    dtype: DType = I64

    def __post_init__(self) -> None:
        if self.rank == 0 and len(self.values) != 1:
            raise ValueError(f"a scalar IntTensor has one value, not {len(self.values)}")

    @property
    def tensor(self) -> Tensor:
        """The same value with its elements forgotten."""
        return Tensor((as_expr(len(self.values)),) if self.rank else (), self.dtype)

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.values))
        return f"ints({self.dtype}, {f'[{inner}]' if self.rank else inner})"


@dataclass(frozen=True, slots=True)
class Prim:
    """One integer that the host knows; `value` None if only that it is one."""

    value: Expr | None = None

    def __str__(self) -> str:
        return "prim" if self.value is None else f"prim({self.value})"


@dataclass(frozen=True, slots=True)
class Tuple:
    """Several values as one."""

    fields: tuple["Annotation", ...]

    def __str__(self) -> str:
        return f"tuple[{', '.join(map(str, self.fields))}]" if self.fields else "tuple[()]"


@dataclass(frozen=True, slots=True)
class Callable:
    """A function: what it takes and what it gives."""

    params: tuple["Annotation", ...]
    result: "Annotation"

    def __str__(self) -> str:
        return f"callable[[{', '.join(map(str, self.params))}], {self.result}]"


Annotation = Object | Shape | Tensor | IntTensor | Prim | Tuple | Callable


def tensor(dims: tuple[ExprLike, ...] | list[ExprLike], dtype: DType) -> Tensor:
    """A tensor annotation of known dims and dtype."""
    return Tensor(tuple(as_expr(d) for d in dims), dtype)


MAX_KNOWN = 64
"""Integers that an IntTensor of a constant may hold."""


def annotation_of(data: npt.NDArray[Any]) -> Tensor | IntTensor:
    """What is known of a constant: of few integers, their values."""
    dtype = from_numpy(data.dtype)
    if dtype.kind in ("int", "uint", "bool") and data.ndim <= 1 and data.size <= MAX_KNOWN:
        return IntTensor(tuple(as_expr(int(v)) for v in data.reshape(-1)), data.ndim, dtype)
    return tensor(data.shape, dtype)


def as_tensor(annotation: Annotation) -> Tensor | None:
    """The tensor annotation of a tensor-like value; None for what is no tensor."""
    if isinstance(annotation, Tensor):
        return annotation
    return annotation.tensor if isinstance(annotation, IntTensor) else None


def tensor_bytes(annotation: Annotation) -> Expr:
    """Size in bytes of a tensor whose dims and dtype are known."""
    known = as_tensor(annotation)
    assert known is not None and known.dims is not None and known.dtype is not None
    return product(known.dims) * known.dtype.bytes


def exprs_of(annotation: Annotation) -> Iterator[Expr]:
    """Every integer expression of an annotation."""
    match annotation:
        case Tensor(dims=dims) | Shape(dims=dims):
            yield from dims or ()
        case IntTensor(values=values):
            yield from values
        case Prim(value=value) if value is not None:
            yield value
        case Tuple(fields=fields):
            for field in fields:
                yield from exprs_of(field)


def symbols_of(annotation: Annotation) -> set[Symbol]:
    """Every symbol of an annotation."""
    return {s for e in exprs_of(annotation) for s in e.symbols()}


def exprs_in(value: Any) -> Iterator[Expr]:
    """Every integer expression inside attributes."""
    if isinstance(value, Expr):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from exprs_in(inner)
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from exprs_in(inner)
