"""Kernel IR → WebAssembly: one module for all CPU kernels of an artifact.

A kernel is a function (args, begin, end): `args` points to the i32 pointers of its buffers, then to
its i32 scalars, the grid first. The module imports the VM's memory, its table and the base from
which it fills the table, in the order of the kernels, and those functions of libm that it calls.
"""

from collections.abc import Sequence
from dataclasses import replace

import wasmtime

from edgerelax.codegen import wasm_memory
from edgerelax.codegen.expand import expand, simplify
from edgerelax.codegen.wasm_functions import Functions, fused, same_bits
from edgerelax.codegen.wasm_loops import (
    COPIES,
    Access,
    Move,
    Pointer,
    dead_first,
    find_pointers,
    is_worth_copies,
    spread_loads,
    widened_loads,
    without_unused,
)
from edgerelax.codegen.wasm_memory import Address
from edgerelax.codegen.wasm_prelude import prelude_for
from edgerelax.codegen.wasm_text import Frame, constant, shape, shuffled, value_type
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import F32
from edgerelax.ir.kernel import (
    Array,
    Assign,
    Barrier,
    For,
    If,
    KBits,
    KCast,
    KConst,
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
    i32,
    kop,
    walk_expr,
    walk_stmts,
)
from edgerelax.ir.kernel_verify import verify_kernel

_ENV = (
    '(import "env" "memory" (memory 0 65536))',  # a greatest size: hosts may make it shared
    '(import "env" "table" (table 0 funcref))',
    '(import "env" "base" (global $base i32))',
)


def print_wat(kernels: Sequence[Kernel]) -> str:
    """The text of a module."""
    for kernel in kernels:
        verify_kernel(kernel)
    functions = [_Printer(expand(k), f"$k{n}").text() for n, k in enumerate(kernels)]
    imports, prelude = prelude_for("\n".join(functions))
    names = "".join(f" $k{n}" for n in range(len(kernels)))
    elements = [f"(elem (global.get $base) func{names})"] if kernels else []
    parts = [*_ENV, *imports, *elements, *prelude, *functions]
    return "(module\n" + "\n".join(_indent(p) for p in parts) + ")\n"


def build_wasm(kernels: Sequence[Kernel], relaxed: bool = False) -> bytes:
    """The module as bytes."""
    return assemble(print_wat(kernels), relaxed)


def assemble(text: str, relaxed: bool = False) -> bytes:
    """A text as bytes. With `relaxed`, products are fused with sums where lanes allow it."""
    return bytes(wasmtime.wat2wasm(fused(text) if relaxed else text))


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())


class _Printer:
    """Writes one kernel."""

    def __init__(self, kernel: Kernel, identifier: str) -> None:
        self.kernel = replace(kernel, body=spread_loads(kernel.body))
        self.identifier = identifier
        self.frame = Frame()
        self.functions = Functions(self.frame)
        self.lines: list[str] = []
        self.depth = 0
        self.labels = 0
        self.lets: dict[str, KExpr] = {}  # immutable names that are known here
        self.users: dict[str, set[str]] = {}  # by name: the names whose values mentioned it
        self.mutable = {s.name for s in walk_stmts(kernel.body) if isinstance(s, VarDecl)}
        self.pointers: dict[Access, Address] = {}
        self.buffers = {p.buffer.name: p.buffer for p in kernel.buffers}
        self.widened = widened_loads(self.kernel)
        self.sizes = {name: b.dtype.bytes for name, b in self.buffers.items()}
        for stmt in walk_stmts(kernel.body):
            if isinstance(stmt, Array):
                raise UnsupportedError(
                    f"array {stmt.name} is indexed by values that are not constant",
                    node=kernel.name,
                    hint="a CPU kernel has registers only; unroll its loops or use a workspace",
                )

    def text(self) -> str:
        grid = self.frame.local("workgroup", "i32")
        self.depth = 2
        self.block(self.kernel.body)
        body = self.lines
        self.lines, self.depth = [], 1
        self.prologue()
        step = f"(local.tee {grid} (i32.add (local.get {grid}) (i32.const 1)))"
        return "\n".join(
            (
                f";; {self.kernel.name}({', '.join(f'{p.buffer}' for p in self.kernel.buffers)})",
                f"(func {self.identifier} (param $args i32) (param $begin i32) (param $end i32)",
                f"  {self.frame.declarations()}",
                *self.lines,
                f"  (local.set {grid} (local.get $begin))",
                f"  (if (i32.ge_s (local.get {grid}) (local.get $end)) (then (return)))",
                "  (loop $next",
                *body,
                f"    (br_if $next (i32.lt_s {step} (local.get $end)))))",
            )
        )

    def prologue(self) -> None:
        """Fetch the pointers and scalars that the body uses."""
        count = len(self.kernel.buffers)
        names = [(f"b_{p.buffer.name}", 4 * k) for k, p in enumerate(self.kernel.buffers)]
        names += [(f"s_{n}", 4 * (count + 1 + k)) for k, (n, _) in enumerate(self.kernel.scalars)]
        for name, offset in names:
            if self.frame.has(name):
                place = self.frame.local(name, "i32")
                self.line(f"(local.set {place} (i32.load offset={offset} (local.get $args)))")

    # Statements

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def block(self, body: tuple[KStmt, ...]) -> None:
        outer = dict(self.lets)
        for stmt in body:
            self.stmt(stmt)
        self.lets = outer

    def stmt(self, stmt: KStmt) -> None:
        match stmt:
            case Let(name) if name in self.widened:
                pass
            case Let(name, value) | VarDecl(name, value) | Assign(name, value):
                code = self.expr(value)
                self.line(f"(local.set {self.variable(name, value)} {code})")
                self.remember(stmt)
            case KStore():
                self.store(stmt)
            case For():
                self.loop(stmt)
            case If():
                self.branch(stmt)
            case Barrier() | Array():
                raise UnsupportedError("barriers in a CPU kernel", node=self.kernel.name)

    def remember(self, stmt: Let | VarDecl | Assign) -> None:
        """Know what a name stands for, if that cannot change while it is in scope."""
        self.forget(stmt.name)
        if not isinstance(stmt, Let):
            return
        used = {e.name for e in walk_expr(stmt.value) if isinstance(e, KVar)}
        if not used & self.mutable and stmt.name not in used:
            self.lets[stmt.name] = stmt.value
            for name in used:
                self.users.setdefault(name, set()).add(stmt.name)

    def forget(self, name: str) -> None:
        """A name comes to mean something else."""
        self.lets.pop(name, None)
        for user in self.users.get(name, ()):
            self.lets.pop(user, None)

    def store(self, stmt: KStore) -> None:
        address = self.address(stmt.buffer, stmt.index)
        dtype = self.buffers[stmt.buffer].dtype
        value = self.expr(stmt.value)
        self.line(wasm_memory.store(address, value, dtype, stmt.value.lanes))

    def variable(self, name: str, value: KExpr) -> str:
        return self.frame.local(f"v_{name}", value_type(value.dtype, value.lanes))

    def loop(self, loop: For) -> None:
        """Tested at the bottom; once before, unless it is known to run."""
        counter = self.frame.local(f"v_{loop.name}", "i32")
        start, stop = self.expr(loop.start), self.expr(loop.stop)
        if not isinstance(loop.stop, KConst | KScalar):
            bound = self.frame.temp("i32")
            self.line(f"(local.set {bound} {stop})")
            stop = f"(local.get {bound})"
        runs = False
        if isinstance(loop.start, KConst) and isinstance(loop.stop, KConst):
            runs = int(loop.start.value) < int(loop.stop.value)
            if not runs:
                return
        self.forget(loop.name)
        self.line(f"(local.set {counter} {start})")
        if not runs:
            self.line(f"(if (i32.lt_s (local.get {counter}) {stop}) (then")
            self.depth += 1
        pointers = find_pointers(loop, self.lets, self.sizes)
        moves = [m for p in pointers if (m := self.start_pointer(p, loop.step)).bytes != 0]
        body = without_unused(dead_first(loop.body), frozenset(self.pointers))
        loop = replace(loop, body=body)
        if is_worth_copies(loop, moves, self.pointers):
            self.copied(loop, stop, moves)
        else:
            self.turns(loop, stop, moves)
        self.pointers.clear()
        if not runs:
            self.depth -= 1
            self.line("))")

    def turns(self, loop: For, stop: str, moves: Sequence[Move]) -> None:
        """The loop itself."""
        counter, label = self.variable(loop.name, i32(0)), self.label()
        self.line(f"(loop {label}")
        self.depth += 1
        self.block(loop.body)
        for move in moves:
            self.line(move.code())
        step = f"(local.tee {counter} (i32.add (local.get {counter}) (i32.const {loop.step})))"
        self.line(f"(br_if {label} (i32.lt_s {step} {stop})))")
        self.depth -= 1

    def copied(self, loop: For, stop: str, moves: Sequence[Move]) -> None:
        """The loop itself with several turns in text, and a way out after each.

        Cranelift computes a sum only where a store or a branch asks for it: without those ways out
        it would first load what all turns need, and run out of registers.
        """
        left, done, label = self.frame.temp("i32"), self.label(), self.label()
        start = f"(local.get {self.variable(loop.name, i32(0))})"
        self.line(f"(local.set {left} (i32.sub {stop} {start}))")
        self.line(f"(block {done} (loop {label}")
        self.depth += 1
        for turn in range(COPIES):
            if turn:
                gone = f"(i32.const {turn * loop.step})"
                self.line(f"(br_if {done} (i32.le_s (local.get {left}) {gone}))")
                for move in moves:
                    self.pointers |= move.served(turn)
            self.block(loop.body)
        for move in moves:
            self.line(move.code(COPIES))
        gone = f"(i32.const {COPIES * loop.step})"
        rest = f"(local.tee {left} (i32.sub (local.get {left}) {gone}))"
        self.line(f"(br_if {label} (i32.gt_s {rest} (i32.const 0)))))")
        self.depth -= 1

    def label(self) -> str:
        self.labels += 1
        return f"$l{self.labels}"

    def start_pointer(self, pointer: Pointer, step: int) -> Move:
        """Set a pointer before the loop; how it moves."""
        place = self.frame.temp("i32")
        start = self.address(pointer.buffer, pointer.start)
        constant = f"(i32.const {start.offset})"
        code = f"(i32.add {start.code} {constant})" if start.offset else start.code
        self.line(f"(local.set {place} {code})")
        size = self.sizes[pointer.buffer]
        by = simplify(kop("mul", pointer.stride, i32(step * size)))
        constant_by = int(by.value) if isinstance(by, KConst) else None
        move = Move(pointer, place, self.expr(by), constant_by)
        self.pointers |= move.served(0)
        return move

    def branch(self, stmt: If) -> None:
        self.line(f"(if {self.expr(stmt.cond)} (then")
        self.depth += 1
        self.block(stmt.then)
        self.depth -= 1
        if stmt.other:
            self.line(") (else")
            self.depth += 1
            self.block(stmt.other)
            self.depth -= 1
        self.line("))")

    # Expressions

    def address(self, buffer: str, index: KExpr) -> Address:
        served = self.pointers.get((buffer, index))
        if served is not None:
            return served
        size = self.sizes[buffer]
        rest, offset = wasm_memory.split_offset(index, size)
        pointer = f"(local.get {self.frame.local(f'b_{buffer}', 'i32')})"
        if isinstance(rest, KConst):
            return Address(pointer, offset)
        code = self.expr(rest)
        if size > 1:
            code = f"(i32.shl {code} (i32.const {size.bit_length() - 1}))"
        return Address(f"(i32.add {pointer} {code})", offset)

    def expr(self, expr: KExpr) -> str:
        match expr:
            case KConst(dtype, lanes, value):
                return constant(value, dtype, lanes)
            case KVar(_, _, "workgroup"):
                return "(local.get $workgroup)"
            case KVar(_, _, "local"):
                raise UnsupportedError("invocations in a CPU kernel", node=self.kernel.name)
            case KVar(_, _, name):
                return f"(local.get {self.variable(name, expr)})"
            case KScalar(_, _, name):
                return f"(local.get {self.frame.local(f's_{name}', 'i32')})"
            case KLoad(dtype, lanes, buffer, index):
                return wasm_memory.load(self.address(buffer, index), dtype, lanes)
            case KOp():
                return self.operation(expr)
            case KCast(dtype, lanes, arg):
                return self.functions.cast(self.expr(arg), arg.dtype, dtype, lanes)
            case KBits(dtype, lanes, arg):
                return same_bits(self.expr(arg), arg.dtype, dtype, lanes)
            case KSelect():
                return self.select(expr)
            case KVec():
                return self.vector(expr)
            case KLane(dtype, _, vector, lane):
                code = f"({shape(dtype)}.extract_lane {lane} {self.expr(vector)})"
                return f"(i32.and {code} (i32.const 1))" if dtype.kind == "bool" else code
            case KSubgroup():
                raise UnsupportedError("subgroups in a CPU kernel", node=self.kernel.name)
        raise TypeError(f"not a kernel expression: {expr!r}")

    def operation(self, op: KOp) -> str:
        if op.fn == "add" and op.dtype == F32 and op.lanes == 4:
            for product, rest in (op.args, op.args[::-1]):
                if isinstance(product, KOp) and product.fn == "mul":
                    args = [self.expr(a) for a in (*product.args, rest)]
                    return self.functions.fma(args, op.dtype, op.lanes)
        match op:
            case KOp(fn="widen_pairs", args=(KCast(arg=KVar(name=name)),)) if name in self.widened:
                load = self.widened[name]
                return f"(v128.load8x8_s {self.address(load.buffer, load.index).operands()})"
        return self.functions.apply(op.fn, op.args, [self.expr(a) for a in op.args])

    def select(self, expr: KSelect) -> str:
        then, other, cond = (self.expr(e) for e in (expr.then, expr.other, expr.cond))
        if expr.cond.lanes == 4:
            return f"(v128.bitselect {then} {other} {cond})"
        return f"(select {then} {other} {cond})"

    def vector(self, vec: KVec) -> str:
        value_type(vec.dtype, vec.lanes)
        if len(vec.parts) == 1:
            (part,) = vec.parts
            if isinstance(part, KLoad) and part.dtype.bits == 32:
                place = self.address(part.buffer, part.index)
                return f"(v128.load32_splat {place.operands()})"
        picked = [p for p in vec.parts if isinstance(p, KLane) and isinstance(p.vector, KVar)]
        if len(picked) == 4:
            return shuffled([(self.expr(p.vector), p.lane) for p in picked])
        lanes = [self.lane(p) for p in vec.parts]
        code = f"({shape(vec.dtype)}.splat {lanes[0]})"
        for k, lane in enumerate(lanes[1:], start=1):
            code = f"({shape(vec.dtype)}.replace_lane {k} {code} {lane})"
        return code

    def lane(self, part: KExpr) -> str:
        """A scalar as a lane; of a bool, its mask."""
        code = self.expr(part)
        return f"(i32.sub (i32.const 0) {code})" if part.dtype.kind == "bool" else code
