"""Loop level: tensor programs as ordered stages over named axes (design 4).

A `Stage` fills (part of) one buffer: for each point of its spatial axes it reduces `body` over the
reduce axes and stores `epilogue` of the result at `index`. What stages cannot say is a `Template`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from edgerelax.ir.dtypes import I64
from edgerelax.ir.scalar import Acc, Buffer, Load, Scalar, cast, gathers, listing, loads
from edgerelax.ir.types import exprs_in
from edgerelax.sym import Axis, Expr, ExprLike, Symbol, as_expr

Combiner = Literal[
    "sum", "prod", "max", "min", "any", "all",
    "argmax", "argmin", "argmax_last", "argmin_last", "welford",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """One loop nest.

    `axes` are spatial, `reduce` are reduced by `combiner`; `init` is where the reduction starts
    (None: the combiner's identity; max and min of nothing are -inf and inf, or the dtype's
    extremes). `index` says where a point is stored: None for the axes themselves, in order; else
    any map that sends different points to different places; places that no point reaches keep their
    contents. Points and reduction steps where `where` is false are skipped (a `where` that mentions
    no reduce axis skips the store). `epilogue` speaks of the reduced value as `Acc`; None is the
    value itself, for arg reductions the index as i64.
    """

    out: Buffer
    axes: tuple[Axis, ...]
    body: Scalar
    reduce: tuple[Axis, ...] = ()
    combiner: Combiner | None = None
    init: Scalar | None = None
    where: Scalar | None = None
    index: tuple[Expr, ...] | None = None
    epilogue: Scalar | None = None

    @property
    def store_index(self) -> tuple[Expr, ...]:
        return tuple(as_expr(a) for a in self.axes) if self.index is None else self.index

    @property
    def result(self) -> Scalar:
        """The stored value in terms of `Acc` (or the body, if nothing is reduced)."""
        if not self.combiner:
            return self.body
        if self.epilogue is not None:
            return self.epilogue
        if self.combiner.startswith("arg"):
            return cast(Acc(I64, 1), self.out.dtype)
        return cast(Acc(self.body.dtype), self.out.dtype)

    def scalars(self) -> Iterator[Scalar]:
        """Every scalar tree of the stage."""
        yield self.body
        for extra in (self.init, self.where, self.epilogue):
            if extra is not None:
                yield extra

    def loads(self) -> Iterator[Load]:
        for scalar in self.scalars():
            yield from loads(scalar)
        for expr in self.store_index:
            for scalar in gathers(expr):
                yield from loads(scalar)

    def reads(self) -> tuple[Buffer, ...]:
        """Buffers it loads from, in order of first use."""
        return tuple(dict.fromkeys(load.buffer for load in self.loads()))

    @property
    def content(self) -> str:
        """What makes stages equal."""
        trees = (self.body, self.init, self.where, self.epilogue)
        own = (self.out, self.axes, self.reduce, self.combiner, self.index)
        return repr((own, [None if tree is None else listing(tree) for tree in trees]))

    def symbols(self) -> frozenset[Symbol]:
        found: set[Symbol] = set()
        for scalar in self.scalars():
            found |= scalar.symbols()
        for axis in (*self.axes, *self.reduce):
            found |= axis.extent.symbols()
        for expr in (*self.store_index, *self.out.dims):
            found |= expr.symbols()
        for buffer in self.reads():
            for dim in buffer.dims:
                found |= dim.symbols()
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Template:
    """A program that stages cannot express (sort, scan, RNN time loop…), by kind and parameters.

    Its meaning is the numpy function registered for `kind` in ir/templates.py, called as
    `reference(*input arrays, **params)` with symbolic parameters evaluated; it returns one array
    per output.
    """

    kind: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """What makes templates equal."""
        return repr(self)

    def reads(self) -> tuple[Buffer, ...]:
        return self.inputs

    def symbols(self) -> frozenset[Symbol]:
        dims = [d for b in (*self.inputs, *self.outputs) for d in b.dims]
        exprs = (*dims, *exprs_in(self.params))
        return frozenset().union(*(e.symbols() for e in exprs))


@dataclass(frozen=True, slots=True)
class LoopFunc:
    """A tensor program in destination-passing style: reads inputs, fills outputs.

    Its integer parameters are its free symbols: derived, never listed apart. `weights` names the
    inputs that are constants at every call (they are bound read-only).
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    stages: tuple[Stage | Template, ...]
    weights: frozenset[str] = frozenset()

    @property
    def temps(self) -> tuple[Buffer, ...]:
        """Intermediate buffers, in order of first writing."""
        outer = {b.name for b in (*self.inputs, *self.outputs)}
        written = [b for s in self.stages for b in outputs_of(s)]
        return tuple(dict.fromkeys(b for b in written if b.name not in outer))

    @property
    def content(self) -> str:
        """What makes loop functions equal: all but their names."""
        stages = [stage.content for stage in self.stages]
        return repr((self.inputs, self.outputs, stages, sorted(self.weights)))

    def symbols(self) -> tuple[Symbol, ...]:
        """Free symbols, by name."""
        found: set[Symbol] = set()
        for stage in self.stages:
            found |= stage.symbols()
        for buffer in (*self.inputs, *self.outputs):
            for dim in buffer.dims:
                found |= dim.symbols()
        return tuple(sorted(found, key=lambda s: s.name))


def outputs_of(stage: Stage | Template) -> tuple[Buffer, ...]:
    """The buffers that a stage writes."""
    return (stage.out,) if isinstance(stage, Stage) else stage.outputs


def grid(buffer: Buffer, prefix: str = "i") -> tuple[Axis, ...]:
    """One axis per dim of a buffer: i0, i1, …"""
    return tuple(Axis(f"{prefix}{k}", dim) for k, dim in enumerate(buffer.dims))


def axis(name: str, extent: ExprLike) -> Axis:
    """A loop axis over [0, extent)."""
    return Axis(name, as_expr(extent))
