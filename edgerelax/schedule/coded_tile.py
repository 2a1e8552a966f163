"""Register tiles whose right factor reads codes in words (codes.py).

The codes of
a group are summed first, and the sums multiplied by what stays as it is for the group:

    Σ x (scale · code + offset)  →  Σ over groups of  scale · Σ x code + offset · Σ x

On the GPU several rows share each decoded factor instead, which takes fewer registers.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from edgerelax.ir.kernel import KConst, KExpr, KVar, i32, kop
from edgerelax.ir.scalar import Scalar, Value, loads, op, rewrite
from edgerelax.schedule.codes import Word, factored, in_place, turned_words
from edgerelax.schedule.contraction import Contraction
from edgerelax.schedule.reduce import Reduction, begin, fold_lanes, lanes_of, splat
from edgerelax.schedule.scalars import Held, Scalars
from edgerelax.schedule.tile import Row, Span, Sums, Tile, multiply_add
from edgerelax.schedule.writer import Writer
from edgerelax.sym import Atom, Axis, ExprLike, as_expr, minimum, prove_eq

_IN_TEXT = 4  # steps
_Line = Sequence[Reduction]
_Parts = Sequence[Sequence[_Line]]
"""By row and column, the sums of a group that go with each factor of it."""
_Held = Mapping[Scalar, tuple[Held, KVar, int]]
"""Words in registers: by the word with a step on top, its leaf, register and bits of a step."""


class CodedTile(Tile):
    """Writes one tile into the open block, the outer axes being bound."""

    def __init__(
        self, w: Writer, s: Scalars, found: Contraction, word: Word, span: Span | None = None
    ) -> None:
        super().__init__(w, s, found, span=span)
        self.word = word
        reduce = found.stage.reduce
        planes = {a for n in loads(found.right) if word.words not in n.axes() for a in n.axes()}
        self.group = reduce[1 + max((k for k, a in enumerate(reduce) if a in planes), default=-1) :]
        self.steps = word.inside.extent.as_int() or 0
        self.terms = factored(found.right, frozenset(self.group))
        self.read: Callable[[Scalar], Scalar] = _as_it_is

    def _nest(self, axes: list[Axis], pending: list[Scalar], sums: Sums) -> None:
        one = len(self.rows) == 1 and self.steps >= _IN_TEXT
        by_groups = one or not self.w.target.is_gpu
        if by_groups and tuple(axes) == self.group:
            self._sum_group(sums)
        elif axes == [self.word.inside] and self.w.target.is_gpu:
            self._unrolled(axes[0], sums)
        else:
            super()._nest(axes, pending, sums)

    def _sum_group(self, sums: Sums) -> None:
        """Add the steps of the group that is bound."""
        varying = tuple(t for t in self.terms if t is not None)
        parts = [[[self._begin(r, c) for _ in varying] for c in self.columns] for r in self.rows]
        lefts = self.rows[:1] if self.found.shares_left else self.rows
        dtype = self.found.stage.body.dtype
        plain = [begin(self.w, "sum", dtype, lanes=4) for _ in lefts if None in self.terms]
        self._sum_steps(self.group, varying, parts, plain)
        if self.w.target.is_gpu:
            plain = [fold_lanes(self.w, p) for p in plain]
        for k, (row, line) in enumerate(zip(self.rows, sums, strict=True)):
            for column, total, group in zip(self.columns, line, parts[k], strict=True):
                known: dict[Scalar | None, Reduction] = dict(zip(varying, group, strict=True))
                if plain:
                    known[None] = plain[k % len(plain)]
                swaps = self._swaps(row, column)
                for term, factor in self.terms.items():
                    self._add(total, known[term], None if factor is None else factor.subs(swaps))

    def _add(self, total: Reduction, part: Reduction, by: Scalar | None) -> None:
        """Add a sum times what it stands beside."""
        if by is None:
            total.merge(self.w, part.registers)
            return
        (register,), (value,) = total.registers, part.registers
        self.w.assign(register, multiply_add(self.s.value(by), value, register))

    def _sum_steps(
        self,
        axes: Sequence[Axis],
        varying: Sequence[Scalar],
        parts: _Parts,
        plain: _Line,
    ) -> None:
        """Loops over the steps of a group, the last one in text."""
        if axes != (self.word.inside,):
            start, stop = self._steps_of(axes[0])
            with self.w.loop("k", start, stop) as k:
                self.w.bind(axes[0], k)
                self._sum_steps(axes[1:], varying, parts, plain)
        elif self.w.target.is_gpu:
            self._sum_in_fours(varying, parts, plain)
        else:
            self._sum_by_turns(varying, parts, plain)

    def _sum_by_turns(self, varying: Sequence[Scalar], parts: _Parts, plain: _Line) -> None:
        """The steps of a word, a few in text, by which it is then shifted.

        More of them in text take longer: Cranelift orders what is between two branches one sum
        after the other, and spills most of it.
        """
        w, inside = self.w, self.word.inside
        size, few = inside.extent, Axis(f"{inside.name}%", minimum(inside.extent, _IN_TEXT))
        pairs = itertools.product(self.rows, self.columns)
        held = self._hold_words(v.subs(self._swaps(*pair)) for pair in pairs for v in varying)
        self.read = lambda term: _turned(term, held, few)
        one = prove_eq(size, few.extent) is True
        with w.loop("k", i32(0), w.params.scalar(size), step=_IN_TEXT, unroll=one) as k:
            self._show(held)
            with w.loop("j", i32(0), w.params.scalar(few.extent), unroll=True) as j:
                w.bind(few, j)
                w.bind(inside, kop("add", k, j))
                self._sum_step(varying, parts, plain)
            if not one:
                self._turn(held)

    def _hold_words(self, factors: Iterable[Scalar]) -> _Held:
        """Registers with the words that factors read, by what brings a step's code to the top."""
        held: dict[Scalar, tuple[Held, KVar, int]] = {}
        for node, (load, bits) in (
            found for f in factors for found in turned_words(f, self.word.inside).items()
        ):
            if node not in held:
                word = self.w.var("word", self.s.value(load))
                held[node] = Held(word.name, node.dtype), word, bits
        return held

    def _show(self, held: _Held) -> None:
        for leaf, word, _ in held.values():
            self.s.hold(leaf, word)

    def _turn(self, held: _Held) -> None:
        """Bring the next steps in text to the top of their words."""
        for _, word, bits in held.values():
            by = bits * _IN_TEXT
            if self.w.target.shifts_vectors:
                turned = kop("shl", word, KConst(word.dtype, 1, by))
            else:
                turned = kop("mul", word, splat(KConst(word.dtype, 1, 1 << by), word.lanes))
            self.w.assign(word, turned)

    def _sum_step(self, varying: Sequence[Scalar], parts: _Parts, plain: _Line) -> None:
        """One step, all summed axes being bound."""
        left: KExpr = i32(0)
        for k, row in enumerate(self.rows):
            if not (k and self.found.shares_left):
                left = self.w.let("f", self.s.value(self.found.left.subs(self._swaps(row, None))))
                if plain:
                    plain[k].step(self.w, splat(left, plain[k].registers[0].lanes))
            self._add_products(row, left, varying, parts[k])

    def _sum_in_fours(self, varying: Sequence[Scalar], parts: _Parts, plain: _Line) -> None:
        """The steps of a word in text, four at a time: so many of the left factor are one load."""
        w, inside = self.w, self.word.inside
        for first in range(0, self.steps, 4):
            four = Axis(f"{inside.name}+{first}", inside.extent)
            w.bind_vector(four, i32(first))
            for number, row in enumerate(self.rows):
                left = self.found.left.subs({**self._swaps(row, None), inside: four})
                loaded = w.let("a", splat(self.s.value(left), 4))
                if plain:
                    plain[number].step(w, loaded)
                for k, one in enumerate(lanes_of(loaded)):
                    at = tuple(self._decoded(v.subs({inside: first + k})) for v in varying)
                    self._add_products(row, one, at, parts[number])

    def _decoded(self, factor: Scalar) -> Scalar:
        """As the target does it best, the step being a number."""
        return factor if self.w.target.shifts_vectors else in_place(factor)

    def _unrolled(self, axis: Axis, sums: Sums) -> None:
        """Four steps in text; words whose lanes can't be shifted at once turn for the next."""
        if self.w.target.shifts_vectors or self.steps < _IN_TEXT:
            super()._unrolled(axis, sums)
            return
        w, (left, right) = self.w, self._factors()
        held = self._hold_words(right)
        start, stop = self._steps_of(axis)
        with w.loop("k", start, stop, step=_IN_TEXT) as k:
            self._show(held)
            w.bind_vector(axis, k)
            fours = [lanes_of(w.let("a", splat(self.s.value(f), 4))) for f in left]
            lanes = w.lanes(axis)
            assert lanes is not None
            for j, clone in enumerate(lanes.clones):
                own: dict[Atom, ExprLike] = {axis: clone}
                factors = [self._decoded(_turned(f, held, j)).subs(own) for f in right]
                self._multiply([four[j] for four in fours], self._values(factors), sums)
            if self.steps > _IN_TEXT:
                self._turn(held)

    def _add_products(
        self, row: Row, left: KExpr, varying: Sequence[Scalar], line: Sequence[_Line]
    ) -> None:
        for column, group in zip(self.columns, line, strict=True):
            swaps = self._swaps(row, column)
            for term, total in zip(varying, group, strict=True):
                (register,) = total.registers
                value = self.s.value(self.read(term.subs(swaps)))
                self.w.assign(register, multiply_add(left, value, register))


def _as_it_is(term: Scalar) -> Scalar:
    return term


def _turned(factor: Scalar, held: _Held, step: ExprLike) -> Scalar:
    """The factor with its words from registers, shifted by steps."""

    def turn(node: Scalar) -> Scalar | None:
        if node not in held:
            return None
        leaf, _, bits = held[node]
        return op("shl", leaf, Value(as_expr(step) * bits, leaf.dtype))

    return rewrite(factor, turn)
