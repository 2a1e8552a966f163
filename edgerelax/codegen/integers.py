"""Shape lowering: symbolic integers as registers of a VM function (Relax 4.7; relax.md (11)).

Every symbol has a register once it is defined; an expression is computed where it is first asked
for and remembered for the rest of the scope, and so is each operation that it took.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

from edgerelax.codegen.program import FunctionBuilder, Reg
from edgerelax.sym import Axis, Cond, Expr, FloorDiv, Opaque, Symbol, as_expr, emit, prove_nonneg


class Integers:
    """Registers of symbols and expressions in one function."""

    def __init__(self, function: FunctionBuilder) -> None:
        self.function = function
        self.symbols: dict[Symbol, Reg] = {}
        self._known: dict[Expr, Reg] = {}
        self._done: dict[tuple[str, Reg, Reg], Reg] = {}

    def define(self, symbol: Symbol, register: Reg) -> None:
        """From here on the symbol is this register."""
        self.symbols[symbol] = register

    def is_defined(self, expr: Expr) -> bool:
        """Whether the expression can be computed here."""
        return all(s in self.symbols for s in expr.symbols())

    def reg(self, value: Expr | int) -> Reg:
        """The register that holds an expression."""
        expr = as_expr(value)
        constant = expr.as_int()
        if constant is not None:
            return self.function.const(constant)
        if expr not in self._known:
            self._known[expr] = emit(expr, self)
        return self._known[expr]

    def ahead(self, exprs: Iterable[Expr]) -> None:
        """Compute now what branches that follow may ask for, but for what could fail."""
        for expr in exprs:
            if expr not in self._known and cannot_fail(expr):
                self.reg(expr)

    def cond(self, cond: Cond) -> Reg:
        """1 where the condition holds, else 0."""
        test = self.function.ge if cond.kind == "ge" else self.function.eq
        return self._once(test, self.reg(cond.expr), self.function.const(0))

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is computed or defined inside is forgotten after."""
        symbols, known, done = dict(self.symbols), dict(self._known), dict(self._done)
        yield
        self.symbols, self._known, self._done = symbols, known, done

    # What sym.emit asks for

    def const(self, value: int) -> Reg:
        return self.function.const(value)

    def atom(self, atom: Symbol | Axis | Opaque) -> Reg:
        if isinstance(atom, Symbol) and atom in self.symbols:
            return self.symbols[atom]
        raise KeyError(f"{atom} is not defined where the program needs it")

    def add(self, a: Reg, b: Reg) -> Reg:
        return self._once(self.function.add, min(a, b), max(a, b))

    def sub(self, a: Reg, b: Reg) -> Reg:
        return self._once(self.function.sub, a, b)

    def mul(self, a: Reg, b: Reg) -> Reg:
        return self._once(self.function.mul, min(a, b), max(a, b))

    def floordiv(self, a: Reg, b: Reg, nonneg: bool) -> Reg:
        return self._once(self.function.floordiv, a, b)

    def mod(self, a: Reg, b: Reg, nonneg: bool) -> Reg:
        return self._once(self.function.mod, a, b)

    def min(self, a: Reg, b: Reg) -> Reg:
        return self._once(self.function.min, min(a, b), max(a, b))

    def max(self, a: Reg, b: Reg) -> Reg:
        return self._once(self.function.max, min(a, b), max(a, b))

    def _once(self, operation: Callable[[Reg, Reg], Reg], a: Reg, b: Reg) -> Reg:
        key = operation.__name__, a, b
        if key not in self._done:
            self._done[key] = operation(a, b)
        return self._done[key]

    def select(self, kind: Literal["ge", "eq"], test: Reg, then: Reg, other: Reg) -> Reg:
        compare = self.function.ge if kind == "ge" else self.function.eq
        return self.function.select(compare(test, self.function.const(0)), then, other)


def cannot_fail(expr: Expr) -> bool:
    """Whether nothing in it is divided by what may be 0."""
    divisions = (atom for atom in expr.atoms() if isinstance(atom, FloorDiv))
    return all(prove_nonneg(division.den - 1) is True for division in divisions)
