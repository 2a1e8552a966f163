"""About how many instructions an iteration of a CPU kernel takes: by this the VM splits grids.

An estimate, from the first iteration: every operation counts as one, slow functions as more, loops
by their extents in their first pass, unless these depend on data. It is an expression over the
symbols, so that it follows the sizes of a call.
"""

from collections.abc import Callable, Mapping

from edgerelax.ir.kernel import (
    WORKGROUP,
    For,
    If,
    KConst,
    Kernel,
    KExpr,
    KLoad,
    KOp,
    KScalar,
    KSelect,
    KStmt,
    KStore,
    KVar,
    Let,
    i32,
    stmt_exprs,
    walk_expr,
    walk_stmts,
)
from edgerelax.sym import Expr, as_expr, ceildiv, maximum, minimum, upper_bound

MOST = 1 << 30  # a scalar has 32 bits
_MOST_PASSES = 1 << 16  # of a loop; a product with what is inside fits into 64 bits
_MOST_INSIDE = 1 << 46
_UNKNOWN = 16  # passes of a loop whose bounds depend on data
_SLOW = frozenset(("exp", "log", "tanh", "erf", "sigmoid", "pow", "sin", "cos"))
_SLOW_STEPS = 20


def iteration_steps(kernel: Kernel) -> Expr:
    """About how many instructions an iteration takes, from 1 to MOST."""
    lets = {s.name: s.value for s in walk_stmts(kernel.body) if isinstance(s, Let)}
    lets |= {s.name: s.start for s in walk_stmts(kernel.body) if isinstance(s, For)}
    lets[WORKGROUP.name] = i32(0)
    return _capped(1 + _steps(kernel.body, lets, dict(kernel.scalars)), MOST)


def _steps(body: tuple[KStmt, ...], lets: Mapping[str, KExpr], scalars: Mapping[str, Expr]) -> Expr:
    own, total = 0, as_expr(0)
    for stmt in body:
        own += sum(_weight(node) for expr in stmt_exprs(stmt) for node in walk_expr(expr))
        match stmt:
            case For():
                inside = _capped(_steps(stmt.body, lets, scalars), _MOST_INSIDE)
                total += _passes(stmt, lets, scalars) * inside
            case If():
                total += _steps(stmt.then, lets, scalars) + _steps(stmt.other, lets, scalars)
            case KStore():
                own += 1
    return total + own


def _weight(node: KExpr) -> int:
    if isinstance(node, KOp):
        return _SLOW_STEPS if node.fn in _SLOW else 1
    return int(isinstance(node, KLoad))


def _passes(loop: For, lets: Mapping[str, KExpr], scalars: Mapping[str, Expr]) -> Expr:
    start, stop = (_size(e, lets, scalars) for e in (loop.start, loop.stop))
    if start is None or stop is None:
        return as_expr(_UNKNOWN)
    passes = ceildiv(stop - start, loop.step)
    return _capped(maximum(passes, 0, search=False), _MOST_PASSES)


def _size(expr: KExpr, lets: Mapping[str, KExpr], scalars: Mapping[str, Expr]) -> Expr | None:
    """The value of index arithmetic in the first iteration; None where it depends on data."""
    match expr:
        case KConst():
            return as_expr(int(expr.value))
        case KScalar():
            return scalars[expr.name]
        case KVar() if expr.name in lets:
            return _size(lets[expr.name], lets, scalars)
        case KSelect(then=a, other=b):  # of the passes of a loop and none
            x, y = _size(a, lets, scalars), _size(b, lets, scalars)
            return None if x is None or y is None else maximum(x, y, search=False)
        case KOp(fn=fn, args=(a, b)) if fn in _ARITHMETIC:
            x, y = _size(a, lets, scalars), _size(b, lets, scalars)
            return None if x is None or y is None else _ARITHMETIC[fn](x, y)
    return None


def _divided(a: Expr, b: Expr) -> Expr | None:
    """By numbers alone: a size may be 0 where the kernel does not run."""
    if a.as_int() == 0:
        return a
    return a // b if b.is_const and b.constant > 0 else None


def _rest(a: Expr, b: Expr) -> Expr | None:
    quotient = _divided(a, b)
    return None if quotient is None else a - b * quotient


_ARITHMETIC: Mapping[str, Callable[[Expr, Expr], Expr | None]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": lambda a, b: minimum(a, b, search=False),
    "max": lambda a, b: maximum(a, b, search=False),
    "index_div": _divided,
    "index_mod": _rest,
}


def _capped(expr: Expr, most: int) -> Expr:
    bound = upper_bound(expr)
    return expr if bound is not None and bound <= most else minimum(expr, most, search=False)
