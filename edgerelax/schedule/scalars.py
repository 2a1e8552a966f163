"""Scalar trees as kernel expressions: the step that every strategy shares.

Axes are bound in the writer, to one value or to four (`Lanes`). A tree that does not vary over a
four-valued axis becomes a scalar; one that does becomes a 4-lane vector: its loads are 4-lane
loads where they are contiguous, else four scalar loads. What has no vector form (64-bit types,
choices between loads that differ from lane to lane) is computed lane by lane and gathered.

Every node is computed once per block it is needed in, and in the outermost loop that allows it.
Loads that are not provably in range stay inside the branch that guards them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edgerelax.ir.dtypes import I32, I64, DType
from edgerelax.ir.kernel import KConst, KExpr, KLane, KLoad, KSelect, KVec, i32, kop
from edgerelax.ir.scalar import (
    PREDICATES,
    Acc,
    Buffer,
    Cast,
    Const,
    Load,
    Op,
    Scalar,
    Select,
    Value,
    gathers,
    op,
    own_exprs,
    rebuild,
    rewrite,
    substitute,
    walk,
)
from edgerelax.schedule.index import Indexer, flat_index, in_bounds, is_one
from edgerelax.schedule.reduce import Quad, convert, lanes_of, splat
from edgerelax.schedule.writer import Cell, Writer
from edgerelax.sym import Atom, Axis, Expr, ExprLike, as_expr

_MAX_HEIGHT = 16  # of an expression that stands unnamed in the text
_MAX_ARM = 12  # operations worth computing on both sides of a choice rather than to branch
_MAX_MASKED = 4  # loads worth doing where they are not needed rather than lane by lane
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


@dataclass(frozen=True, eq=False)
class Held(Scalar):
    """A value that a register holds: the result of an earlier stage of the same kernel."""

    name: str
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type


@dataclass(frozen=True, eq=False)
class LaneOf(Scalar):
    """One lane of a held vector."""

    vector: Scalar
    lane: int

    @property
    def dtype(self) -> DType:
        return self.vector.dtype


@dataclass(frozen=True, eq=False)
class Masked(Scalar):
    """A load that may be out of range where `cond` is false: it then loads element 0, unused."""

    load: Load
    cond: Scalar

    @property
    def dtype(self) -> DType:
        return self.load.dtype


def masked(root: Scalar, cond: Scalar, safe: Callable[[Scalar], bool]) -> Scalar:
    """The tree with its unsafe loads masked, so that it can be computed everywhere."""
    done: dict[Scalar, Scalar] = {}
    for node in strict_nodes(root):
        if isinstance(node, Select):
            own = done[node.cond]
            then = masked(node.then, op("and", cond, own), safe)
            other = masked(node.other, op("and", cond, op("not", own)), safe)
            done[node] = Select(own, then, other)
        elif isinstance(node, Load) and not safe(node):
            done[node] = Masked(node, cond)
        else:
            done[node] = rebuild(node, tuple(done[a] for a in node.args))
    return done[root]


def has_vectors(dtype: DType) -> bool:
    """Whether four of them are one vector."""
    return dtype.bits <= 32


def strict_nodes(root: Scalar) -> Iterator[Scalar]:
    """What evaluating the tree always computes, operands first; arms of choices left out."""
    seen: set[Scalar] = set()
    todo: list[tuple[Scalar, bool]] = [(root, False)]
    while todo:
        node, ready = todo.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            todo.append((node, True))
            args = (node.cond,) if isinstance(node, Select) else node.args
            todo.extend((a, False) for a in reversed(args))


class Scalars:
    """Computes scalar trees inside one kernel."""

    def __init__(self, writer: Writer) -> None:
        self.w = writer
        self.index = Indexer(writer, self._gather)
        self._axes: dict[Scalar, frozenset[Axis]] = {}
        self._held: dict[Scalar, frozenset[Scalar]] = {}
        self._safe: dict[Scalar, bool] = {}
        self._varying: dict[object, bool] = {}

    # what callers use

    def hold(self, leaf: Held, value: KExpr) -> None:
        """Say what a leaf stands for, in the open block."""
        self.w.blocks[-1].memo[leaf] = Cell(value, self.w.depth)

    def value(self, root: Scalar) -> KExpr:
        """The tree's value: a vector if it varies over lanes. Not for varying 64-bit trees."""
        found = self.w.find(root)
        if found is not None:
            return found.expr
        order, uses = self._plan(root)
        for node in order:
            self._compute(node, uses[node])
        cell = self.w.find(root)
        assert cell is not None
        return cell.expr

    def parts(self, root: Scalar) -> Quad:
        """The tree's value in each of the four lanes."""
        if not self.varies(root):
            one = self.value(root)
            return one, one, one, one
        if has_vectors(root.dtype) and not self._lane_by_lane(root):
            vector = self.w.let("v", self.value(root))
            return lanes_of(vector)
        a, b, c, d = (self.value(self.in_lane(root, k)) for k in range(4))
        return a, b, c, d

    def varies(self, root: Scalar) -> bool:
        """Whether the value may differ from lane to lane."""
        todo = [root]
        while todo:
            node = todo.pop()
            if self._settled(node) is not None:
                continue
            if _is_index_comparison(node):
                self._varying[self._in_lanes(node)] = not self._is_uniform(node)
            elif not isinstance(node, Op | Cast | Select):
                self._varying[self._in_lanes(node)] = True
            else:
                found = [self._settled(a) for a in node.args]
                if True in found or None not in found:
                    self._varying[self._in_lanes(node)] = True in found
                else:
                    todo += [node, *(a for a in node.args if self._settled(a) is None)]
        return self._settled(root) is True

    def _settled(self, node: Scalar) -> bool | None:
        """What `varies` says, if it needs no look at the operands or has had it."""
        if any(self._held_vector(leaf) for leaf in self.held(node)):
            return True
        key = self._in_lanes(node)
        return self._varying.get(key) if key[1] else False

    def _in_lanes(self, node: Scalar) -> tuple[Scalar, frozenset[object]]:
        """A node, and how the axes that it depends on lie over lanes."""
        bound = {a: b for a in self.axes(node) if (b := self.w.lanes(a)) is not None}
        return node, frozenset((a, b.consecutive, b.aligned) for a, b in bound.items())

    def _is_uniform(self, node: Scalar) -> bool:
        """Whether four aligned neighbours lie on one side of a bound that is a multiple of 4."""
        assert isinstance(node, Op)
        gap = _index_of(node.operands[0]) - _index_of(node.operands[1])
        if node.fn not in ("lt", "ge") or not is_one(self.index.lane_stride(gap)):
            return not self.index.lane_axes(gap)
        return self.index.is_aligned(gap)

    def in_lane(self, node: Scalar, lane: int) -> Scalar:
        """The same tree for one lane."""
        swaps: dict[Atom, ExprLike] = {}
        for axis in self.axes(node):
            bound = self.w.lanes(axis)
            if bound is not None:
                swaps[axis] = bound.clones[lane]

        def leaf(n: Scalar) -> Scalar | None:
            if isinstance(n, Masked):
                load = n.load.subs(swaps)
                assert isinstance(load, Load)
                return Masked(load, self.in_lane(n.cond, lane))
            if isinstance(n, Acc | Held) and self._held_vector(n):
                return LaneOf(n, lane)
            return None

        return rewrite(substitute(node, swaps) if swaps else node, leaf)

    def axes(self, node: Scalar) -> frozenset[Axis]:
        """Every axis it depends on, those inside gathers included."""
        self._traits(node)
        return self._axes[node]

    def held(self, node: Scalar) -> frozenset[Scalar]:
        """The held leaves it depends on."""
        self._traits(node)
        return self._held[node]

    # analysis

    def _traits(self, root: Scalar) -> None:
        todo: list[tuple[Scalar, bool]] = [(root, False)]
        while todo:
            node, ready = todo.pop()
            if node in self._axes:
                continue
            hidden = (node.load, node.cond) if isinstance(node, Masked) else ()
            inner = [*node.args, *hidden, *(g for e in own_exprs(node) for g in gathers(e))]
            if not ready:
                todo.append((node, True))
                todo.extend((n, False) for n in inner)
                continue
            axes = [e.axes() for e in own_exprs(node)]
            self._axes[node] = frozenset().union(*axes, *(self._axes[n] for n in inner))
            held = frozenset((node,)) if isinstance(node, Acc | Held) else frozenset()
            self._held[node] = held.union(*(self._held[n] for n in inner))

    def _held_vector(self, leaf: Scalar) -> bool:
        cell = self.w.find(leaf)
        return cell is not None and cell.expr.lanes > 1

    def _plan(self, root: Scalar) -> tuple[list[Scalar], dict[Scalar, int]]:
        """The nodes to compute, in order, and how often each is used."""
        order: list[Scalar] = []
        uses: dict[Scalar, int] = {root: 1}
        seen: set[Scalar] = set()
        todo: list[tuple[Scalar, bool]] = [(root, False)]
        while todo:
            node, ready = todo.pop()
            if ready:
                order.append(node)
                continue
            if node in seen or self.w.find(node) is not None:
                continue
            seen.add(node)
            todo.append((node, True))
            args = self._operands(node)
            for arg in args:
                uses[arg] = uses.get(arg, 0) + 1
            todo.extend((a, False) for a in reversed(args))
        return order, uses

    def _operands(self, node: Scalar) -> tuple[Scalar, ...]:
        """What must be computed before the node, by `_plan`'s walk."""
        if _is_index_comparison(node) or (isinstance(node, Cast) and isinstance(node.arg, Value)):
            return ()
        if self.varies(node) and self._lane_by_lane(node):
            return ()
        return (node.cond,) if isinstance(node, Select | Masked) else node.args

    def _lane_by_lane(self, node: Scalar) -> bool:
        """Whether a varying node has no vector form."""
        if _is_index_comparison(node) or (isinstance(node, Cast) and isinstance(node.arg, Value)):
            return not has_vectors(node.dtype)
        wide = (node, *node.args)
        if any(not has_vectors(n.dtype) and self.varies(n) for n in wide):
            return True
        if isinstance(node, Select) and self.varies(node.cond):
            return self._unsafe_loads(node.then) + self._unsafe_loads(node.other) > _MAX_MASKED
        return False

    def _unsafe_loads(self, arm: Scalar) -> int:
        return sum(isinstance(n, Load) and not self.is_safe(n) for n in walk(arm))

    def is_safe(self, root: Scalar) -> bool:
        """Whether it may be computed where it is not asked for: all its loads are in range.

        Those in the arms of choices too: outside its own guard a condition proves nothing.
        """
        known = self._safe.get(root)
        if known is None:
            known = all(self._safe_here(n) for n in walk(root))
            self._safe[root] = known
        return known

    def _safe_here(self, node: Scalar) -> bool:
        if isinstance(node, Load) and not in_bounds(node):
            return False
        return all(self.is_safe(g) for e in own_exprs(node) for g in gathers(e))

    # computing

    def _done(self, node: Scalar, expr: KExpr, depth: int, uses: int, stem: str = "t") -> None:
        """Remember a value, under a name if it is used again or belongs to an outer block."""
        place = self.w.placement(depth)
        height = 1 + max((c.height for a in node.args if (c := self.w.find(a))), default=0)
        if uses > 1 or place < self.w.depth or height > _MAX_HEIGHT or isinstance(node, Load):
            expr = self.w.let(stem, expr, place)
            height = 0
        self.w.blocks[place].memo[node] = Cell(expr, place, height)

    def _arg(self, node: Scalar) -> Cell:
        cell = self.w.find(node)
        assert cell is not None, f"{node} has not been computed"
        return cell

    def _compute(self, node: Scalar, uses: int) -> None:
        if self.w.find(node) is not None:
            return
        if self.varies(node) and self._lane_by_lane(node):
            lanes = self.parts(node)
            self._done(node, KVec(node.dtype, 4, lanes), self.w.depth, uses + 1)
            return
        match node:
            case Const():
                self._done(node, KConst(node.type, 1, node.value), 0, 1)
            case Value():
                self._index_value(node, node.expr, uses)
            case Load():
                self._load(node)
            case Cast(arg=Value() as arg):
                self._index_value(node, arg.expr, uses)
            case Cast():
                arg_cell = self._arg(node.arg)
                self._done(node, convert(arg_cell.expr, node.type), arg_cell.depth, uses)
            case Op():
                self._op(node, uses)
            case Select():
                self._select(node, uses)
            case Masked():
                self._load_masked(node)
            case LaneOf():
                cell = self._arg(node.vector)
                self._done(node, KLane(node.dtype, 1, cell.expr, node.lane), cell.depth, 1)
            case _:
                raise TypeError(f"no value is known for {node}")

    def _index_value(self, node: Scalar, expr: Expr, uses: int) -> None:
        known = expr.as_int()
        if known is not None and not _fits(known):
            self._done(node, convert(KConst(I64, 1, known), node.dtype), 0, 1)
            return
        index, depth = self._vector_index(expr)
        self._done(node, convert(index, node.dtype), depth, uses)

    def _op(self, node: Op, uses: int) -> None:
        if _is_index_comparison(node):
            sides = [self._side(node, _index_of(a)) for a in node.operands]
            depth = max(d for _, d in sides)
            self._done(node, kop(node.fn, *(e for e, _ in sides)), depth, uses)
            return
        cells = [self._arg(a) for a in node.operands]
        depth = max(c.depth for c in cells)
        self._done(node, kop(node.fn, *(c.expr for c in cells)), depth, uses)

    def _side(self, comparison: Op, expr: Expr) -> tuple[KExpr, int]:
        if self.varies(comparison):
            return self._vector_index(expr)
        return self.index.cell(self.index.in_lane(expr, 0))

    def _vector_index(self, expr: Expr) -> tuple[KExpr, int]:
        """An index expression as an i32 value, of four lanes if it varies."""
        if not self.index.lane_axes(expr):
            return self.index.cell(expr)
        stride = self.index.lane_stride(expr)
        step = None if stride is None else stride.as_int()
        if step is not None:
            base, depth = self.index.cell(self.index.in_lane(expr, 0))
            steps = tuple(i32(k * step) for k in range(4))
            return kop("add", splat(base, 4), KVec(I32, 4, steps)), depth
        cells = [self.index.cell(self.index.in_lane(expr, k)) for k in range(4)]
        return KVec(I32, 4, tuple(e for e, _ in cells)), max(d for _, d in cells)

    def _load(self, node: Load) -> None:
        self.w.use(node.buffer)
        depth = self._load_depth(node)
        flat = flat_index(node.buffer, node.index)
        if not self.varies(node):
            self._done(node, self._read(node.buffer, flat, 1, True), depth, 1, "x")
            return
        stride = self.index.lane_stride(flat)
        if is_one(stride):
            first = self.index.in_lane(flat, 0)
            aligned = self.index.is_aligned(flat)
            self._done(node, self._read(node.buffer, first, 4, aligned), depth, 1, "x")
            return
        lanes = tuple(
            self._read(node.buffer, self.index.in_lane(flat, k), 1, True) for k in range(4)
        )
        self._done(node, KVec(node.dtype, 4, lanes), depth, 1, "x")

    def _read(self, buffer: Buffer, flat: Expr, lanes: int, aligned: bool) -> KExpr:
        return KLoad(buffer.dtype, lanes, buffer.name, self.index.cell(flat)[0], aligned)

    def _load_masked(self, node: Masked) -> None:
        buffer = node.load.buffer
        self.w.use(buffer)
        flat = flat_index(buffer, node.load.index)
        cond = self._arg(node.cond)
        depth = max((self.w.lookup(a)[1] for a in self.axes(node)), default=0)

        def read(inside: KExpr, at: Expr) -> KExpr:
            index = KSelect(I32, 1, inside, self.index.value(at), i32(0))
            return KLoad(buffer.dtype, 1, buffer.name, index)

        if not self.varies(node):
            self._done(node, read(cond.expr, flat), max(depth, cond.depth), 2, "x")
            return
        inside = self.w.let("in", splat(cond.expr, 4))
        lanes = zip(lanes_of(inside), range(4), strict=True)
        parts = tuple(read(i, self.index.in_lane(flat, k)) for i, k in lanes)
        self._done(node, KVec(node.dtype, 4, parts), self.w.depth, 2, "x")

    def _load_depth(self, node: Load) -> int:
        if not self.is_safe(node):
            return self.w.depth
        return max((self.w.lookup(a)[1] for a in self.axes(node)), default=0)

    def _gather(self, payload: Scalar) -> tuple[KExpr, int]:
        """A loaded integer as an i32 index; what does not fit saturates."""
        while isinstance(payload, Cast) and payload.arg.dtype.is_integer and _widens(payload):
            payload = payload.arg
        value = self.value(payload)
        cell = self._arg(payload)
        if payload.dtype.bits > 32 or payload.dtype.name == "u32":
            low, high = I32.int_range
            if payload.dtype.kind == "int":
                value = kop("max", value, KConst(payload.dtype, 1, low))
            value = kop("min", value, KConst(payload.dtype, 1, high))
        return convert(value, I32), cell.depth

    def _select(self, node: Select, uses: int) -> None:
        cond = self._arg(node.cond)
        safe = self.is_safe(node.then) and self.is_safe(node.other)
        lanes = 4 if self.varies(node) else 1
        if cond.expr.lanes > 1 or (safe and self._is_cheap(node)):
            arms = node.then, node.other
            if not safe:
                arms = (
                    masked(node.then, node.cond, self.is_safe),
                    masked(node.other, op("not", node.cond), self.is_safe),
                )
            then, other = (splat(self.value(a), lanes) for a in arms)
            depth = max(cond.depth, *(self._arg(a).depth for a in arms))
            self._done(node, KSelect(node.dtype, lanes, cond.expr, then, other), depth, uses)
            return
        shared = set(strict_nodes(node.then)) & set(strict_nodes(node.other))
        for common in [n for n in strict_nodes(node.then) if n in shared]:
            if has_vectors(common.dtype) or not self.varies(common):
                self.value(common)
        chosen = self.w.var("s", splat(KConst(node.dtype, 1, _zero(node.dtype)), lanes))
        self.w.branch(
            cond.expr,
            lambda: self.w.assign(chosen, splat(self.value(node.then), lanes)),
            lambda: self.w.assign(chosen, splat(self.value(node.other), lanes)),
        )
        self.w.blocks[-1].memo[node] = Cell(chosen, self.w.depth)

    def _is_cheap(self, node: Select) -> bool:
        return all(
            sum(self.w.find(n) is None for n in strict_nodes(arm)) <= _MAX_ARM
            for arm in (node.then, node.other)
        )


def _zero(dtype: DType) -> int | float | bool:
    if dtype.kind == "bool":
        return False
    return 0.0 if dtype.is_float else 0


def _is_index_comparison(node: Scalar) -> bool:
    """A comparison of index expressions, which is done on i32."""
    return (
        isinstance(node, Op)
        and node.fn in _COMPARISONS
        and node.fn in PREDICATES
        and all(_is_small(a) for a in node.operands)
        and any(isinstance(a, Value) for a in node.operands)
    )


def _is_small(node: Scalar) -> bool:
    """Whether it is an index expression, or a literal that may be compared with one in i32."""
    if isinstance(node, Value):
        known = node.expr.as_int()
        return known is None or _fits(known)
    return isinstance(node, Const) and node.type == I64 and _fits(int(node.value))


def _fits(value: int) -> bool:
    low, high = I32.int_range
    return low <= value <= high


def _index_of(node: Scalar) -> Expr:
    if isinstance(node, Value):
        return node.expr
    assert isinstance(node, Const)
    return as_expr(int(node.value))


def _widens(node: Cast) -> bool:
    """An integer cast that keeps every value."""
    (low, high), (least, most) = node.arg.dtype.int_range, node.type.int_range
    return least <= low and high <= most
