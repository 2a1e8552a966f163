"""What every printer does to a kernel first: unroll, fold constants, make registers of arrays.

Afterwards no loop is marked `unroll`, no operation has only constant operands, no branch has a
constant condition, and a private array whose indices are all constant is a set of variables.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.dtypes import BOOL, I32
from edgerelax.ir.kernel import (
    Array,
    Assign,
    For,
    If,
    KCast,
    KConst,
    Kernel,
    KExpr,
    KLane,
    KLoad,
    KOp,
    KSelect,
    KStmt,
    KStore,
    KVar,
    KVec,
    Let,
    VarDecl,
    operands,
    walk_exprs,
    walk_stmts,
    with_operands,
)
from edgerelax.ir.kernel_interp import apply, compute_type, convert


def expand(kernel: Kernel) -> Kernel:
    """The same kernel, ready to be printed."""
    body = _block(kernel.body, _Scope(serial=kernel.device == "cpu"))
    return replace(kernel, body=_split_arrays(body))


@dataclass(slots=True)
class _Scope:
    """What names stand for: constants, or their copies in an iteration of an unrolled loop."""

    values: dict[str, KExpr] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    suffix: str = ""
    serial: bool = False  # nobody to share arrays with

    def inner(self, suffix: str = "") -> "_Scope":
        return _Scope(dict(self.values), dict(self.arrays), self.suffix + suffix, self.serial)

    def declare(self, name: str, value: KExpr) -> str:
        fresh = name + self.suffix
        self.values[name] = KVar(value.dtype, value.lanes, fresh)
        return fresh


def _block(body: Iterable[KStmt], scope: _Scope) -> tuple[KStmt, ...]:
    done: list[KStmt] = []
    for stmt in body:
        done.extend(_stmt(stmt, scope))
    return tuple(done)


def _stmt(stmt: KStmt, scope: _Scope) -> tuple[KStmt, ...]:
    match stmt:
        case Let(name, value):
            new = _expr(value, scope)
            if isinstance(new, KConst):
                scope.values[name] = new
                return ()
            return (Let(scope.declare(name, new), new),)
        case VarDecl(name, value):
            new = _expr(value, scope)
            return (VarDecl(scope.declare(name, new), new),)
        case Assign(name, value):
            target = scope.values.get(name)
            fresh = target.name if isinstance(target, KVar) else name
            return (Assign(fresh, _expr(value, scope)),)
        case Array():
            if stmt.shared and not scope.serial:
                return (stmt,)
            scope.arrays[stmt.name] = stmt.name + scope.suffix
            return (replace(stmt, name=scope.arrays[stmt.name], shared=False),)
        case KStore():
            return (
                replace(
                    stmt,
                    buffer=scope.arrays.get(stmt.buffer, stmt.buffer),
                    index=_expr(stmt.index, scope),
                    value=_expr(stmt.value, scope),
                ),
            )
        case For():
            return _loop(stmt, scope)
        case If(cond, then, other):
            test = _expr(cond, scope)
            if isinstance(test, KConst):
                return _block(then if test.value else other, scope.inner())
            return (If(test, _block(then, scope.inner()), _block(other, scope.inner())),)
    return (stmt,)


def _loop(loop: For, scope: _Scope) -> tuple[KStmt, ...]:
    start, stop = _expr(loop.start, scope), _expr(loop.stop, scope)
    if not loop.unroll:
        inner = scope.inner()
        name = inner.declare(loop.name, start)
        return (replace(loop, name=name, start=start, stop=stop, body=_block(loop.body, inner)),)
    if not (isinstance(start, KConst) and isinstance(stop, KConst)):
        raise ValueError(f"unrolled loop {loop.name} has bounds that are not constant")
    done: list[KStmt] = []
    for k in range(int(start.value), int(stop.value), loop.step):
        inner = scope.inner(f".{k}")
        inner.values[loop.name] = KConst(I32, 1, k)
        done.extend(_block(loop.body, inner))
    return tuple(done)


def _expr(expr: KExpr, scope: _Scope) -> KExpr:
    if isinstance(expr, KVar):
        return scope.values.get(expr.name, expr)
    inside = operands(expr)
    if not inside:
        return expr
    expr = with_operands(expr, tuple(_expr(e, scope) for e in inside))
    if isinstance(expr, KLoad):
        return replace(expr, buffer=scope.arrays.get(expr.buffer, expr.buffer))
    return simplify(expr)


def simplify(expr: KExpr) -> KExpr:
    """Fold one node whose operands are folded."""
    match expr:
        case KOp(fn=fn, args=args):
            if all(isinstance(a, KConst) for a in args):
                return _fold(expr)
            if args[0].dtype.is_integer and len(args) == 2:
                return _identity(expr, fn, args[0], args[1])
        case KCast(dtype=dtype, arg=KConst() as arg):
            with np.errstate(all="ignore"):
                return KConst(dtype, expr.lanes, convert(_held(arg), arg.dtype, dtype).item())
        case KSelect(cond=KConst() as cond):
            return expr.then if cond.value else expr.other
        case KVec(parts=(KConst() as part,)):
            return replace(part, lanes=expr.lanes)
        case KLane(vector=KConst() as vector):
            return replace(vector, lanes=1)
        case KLane(vector=KVec(parts=parts), lane=lane) if len(parts) > 1:
            return parts[lane]
    return expr


def _held(const: KConst) -> npt.NDArray[Any]:
    with np.errstate(all="ignore"):
        return np.asarray(const.value).astype(const.dtype.numpy).astype(compute_type(const.dtype))


def _fold(op: KOp) -> KConst:
    held = [_held(a) for a in op.args if isinstance(a, KConst)]
    with np.errstate(all="ignore"):
        value = apply(op.fn, op.args[0].dtype, held)
    return KConst(op.dtype, op.lanes, value.item())


def _is(expr: KExpr, value: int) -> bool:
    return isinstance(expr, KConst) and expr.value == value


def _identity(op: KExpr, fn: str, a: KExpr, b: KExpr) -> KExpr:
    """x + 0, x * 1, x / 1 and the like; (x + c) + d for indices."""
    match fn:
        case "add":
            if _is(a, 0):
                return b
            if _is(b, 0):
                return a
            if isinstance(b, KConst) and isinstance(a, KOp) and a.fn == "add":
                first, second = a.args
                if isinstance(second, KConst):
                    total = _fold(KOp(op.dtype, op.lanes, "add", (second, b)))
                    return simplify(KOp(op.dtype, op.lanes, "add", (first, total)))
            if isinstance(a, KConst):
                return simplify(KOp(op.dtype, op.lanes, "add", (b, a)))
        case "sub" | "shl" | "shr" if _is(b, 0):
            return a
        case "mul":
            if _is(a, 0) or _is(b, 0):
                return KConst(op.dtype, op.lanes, 0)
            if _is(a, 1):
                return b
            if _is(b, 1):
                return a
        case "div" | "index_div" if _is(b, 1):
            return a
        case "mod" | "index_mod" if _is(b, 1):
            return KConst(op.dtype, op.lanes, 0)
    return op


def _split_arrays(body: tuple[KStmt, ...]) -> tuple[KStmt, ...]:
    arrays = {s.name: s for s in walk_stmts(body) if isinstance(s, Array) and not s.shared}
    for expr in walk_exprs(body):
        if isinstance(expr, KLoad) and not isinstance(expr.index, KConst):
            arrays.pop(expr.buffer, None)
    for stmt in walk_stmts(body):
        if isinstance(stmt, KStore) and not isinstance(stmt.index, KConst):
            arrays.pop(stmt.buffer, None)
    return _registers(body, arrays) if arrays else body


def _registers(body: tuple[KStmt, ...], arrays: dict[str, Array]) -> tuple[KStmt, ...]:
    done: list[KStmt] = []
    for stmt in body:
        match stmt:
            case Array(name=name) if name in arrays:
                zero = KConst(stmt.dtype, stmt.lanes, False if stmt.dtype == BOOL else 0)
                done.extend(VarDecl(f"{name}.{k}", zero) for k in range(stmt.size))
            case KStore(buffer=name, index=KConst(value=at)) if name in arrays:
                done.extend(
                    _set_registers(arrays[name], int(at), _registers_in(stmt.value, arrays))
                )
            case KStore():
                index, value = (_registers_in(e, arrays) for e in (stmt.index, stmt.value))
                done.append(replace(stmt, index=index, value=value))
            case Let() | VarDecl() | Assign():
                done.append(replace(stmt, value=_registers_in(stmt.value, arrays)))
            case For():
                start, stop = (_registers_in(e, arrays) for e in (stmt.start, stmt.stop))
                inner = _registers(stmt.body, arrays)
                done.append(replace(stmt, start=start, stop=stop, body=inner))
            case If(cond, then, other):
                test = _registers_in(cond, arrays)
                done.append(If(test, _registers(then, arrays), _registers(other, arrays)))
            case _:
                done.append(stmt)
    return tuple(done)


def _set_registers(array: Array, at: int, value: KExpr) -> tuple[KStmt, ...]:
    if value.lanes == array.lanes:
        return (Assign(f"{array.name}.{at}", value),)
    whole = KVar(value.dtype, value.lanes, f"{array.name}.new{at}")
    lanes = (
        Assign(f"{array.name}.{at + k}", KLane(value.dtype, 1, whole, k))
        for k in range(value.lanes)
    )
    return (Let(whole.name, value), *lanes)


def _registers_in(expr: KExpr, arrays: dict[str, Array]) -> KExpr:
    match expr:
        case KLoad(dtype=dtype, lanes=lanes, buffer=name, index=KConst(value=at)) if name in arrays:
            wide = arrays[name].lanes
            first = int(at)
            if lanes == wide:
                return KVar(dtype, lanes, f"{name}.{first}")
            parts = tuple(KVar(dtype, 1, f"{name}.{first + k}") for k in range(lanes))
            return KVec(dtype, lanes, parts)
    inside = operands(expr)
    if not inside:
        return expr
    return with_operands(expr, tuple(_registers_in(e, arrays) for e in inside))
