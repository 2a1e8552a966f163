"""Values as strided views of others: where reshapes, transposes, slices and expands put elements.

A dim of a view is a list of parts (size, stride), outermost first: one that was merged from several
which do not adjoin has several parts. So every transpose, expand and merging reshape of a view is a
view, and so is a split whose sizes divide the parts'. Sizes and strides are symbolic; what cannot
be proven is no view.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.graph import Call
from edgerelax.passes.fold_transposes import dims_of
from edgerelax.sym import Expr, as_expr, product, prove_eq, proves_le

Dims = tuple[Expr, ...]
Part = tuple[Expr, Expr]
Parts = tuple[Part, ...]

MOVES = frozenset(("reshape", "transpose", "slice", "expand"))
"""Operators whose result may be a view of their operand."""


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a flat buffer by multi-dimensional index. Dims of 1 have no parts."""

    offset: Expr
    dims: tuple[Parts, ...]

    def permuted(self, perm: Sequence[int]) -> "View":
        return replace(self, dims=tuple(self.dims[p] for p in perm))

    def reshaped(self, dims: Dims) -> "View | None":
        """The same elements in the same order under other dims."""
        left = [part for parts in self.dims for part in parts]
        found = []
        for dim in dims:
            taken = _take(left, dim)
            if taken is None:
                return None
            found.append(taken)
        return None if left else replace(self, dims=tuple(found))

    def strides(self) -> Dims | None:
        """One stride per dim, if one will do."""
        if any(len(parts) > 1 for parts in self.dims):
            return None
        return tuple(parts[0][1] if parts else as_expr(0) for parts in self.dims)


def whole(dims: Dims) -> View:
    """A buffer in row-major order."""
    stride = as_expr(1)
    found: list[Parts] = []
    for dim in reversed(dims):
        found.append(_joined([(dim, stride)]))
        stride = stride * dim
    return View(as_expr(0), tuple(reversed(found)))


def moved(view: View, call: Call, result: Dims) -> View | None:
    """What an operator of MOVES, whose result has these dims, makes of a view of its operand."""
    (source,) = (a for a in call.args if a is not None)
    given = dims_of(source)
    if given is None:
        return None
    match call.op.name:
        case "transpose":
            return view.permuted(_order(call, len(given)))
        case "reshape":
            same = prove_eq(product(given), product(result)) is True
            return view.reshaped(result) if same else None
        case "expand":
            return _expanded(view, given, result)
        case "slice":
            return _sliced(view, call, given, result)
    return None


def unmoved(view: View, call: Call) -> View | None:
    """Where the operand's elements go, given a view that takes the result's; no expands, slices."""
    (source,) = (a for a in call.args if a is not None)
    given = dims_of(source)
    if given is None:
        return None
    if call.op.name == "transpose":
        order = _order(call, len(given))
        return view.permuted([order.index(k) for k in range(len(given))])
    return view.reshaped(given) if call.op.name == "reshape" else None


def _order(call: Call, rank: int) -> list[int]:
    perm = call.attrs["perm"]
    return list(range(rank))[::-1] if perm is None else [p % rank for p in perm]


def broadcast(view: View, given: Dims, result: Dims) -> View | None:
    """A view of dims that broadcast to others, as they then are; None if that is not proven."""
    missing = len(result) - len(given)
    if missing < 0:
        return None
    lead: tuple[Parts, ...] = ((),) * missing
    ones = (as_expr(1),) * missing
    return _expanded(replace(view, dims=(*lead, *view.dims)), (*ones, *given), result)


def common_axes(lists: Sequence[Parts]) -> tuple[Dims, list[Dims]] | None:
    """The fewest axes over which all lists of parts have one stride each: sizes, strides by list.

    The lists cover the same elements. None where sizes do not divide each other.
    """
    left = [list(_joined(parts)) for parts in lists]
    sizes: list[Expr] = []
    strides: list[list[Expr]] = [[] for _ in lists]
    while any(left):
        if not all(left):
            return None
        size = _common_size([parts[0][0] for parts in left])
        if size is None:
            return None
        sizes.append(size)
        for parts, found in zip(left, strides, strict=True):
            taken = _take(parts, size)
            assert taken is not None, "it divides the first part"
            found.append(taken[0][1])
    return tuple(sizes), [tuple(s) for s in strides]


def _common_size(sizes: Sequence[Expr]) -> Expr | None:
    """The one that divides all the others."""
    for size in sizes:
        if all(exact(other, size) is not None for other in sizes):
            return size
    return None


def exact(a: Expr, b: Expr) -> Expr | None:
    """a / b where that is known to leave nothing over."""
    if a == b:
        return as_expr(1)
    if b.as_int() == 0:
        return None
    quotient = a // b
    return quotient if quotient * b == a else None


def _take(left: list[Part], dim: Expr) -> Parts | None:
    """Take parts that make up a dim off the front of a list."""
    taken: list[Part] = []
    need = dim
    while need.as_int() != 1:
        if not left:
            return None
        size, stride = left.pop(0)
        inner = exact(size, need)
        if inner is not None:
            taken.append((need, stride * inner))
            if inner.as_int() != 1:
                left.insert(0, (inner, stride))
            break
        rest = exact(need, size)
        if rest is None:
            return None
        taken.append((size, stride))
        need = rest
    return _joined(taken)


def _joined(parts: Sequence[Part]) -> Parts:
    """Without parts of 1, and those that adjoin made one."""
    found: list[Part] = []
    for size, stride in parts:
        if size.as_int() == 1:
            continue
        if found and found[-1][1] == stride * size:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)


def _expanded(view: View, given: Dims, result: Dims) -> View | None:
    lead = len(result) - len(given)
    if lead < 0:
        return None
    dims: list[Parts] = [_joined([(d, as_expr(0))]) for d in result[:lead]]
    for parts, dim, size in zip(view.dims, given, result[lead:], strict=True):
        if prove_eq(dim, size) is True:
            dims.append(parts)
        elif prove_eq(dim, 1) is True:
            dims.append(_joined([(size, as_expr(0))]))
        else:
            return None
    return replace(view, dims=tuple(dims))


def _sliced(view: View, call: Call, given: Dims, result: Dims) -> View | None:
    """Forward steps from where nothing needs to be clamped."""
    starts, axes = call.attrs["starts"], call.attrs["axes"]
    steps = call.attrs["steps"] or (1,) * len(starts)
    dims, offset = list(view.dims), view.offset
    named = range(len(starts)) if axes is None else axes
    for at, start, step in zip(named, map(as_expr, starts), map(as_expr, steps), strict=True):
        axis = at % len(given)
        first = given[axis] + start if proves_le(start, -1) else start
        inside = proves_le(0, first) and proves_le(first, given[axis])
        if not inside or not proves_le(1, step) or len(dims[axis]) > 1:
            return None
        stride = dims[axis][0][1] if dims[axis] else as_expr(0)
        offset = offset + first * stride
        dims[axis] = _joined([(result[axis], stride * step)])
    return View(offset, tuple(dims))
