"""What makes inner loops of CPU kernels fast: pointers, loads into all lanes, copies of the body.

An innermost loop over i that accesses element base + i * stride, both fixed while it runs, keeps a
pointer instead of computing the address anew; accesses that differ by a small constant share one.
A scalar that is only ever spread over lanes is loaded into all of them at once. On a product of
480 x 480 x 512 both together take V8 from 25 to 31 GFLOP/s and leave Cranelift where it was: what
that needs is docs/decisions/0009-two-compilers.md.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from edgerelax.codegen.expand import simplify
from edgerelax.codegen.wasm_memory import Address
from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import (
    Assign,
    For,
    If,
    KCast,
    KConst,
    Kernel,
    KExpr,
    KLoad,
    KOp,
    KScalar,
    KStmt,
    KStore,
    KVar,
    KVec,
    Let,
    VarDecl,
    kop,
    operands,
    stmt_exprs,
    walk_expr,
    walk_exprs,
    walk_stmts,
    with_operands,
)

_MAX_DISTANCE = 1024  # bytes from a pointer; no tensor lies below that address
_MAX_POINTERS = 12
_LONGEST = 24  # statements of a loop whose copies are worth their text

COPIES = 4
"""Turns of a loop in text, where there are several."""

Access = tuple[str, KExpr]
"""A buffer and an index as the kernel has it."""

_Polynomial = dict[tuple[KExpr, ...], int]


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where it starts, how far it steps (in elements), and what it serves at what offset."""

    buffer: str
    start: KExpr
    stride: KExpr
    serves: tuple[tuple[KExpr, int], ...]


@dataclass(frozen=True, slots=True)
class Move:
    """How a pointer in a local moves with a turn of its loop: by bytes, known or not."""

    pointer: Pointer
    place: str
    by: str
    bytes: int | None

    def is_near(self, turns: int) -> bool:
        """Whether the places of so many turns are constants away from the first one's."""
        if self.bytes is None or self.bytes < 0:
            return False
        farthest = max(offset for _, offset in self.pointer.serves)
        return farthest + turns * self.bytes < _MAX_DISTANCE

    def served(self, turn: int) -> dict[Access, Address]:
        """Where accesses go in a turn, counted from the one that the pointer stands at."""
        ahead = turn * (self.bytes or 0)
        return {
            (self.pointer.buffer, index): Address(f"(local.get {self.place})", ahead + offset)
            for index, offset in self.pointer.serves
        }

    def code(self, turns: int = 1) -> str:
        """The line that moves it; only by known bytes several turns at once."""
        by = self.by if self.bytes is None else f"(i32.const {turns * self.bytes})"
        return f"(local.set {self.place} (i32.add (local.get {self.place}) {by}))"


def is_worth_copies(loop: For, moves: Collection[Move], served: Collection[Access]) -> bool:
    """Whether to write several turns in text: of long loops that add to several vectors of sums.

    Places must be constants away from those of the first turn: to move pointers in between costs V8
    as much as it saves.
    """
    length = simplify(kop("sub", loop.stop, loop.start))
    if isinstance(length, KConst) and int(length.value) < 2 * COPIES * loop.step:
        return False
    if len(loop.body) > _LONGEST or not all(isinstance(s, Let | Assign) for s in loop.body):
        return False
    sums = sum(isinstance(s, Assign) and s.value.lanes == 4 for s in loop.body)
    counted = any(
        isinstance(e, KVar) and e.name == loop.name for s in loop.body for e in _live(s, served)
    )
    return sums >= 4 and not counted and all(m.is_near(COPIES) for m in moves)


def dead_first(body: tuple[KStmt, ...]) -> tuple[KStmt, ...]:
    """Products whose second factor alone is of no further use begin with that.

    Cranelift's fused product overwrites its first factor, so that one that lives on is copied.
    """
    last = {e.name: k for k, s in enumerate(body) for e in walk_exprs((s,)) if isinstance(e, KVar)}
    own = {s.name for s in body if isinstance(s, Let)}

    def dies(expr: KExpr, at: int) -> bool:
        return not isinstance(expr, KVar) or (expr.name in own and last[expr.name] == at)

    done = []
    for k, stmt in enumerate(body):
        if isinstance(stmt, Assign) and isinstance(stmt.value, KOp) and stmt.value.fn == "fma":
            a, b, total = stmt.value.args
            if dies(b, k) and not dies(a, k):
                stmt = replace(stmt, value=replace(stmt.value, args=(b, a, total)))
        done.append(stmt)
    return tuple(done)


def find_pointers(
    loop: For, lets: Mapping[str, KExpr], sizes: Mapping[str, int]
) -> tuple[Pointer, ...]:
    """The pointers of an innermost loop; `lets` are the immutable names around it."""
    inside = [*walk_stmts(loop.body)]
    if any(isinstance(s, For) for s in inside):
        return ()
    changed = Counter(s.name for s in inside if isinstance(s, Let | VarDecl | Assign))
    own = {
        s.name: s.value
        for s in loop.body
        if isinstance(s, Let) and changed[s.name] == 1 and s.name != loop.name
    }
    inner = frozenset(changed) | {loop.name}
    outer = {name: value for name, value in lets.items() if not mentions(value, inner)}
    finder = _Finder(loop.name, own, outer, inner)
    groups: dict[object, list[tuple[int, KExpr, KExpr]]] = {}
    for buffer, index in dict.fromkeys(_accesses(loop.body)):
        stride = finder.stride(index)
        if stride is None or isinstance(index, KConst):
            continue
        form = finder.polynomial(index)
        constant = form.pop((), 0)
        key = (buffer, frozenset(form.items()))
        groups.setdefault(key, []).append((constant, index, stride))
    pointers = [p for key, found in groups.items() for p in _split(key, found, finder, sizes)]
    return tuple(pointers) if len(pointers) <= _MAX_POINTERS else ()


def _split(
    key: object,
    found: list[tuple[int, KExpr, KExpr]],
    finder: "_Finder",
    sizes: Mapping[str, int],
) -> Iterator[Pointer]:
    """One pointer for all accesses near the first of them, and so on."""
    assert isinstance(key, tuple)
    buffer = str(key[0])
    rest = sorted(found, key=lambda f: f[0])
    while rest:
        first, index, stride = rest[0]
        near = [f for f in rest if (f[0] - first) * sizes[buffer] < _MAX_DISTANCE]
        serves = tuple((f[1], (f[0] - first) * sizes[buffer]) for f in near)
        yield Pointer(buffer, finder.inlined(index), stride, serves)
        rest = rest[len(near) :]


def _accesses(body: tuple[KStmt, ...]) -> Iterator[Access]:
    for expr in walk_exprs(body):
        if isinstance(expr, KLoad):
            yield expr.buffer, expr.index
    for stmt in walk_stmts(body):
        if isinstance(stmt, KStore):
            yield stmt.buffer, stmt.index


@dataclass(frozen=True, slots=True)
class _Finder:
    """Analyses index expressions in one loop."""

    variable: str
    own: Mapping[str, KExpr]  # names of the loop's body that stand for their values
    outer: Mapping[str, KExpr]
    changed: frozenset[str]

    def inlined(self, expr: KExpr) -> KExpr:
        """Without names of the loop's body."""
        if isinstance(expr, KVar) and expr.name in self.own:
            return self.inlined(self.own[expr.name])
        inside = operands(expr)
        if not inside:
            return expr
        return with_operands(expr, tuple(self.inlined(e) for e in inside))

    def stride(self, expr: KExpr) -> KExpr | None:
        """What the expression grows by with the loop's variable; None if it is not linear in it."""
        if self.is_fixed(expr):
            return KConst(I32, 1, 0)
        match expr:
            case KVar(name=name):
                if name == self.variable:
                    return KConst(I32, 1, 1)
                return self.stride(self.own[name]) if name in self.own else None
            case KOp(fn="add" | "sub" as fn, args=(a, b)):
                x, y = self.stride(a), self.stride(b)
                return None if x is None or y is None else _combine(fn, x, y)
            case KOp(fn="mul", args=(a, b)):
                for factor, other in ((a, b), (b, a)):
                    if self.is_fixed(factor):
                        step = self.stride(other)
                        return None if step is None else _combine("mul", step, self.inlined(factor))
        return None

    def is_fixed(self, expr: KExpr) -> bool:
        """Whether it is one value, cheap and safe to compute, during the whole loop."""
        match expr:
            case KConst() | KScalar():
                return True
            case KVar(name=name):
                if name in self.own:
                    return self.is_fixed(self.own[name])
                return name not in self.changed
            case KOp(fn="add" | "sub" | "mul", args=args):
                return all(self.is_fixed(a) for a in args)
        return False

    def polynomial(self, expr: KExpr) -> _Polynomial:
        """The expression multiplied out, with immutable names replaced by what they stand for."""
        match expr:
            case KConst(value=value):
                return {(): int(value)} if value else {}
            case KVar(name=name):
                known = self.own.get(name) or self.outer.get(name)
                if known is not None and _is_arithmetic(known):
                    return self.polynomial(known)
            case KOp(fn="add" | "sub" as fn, args=(a, b)):
                sign = 1 if fn == "add" else -1
                return _sum(self.polynomial(a), self.polynomial(b), sign)
            case KOp(fn="mul", args=(a, b)):
                return _product(self.polynomial(a), self.polynomial(b))
        return {(expr,): 1}


def mentions(expr: KExpr, names: Collection[str]) -> bool:
    """Whether an expression uses one of the names."""
    return any(isinstance(e, KVar) and e.name in names for e in walk_expr(expr))


def _is_arithmetic(expr: KExpr) -> bool:
    return isinstance(expr, KConst | KOp | KVar | KScalar)


def _combine(fn: str, a: KExpr, b: KExpr) -> KExpr:
    """A sum, difference or product of strides, folded."""
    if isinstance(a, KConst) and isinstance(b, KConst):
        x, y = int(a.value), int(b.value)
        return KConst(I32, 1, x + y if fn == "add" else x - y if fn == "sub" else x * y)
    if isinstance(b, KConst) and b.value == (1 if fn == "mul" else 0):
        return a
    if isinstance(a, KConst) and fn != "sub" and a.value == (1 if fn == "mul" else 0):
        return b
    return KOp(I32, 1, fn, (a, b))


def _sum(a: _Polynomial, b: _Polynomial, sign: int) -> _Polynomial:
    total = Counter(a)
    for monomial, factor in b.items():
        total[monomial] += sign * factor
    return {m: f for m, f in total.items() if f}


def _product(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    total: Counter[tuple[KExpr, ...]] = Counter()
    for m, f in a.items():
        for n, g in b.items():
            total[tuple(sorted((*m, *n), key=str))] += f * g
    return {m: f for m, f in total.items() if f}


def without_unused(body: tuple[KStmt, ...], served: frozenset[Access]) -> tuple[KStmt, ...]:
    """A loop's body without the names that only served accesses use."""
    while True:
        used = {e.name for s in walk_stmts(body) for e in _live(s, served) if isinstance(e, KVar)}
        kept = tuple(s for s in body if not (isinstance(s, Let) and s.name not in used))
        if len(kept) == len(body):
            return body
        body = kept


def _live(stmt: KStmt, served: Collection[Access]) -> Iterator[KExpr]:
    """The expressions of a statement, except the indices of served accesses."""
    todo = [*stmt_exprs(stmt)]
    if isinstance(stmt, KStore) and (stmt.buffer, stmt.index) in served:
        todo = [stmt.value]
    while todo:
        expr = todo.pop()
        yield expr
        if not (isinstance(expr, KLoad) and (expr.buffer, expr.index) in served):
            todo.extend(operands(expr))


def spread_loads(body: tuple[KStmt, ...]) -> tuple[KStmt, ...]:
    """Let names of loaded scalars that are only ever put in four lanes stand for those lanes."""
    declared = Counter(s.name for s in walk_stmts(body) if isinstance(s, Let | VarDecl | For))
    loaded = {
        s.name
        for s in walk_stmts(body)
        if isinstance(s, Let)
        and isinstance(s.value, KLoad)
        and (s.value.lanes, s.value.dtype.bits) == (1, 32)
        and declared[s.name] == 1
    }
    uses = Counter(e.name for e in walk_exprs(body) if isinstance(e, KVar))
    spread = Counter(
        e.parts[0].name
        for e in walk_exprs(body)
        if isinstance(e, KVec) and len(e.parts) == 1 and e.lanes == 4
        if isinstance(e.parts[0], KVar)
    )
    chosen = {name for name in loaded if uses[name] == spread[name] > 0}
    return _spread(body, chosen) if chosen else body


def _spread(body: tuple[KStmt, ...], names: set[str]) -> tuple[KStmt, ...]:
    done: list[KStmt] = []
    for stmt in body:
        match stmt:
            case Let(name, value) if name in names:
                done.append(Let(name, KVec(value.dtype, 4, (_lanes(value, names),))))
            case Let(_, value) | VarDecl(_, value) | Assign(_, value):
                done.append(replace(stmt, value=_lanes(value, names)))
            case KStore():
                index, value = _lanes(stmt.index, names), _lanes(stmt.value, names)
                done.append(replace(stmt, index=index, value=value))
            case For():
                start, stop = _lanes(stmt.start, names), _lanes(stmt.stop, names)
                inner = _spread(stmt.body, names)
                done.append(replace(stmt, start=start, stop=stop, body=inner))
            case If(cond, then, other):
                done.append(If(_lanes(cond, names), _spread(then, names), _spread(other, names)))
            case _:
                done.append(stmt)
    return tuple(done)


def _lanes(expr: KExpr, names: set[str]) -> KExpr:
    match expr:
        case KVec(dtype=dtype, lanes=lanes, parts=(KVar(name=name),)) if name in names:
            return KVar(dtype, lanes, name)
    inside = operands(expr)
    return with_operands(expr, tuple(_lanes(e, names) for e in inside)) if inside else expr


def widened_loads(kernel: Kernel) -> dict[str, KLoad]:
    """By name, the loads that only `widen_pairs` uses: its instruction loads by itself.

    Nothing stores into their buffers, and their places do not change while the names are known.
    """
    body = kernel.body
    declared = Counter(s.name for s in walk_stmts(body) if isinstance(s, Let | VarDecl | For))
    mutable = {s.name for s in walk_stmts(body) if isinstance(s, VarDecl)}
    fixed = {p.buffer.name for p in kernel.buffers if p.access == "read"}
    uses = Counter(e.name for e in walk_exprs(body) if isinstance(e, KVar))
    widened = Counter(
        e.args[0].arg.name
        for e in walk_exprs(body)
        if isinstance(e, KOp) and e.fn == "widen_pairs" and e.lanes == 4
        if isinstance(e.args[0], KCast) and isinstance(e.args[0].arg, KVar)
    )
    return {
        s.name: s.value
        for s in walk_stmts(body)
        if isinstance(s, Let) and isinstance(s.value, KLoad)
        if s.value.dtype.bits == 16 and not s.value.dtype.is_float and s.value.buffer in fixed
        if declared[s.name] == 1 and uses[s.name] == widened[s.name] > 0
        if not mentions(s.value.index, mutable)
    }
