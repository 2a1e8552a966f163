"""Kernels that write an output over an operand: one buffer for both, and what proves it safe.

It is safe if nobody reads an element of the operand after it was written over, and only who
writes it reads it (or a barrier lies between). `accesses_only` leaves of a kernel what decides on
that, so that the kernel interpreter can play it quickly.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.kernel import (
    SUBGROUPS,
    Array,
    Assign,
    Barrier,
    For,
    If,
    KConst,
    Kernel,
    KExpr,
    KLoad,
    KStmt,
    KStore,
    KSubgroup,
    KVar,
    KVec,
    Let,
    VarDecl,
    for_features,
    operands,
    rewrite_body,
    stmt_exprs,
    walk_expr,
    walk_exprs,
    walk_stmts,
    with_operands,
)


def stores_into(kernel: Kernel, buffer: str) -> bool:
    """Whether a kernel writes a buffer."""
    return any(isinstance(s, KStore) and s.buffer == buffer for s in walk_stmts(kernel.body))


def loads_from(kernel: Kernel, buffer: str) -> bool:
    """Whether a kernel reads a buffer."""
    return any(isinstance(e, KLoad) and e.buffer == buffer for e in walk_exprs(kernel.body))


def over_operands(kernel: Kernel, pairs: Mapping[str, str]) -> Kernel:
    """The kernel with its operands (the keys) read from the outputs that lie over them.

    A kernel that does not bind both of a pair keeps what it binds of it.
    """
    bound = {p.buffer.name for p in kernel.buffers}
    names = {a: y for a, y in pairs.items() if a in bound and y in bound}
    if not names:
        return kernel
    buffers = tuple(p for p in kernel.buffers if p.buffer.name not in names)
    return replace(kernel, buffers=buffers, body=_renamed(kernel.body, names))


def _renamed(body: tuple[KStmt, ...], names: Mapping[str, str]) -> tuple[KStmt, ...]:
    def change(e: KExpr) -> KExpr:
        return replace(e, buffer=names.get(e.buffer, e.buffer)) if isinstance(e, KLoad) else e

    return rewrite_body(body, change)


def stores_as_is(kernel: Kernel) -> bool:
    """Whether all that a kernel does is to store elements where it read them."""
    values = {s.name: s.value for s in walk_stmts(kernel.body) if isinstance(s, Let)}

    def named(e: KExpr) -> KExpr:
        while isinstance(e, KVar) and e.name in values:
            e = values[e.name]
        return e

    def known(e: KExpr) -> KExpr:
        e = named(e)
        return with_operands(e, tuple(map(known, operands(e)))) if operands(e) else e

    def as_is(store: KStore) -> bool:
        value = named(store.value)  # not all of it, whose tree may be huge
        if not isinstance(value, KLoad) or value.buffer != store.buffer or store.combine:
            return False
        return known(value.index) == known(store.index)

    return all(as_is(s) for s in walk_stmts(kernel.body) if isinstance(s, KStore))


def accesses_only(kernel: Kernel, operand: str, output: str) -> Kernel:
    """What the kernel reads of the operand and writes to the output, in order, and its barriers.

    Where data decides on a branch, both arms are taken. Raises VerifyError where data decides on a
    place or on the length of a loop.
    """
    kernel = for_features(kernel, frozenset((SUBGROUPS,)))  # there with fewer barriers
    found = _Slice(kernel, operand, output)
    wanted = (operand, output)
    buffers = tuple(p for p in kernel.buffers if p.buffer.name in wanted)
    return replace(kernel, buffers=buffers, body=found.block(kernel.body))


@dataclass(slots=True)
class _Slice:
    """Names that places and control flow need, and those that depend on data."""

    kernel: Kernel
    operand: str
    output: str
    needed: set[str] = field(default_factory=set)
    data: set[str] = field(default_factory=set)
    count: int = 0

    def __post_init__(self) -> None:
        before = -1
        while before != len(self.needed) + len(self.data):
            before = len(self.needed) + len(self.data)
            self._gather(self.kernel.body)

    def _gather(self, body: tuple[KStmt, ...]) -> bool:
        """Grow both sets by a round; whether anything of the body is kept."""
        return any([self._gather_one(s) for s in body])

    def _gather_one(self, stmt: KStmt) -> bool:
        places = [e for a in self._accesses(stmt) for e in _names(a.index)]
        self.needed.update(places)
        match stmt:
            case Let(name, value) | VarDecl(name, value) | Assign(name, value):
                if self._is_data(value):
                    self.data.add(name)
                if name in self.needed:
                    self.needed.update(_names(value))
                    return True
            case For(start=start, stop=stop, body=body):
                if self._gather(body):
                    self.needed.update((*_names(start), *_names(stop)))
                    return True
            case If(cond, then, other):
                if any([self._gather(then), self._gather(other)]):
                    self.needed.update(_names(cond))
                    return True
        return isinstance(stmt, Barrier) or any(self._accesses(stmt))

    def _accesses(self, stmt: KStmt) -> Iterator[KLoad | KStore]:
        for expr in stmt_exprs(stmt):
            for node in walk_expr(expr):
                if isinstance(node, KLoad) and node.buffer == self.operand:
                    yield node
        if isinstance(stmt, KStore) and stmt.buffer == self.output:
            yield stmt

    def _is_data(self, expr: KExpr) -> bool:
        return any(
            isinstance(e, KLoad | KSubgroup) or (isinstance(e, KVar) and e.name in self.data)
            for e in walk_expr(expr)
        )

    def block(self, body: tuple[KStmt, ...]) -> tuple[KStmt, ...]:
        return tuple(kept for stmt in body for kept in self._stmt(stmt))

    def _stmt(self, stmt: KStmt) -> Iterator[KStmt]:
        for access in self._accesses(stmt):
            if self._is_data(access.index):
                raise self._fail("a place that data decides on")
            if isinstance(access, KLoad):
                self.count += 1
                yield Let(f"read.{self.count}", access)
            else:
                lanes = access.value.lanes
                zero: KExpr = KConst(access.value.dtype, 1, 0)
                value = zero if lanes == 1 else KVec(zero.dtype, lanes, (zero,))
                yield replace(access, value=value)
        match stmt:
            case Let(name, value) | VarDecl(name, value) | Assign(name, value):
                if name in self.needed and not self._is_data(value):
                    yield stmt
            case For(start=start, stop=stop):
                inner = self.block(stmt.body)
                if inner and (self._is_data(start) or self._is_data(stop)):
                    raise self._fail("a loop whose length data decides on")
                if inner:
                    yield replace(stmt, body=inner)
            case If(cond, then, other):
                arms = self.block(then), self.block(other)
                if self._is_data(cond):
                    yield from (*arms[0], *arms[1])
                elif any(arms):
                    yield If(cond, *arms)
            case Barrier():
                yield stmt
            case Array() | KStore():
                pass

    def _fail(self, what: str) -> VerifyError:
        pair = f"{self.output} over {self.operand}"
        return VerifyError(f"{pair}: {what}", node=f"kernel {self.kernel.name}")


def _names(expr: KExpr) -> Iterator[str]:
    return (e.name for e in walk_expr(expr) if isinstance(e, KVar))
