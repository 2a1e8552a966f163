"""Contractions: sums of a product of two factors, recognised by what each factor varies over.

Matrix products, convolutions and everything between them: `left` is shared by the columns of the
output, `right` by its rows. A choice of 0 in a factor (padding) and a predicate on steps become
guards: where one does not hold, the step adds nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from edgerelax.ir.dtypes import BOOL
from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import (
    Cast,
    Const,
    Op,
    Scalar,
    Select,
    Value,
    cast,
    compare,
    constant,
    loads,
    op,
)
from edgerelax.schedule.codes import Word, word_of_steps
from edgerelax.schedule.index import flat_index, is_one, stride_of
from edgerelax.schedule.points import (
    MOST_STAGES,
    coalesce,
    count,
    store_flat,
    substitute_stage,
    used_exprs,
)
from edgerelax.schedule.residues import split_residues
from edgerelax.schedule.scalars import has_vectors
from edgerelax.schedule.strategies.base import Reject
from edgerelax.sym import Axis, Expr, FloorDiv, as_expr, divisible

PRODUCTS = ("mul", "dot_pairs", "dot_quads")


@dataclass(frozen=True, slots=True)
class Contraction:
    """A stage as a product of `rows` by `column` for every point of `outer`.

    The factors are without their guards. `column` is the axis along which outputs adjoin. `lane`
    stands for a row's number in its tile, where the left factor is laid out by tiles. `product` is
    the function that multiplies: of numbers, or of pairs of them. `word` are the last summed axes
    where the right factor reads codes in words.
    """

    stage: Stage
    left: Scalar
    right: Scalar
    guards: tuple[Scalar, ...]
    rows: tuple[Axis, ...]
    column: Axis
    outer: tuple[Axis, ...]
    lane: Axis | None = None
    product: str = "mul"
    word: Word | None = None

    @property
    def shares_left(self) -> bool:
        """Whether rows differ in the right factor alone, as the lines of a depthwise image do."""
        return bool(self.rows) and not self.left.axes() & {*self.rows, self.lane}

    def times(self, left: Scalar, right: Scalar) -> Scalar:
        """The product of two factors."""
        return op(self.product, left, right)

    @property
    def height(self) -> Expr:
        return count(self.rows)

    @property
    def width(self) -> Expr:
        return self.column.extent

    @property
    def is_windowed(self) -> bool:
        """Whether steps are guarded, as in a convolution with padding."""
        return bool(self.guards)

    @property
    def stores_vectors(self) -> bool:
        """Whether four aligned columns are one aligned vector of the output."""
        if not divisible(self.width, 4):
            return False
        flat = store_flat(self.stage)
        return is_one(stride_of(flat, self.column)) and divisible(flat - self.column, 4)


@lru_cache(MOST_STAGES)
def contraction(stage: Stage) -> Contraction | Reject:
    """The stage as a contraction, if it is one. Remembered: every tiled strategy asks for it."""
    if stage.combiner != "sum":
        return Reject("it sums nothing")
    if stage.where is not None and not stage.where.axes() & set(stage.reduce):
        return Reject("some outputs are not stored")
    if not has_vectors(stage.body.dtype) or not has_vectors(stage.out.dtype):
        return Reject(f"{stage.body.dtype} has no vectors")
    stage = coalesce(stage)
    if not stage.reduce or not stage.axes:
        return Reject("there is one output, or one step")
    stage, column, conditions = split_residues(stage, _column(stage))
    stage = split_groups(stage, column)
    guards = [*conditions, *(() if stage.where is None else conjuncts(stage.where))]
    body = _unguarded(stage.body, guards)
    if not (isinstance(body, Op) and body.fn in PRODUCTS):
        return Reject("no product is summed")
    left, right = (_unguarded(f, guards) for f in body.operands)
    if column in left.axes() and column not in right.axes():
        left, right = right, left
    if column not in right.axes():
        return Reject("no factor varies over neighbouring outputs")
    if column in left.axes():
        return Reject("neighbouring outputs share no factor")
    guards = [g for g in guards if not _always_holds(g)]
    rows = tuple(a for a in stage.axes if a in left.axes() and a not in right.axes())
    outer = tuple(a for a in stage.axes if a not in rows and a is not column)
    word = None if guards else word_of_steps(right, stage.reduce)
    return Contraction(
        stage, left, right, tuple(guards), rows, column, outer, product=body.fn, word=word
    )


def _column(stage: Stage) -> Axis:
    flat = store_flat(stage)
    return next((a for a in stage.axes if is_one(stride_of(flat, a))), stage.axes[-1])


def split_groups(stage: Stage, column: Axis) -> Stage:
    """The axes that some factor divides, split into groups and members.

    Members of one group share that factor: query heads of one key head, or the output channels of
    a group in a grouped convolution. So they are rows.
    """
    for axis in stage.axes:
        sizes = {
            atom.den.as_int()
            for expr in used_exprs(stage)
            for atom in expr.atoms()
            if isinstance(atom, FloorDiv) and atom.num == axis.expr
        }
        size = sizes.pop() if len(sizes) == 1 else None
        if axis is column or size is None or not divisible(axis.extent, size):
            continue
        group = Axis(f"{axis.name}//", axis.extent // size)
        member = Axis(f"{axis.name}%", as_expr(size))
        split = substitute_stage(stage, {axis: group.expr * size + member})
        at = stage.axes.index(axis)
        stage = replace(split, axes=(*stage.axes[:at], group, member, *stage.axes[at + 1 :]))
    return stage


def conjuncts(cond: Scalar) -> Iterator[Scalar]:
    """The conditions that must all hold."""
    if isinstance(cond, Op) and cond.fn == "and":
        for part in cond.operands:
            yield from conjuncts(part)
    else:
        yield cond


def _unguarded(factor: Scalar, guards: list[Scalar]) -> Scalar:
    """The factor without a choice of 0 around it, whose condition joins the guards."""
    match factor:
        case Cast():
            return cast(_unguarded(factor.arg, guards), factor.type)
        case Select(other=Const(value=0)):
            guards.extend(g for g in conjuncts(factor.cond) if g not in guards)
            return _unguarded(factor.then, guards)
    return factor


def _always_holds(guard: Scalar) -> bool:
    match guard:
        case Const(value=value):
            return bool(value)
        case Op(fn="eq" | "ge" | "lt" as fn, operands=(Value(expr=a), Value(expr=b))):
            return compare(fn, a, b) == constant(True, BOOL)
    return False


def guarded(factor: Scalar, guards: list[Scalar]) -> Scalar:
    """The factor, or 0 where a guard does not hold."""
    if not guards:
        return factor
    cond = guards[0]
    for guard in guards[1:]:
        cond = op("and", cond, guard)
    return Select(cond, factor, constant(0, factor.dtype))


def is_contiguous(factor: Scalar, axis: Axis) -> bool:
    """Whether every load that varies over the axis reads neighbours along it."""
    strides = [
        stride_of(flat_index(load.buffer, load.index), axis)
        for load in loads(factor)
        if axis in load.axes()
    ]
    return bool(strides) and all(is_one(s) for s in strides)


def describe(found: Contraction) -> str:
    """What a kernel's comment calls it."""
    return "windowed contraction" if found.is_windowed else "contraction"
