"""The kernel verifier: scopes, types, parameters, and barriers that every invocation reaches.

Uniformity is judged as strictly as Tint does: what is loaded from memory that the kernel may write
differs between invocations, and so does what is assigned where control flow differs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.dtypes import BOOL, I32, DType
from edgerelax.ir.kernel import (
    KERNEL_FUNCTIONS,
    SUBGROUPS,
    Array,
    Assign,
    Barrier,
    For,
    If,
    KBits,
    KCast,
    Kernel,
    KExpr,
    KLane,
    KLoad,
    KOp,
    KScalar,
    KSelect,
    KStmt,
    KStore,
    KSubgroup,
    KVar,
    KVec,
    Let,
    VarDecl,
    for_features,
    has_atomic,
    operands,
    stmt_exprs,
    walk_expr,
    walk_exprs,
    walk_stmts,
)
from edgerelax.ir.scalar import PREDICATES


def verify_kernel(kernel: Kernel) -> None:
    """Raise VerifyError if no device could be trusted with the kernel, whatever its features."""
    plain = for_features(kernel, frozenset())
    _verify(plain)
    if plain is not kernel:
        _verify(for_features(kernel, frozenset((SUBGROUPS,))))


def _verify(kernel: Kernel) -> None:
    checker = _Checker(kernel)
    scope = _Scope(kernel.device == "gpu")
    if SUBGROUPS in kernel.features:
        scope.names["lane"] = _Name(I32, 1)
    checker.block(kernel.body, scope)
    if kernel.device == "gpu":
        _Uniformity(kernel).check()


@dataclass(frozen=True, slots=True)
class _Name:
    dtype: DType
    lanes: int
    mutable: bool = False


@dataclass(slots=True)
class _Scope:
    """Names that may be used here; `own` are those declared in this very block."""

    on_gpu: bool
    names: dict[str, _Name] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if "workgroup" not in self.names:
            self.names["workgroup"] = _Name(I32, 1)
            if self.on_gpu:
                self.names["local"] = _Name(I32, 1)

    def inner(self) -> "_Scope":
        return _Scope(self.on_gpu, dict(self.names), dict(self.arrays))


class _Checker:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.buffers = {p.buffer.name: p for p in kernel.buffers}
        self.scalars = {name for name, _ in kernel.scalars}

    def fail(self, message: str) -> VerifyError:
        return VerifyError(message, node=f"kernel {self.kernel.name}")

    def block(self, body: tuple[KStmt, ...], scope: _Scope) -> None:
        for stmt in body:
            for expr in stmt_exprs(stmt):
                self.expr(expr, scope)
            self.stmt(stmt, scope)

    def stmt(self, stmt: KStmt, scope: _Scope) -> None:
        match stmt:
            case Let(name, value):
                self.declare(name, _Name(value.dtype, value.lanes), scope)
            case VarDecl(name, value):
                self.declare(name, _Name(value.dtype, value.lanes, mutable=True), scope)
            case Assign(name, value):
                if scope.names.get(name) != _Name(value.dtype, value.lanes, mutable=True):
                    raise self.fail(f"{name} is no register of {value.lanes} {value.dtype}")
            case Array(name=name):
                self.declare(name, _Name(stmt.dtype, stmt.lanes), scope)
                scope.arrays[name] = stmt
            case KStore():
                self.access(stmt.buffer, stmt.value, stmt.index, scope)
                parameter = self.buffers.get(stmt.buffer)
                if stmt.buffer not in scope.arrays and parameter and parameter.access == "read":
                    raise self.fail(f"a store into {stmt.buffer}, which may only be read")
                if stmt.combine:
                    self.atomic(stmt, scope)
            case For(name=name, start=start, stop=stop, body=body):
                self.expect(start, I32, 1, f"the start of {name}")
                self.expect(stop, I32, 1, f"the stop of {name}")
                inner = scope.inner()
                self.declare(name, _Name(I32, 1), inner)
                self.block(body, inner)
            case If(cond, then, other):
                self.expect(cond, BOOL, 1, "a condition")
                self.block(then, scope.inner())
                self.block(other, scope.inner())
            case Barrier():
                if not scope.on_gpu:
                    raise self.fail("a barrier in a CPU kernel")

    def atomic(self, stmt: KStore, scope: _Scope) -> None:
        dtype, lanes = stmt.value.dtype, stmt.value.lanes
        if not scope.on_gpu or stmt.buffer in scope.arrays or lanes != 1:
            raise self.fail("only scalars in storage buffers of GPU kernels are combined")
        if not has_atomic(dtype, stmt.combine):
            raise self.fail(f"no atomic {stmt.combine} of {dtype}")
        body = self.kernel.body
        stores = [s for s in walk_stmts(body) if isinstance(s, KStore) and s.buffer == stmt.buffer]
        loads = [e for e in walk_exprs(body) if isinstance(e, KLoad) and e.buffer == stmt.buffer]
        if loads or any(not s.combine for s in stores):
            raise self.fail(f"{stmt.buffer} is combined into, and accessed in another way too")

    def declare(self, name: str, what: _Name, scope: _Scope) -> None:
        if name in scope.own:
            raise self.fail(f"{name} is declared twice in one block")
        scope.own.add(name)
        scope.names[name] = what

    def access(self, buffer: str, value: KExpr, index: KExpr, scope: _Scope) -> None:
        self.expect(index, I32, 1, f"an index into {buffer}")
        array, parameter = scope.arrays.get(buffer), self.buffers.get(buffer)
        if array is not None:
            if value.dtype != array.dtype or value.lanes < array.lanes:
                raise self.fail(f"{value.lanes} {value.dtype} of {buffer}: {array}")
        elif parameter is None:
            raise self.fail(f"there is no buffer or array {buffer}")
        elif value.dtype != parameter.buffer.dtype:
            raise self.fail(f"{value.dtype} of the buffer {parameter.buffer}")

    def expect(self, expr: KExpr, dtype: DType, lanes: int, what: str) -> None:
        if (expr.dtype, expr.lanes) != (dtype, lanes):
            raise self.fail(f"{what} is {expr.lanes} {expr.dtype}, not {lanes} {dtype}")

    def expr(self, root: KExpr, scope: _Scope) -> None:
        for expr in walk_expr(root):
            problem = self.problem(expr, scope)
            if problem:
                raise self.fail(f"{problem}: {expr}")
            if isinstance(expr, KLoad):
                self.access(expr.buffer, expr, expr.index, scope)

    def problem(self, expr: KExpr, scope: _Scope) -> str:
        """What is wrong with one node, if anything."""
        match expr:
            case KVar(dtype, lanes, name):
                known = scope.names.get(name)
                if known is None or name in scope.arrays:
                    return f"{name} is not defined here"
                if (known.dtype, known.lanes) != (dtype, lanes):
                    return f"{name} has {known.lanes} lanes of {known.dtype}"
            case KScalar(dtype, lanes, name):
                if name not in self.scalars or (dtype, lanes) != (I32, 1):
                    return f"{name} is no scalar parameter"
            case KOp():
                return _problem_of_op(expr)
            case KCast(lanes=lanes, arg=arg) if arg.lanes != lanes:
                return "a cast changes lanes"
            case KBits(dtype=dtype, lanes=lanes, arg=arg):
                if arg.lanes != lanes or {dtype.bits, arg.dtype.bits} != {32}:
                    return "bits of another size"
            case KSelect(cond=cond, then=then, other=other):
                if cond.dtype != BOOL or cond.lanes not in (1, expr.lanes):
                    return "a select by something else than a bool"
                if any((e.dtype, e.lanes) != (expr.dtype, expr.lanes) for e in (then, other)):
                    return "the arms of a select differ"
            case KVec(lanes=lanes, parts=parts):
                if len(parts) not in (1, lanes):
                    return f"{len(parts)} parts of {lanes} lanes"
                if any((e.dtype, e.lanes) != (expr.dtype, 1) for e in parts):
                    return "a part of a vector is no scalar of its type"
            case KLane(vector=vector, lane=lane):
                if vector.dtype != expr.dtype or not 0 <= lane < vector.lanes:
                    return f"lane {lane} of {vector.lanes} {vector.dtype}"
            case KSubgroup() if SUBGROUPS not in self.kernel.features:
                return "a subgroup operation without the feature"
        return ""


def _problem_of_op(op: KOp) -> str:
    function = KERNEL_FUNCTIONS.get(op.fn)
    if function is None or function.arity != len(op.args):
        return "no such function"
    first = op.args[0].dtype
    if op.dtype != (BOOL if op.fn in PREDICATES else first):
        return "the type of the result is wrong"
    if any((a.dtype, a.lanes) != (first, op.lanes) for a in op.args):
        return "the operands differ"
    return ""


class _Uniformity:
    """Finds the names whose values may differ between the invocations of a workgroup."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.varying: set[str] = {"local", "lane"}
        self.uniform_memory = {p.buffer.name for p in kernel.buffers if p.access == "read"}

    def check(self) -> None:
        """Grow the set until it stays, then look at the barriers."""
        known = -1
        while known != len(self.varying):
            known = len(self.varying)
            self.block(self.kernel.body, uniform=True, final=False)
        self.block(self.kernel.body, uniform=True, final=True)

    def varies(self, expr: KExpr) -> bool:
        match expr:
            case KVar(name=name):
                return name in self.varying
            case KLoad(buffer=buffer) if buffer not in self.uniform_memory:
                return True
            case KSubgroup():
                return True
        return any(self.varies(e) for e in operands(expr))

    def block(self, body: tuple[KStmt, ...], *, uniform: bool, final: bool) -> None:
        for stmt in body:
            match stmt:
                case Let(name, value) | VarDecl(name, value) | Assign(name, value):
                    if not uniform or self.varies(value):
                        self.varying.add(name)
                case For(name=name, start=start, stop=stop, body=inner):
                    same = uniform and not self.varies(start) and not self.varies(stop)
                    if not same:
                        self.varying.add(name)
                    self.block(inner, uniform=same, final=final)
                case If(cond, then, other):
                    same = uniform and not self.varies(cond)
                    self.block(then, uniform=same, final=final)
                    self.block(other, uniform=same, final=final)
                case Barrier() if final and not uniform:
                    raise self.fail("a barrier that some invocations may not reach")
            if final and not uniform and any(_subgroup_ops(stmt)):
                raise self.fail("a subgroup operation that some invocations may not reach")

    def fail(self, message: str) -> VerifyError:
        return VerifyError(message, node=f"kernel {self.kernel.name}")


def _subgroup_ops(stmt: KStmt) -> Iterator[bool]:
    for expr in stmt_exprs(stmt):
        for node in walk_expr(expr):
            yield isinstance(node, KSubgroup)
