"""Kernel IR → WGSL: one module per kernel, accepted by naga and by Tint.

Bindings 0…n-1 are the buffers, binding n the uniforms: the grid, then the scalars. Names of the
IR get a prefix by what they are, so that none is a reserved word.
"""

import re

from edgerelax.codegen import wgsl_atomics, wgsl_functions, wgsl_storage
from edgerelax.codegen.expand import expand
from edgerelax.codegen.wgsl_halves import short_arrays, short_type, uses_halves
from edgerelax.codegen.wgsl_prelude import prelude_for
from edgerelax.codegen.wgsl_text import (
    PRIMARY,
    Text,
    call,
    literal,
    value_type,
)
from edgerelax.ir.dtypes import F16, F32
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
    walk_exprs,
    walk_stmts,
)
from edgerelax.ir.kernel_verify import verify_kernel

_F16 = re.compile(r"\bf16\b")
_SUBGROUP = {"add": "subgroupAdd", "max": "subgroupMax", "min": "subgroupMin"}


def print_wgsl(kernel: Kernel, enable_line: bool = False, halves: bool = False) -> str:
    """The module of a kernel. Tint needs `enable_line` for subgroups; naga rejects the line.

    With `halves`, f16 is the device's own, with the feature `shader-f16`.
    """
    verify_kernel(kernel)
    printer = _Printer(expand(kernel), halves)
    main = printer.main()
    header = printer.header(enable_line)
    prelude = prelude_for(main)
    return "\n".join(part for part in (header, prelude, main) if part)


class _Printer:
    def __init__(self, kernel: Kernel, halves: bool) -> None:
        self.kernel = kernel
        self.halves = halves and uses_halves(kernel)
        self.lines: list[str] = []
        self.depth = 1
        self.temps = 0
        self.identifiers: dict[str, str] = {}
        self.short = short_arrays(kernel) if self.halves else frozenset()
        self.arrays = {s.name: s for s in walk_stmts(kernel.body) if isinstance(s, Array)}
        names = {p.buffer.name: self.identifier("b", p.buffer.name) for p in kernel.buffers}
        self.layouts = wgsl_storage.layouts(kernel.buffers, kernel.body, names, self.halves)

    # The frame

    def header(self, enable_line: bool) -> str:
        kernel = self.kernel
        signature = ", ".join(f"{p.buffer} {p.access}" for p in kernel.buffers)
        lines = [f"// {kernel.name}({signature})"]
        lines += [f"// {line}" for line in kernel.comment.splitlines()]
        if enable_line and "subgroups" in kernel.features:
            lines.append("enable subgroups;")
        declared = self.declarations()
        if any(_F16.search(line) for line in (*declared, *self.lines)):
            lines.append("enable f16;")
        return "\n".join((*lines, "", *declared)) + "\n"

    def declarations(self) -> list[str]:
        kernel, lines = self.kernel, []
        for k, p in enumerate(kernel.buffers):
            layout = self.layouts[p.buffer.name]
            lines.append(
                f"@group(0) @binding({k}) var<storage, {p.access}> {layout.name}: "
                f"array<{layout.declared}>;"
            )
        slots = (len(kernel.scalars) + 4) // 4
        lines.append(
            f"@group(0) @binding({len(kernel.buffers)}) var<uniform> params: "
            f"array<vec4<i32>, {slots}>;"
        )
        for array in self.arrays.values():
            if array.shared:
                lines.append(f"var<workgroup> {self.place(array.name)}: {self.array_type(array)};")
        return lines

    def main(self) -> str:
        self.line("let workgroup = i32(wid.x + wid.y * groups.x);")
        self.line("if (workgroup >= params[0].x) {")
        self.line("  return;")
        self.line("}")
        used = {e.name for e in walk_exprs(self.kernel.body) if isinstance(e, KScalar | KVar)}
        if "local" in used:
            self.line("let local = i32(lid);")
        if "lane" in used:
            self.line("let lane = i32(place);")
        for k, (name, _) in enumerate(self.kernel.scalars, start=1):
            if name in used:
                self.line(f"let {self.identifier('s', name)} = params[{k // 4}].{'xyzw'[k % 4]};")
        self.block(self.kernel.body)
        builtins = [
            "@builtin(workgroup_id) wid: vec3<u32>",
            "@builtin(num_workgroups) groups: vec3<u32>",
        ]
        if "local" in used:
            builtins.append("@builtin(local_invocation_index) lid: u32")
        if "lane" in used:
            builtins.append("@builtin(subgroup_invocation_id) place: u32")
        return "\n".join(
            (
                f"@compute @workgroup_size({self.kernel.workgroup})",
                "fn main(",
                *(f"  {b}," for b in builtins),
                ") {",
                *self.lines,
                "}\n",
            )
        )

    def identifier(self, prefix: str, name: str) -> str:
        """A name of the IR as WGSL: one to one, and never a reserved word."""
        known = self.identifiers.get(prefix + name)
        if known is None:
            known = f"{prefix}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}"
            while known in self.identifiers.values():
                known += "_"
            self.identifiers[prefix + name] = known
        return known

    def place(self, array: str) -> str:
        return self.identifier("w" if self.arrays[array].shared else "v", array)

    # Statements

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def named(self, text: Text) -> Text:
        """The text, if simple, or a fresh name for its value."""
        return text if text.is_simple else self.fresh(text)

    def fresh(self, text: Text) -> Text:
        """A fresh name for a value."""
        name = f"t{self.temps}"
        self.temps += 1
        self.line(f"let {name} = {text.text};")
        return Text(name)

    def block(self, body: tuple[KStmt, ...]) -> None:
        for stmt in body:
            self.stmt(stmt)

    def inner(self, body: tuple[KStmt, ...]) -> None:
        self.depth += 1
        self.block(body)
        self.depth -= 1

    def stmt(self, stmt: KStmt) -> None:
        match stmt:
            case Let(name, value):
                text = self.expr(value)
                self.line(f"let {self.identifier('v', name)} = {text.text};")
            case VarDecl(name, value):
                text = self.expr(value)
                kind = value_type(value.dtype, value.lanes)
                self.line(f"var {self.identifier('v', name)}: {kind} = {text.text};")
            case Assign(name, value):
                text = self.expr(value)
                self.line(f"{self.identifier('v', name)} = {text.text};")
            case Array(name=name, shared=False):
                self.line(f"var {self.place(name)} = {self.array_type(stmt)}();")
            case KStore():
                self.store(stmt)
            case For():
                self.loop(stmt)
            case If():
                self.branch(stmt)
            case Barrier():
                self.line("workgroupBarrier();")
                if any(p.access == "read_write" for p in self.kernel.buffers):
                    self.line("storageBarrier();")

    def store(self, stmt: KStore) -> None:
        if stmt.combine:
            wgsl_atomics.combine(self.layouts[stmt.buffer], stmt, self)
            return
        if stmt.buffer not in self.arrays:
            wgsl_storage.store(self.layouts[stmt.buffer], stmt, self)
            return
        array, place = self.arrays[stmt.buffer], self.place(stmt.buffer)
        if stmt.value.lanes == array.lanes:
            index = self.expr(stmt.index)
            value = self.kept(array, self.expr(stmt.value), array.lanes)
            self.line(f"{place}[{index.text}] = {value.text};")
            return
        first = self.named(self.expr(stmt.index))
        value = self.named(self.kept(array, self.expr(stmt.value), stmt.value.lanes))
        for k in range(stmt.value.lanes):
            self.line(f"{place}[{_offset(first, k)}] = {value.text}.{'xyzw'[k]};")

    def loop(self, loop: For) -> None:
        start = self.expr(loop.start).text
        stop = self.expr(loop.stop)
        if not isinstance(loop.stop, KConst | KScalar):
            stop = self.fresh(stop)
        name = self.identifier("v", loop.name)
        step = f"{name}++" if loop.step == 1 else f"{name} += {loop.step}"
        self.line(f"for (var {name}: i32 = {start}; {name} < {stop.text}; {step}) {{")
        self.inner(loop.body)
        self.line("}")

    def branch(self, stmt: If) -> None:
        self.line(f"if ({self.expr(stmt.cond).text}) {{")
        self.inner(stmt.then)
        if stmt.other:
            self.line("} else {")
            self.inner(stmt.other)
        self.line("}")

    # Expressions

    def expr(self, expr: KExpr) -> Text:
        match expr:
            case KConst(dtype, lanes, value):
                return literal(value, dtype, lanes)
            case KVar(_, _, name):
                builtin = name in ("workgroup", "local", "lane")
                return Text(name if builtin else self.identifier("v", name))
            case KScalar(_, _, name):
                return Text(self.identifier("s", name))
            case KLoad():
                return self.load(expr)
            case KOp(_, _, fn, args):
                return wgsl_functions.apply(fn, args, [self.expr(a) for a in args])
            case KCast(dtype, lanes, arg) if self.halves and dtype == F16 and arg.dtype == F32:
                short = call(short_type(lanes), self.expr(arg))
                return call(value_type(dtype, lanes), short)
            case KCast(dtype, lanes, arg):
                return wgsl_functions.cast(self.expr(arg), arg.dtype, dtype, lanes)
            case KBits(dtype, lanes, arg):
                return call(f"bitcast<{value_type(dtype, lanes)}>", self.expr(arg))
            case KSelect():
                return self.select(expr)
            case KVec(dtype, lanes, parts):
                return call(value_type(dtype, lanes), *(self.expr(p) for p in parts))
            case KLane(_, _, vector, lane):
                return Text(f"{self.expr(vector).at(PRIMARY)}.{'xyzw'[lane]}")
            case KSubgroup(_, _, fn, arg):
                return call(_SUBGROUP[fn], self.expr(arg))
        raise TypeError(f"not a kernel expression: {expr!r}")

    def select(self, expr: KSelect) -> Text:
        then, other = self.expr(expr.then), self.expr(expr.other)
        return call("select", other, then, self.expr(expr.cond))

    def load(self, load: KLoad) -> Text:
        if load.buffer not in self.arrays:
            return wgsl_storage.load(self.layouts[load.buffer], load, self)
        place = self.place(load.buffer)
        if load.lanes == self.arrays[load.buffer].lanes:
            whole = Text(f"{place}[{self.expr(load.index).text}]")
            short = load.buffer in self.short
            return call(value_type(load.dtype, load.lanes), whole) if short else whole
        first = self.named(self.expr(load.index))
        lanes = [Text(f"{place}[{_offset(first, k)}]") for k in range(load.lanes)]
        if load.buffer in self.short:
            lanes = [call(short_type(load.lanes), *lanes)]
        return call(value_type(load.dtype, load.lanes), *lanes)

    def kept(self, array: Array, value: Text, lanes: int) -> Text:
        """A value as an array holds it."""
        return call(short_type(lanes), value) if array.name in self.short else value

    def array_type(self, array: Array) -> str:
        short = array.name in self.short
        kind = short_type(array.lanes) if short else value_type(array.dtype, array.lanes)
        return f"array<{kind}, {array.size}>"


def _offset(first: Text, k: int) -> str:
    return first.text if k == 0 else f"{first.text} + {k}"
