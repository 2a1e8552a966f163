"""Axes cut in two, where what is read is indexed by a quotient of them.

A group norm scales each channel by its group's mean, `mean[n, c // size]`. With c = q * size + r,
q below the number of groups and r below `size`, the quotient is an axis: the map runs over the rows
(n, q) of the mean, and (r, …) are its columns. It is the same for a quotient of a flat position.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import Scalar
from edgerelax.sym import Atom, Axis, Expr, ExprLike, FloorDiv, as_expr


def cut_axes(stage: Stage, read: Collection[str]) -> Stage:
    """The map with axes cut so that they index the buffers named by `read`, if that can be.

    Its points and what it stores are the same; `index` then says where.
    """
    if stage.combiner is not None or not read:
        return stage
    while True:
        cut = next(_cuts(stage, read), None)
        if cut is None:
            return stage
        axis, outer, inner = cut
        swaps: dict[Atom, ExprLike] = {axis: outer * inner.extent + inner}

        def changed(scalar: Scalar | None, swaps: dict[Atom, ExprLike] = swaps) -> Scalar | None:
            return None if scalar is None else scalar.subs(swaps)

        at = stage.axes.index(axis)
        stage = replace(
            stage,
            axes=(*stage.axes[:at], outer, inner, *stage.axes[at + 1 :]),
            body=stage.body.subs(swaps),
            where=changed(stage.where),
            index=tuple(e.subs(swaps) for e in stage.store_index),
        )


def _cuts(stage: Stage, read: Collection[str]) -> Iterator[tuple[Axis, Axis, Axis]]:
    """Axes with the outer and the inner one that free an index of a quotient."""
    for load in stage.loads():
        if load.buffer.name not in read:
            continue
        for index in load.index:
            for atom in index.atoms():
                if isinstance(atom, FloorDiv):
                    yield from _cuts_of(stage, index, atom)


def _cuts_of(stage: Stage, index: Expr, quotient: FloorDiv) -> Iterator[tuple[Axis, Axis, Axis]]:
    for axis in stage.axes:
        stride = quotient.num.subs({axis: 1}) - quotient.num.subs({axis: 0})
        rest = quotient.num - stride * axis
        if stride.as_int() == 0 or axis in stride.axes() | rest.axes():
            continue
        size = quotient.den // stride
        number = axis.extent // size if size.as_int() not in (0, 1) else as_expr(0)
        if size * stride != quotient.den or number * size != axis.extent:
            continue
        outer, inner = Axis(f"{axis.name}.o", number), Axis(f"{axis.name}.i", size)
        after = index.subs({axis: outer * size + inner})
        if inner not in after.axes():
            yield axis, outer, inner
