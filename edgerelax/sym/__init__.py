"""Symbolic integers: canonical expressions, bounds, proofs, unification, emission (design 3)."""

from edgerelax.sym.bounds import bounds, divisible, multiple, upper_bound
from edgerelax.sym.choice import ceildiv, eq, ge, gt, holds, le, lt, maximum, minimum, select
from edgerelax.sym.emit import Emitter, emit
from edgerelax.sym.expr import (
    Atom,
    Axis,
    Cond,
    Expr,
    ExprLike,
    FloorDiv,
    Max,
    Min,
    Opaque,
    Select,
    Symbol,
    as_expr,
    axis,
    product,
    symbol,
)
from edgerelax.sym.prove import prove_eq, prove_le, prove_lt, prove_nonneg, proves_le, proves_lt
from edgerelax.sym.solve import Solution, unify
from edgerelax.sym.text import parse, parse_ast, to_text

__all__ = [
    "Atom", "Axis", "Cond", "Emitter", "Expr", "ExprLike", "FloorDiv", "Max", "Min", "Opaque",
    "Select", "Solution", "Symbol", "as_expr", "axis", "bounds", "ceildiv", "divisible", "emit",
    "eq", "ge", "gt", "holds", "le", "lt", "maximum", "minimum", "multiple", "parse", "parse_ast",
    "product", "prove_eq", "prove_le", "prove_lt", "prove_nonneg", "proves_le", "proves_lt",
    "select", "symbol", "to_text", "unify", "upper_bound",
]  # fmt: skip
