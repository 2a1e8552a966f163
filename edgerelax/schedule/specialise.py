"""A loop function under conditions on its symbols, for versions that the VM chooses by guards."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from edgerelax.ir.kernel import Kernel, KernelBuffer
from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.plan import Version
from edgerelax.ir.scalar import Buffer, Load, Scalar, Value, rewrite
from edgerelax.schedule.contraction import contraction
from edgerelax.schedule.cost import typical
from edgerelax.schedule.partials import GROUP
from edgerelax.schedule.points import count, map_scalars
from edgerelax.schedule.strategies.base import Reject
from edgerelax.schedule.target import Target
from edgerelax.sym import (
    Atom,
    Axis,
    Cond,
    Expr,
    ExprLike,
    Symbol,
    eq,
    ge,
    le,
    maximum,
    minimum,
    upper_bound,
)

_FEW = 8  # heads that share a factor
_ROWS = 16  # rows of a low batch
_LONG = 1 << 16  # steps for which few reductions are split


@dataclass(frozen=True, slots=True)
class Case:
    """What symbols are: a number, or the same symbol in narrower bounds."""

    suffix: str
    values: Mapping[Symbol, int | Symbol]

    @property
    def guards(self) -> tuple[Cond, ...]:
        """When the case is given."""
        return tuple(c for s, v in self.values.items() for c in _conditions(s, v))


def _conditions(symbol: Symbol, value: int | Symbol) -> Iterator[Cond]:
    if isinstance(value, int):
        yield eq(symbol.expr, value)
        return
    if value.lo > symbol.lo:
        yield ge(symbol.expr, value.lo)
    if value.hi is not None and value.hi != symbol.hi:
        yield le(symbol.expr, value.hi)


def cases(func: LoopFunc, target: Target) -> Iterator[Case]:
    """What may deserve a version of its own: one row, few rows, few long reductions."""
    rows = _row_symbols(func)
    if rows and all(_can_be_one(s) for s in rows):
        yield Case("_row", dict.fromkeys(rows, 1))
    if not target.is_gpu:
        return
    if rows:
        *outer, inner = rows
        few = _narrowed(inner, inner.lo, _ROWS)
        if few is not None and all(_can_be_one(s) for s in outer):
            yield Case("_few", {**dict.fromkeys(outer, 1), inner: few})
    long = _long_symbol(func, target)
    if long is not None:
        yield Case("_long", {long[0]: long[1]})


def _can_be_one(symbol: Symbol) -> bool:
    return symbol.lo <= 1 and symbol.multiple_of == 1 and symbol.hi != symbol.lo


def _narrowed(symbol: Symbol, lo: int, hi: int | None) -> Symbol | None:
    """The symbol in narrower bounds, if they are narrower and it can be there."""
    lo = max(lo, symbol.lo)
    if hi is None or (symbol.hi is not None and symbol.hi < hi):
        hi = symbol.hi
    if (lo, hi) == (symbol.lo, symbol.hi) or (hi is not None and hi < lo):
        return None
    return Symbol(symbol.name, lo, hi, symbol.multiple_of)


def _row_symbols(func: LoopFunc) -> tuple[Symbol, ...]:
    """The symbols that, if all are 1, leave a contraction one row, or one for each of a few heads.

    They are the sizes of batches and sequences, outermost first.
    """
    if len(func.stages) != 1 or not isinstance(func.stages[0], Stage):
        return ()
    found = contraction(func.stages[0])
    if isinstance(found, Reject):
        return ()
    sizes = [a.extent for a in func.stages[0].axes]
    height = count([a for a in found.rows if a.extent.as_int() is None])
    heads = upper_bound(count([a for a in found.rows if a.extent.as_int() is not None]))
    if heads is None or heads > _FEW:
        return ()
    order = dict.fromkeys(s for e in (*sizes, height) for s in sorted(e.symbols(), key=_name))
    symbols = tuple(s for s in order if s in height.symbols())
    ones: dict[Atom, ExprLike] = dict.fromkeys(symbols, 1)
    return symbols if height.subs(ones).as_int() == 1 else ()


def _name(symbol: Symbol) -> str:
    return symbol.name


def _long_symbol(func: LoopFunc, target: Target) -> tuple[Symbol, Symbol] | None:
    """The symbol that decides how long reductions of few outputs are, and where they are long."""
    stages = [s for s in func.stages if isinstance(s, Stage)]
    if len(stages) < len(func.stages):
        return None
    for stage in stages:
        steps = count(stage.reduce)
        few = typical(count(stage.axes)) * GROUP < target.parallel_threads
        if not few or stage.combiner is None or len(steps.symbols()) != 1:
            continue
        (symbol,) = steps.symbols()
        least = next((1 << k for k in range(17) if _at(steps, symbol, 1 << k) >= _LONG), None)
        long = None if least is None else _narrowed(symbol, least, None)
        if long is not None:
            return symbol, long
    return None


def _at(expr: Expr, symbol: Symbol, value: int) -> int:
    return expr.eval({symbol: value})


def general(version: Version, case: Case) -> Version:
    """The version of a case in terms of the symbols as others know them.

    Workspaces are sized for where the case is given, whatever the symbols are.
    """
    back: dict[Atom, ExprLike] = {}
    clamped: dict[Atom, ExprLike] = {}
    for symbol, value in case.values.items():
        if isinstance(value, Symbol):
            back[value] = symbol
            least = maximum(symbol, value.lo)
            clamped[value] = least if value.hi is None else minimum(least, value.hi)
    return replace(
        version,
        kernels=tuple(_kernel(k, back) for k in version.kernels),
        temps=tuple(_buffer(b, clamped) for b in version.temps),
        guards=case.guards,
    )


def _kernel(kernel: Kernel, table: dict[Atom, ExprLike]) -> Kernel:
    return replace(
        kernel,
        grid=kernel.grid.subs(table),
        scalars=tuple((name, expr.subs(table)) for name, expr in kernel.scalars),
        buffers=tuple(KernelBuffer(_buffer(b.buffer, table), b.access) for b in kernel.buffers),
    )


def specialise(func: LoopFunc, case: Case) -> LoopFunc:
    """The function in a case."""
    table: dict[Atom, ExprLike] = {s: v for s, v in case.values.items()}
    inputs, outputs = (tuple(_buffer(b, table) for b in bs) for bs in (func.inputs, func.outputs))
    stages = tuple(_stage(s, table) for s in func.stages if isinstance(s, Stage))
    assert len(stages) == len(func.stages), "templates are not specialised"
    return replace(
        func, name=func.name + case.suffix, inputs=inputs, outputs=outputs, stages=stages
    )


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
