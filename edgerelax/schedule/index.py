"""Index expressions as kernel arithmetic.

A polynomial is split by what binds it: its axis-free coefficients become parameters that the host
computes, and the partial sum of what each enclosing block binds is named in that block, so that
inner loops add only what they change.
"""

from collections.abc import Callable
from functools import lru_cache

from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import KConst, KExpr, KSelect, i32, kop
from edgerelax.ir.scalar import Buffer, Load, Scalar
from edgerelax.schedule.writer import Cell, Lanes, Writer
from edgerelax.sym import (
    Atom,
    Axis,
    Expr,
    ExprLike,
    FloorDiv,
    Max,
    Min,
    Opaque,
    Select,
    as_expr,
    ceildiv,
    divisible,
    product,
    prove_nonneg,
    proves_lt,
)

Gather = Callable[[Scalar], tuple[KExpr, int]]


def flat_index(buffer: Buffer, index: tuple[Expr, ...]) -> Expr:
    """The row-major number of an element."""
    return _row_major(buffer.dims, index)


def _row_major(dims: tuple[Expr, ...], index: tuple[Expr, ...]) -> Expr:
    flat = as_expr(0)
    for dim, at in zip(dims, index, strict=True):
        flat = flat * dim + at
    return flat


def numel(buffer: Buffer) -> Expr:
    """How many elements a buffer has."""
    total = as_expr(1)
    for dim in buffer.dims:
        total = total * dim
    return total


def in_bounds(load: Load) -> bool:
    """Whether it is proven that the load is in range wherever its axes are."""
    return _are_inside(load.buffer.dims, _with_common_names(load.index))


@lru_cache(1 << 14)
def _are_inside(dims: tuple[Expr, ...], index: tuple[Expr, ...]) -> bool:
    """Whether each index is in its dim, or all together in the buffer."""
    if all(prove_nonneg(at) and proves_lt(at, dim) for at, dim in zip(index, dims, strict=True)):
        return True
    flat = _row_major(dims, index)
    return prove_nonneg(flat) and proves_lt(flat, product(dims))


def _with_common_names(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The index over axes named by their order.

    What differs in names alone, as the copies of an unrolled load do, is then proved once.
    """
    if any(e.has_opaque for e in index):
        return index  # what is loaded inside would be made anew
    axes = sorted(frozenset().union(*(e.axes() for e in index)), key=lambda a: a.order)
    swaps: dict[Atom, ExprLike] = {a: Axis(f"{k:04}", a.extent) for k, a in enumerate(axes)}
    return tuple(e.subs(swaps) for e in index)


def stride_of(expr: Expr, axis: Axis) -> Expr | None:
    """The coefficient of an axis in which the expression is linear; None if it is not."""
    stride = as_expr(0)
    for coeff, mono in expr.terms():
        rest = [a for a in mono if a is not axis]
        if len(mono) - len(rest) > 1 or any(axis in as_expr(a).axes() for a in rest):
            return None
        if len(rest) < len(mono):
            stride = stride + product(rest) * coeff
    return stride


def is_one(expr: Expr | None) -> bool:
    """Whether a stride is 1."""
    return expr is not None and expr.as_int() == 1


def is_parameter(atom: Atom) -> bool:
    """Whether the host can compute it: no loop axis and nothing loaded inside."""
    expr = as_expr(atom)
    return not expr.axes() and not any(isinstance(a, Opaque) for a in expr.atoms())


class Indexer:
    """Writes index expressions into the open blocks of a writer."""

    def __init__(self, writer: Writer, gather: Gather) -> None:
        self.w = writer
        self.gather = gather

    def value(self, expr: Expr) -> KExpr:
        """The expression's value, an i32."""
        return self.cell(expr)[0]

    def cell(self, expr: Expr) -> tuple[KExpr, int]:
        """The value and the block from which on it holds."""
        key = ("index", expr)
        found = self.w.find(key)
        if found is None:
            value, depth = self._sum(expr)
            found = Cell(value, depth)
            self.w.blocks[depth].memo[key] = found
        return found.expr, found.depth

    def lane_axes(self, expr: Expr) -> dict[Axis, Lanes]:
        """The axes of an expression that are bound to four values."""
        bound = {a: self.w.lanes(a) for a in expr.axes()}
        return {a: b for a, b in bound.items() if b is not None}

    def in_lane(self, expr: Expr, lane: int) -> Expr:
        """The same expression for one lane."""
        return expr.subs({a: b.clones[lane] for a, b in self.lane_axes(expr).items()})

    def lane_stride(self, expr: Expr) -> Expr | None:
        """How far apart neighbouring lanes are; None if not all as far."""
        total = as_expr(0)
        for axis, lanes in self.lane_axes(expr).items():
            stride = stride_of(expr, axis) if lanes.consecutive else None
            if stride is None:
                return None
            total = total + stride
        return total

    def is_aligned(self, expr: Expr) -> bool:
        """Whether lane 0 is a multiple of 4."""
        swaps: dict[Atom, ExprLike] = {}
        for axis, lanes in self.lane_axes(expr).items():
            if not lanes.aligned:
                return False
            swaps[axis] = as_expr(Axis(f"{axis.name}@quad", ceildiv(axis.extent, 4))) * 4
        return divisible(expr.subs(swaps), 4) is True

    # sums and products

    def _sum(self, expr: Expr) -> tuple[KExpr, int]:
        """Add up the terms from the outermost block inwards."""
        levels: dict[int, list[KExpr]] = {}
        for mono, coefficient in _by_loop_part(expr).items():
            if not mono:
                levels.setdefault(0, []).append(self.w.params.scalar(coefficient))
                continue
            cells = [self._atom(a) for a in mono]
            value = cells[0][0]
            for factor, _ in cells[1:]:
                value = kop("mul", value, factor)
            value = _times(value, self.w.params.scalar(coefficient))
            levels.setdefault(max(d for _, d in cells), []).append(value)
        total: KExpr = i32(0)
        depth = 0
        for level in sorted(levels):
            if level > depth and not isinstance(total, KConst):
                total = self.w.share("o", total, self.w.placement(depth))
            depth = level
            for value in levels[level]:
                total = _plus(total, value)
        place = self.w.placement(depth)
        return self.w.share("o", total, place), place

    def _atom(self, atom: Atom) -> tuple[KExpr, int]:
        if isinstance(atom, Axis):
            value, depth = self.w.lookup(atom)
            assert not isinstance(value, Lanes), f"{atom} has four values here"
            return value, depth
        found = self.w.find(atom)
        if found is None:
            value, depth = self._compute(atom)
            place = self.w.placement(depth)
            found = Cell(self.w.share("a", value, place), place)
            self.w.blocks[place].memo[atom] = found
        return found.expr, found.depth

    def _compute(self, atom: Atom) -> tuple[KExpr, int]:
        match atom:
            case FloorDiv():
                return self._divide(atom.num, atom.den)
            case Min() | Max():
                cells = [self.cell(a) for a in atom.args]
                value = cells[0][0]
                for other, _ in cells[1:]:
                    value = kop("min" if isinstance(atom, Min) else "max", value, other)
                return value, max(d for _, d in cells)
            case Select():
                tested, depth = self.cell(atom.cond.expr)
                (then, d1), (other, d2) = self.cell(atom.then), self.cell(atom.other)
                cond = kop(atom.cond.kind, tested, i32(0))
                return KSelect(I32, 1, cond, then, other), max(depth, d1, d2)
            case Opaque():
                return self.gather(atom.payload)
        raise TypeError(f"{atom} cannot be computed in a kernel")

    def _divide(self, num: Expr, den: Expr) -> tuple[KExpr, int]:
        if den.as_int() == 0:
            return i32(0), 0  # inside a loop over nothing; WGSL refuses such a division
        (a, d1), (b, d2) = self.cell(num), self.cell(den)
        if prove_nonneg(num) is True and proves_lt(0, den):
            return kop("index_div", a, b), max(d1, d2)
        return kop("div", kop("sub", a, kop("mod", a, b)), b), max(d1, d2)


def _by_loop_part(expr: Expr) -> dict[tuple[Atom, ...], Expr]:
    """Coefficients by the product of atoms, which change inside the kernel, that they go with."""
    found: dict[tuple[Atom, ...], Expr] = {}
    for coeff, mono in expr.terms():
        inner = tuple(a for a in mono if not is_parameter(a))
        outer = product([a for a in mono if is_parameter(a)])
        found[inner] = found.get(inner, as_expr(0)) + outer * coeff
    return found


def _plus(a: KExpr, b: KExpr) -> KExpr:
    if isinstance(a, KConst) and isinstance(b, KConst):
        return i32(int(a.value) + int(b.value))
    if isinstance(a, KConst) and a.value == 0:
        return b
    return kop("add", a, b)


def _times(a: KExpr, b: KExpr) -> KExpr:
    return a if isinstance(b, KConst) and b.value == 1 else kop("mul", a, b)
