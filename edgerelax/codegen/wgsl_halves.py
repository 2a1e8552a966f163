"""Where a kernel may use the f16 of a device that has it, with the results that it had in f32."""

import numpy as np

from edgerelax.ir.dtypes import F16, F32
from edgerelax.ir.kernel import (
    Array,
    Assign,
    KCast,
    KConst,
    Kernel,
    KExpr,
    KLane,
    KSelect,
    KStore,
    KVar,
    KVec,
    Let,
    VarDecl,
    walk_stmts,
)


def uses_halves(kernel: Kernel) -> bool:
    """Whether a kernel's text is another for such a device."""
    return any(p.buffer.dtype == F16 for p in kernel.buffers)


def short_arrays(kernel: Kernel) -> frozenset[str]:
    """Shared arrays of f32 that only ever hold numbers that f16 has: they take half the memory."""
    values: dict[str, KExpr | None] = {}
    stored: dict[str, list[KExpr]] = {}
    for stmt in walk_stmts(kernel.body):
        match stmt:
            case Let(name, value):
                values[name] = None if name in values else value
            case VarDecl(name) | Assign(name):
                values[name] = None
            case Array(name=name, dtype=dtype, shared=True) if dtype == F32:
                stored.setdefault(name, [])
            case KStore(buffer=name, value=value) if name in stored:
                stored[name].append(value)
    return frozenset(n for n, given in stored.items() if all(_is_short(v, values) for v in given))


def _is_short(value: KExpr, values: dict[str, KExpr | None]) -> bool:
    """Whether f16 has the value."""
    match value:
        case KCast(dtype, _, arg):
            return dtype == F32 and arg.dtype == F16
        case KConst(value=number):
            with np.errstate(over="ignore"):
                return float(np.float16(number)) == number
        case KSelect(then=then, other=other):
            return _is_short(then, values) and _is_short(other, values)
        case KVec(parts=parts):
            return all(_is_short(part, values) for part in parts)
        case KLane(vector=vector):
            return _is_short(vector, values)
        case KVar(name=name):
            known = values.get(name)
            return known is not None and _is_short(known, values)
    return False


def short_type(lanes: int) -> str:
    """The type of f16 values of the language."""
    return "f16" if lanes == 1 else f"vec{lanes}<f16>"
