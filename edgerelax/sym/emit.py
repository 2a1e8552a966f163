"""Turn an expression into another language: one visitor, many writers."""

from collections.abc import Sequence
from typing import Generic, Literal, Protocol, TypeVar

from edgerelax.sym.bounds import interval
from edgerelax.sym.expr import (
    Atom,
    Axis,
    Expr,
    FloorDiv,
    Max,
    Min,
    Monomial,
    Opaque,
    Select,
    Symbol,
)
from edgerelax.sym.polynomial import Remainder, remainders
from edgerelax.sym.prove import prove_nonneg

T = TypeVar("T")


class Emitter(Protocol[T]):
    """What a language can say. `nonneg` promises a numerator >= 0 and a divisor > 0."""

    def const(self, value: int) -> T: ...

    def atom(self, atom: Symbol | Axis | Opaque) -> T: ...

    def add(self, a: T, b: T) -> T: ...

    def sub(self, a: T, b: T) -> T: ...

    def mul(self, a: T, b: T) -> T: ...

    def floordiv(self, a: T, b: T, nonneg: bool) -> T: ...

    def mod(self, a: T, b: T, nonneg: bool) -> T: ...

    def min(self, a: T, b: T) -> T: ...

    def max(self, a: T, b: T) -> T: ...

    def select(self, kind: Literal["ge", "eq"], test: T, then: T, other: T) -> T: ...


def emit(expr: Expr, ops: Emitter[T]) -> T:
    """Write an expression; equal parts of it are written once."""
    return _Writer(ops).expr(expr)


def is_nonneg_division(num: Expr, den: Expr) -> bool:
    """Whether truncating division gives the same."""
    return interval(den)[0] >= 1 and prove_nonneg(num)


class _Writer(Generic[T]):
    def __init__(self, ops: Emitter[T]) -> None:
        self.ops = ops
        self.exprs: dict[Expr, T] = {}
        self.atoms: dict[Atom, T] = {}

    def expr(self, expr: Expr) -> T:
        if expr not in self.exprs:
            self.exprs[expr] = self._expr(expr)
        return self.exprs[expr]

    def _expr(self, expr: Expr) -> T:
        value = expr.as_int()
        if value is not None:
            return self.ops.const(value)
        for found in remainders(expr):
            if interval(found.den)[0] < 0:
                continue
            return self._with_mod(found)
        return self._sum(expr.terms())

    def _with_mod(self, found: Remainder) -> T:
        nonneg = is_nonneg_division(found.num, found.den)
        term = self.ops.mod(self.expr(found.num), self.expr(found.den), nonneg)
        falls = all(k < 0 for k, _ in found.factor.terms())
        factor = -found.factor if falls else found.factor
        if factor.as_int() != 1:
            term = self.ops.mul(self.expr(factor), term)
        if falls:
            return self.ops.sub(self.expr(found.rest), term)
        return term if found.rest.as_int() == 0 else self.ops.add(self.expr(found.rest), term)

    def _sum(self, terms: Sequence[tuple[int, Monomial]]) -> T:
        positive = [t for t in terms if t[0] > 0]
        negative = [(-k, m) for k, m in terms if k < 0]
        total: T | None = None
        for k, monomial in positive:
            term = self._term(k, monomial)
            total = term if total is None else self.ops.add(total, term)
        if total is None:
            total = self.ops.const(0)
        for k, monomial in negative:
            total = self.ops.sub(total, self._term(k, monomial))
        return total

    def _term(self, k: int, monomial: Monomial) -> T:
        out: T | None = None if k == 1 and monomial else self.ops.const(k)
        for atom in monomial:
            factor = self._atom(atom)
            out = factor if out is None else self.ops.mul(out, factor)
        assert out is not None
        return out

    def _atom(self, atom: Atom) -> T:
        if atom not in self.atoms:
            self.atoms[atom] = self._new_atom(atom)
        return self.atoms[atom]

    def _new_atom(self, atom: Atom) -> T:
        match atom:
            case FloorDiv():
                nonneg = is_nonneg_division(atom.num, atom.den)
                return self.ops.floordiv(self.expr(atom.num), self.expr(atom.den), nonneg)
            case Min() | Max():
                combine = self.ops.min if isinstance(atom, Min) else self.ops.max
                total = self.expr(atom.args[0])
                for arg in atom.args[1:]:
                    total = combine(total, self.expr(arg))
                return total
            case Select():
                test = self.expr(atom.cond.expr)
                then, other = self.expr(atom.then), self.expr(atom.other)
                return self.ops.select(atom.cond.kind, test, then, other)
            case Symbol() | Axis() | Opaque():
                return self.ops.atom(atom)
        raise TypeError(f"no such atom: {type(atom).__name__}")
