"""Register tiles whose right factor reads codes in words (codes.py).

The steps of a word stand in text, so that its codes are taken out by constant shifts. A single row
sums the codes of a group first and multiplies the sums by what stays as it is for the group:

    Σ x (scale · code + offset)  →  Σ over groups of  scale · Σ x code + offset · Σ x

More rows share each decoded factor.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from edgerelax.ir.kernel import KVar, i32
from edgerelax.ir.scalar import Scalar, loads
from edgerelax.schedule.codes import Steps, factored
from edgerelax.schedule.contraction import Contraction
from edgerelax.schedule.reduce import Reduction, begin, splat
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.tile import Tile, multiply_add
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Axis

_Sums = list[list[Reduction]]


class CodedTile(Tile):
    """Writes one tile into the open block, the outer axes being bound."""

    def __init__(self, w: Writer, s: Scalars, found: Contraction, steps: Steps) -> None:
        super().__init__(w, s, found)
        self.steps = steps
        reduce = found.stage.reduce
        planes = {a for n in loads(found.right) if steps.word not in n.axes() for a in n.axes()}
        self.group = reduce[1 + max((k for k, a in enumerate(reduce) if a in planes), default=-1) :]

    def _nest(self, axes: list[Axis], pending: list[Scalar], sums: _Sums) -> None:
        one = len(self.rows) == 1 or self.found.shares_left
        if one and tuple(axes) == self.group:
            self._sum_group(sums)
        elif axes == [self.steps.inside]:
            with self._loop(axes[0]):
                self._step(sums)
        else:
            super()._nest(axes, pending, sums)

    def _sum_group(self, sums: _Sums) -> None:
        """Add the steps of the group that is bound."""
        w, terms = self.w, factored(self.found.right, frozenset(self.group))
        varying = [v for v in terms if v is not None]
        dtype = self.found.stage.body.dtype
        parts = [
            [[begin(w, "sum", dtype, lanes=c.group.lanes) for _ in varying] for c in self.columns]
            for _ in self.rows
        ]
        lanes = max(c.group.lanes for c in self.columns)
        plain = begin(w, "sum", dtype, lanes=lanes) if None in terms else None
        self._sum_steps(self.group, varying, parts, plain)
        for row, line, own in zip(self.rows, sums, parts, strict=True):
            for column, total, group in zip(self.columns, line, own, strict=True):
                swaps = self._swaps(row, column)
                known: dict[Scalar | None, KVar] = {
                    v: g.registers[0] for v, g in zip(varying, group, strict=True)
                }
                if plain is not None:
                    known[None] = plain.registers[0]
                for term, factor in terms.items():
                    value = known[term]
                    if factor is None:
                        total.step(w, value)
                        continue
                    by = self.s.value(factor.subs(swaps))
                    (register,) = total.registers
                    w.assign(register, multiply_add(by, value, register))

    def _sum_steps(
        self,
        axes: Sequence[Axis],
        varying: Sequence[Scalar],
        parts: list[list[list[Reduction]]],
        plain: Reduction | None,
    ) -> None:
        """Loops over the steps of a group, the last one in text."""
        if axes:
            with self._loop(axes[0]):
                self._sum_steps(axes[1:], varying, parts, plain)
            return
        one = self.rows[0] if len(self.rows) == 1 else None
        left = self.w.let("f", self.s.value(self.found.left.subs(self._swaps(one, None))))
        if plain is not None:
            plain.step(self.w, splat(left, plain.registers[0].lanes))
        for row, line in zip(self.rows, parts, strict=True):
            for column, group in zip(self.columns, line, strict=True):
                swaps = self._swaps(row, column)
                for term, total in zip(varying, group, strict=True):
                    value = self.s.value(term.subs(swaps))
                    (register,) = total.registers
                    self.w.assign(register, multiply_add(left, value, register))

    @contextmanager
    def _loop(self, axis: Axis) -> Iterator[None]:
        stop = self.w.params.scalar(axis.extent)
        with self.w.loop("k", i32(0), stop, unroll=axis is self.steps.inside) as k:
            self.w.bind(axis, k)
            yield
