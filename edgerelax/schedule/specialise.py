"""A loop function at fixed values of some symbols, for versions that the VM chooses by guards."""

from dataclasses import replace

from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.scalar import Buffer, Load, Scalar, Value, rewrite
from edgerelax.schedule.contraction import contraction
from edgerelax.schedule.points import count, map_scalars
from edgerelax.schedule.strategies.base import Reject
from edgerelax.sym import Atom, Axis, Expr, ExprLike, Symbol, upper_bound

_FEW = 8  # heads that share a factor


def single_row_symbols(func: LoopFunc) -> tuple[Symbol, ...]:
    """The symbols that, if all are 1, leave a contraction one row, or one for each of a few heads.

    They are the sizes of batches and sequences.
    """
    if len(func.stages) != 1 or not isinstance(func.stages[0], Stage):
        return ()
    found = contraction(func.stages[0])
    if isinstance(found, Reject):
        return ()
    height = count([a for a in found.rows if a.extent.as_int() is None])
    heads = upper_bound(count([a for a in found.rows if a.extent.as_int() is not None]))
    if heads is None or heads > _FEW:
        return ()
    symbols = sorted(height.symbols(), key=lambda s: s.name)
    ones: dict[Atom, ExprLike] = dict.fromkeys(symbols, 1)
    can_be_one = all(s.lo <= 1 and s.multiple_of == 1 and s.hi != s.lo for s in symbols)
    return tuple(symbols) if can_be_one and height.subs(ones).as_int() == 1 else ()


def specialise(func: LoopFunc, values: dict[Symbol, int], suffix: str) -> LoopFunc:
    """The function where symbols have these values."""
    table: dict[Atom, ExprLike] = {s: n for s, n in values.items()}
    inputs, outputs = (tuple(_buffer(b, table) for b in bs) for bs in (func.inputs, func.outputs))
    stages = tuple(_stage(s, table) for s in func.stages if isinstance(s, Stage))
    assert len(stages) == len(func.stages), "templates are not specialised"
    return replace(func, name=func.name + suffix, inputs=inputs, outputs=outputs, stages=stages)


def _buffer(buffer: Buffer, table: dict[Atom, ExprLike]) -> Buffer:
    return replace(buffer, dims=tuple(d.subs(table) for d in buffer.dims))


def _stage(stage: Stage, table: dict[Atom, ExprLike]) -> Stage:
    axes = {a: Axis(a.name, a.extent.subs(table)) for a in (*stage.axes, *stage.reduce)}
    full: dict[Atom, ExprLike] = {**table, **{a: b.expr for a, b in axes.items()}}

    def index(expr: Expr) -> Expr:
        return expr.subs(full)

    def leaf(node: Scalar) -> Scalar | None:
        if isinstance(node, Load):
            return Load(_buffer(node.buffer, table), tuple(map(index, node.index)))
        return Value(index(node.expr), node.type) if isinstance(node, Value) else None

    changed = map_scalars(stage, lambda s: rewrite(s, leaf))
    return replace(
        changed,
        out=_buffer(stage.out, table),
        axes=tuple(axes[a] for a in stage.axes),
        reduce=tuple(axes[a] for a in stage.reduce),
        index=None if stage.index is None else tuple(map(index, stage.index)),
    )
