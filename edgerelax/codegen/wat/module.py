"""Kernel IR → one WebAssembly module (docs/architecture.md, "CPU kernels").

A kernel is a function of (args, begin, end): it reads its buffers' addresses and its scalars from `args`
and runs iterations [begin, end) of its grid.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import wasmtime

from edgerelax.codegen.expand import expand
from edgerelax.codegen.wat.exprs import Exprs, wasm_type
from edgerelax.codegen.wat.prelude import prelude_for
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.kernel import (
    WORKGROUP,
    Array,
    Assign,
    Barrier,
    For,
    If,
    Kernel,
    KStmt,
    KStore,
    KVar,
    Let,
    VarDecl,
)


def build_wasm(kernels: Sequence[Kernel], *, relaxed: bool = False) -> bytes:
    """The module of several kernels, in the order of the function table."""
    return bytes(wasmtime.wat2wasm(print_wat(kernels, relaxed=relaxed)))


def print_wat(kernels: Sequence[Kernel], *, relaxed: bool = False) -> str:
    """The module as text. `relaxed` uses fused multiply-adds of relaxed SIMD."""
    functions = [print_kernel(kernel, k, relaxed) for k, kernel in enumerate(kernels)]
    imports, prelude = prelude_for("\n".join(functions))
    names = " ".join(f"$k{k}" for k in range(len(kernels)))
    lines = [
        "(module",
        '(import "env" "memory" (memory 0))',
        '(import "env" "table" (table 0 funcref))',
        '(import "env" "base" (global $base i32))',
        *imports,
        f"(elem (global.get $base) func {names})",
        *prelude,
        *functions,
        ")",
    ]
    return "\n".join(lines) + "\n"


def print_kernel(kernel: Kernel, number: int = 0, relaxed: bool = False) -> str:
    """One kernel's function."""
    return _Printer(expand(kernel), relaxed).function(number)


@dataclass(slots=True)
class _Printer:
    kernel: Kernel
    relaxed: bool
    lines: list[str] = field(default_factory=list)
    locals: dict[str, str] = field(default_factory=dict)  # wasm name → type
    labels: int = 0
    depth: int = 2

    def function(self, number: int) -> str:
        kernel = self.kernel
        exprs = Exprs(
            self._local, {b.buffer.name: b.buffer.dtype for b in kernel.buffers}, self.relaxed
        )
        self._parameters()
        self._line("(if (i32.lt_s (local.get $workgroup) (local.get $end)) (then (loop $grid")
        self.depth += 1
        self._block(kernel.body, exprs)
        step = "(local.tee $workgroup (i32.add (local.get $workgroup) (i32.const 1)))"
        self._line(f"(br_if $grid (i32.lt_s {step} (local.get $end)))")
        self.depth -= 1
        self._line(")))")
        declared = [f"  (local {name} {type_})" for name, type_ in self.locals.items()]
        head = f"(func $k{number} (param $args i32) (param $workgroup i32) (param $end i32)"
        comment = f";; {_clean(kernel.name)}"
        return "\n".join([comment, head, *declared, *self.lines, ")"])

    def _parameters(self) -> None:
        """Addresses first, then the grid, which a range makes superfluous, then scalars."""
        for k, buffer in enumerate(self.kernel.buffers):
            self._parameter(f"${buffer.buffer.name}", 4 * k)
        first = 4 * (len(self.kernel.buffers) + 1)
        for k, (name, _) in enumerate(self.kernel.scalars):
            self._parameter(f"${name}", first + 4 * k)

    def _parameter(self, name: str, offset: int) -> None:
        self.locals[name] = "i32"
        self._line(f"(local.set {name} (i32.load offset={offset} (local.get $args)))")

    def _local(self, var: KVar) -> str:
        """The local of a name; one name at two types is two locals."""
        if var == WORKGROUP:
            return "$workgroup"
        type_ = wasm_type(var.dtype, var.lanes)
        name = f"$v.{var.name}.{type_}"
        self.locals.setdefault(name, type_)
        return name

    def _line(self, text: str) -> None:
        self.lines.append("  " * (self.depth - 1) + text)

    def _block(self, body: Sequence[KStmt], exprs: Exprs) -> None:
        for stmt in body:
            self._stmt(stmt, exprs)

    def _stmt(self, stmt: KStmt, exprs: Exprs) -> None:
        match stmt:
            case Let(name, value) | VarDecl(name, value) | Assign(name, value):
                target = self._local(KVar(value.dtype, value.lanes, name))
                self._line(f"(local.set {target} {exprs.text(value)})")
            case KStore():
                for line in exprs.store(stmt.buffer, stmt.index, stmt.value):
                    self._line(line)
            case If():
                self._if(stmt, exprs)
            case For():
                self._for(stmt, exprs)
            case Barrier():
                pass  # one invocation waits for nobody
            case Array():
                raise UnsupportedError(
                    f"kernel {self.kernel.name}: array {stmt.name} is indexed by a variable, "
                    "which registers of the CPU cannot be"
                )

    def _if(self, stmt: If, exprs: Exprs) -> None:
        self._line(f"(if {exprs.text(stmt.cond)} (then")
        self.depth += 1
        self._block(stmt.then, exprs)
        self.depth -= 1
        if stmt.other:
            self._line(") (else")
            self.depth += 1
            self._block(stmt.other, exprs)
            self.depth -= 1
        self._line("))")

    def _for(self, stmt: For, exprs: Exprs) -> None:
        """Tested at the bottom; the bound is computed once."""
        self.labels += 1
        label = f"$l{self.labels}"
        index = self._local(KVar(stmt.start.dtype, 1, stmt.name))
        stop = f"$stop{self.labels}"
        self.locals[stop] = "i32"
        self._line(f"(local.set {stop} {exprs.text(stmt.stop)})")
        self._line(f"(local.set {index} {exprs.text(stmt.start)})")
        self._line(f"(if (i32.lt_s (local.get {index}) (local.get {stop})) (then (loop {label}")
        self.depth += 1
        self._block(stmt.body, exprs)
        step = f"(local.tee {index} (i32.add (local.get {index}) (i32.const {stmt.step})))"
        self._line(f"(br_if {label} (i32.lt_s {step} (local.get {stop})))")
        self.depth -= 1
        self._line(")))")


def _clean(text: str) -> str:
    return re.sub(r"\s+", " ", text)
