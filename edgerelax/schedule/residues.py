"""Transposed convolutions as plain ones: axes split by remainder, taps that are never met left out.

An output of a transposed convolution of stride s meets those taps whose distance to it s divides.
Outputs of one remainder are alike: they meet the same taps, and neighbours among them read
neighbours. So output axes are split into quotient and remainder, and the condition that s divides
`output + c - tap` is solved for the tap, which then runs from a remainder on in steps of s.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import Op, Scalar, Value, compare, walk
from edgerelax.schedule.index import is_one, stride_of
from edgerelax.schedule.points import substitute_stage, used_exprs
from edgerelax.sym import Axis, Expr, FloorDiv, as_expr, ceildiv, divisible

Congruence = tuple[Expr, int]
"""A number and what divides it."""


def split_residues(stage: Stage, column: Axis) -> tuple[Stage, Axis, tuple[Scalar, ...]]:
    """The stage split by remainder, its column, and conditions on taps that come on top.

    Other axes than the column are split only where that solves a condition.
    """
    remainders: set[Axis] = set()
    for axis in stage.axes:
        strides = _strides(stage, axis) if axis is column else _moduli(stage, axis)
        if len(strides) != 1 or not divisible(axis.extent, stride := strides.pop()):
            continue
        quotient = Axis(f"{axis.name}//", axis.extent // stride)
        remainder = Axis(f"{axis.name}%", as_expr(stride))
        split = substitute_stage(stage, {axis: quotient.expr * stride + remainder})
        at = stage.axes.index(axis)
        if axis is column:
            others = (*stage.axes[:at], *stage.axes[at + 1 :])
            stage, column = replace(split, axes=(*others, remainder, quotient)), quotient
        else:
            axes = (*stage.axes[:at], remainder, quotient, *stage.axes[at + 1 :])
            stage = replace(split, axes=axes)
        remainders.add(remainder)
    return _solved(stage, column, remainders)


def _strides(stage: Stage, column: Axis) -> set[int]:
    """By what loads or conditions divide the column."""
    return {
        d
        for expr in used_exprs(stage)
        for atom in expr.atoms()
        if isinstance(atom, FloorDiv)
        and (d := atom.den.as_int()) is not None
        and is_one(stride_of(atom.num, column))
    }


def _moduli(stage: Stage, axis: Axis) -> set[int]:
    return {s for number, s in _congruences(stage) if is_one(stride_of(number, axis))}


def _congruences(stage: Stage) -> Iterator[Congruence]:
    """Conditions of the form x mod s = 0, where x mod s is written x - s * (x // s)."""
    for scalar in stage.scalars():
        for node in walk(scalar):
            match node:
                case Op(fn="eq", operands=(Value(expr=rest), Value(expr=zero))):
                    if zero.as_int() == 0:
                        yield from _divided(rest)


def _divided(rest: Expr) -> Iterator[Congruence]:
    for atom in rest.atoms():
        s = atom.den.as_int() if isinstance(atom, FloorDiv) else None
        if isinstance(atom, FloorDiv) and s and rest + as_expr(atom) * s == atom.num:
            yield atom.num, s


def _solved(
    stage: Stage, column: Axis, remainders: Collection[Axis]
) -> tuple[Stage, Axis, tuple[Scalar, ...]]:
    """Conditions solved for the tap where all else in them is known by the remainder."""
    guards: list[Scalar] = []
    for number, s in dict.fromkeys(_congruences(stage)):
        taps = [a for a in stage.reduce if a in number.axes()]
        pace = stride_of(number, taps[0]) if len(taps) == 1 else None
        if pace is None or pace.as_int() not in (1, -1):
            continue
        (tap,), sign = taps, pace.as_int() or 1
        first = (number - tap.expr * sign) * -sign % s
        if not first.axes() <= set(remainders):
            continue
        steps = Axis(f"{tap.name}//", ceildiv(tap.extent, s))
        left = () if steps.extent.as_int() == 1 else (steps,)
        place = steps.expr * s + first if left else first
        stage = substitute_stage(stage, {tap: place})
        at = stage.reduce.index(tap)
        reduce = (*stage.reduce[:at], *left, *stage.reduce[at + 1 :])
        stage = replace(stage, reduce=reduce)
        guards.append(compare("lt", place, tap.extent))
    return stage, column, tuple(guards)
