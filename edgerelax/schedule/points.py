"""The points of a stage: merged axes, decomposition of a linear index, and computing one point.

`coalesce` merges adjacent axes that every index uses as one, so that most maps have rank 1 or 2.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from edgerelax.ir.kernel import KExpr, i32, kop
from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import (
    Acc,
    Const,
    Scalar,
    Select,
    Value,
    gathers,
    own_exprs,
    rewrite,
    walk,
)
from edgerelax.schedule.index import flat_index, is_one, stride_of
from edgerelax.schedule.reduce import (
    VECTOR_COMBINERS,
    Reduction,
    begin,
    convert,
    identity,
    splat,
)
from edgerelax.schedule.scalars import Held, Scalars, has_vectors
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Atom, Axis, Expr, ExprLike, as_expr, prove_eq

MOST_STAGES = 256
"""Of how many stages what strategies ask in common is remembered."""


def store_flat(stage: Stage) -> Expr:
    """Where a point is stored, as a flat element index."""
    return flat_index(stage.out, stage.store_index)


def count(axes: Sequence[Axis]) -> Expr:
    """How many points the axes span."""
    total = as_expr(1)
    for axis in axes:
        total = total * axis.extent
    return total


def linear(axes: Sequence[Axis]) -> Expr:
    """The row-major number of a point."""
    at = as_expr(0)
    for axis in axes:
        at = at * axis.extent + axis
    return at


def used_exprs(stage: Stage) -> Iterator[Expr]:
    """Every integer that the kernel of a stage will compute from its axes."""
    todo = list(stage.scalars())
    for expr in stage.store_index:
        todo.extend(gathers(expr))
    yield store_flat(stage)
    seen: set[Scalar] = set()
    while todo:
        for node in walk(todo.pop()):
            if node in seen:
                continue
            seen.add(node)
            for expr in own_exprs(node):
                todo.extend(gathers(expr))
            match node:
                case Value():
                    yield node.expr
                case _ if own_exprs(node):
                    yield flat_index(node.buffer, node.index)  # type: ignore[attr-defined]


def map_scalars(stage: Stage, change: Callable[[Scalar], Scalar]) -> Stage:
    """Change every scalar tree of a stage."""

    def maybe(s: Scalar | None) -> Scalar | None:
        return None if s is None else change(s)

    return replace(
        stage,
        body=change(stage.body),
        init=maybe(stage.init),
        where=maybe(stage.where),
        epilogue=maybe(stage.epilogue),
    )


def substitute_stage(stage: Stage, swaps: dict[Atom, ExprLike]) -> Stage:
    """Replace axes in everything a stage computes; its axis lists stay."""
    changed = map_scalars(stage, lambda s: s.subs(swaps))
    return replace(changed, index=tuple(e.subs(swaps) for e in stage.store_index))


@lru_cache(MOST_STAGES)
def coalesce(stage: Stage) -> Stage:
    """Drop axes of extent 1 and merge neighbours that are always used as one.

    Remembered: every strategy asks for it.
    """
    spatial, stage = coalesce_axes(stage, stage.axes)
    reduce, stage = coalesce_axes(stage, stage.reduce)
    return replace(stage, axes=spatial, reduce=reduce)


def coalesce_axes(stage: Stage, axes: tuple[Axis, ...]) -> tuple[tuple[Axis, ...], Stage]:
    """The axes that take the place of some, and what the stage computes in terms of them."""
    guard = frozenset() if stage.where is None else stage.where.axes()
    steps = guard & set(stage.reduce)  # by them it is known that the predicate is one on steps
    ones: dict[Atom, ExprLike] = {a: 0 for a in axes if prove_eq(a.extent, 1) and a not in steps}
    if ones:
        stage = substitute_stage(stage, ones)
    kept = [a for a in axes if a not in ones]
    k = len(kept) - 2
    while k >= 0:
        merged = _merge(stage, kept[k], kept[k + 1])
        if merged is not None:
            stage, kept[k : k + 2] = merged[1], [merged[0]]
        k -= 1
    return tuple(kept), stage


def _merge(stage: Stage, outer: Axis, inner: Axis) -> tuple[Axis, Stage] | None:
    """One axis for two, if their quotient and remainder are needed nowhere."""
    if inner.extent.as_int() == 0:
        return None
    both = Axis(f"{outer.name}*{inner.name}", outer.extent * inner.extent)
    quotient = as_expr(both) // inner.extent
    swaps: dict[Atom, ExprLike] = {outer: quotient, inner: both - quotient * inner.extent}
    divisions = {a for a in quotient.atoms() if a is not both and both in as_expr(a).axes()}
    merged = substitute_stage(stage, swaps)
    if any(divisions & expr.atoms() for expr in used_exprs(merged)):
        return None
    return both, merged


def decompose(w: Writer, number: KExpr, extents: Sequence[Expr]) -> list[KExpr]:
    """The coordinates of a linear index, outermost first."""
    coordinates: list[KExpr] = []
    rest = number
    for k, extent in reversed(list(enumerate(extents))):
        if all(prove_eq(e, 1) for e in extents[:k]):
            zeros: list[KExpr] = [i32(0)] * k
            return [*zeros, rest, *coordinates[::-1]]
        if prove_eq(extent, 1):
            coordinates.append(i32(0))
            continue
        size = w.params.scalar(extent)
        quotient = w.let("q", kop("index_div", rest, size))
        coordinates.append(w.let("c", kop("sub", rest, kop("mul", quotient, size))))
        rest = quotient
    return []


def guards_store(stage: Stage, s: Scalars) -> Scalar | None:
    """The stage's predicate, if it decides on storing."""
    if stage.where is None or s.axes(stage.where) & set(stage.reduce):
        return None
    return stage.where


def guards_step(stage: Stage, s: Scalars) -> Scalar | None:
    """The stage's predicate, if it decides on steps of the reduction."""
    return stage.where if guards_store(stage, s) is None else None


def take_step(w: Writer, s: Scalars, stage: Stage, state: Reduction) -> None:
    """Take the step that the bound reduce axes stand for, unless the predicate skips it."""
    body, guard = stage.body, guards_step(stage, s)
    if guard is not None and (s.varies(guard) or s.varies(body)):
        nothing = identity(state.combiner, body.dtype)
        body, guard = Select(guard, body, Const(nothing.value, body.dtype)), None

    def step() -> None:
        place = None
        if state.combiner not in VECTOR_COMBINERS:
            place = s.index.value(linear(stage.reduce))
        state.step(w, s.value(body), place)

    if guard is None:
        step()
    else:
        with w.when(s.value(guard)):
            step()


def reduce_serially(w: Writer, s: Scalars, stage: Stage) -> Scalar:
    """Run the reduction of one point (or of four) in nested loops; what is to be stored of it."""
    assert stage.combiner is not None
    varying = any(s.varies(t) for t in (stage.body, stage.where, stage.init) if t is not None)
    init = None if stage.init is None else s.value(stage.init)
    state = begin(w, stage.combiner, stage.body.dtype, lanes=4 if varying else 1, init=init)

    def nest(axes: tuple[Axis, ...]) -> None:
        if not axes:
            take_step(w, s, stage, state)
            return
        with w.loop("k", i32(0), w.params.scalar(axes[0].extent)) as k:
            w.bind(axes[0], k)
            nest(axes[1:])

    nest(stage.reduce)
    return result_of(w, s, stage, state)


def result_of(w: Writer, s: Scalars, stage: Stage, state: Reduction) -> Scalar:
    """What is stored, with the reduced value of this very reduction in the place of `Acc`."""
    name = w.fresh("acc")
    held: dict[Scalar, Held] = {}

    def leaf(node: Scalar) -> Scalar | None:
        if not isinstance(node, Acc):
            return None
        if node not in held:
            held[node] = Held(f"{name}.{node.component}", node.type)
            s.hold(held[node], state.component(node.component, node.type))
        return held[node]

    return rewrite(stage.result, leaf)


def store_reduced(w: Writer, s: Scalars, stage: Stage, total: Reduction) -> None:
    """Finish a reduction that began with nothing and store it: four values if it has lanes."""
    if stage.init is not None:
        total.step(w, s.value(stage.init))
    lanes = total.registers[0].lanes
    value = convert(s.value(result_of(w, s, stage, total)), stage.out.dtype)
    flat = store_flat(stage)
    if lanes == 1:
        w.store(stage.out, s.index.value(flat), value)
        return
    first = s.index.value(s.index.in_lane(flat, 0))
    w.store(stage.out, first, splat(value, lanes), aligned=s.index.is_aligned(flat))


def can_be_vector(stage: Stage, s: Scalars, axis: Axis) -> bool:
    """Whether four neighbours along an axis can be computed and stored as a vector."""
    guard = guards_store(stage, s)
    return (
        has_vectors(stage.out.dtype)
        and is_one(stride_of(store_flat(stage), axis))
        and (guard is None or axis not in s.axes(guard))
        and (stage.combiner is None or stage.combiner in VECTOR_COMBINERS)
        and has_vectors(stage.body.dtype)
    )


def compute_point(w: Writer, s: Scalars, stage: Stage) -> KExpr:
    """The value to store at the bound point: a vector if an axis is bound to lanes."""
    return s.value(stage.body if stage.combiner is None else reduce_serially(w, s, stage))


def write_point(w: Writer, s: Scalars, stage: Stage, *, vector: bool) -> None:
    """Compute and store the bound point, or the bound four."""
    flat = store_flat(stage)

    def write() -> None:
        value = convert(compute_point(w, s, stage), stage.out.dtype)
        if vector:
            first, aligned = s.index.in_lane(flat, 0), s.index.is_aligned(flat)
            w.store(stage.out, s.index.value(first), splat(value, 4), aligned=aligned)
        else:
            w.store(stage.out, s.index.value(flat), value)

    guard = guards_store(stage, s)
    if guard is None:
        write()
    else:
        with w.when(s.value(guard)):
            write()
