"""What integers a scalar expression can be, whatever its buffers hold."""

from edgerelax.ir.dtypes import DType
from edgerelax.ir.scalar import Cast, Const, Op, Scalar, Select, Value
from edgerelax.sym import bounds

Range = tuple[int, int]


def range_of(node: Scalar) -> Range:
    """The least and greatest value of an integer expression, as far as its operations tell."""
    least, most = node.dtype.int_range
    match node:
        case Const(value=value):
            return int(value), int(value)
        case Value(expr=expr):
            lo, hi = bounds(expr)
            return _within((least if lo is None else lo, most if hi is None else hi), node.dtype)
        case Cast(arg=arg) if arg.dtype.kind == "bool":
            return 0, 1
        case Cast(arg=arg) if arg.dtype.is_integer:
            return _within(range_of(arg), node.dtype)
        case Select(then=then, other=other):
            (a, b), (c, d) = range_of(then), range_of(other)
            return min(a, c), max(b, d)
        case Op(fn=fn, operands=operands):
            if all(a.dtype == node.dtype for a in operands):
                found = _applied(fn, [range_of(a) for a in operands])
                return (least, most) if found is None else _within(found, node.dtype)
    return least, most


def _within(found: Range, dtype: DType) -> Range:
    """The range, or that of the type if values wrap."""
    least, most = dtype.int_range
    return found if least <= found[0] and found[1] <= most else (least, most)


def _applied(fn: str, given: list[Range]) -> Range | None:
    """The range of a function's results; None if it is not known."""
    if fn == "neg":
        ((a, b),) = given
        return -b, -a
    if len(given) != 2:
        return None
    (a, b), (c, d) = given
    match fn:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            ends = (a * c, a * d, b * c, b * d)
            return min(ends), max(ends)
        case "min" | "max":
            take = min if fn == "min" else max
            return take(a, c), take(b, d)
        case "shl" if c >= 0 and d < 64:
            ends = (a << c, a << d, b << c, b << d)
            return min(ends), max(ends)
        case "shr" if c >= 0:
            ends = (a >> min(c, 64), a >> min(d, 64), b >> min(c, 64), b >> min(d, 64))
            return min(0, *ends), max(0, *ends)
        case "bit_and" if a >= 0 or c >= 0:
            return 0, min(h for low, h in given if low >= 0)
        case "bit_or" | "bit_xor" if a >= 0 and c >= 0:
            return 0, (1 << max(b, d).bit_length()) - 1
    return None
