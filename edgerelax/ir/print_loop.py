"""Loop functions as text.

    @loop
    def matmul(a: f32[n, 64], b: weight[f32[64, 8]], out: out[f32[n, 8]]):
        for i0, i1 in grid(n, 8):
            for k0 in reduce(64):
                acc = sum(a[i0, k0] * b[k0, i1])
            out[i0, i1] = max(acc, 0.0)

A scalar that is used more than once, or nested deep, has a line of its own (`t0 = …`), as has an
integer gathered from memory that indices mention (`g0 = gather(ids[i0])`). `if` is the stage's
`where`.
"""

from collections.abc import Sequence

from edgerelax.ir.dtypes import BOOL, F32, I64, DType
from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.names import Names, identifier
from edgerelax.ir.scalar import (
    Acc,
    Buffer,
    Cast,
    Const,
    Load,
    Op,
    Scalar,
    Select,
    Value,
    own_exprs,
    walk,
)
from edgerelax.ir.spelling import Spelling, float_text
from edgerelax.sym import Atom, Axis, Expr, ExprLike, Opaque, Symbol

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "and": "and", "or": "or",
}  # fmt: skip
_LEVEL = {"+": 3, "-": 3, "*": 4, "/": 4}  # comparisons and logic: 2, a choice: 1, closed: 5
_CLOSED = 5
_MAX_HEIGHT = 8

Text = tuple[str, int]


def loop_lines(func: LoopFunc, spelling: Spelling) -> list[str]:
    """The text of a loop function."""
    return _LoopPrinter(func, spelling).lines()


class _LoopPrinter:
    def __init__(self, func: LoopFunc, spelling: Spelling) -> None:
        self.func, self.spelling = func, spelling
        self.names = Names((*spelling.symbols.values(), "acc"))
        buffers = dict.fromkeys((*func.inputs, *func.outputs, *func.temps))
        self.buffers = {b: self.names.pick(b.name) for b in buffers}

    def lines(self) -> list[str]:
        func = self.func
        params = [self._param(b) for b in func.inputs]
        params += [f"{self.buffers[b]}: out[{self._type(b)}]" for b in func.outputs]
        lines = ["@loop", f"def {identifier(func.name)}({', '.join(params)}):"]
        if identifier(func.name) != func.name:
            lines[0] = f"@loop(name={func.name!r})"
        lines += [f"    {self.buffers[b]}: temp[{self._type(b)}]" for b in func.temps]
        for stage in func.stages:
            block = [self._template(stage)] if isinstance(stage, Template) else self._stage(stage)
            lines += [f"    {line}" for line in block]
        return lines if len(lines) > 2 else [*lines, "    pass"]

    def _param(self, buffer: Buffer) -> str:
        kind = f"weight[{self._type(buffer)}]" if buffer.name in self.func.weights else ""
        return f"{self.buffers[buffer]}: {kind or self._type(buffer)}"

    def _type(self, buffer: Buffer) -> str:
        return f"{buffer.dtype}[{self.spelling.exprs(buffer.dims) or '()'}]"

    def name(self, buffer: Buffer) -> str:
        """A buffer's name, even one that the function does not declare."""
        return self.buffers.get(buffer, buffer.name)

    def _template(self, stage: Template) -> str:
        groups = [
            self._tuple([self.name(b) for b in group]) for group in (stage.inputs, stage.outputs)
        ]
        parts = [repr(stage.kind), *groups, *self.spelling.keywords(stage.params, {})]
        return f"template({', '.join(parts)})"

    def _tuple(self, parts: Sequence[str]) -> str:
        return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"

    def _stage(self, stage: Stage) -> list[str]:
        p = _StagePrinter(self, stage)
        outer_where, step_where = self._place_where(stage)
        lines = [self._for(p, stage.axes, "grid")]
        indent = "    "
        if outer_where is not None:
            lines += p.guarded(outer_where, indent)
            indent += "    "
        if stage.combiner is not None:
            lines += self._reduction(p, stage, step_where, indent)
        value = "acc" if stage.combiner and stage.epilogue is None else None
        roots = [] if value else [stage.result]
        lines += p.lets(roots, stage.store_index, indent)
        place = ", ".join(map(p.expr, stage.store_index)) or "()"
        lines.append(f"{indent}{self.name(stage.out)}[{place}] = {value or p.text(stage.result)}")
        return lines

    def _reduction(
        self, p: "_StagePrinter", stage: Stage, where: Scalar | None, indent: str
    ) -> list[str]:
        lines: list[str] = []
        init = []
        if stage.init is not None:
            lines += p.lets([stage.init], (), indent)
            init = [f"init={p.text(stage.init)}"]
        lines.append(indent + self._for(p, stage.reduce, "reduce"))
        indent += "    "
        if where is not None:
            lines += p.guarded(where, indent)
            indent += "    "
        lines += p.lets([stage.body], (), indent)
        arguments = ", ".join([p.text(stage.body), *init])
        return [*lines, f"{indent}acc = {stage.combiner}({arguments})"]

    def _place_where(self, stage: Stage) -> tuple[Scalar | None, Scalar | None]:
        """The predicate where the store is guarded, or where the reduction's step is."""
        if stage.where is None:
            return None, None
        steps = stage.where.axes() & set(stage.reduce)
        return (None, stage.where) if steps else (stage.where, None)

    def _for(self, p: "_StagePrinter", axes: Sequence[Axis], word: str) -> str:
        names = ", ".join(p.axes[a] for a in axes) or "()"
        return f"for {names} in {word}({self.spelling.exprs(a.extent for a in axes)}):"


class _StagePrinter:
    """The scalars of one stage."""

    def __init__(self, around: _LoopPrinter, stage: Stage) -> None:
        self.around, self.stage = around, stage
        names = Names(around.names.taken)
        self.axes = {a: names.pick(a.name) for a in (*stage.axes, *stage.reduce)}
        self.names = names
        self.swaps: dict[Atom, ExprLike] = {
            a: Axis(name, a.extent) for a, name in self.axes.items() if name != a.name
        }
        self.named: dict[Scalar, str] = {}
        self.memo: dict[Scalar, Text] = {}
        self.height: dict[Scalar, int] = {}

    def expr(self, expr: Expr) -> str:
        return self.around.spelling.expr(expr.subs(self.swaps) if self.swaps else expr)

    def guarded(self, where: Scalar, indent: str) -> list[str]:
        """The head of an `if`."""
        return [*self.lets([where], (), indent), f"{indent}if {self.text(where)}:"]

    def lets(self, roots: Sequence[Scalar], exprs: Sequence[Expr], indent: str) -> list[str]:
        """Lines for what the roots and index expressions need that has a name of its own."""
        lines: list[str] = []
        for expr in exprs:
            self._name_gathers(expr, lines, indent)
        uses: dict[Scalar, int] = {}
        nodes: dict[Scalar, None] = {}
        for root in roots:
            for node in walk(root):
                if node not in nodes:
                    nodes[node] = None
                    for arg in node.args:
                        uses[arg] = uses.get(arg, 0) + 1
        for node in nodes:
            for expr in own_exprs(node):
                self._name_gathers(expr, lines, indent)
            height = 1 + max((self.height.get(a, 0) for a in node.args), default=0)
            shared = uses.get(node, 0) > 1 and bool(node.args)
            if node not in self.named and (shared or height > _MAX_HEIGHT) and node not in roots:
                text = self.text(node)
                self.named[node] = self.names.pick(f"t{len(self.named)}")
                lines.append(f"{indent}{self.named[node]} = {text}")
                self.memo[node] = (self.named[node], _CLOSED)
            self.height[node] = 0 if node in self.named else height
        return lines

    def _name_gathers(self, expr: Expr, lines: list[str], indent: str) -> None:
        for atom in sorted(expr.atoms(), key=str):
            if not isinstance(atom, Opaque) or atom in self.swaps:
                continue
            if not isinstance(atom.payload, Scalar):
                continue
            lines += self.lets([atom.payload], (), indent)
            bounds = [b for b in (atom.lo, atom.hi) if b is not None]
            for bound in bounds:
                self._name_gathers(bound, lines, indent)
            parts = [self.text(atom.payload)]
            if bounds:
                parts += ["None" if b is None else self.expr(b) for b in (atom.lo, atom.hi)]
            name = self.names.pick(f"g{sum(isinstance(a, Opaque) for a in self.swaps)}")
            lines.append(f"{indent}{name} = gather({', '.join(parts)})")
            self.swaps[atom] = Symbol(name, -(1 << 62))

    def text(self, node: Scalar) -> str:
        return self._text(node)[0]

    def _text(self, node: Scalar) -> Text:
        if node not in self.memo:
            for inner in walk(node):
                if inner not in self.memo:
                    self.memo[inner] = self._spell(inner)
        return self.memo[node]

    def _spell(self, node: Scalar) -> Text:
        args = [self.memo[a] for a in node.args]
        match node:
            case Const():
                return const_text(node), _CLOSED
            case Value():
                kind = "" if node.type == I64 else f", {node.type}"
                return f"value({self.expr(node.expr)}{kind})", _CLOSED
            case Load():
                index = ", ".join(map(self.expr, node.index)) or "()"
                return f"{self.around.name(node.buffer)}[{index}]", _CLOSED
            case Cast():
                return f"cast({args[0][0]}, {node.type})", _CLOSED
            case Select():
                cond, then, other = (_wrap(a, 2) for a in args)
                return f"{then} if {cond} else {other}", 1
            case Acc():
                return self._acc(node), _CLOSED
            case Op(fn="not") if len(args) == 1:
                return f"not {_wrap(args[0], _CLOSED)}", 2
            case Op(fn=fn) if fn in INFIX and len(args) == 2:
                level = _LEVEL.get(INFIX[fn], 2)
                left, right = _wrap(args[0], max(level, 3)), _wrap(args[1], level + 1)
                return f"{left} {INFIX[fn]} {right}", level
            case Op(fn=fn):
                return f"{fn}({', '.join(a[0] for a in args)})", _CLOSED
        return f"opaque({str(node)!r})", _CLOSED

    def _acc(self, node: Acc) -> str:
        combiner = str(self.stage.combiner)
        if node.type != acc_dtype(combiner, self.stage.body.dtype, node.component):
            return f"acc({node.type}, {node.component})"
        return f"acc[{node.component}]" if has_components(combiner) else "acc"


def _wrap(text: Text, at_least: int) -> str:
    return text[0] if text[1] >= at_least else f"({text[0]})"


def has_components(combiner: str) -> bool:
    """Whether the reduced value is several."""
    return combiner.startswith("arg") or combiner == "welford"


def acc_dtype(combiner: str, body: DType, component: int) -> DType:
    """The dtype a component of the reduced value has, unless an Acc says otherwise."""
    return I64 if combiner.startswith("arg") and component == 1 else body


def const_text(node: Const) -> str:
    """A literal: f32, i64 and bool ones bare, others with their dtype."""
    if node.type == BOOL:
        return str(bool(node.value))
    text = float_text(float(node.value)) if node.type.is_float else str(int(node.value))
    if text.startswith("-") or node.type not in (F32, I64) or text.startswith("float"):
        return f"{node.type}({text})"
    return text
