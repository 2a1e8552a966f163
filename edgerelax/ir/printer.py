"""Modules as text in Python's syntax, which parser.py reads back. Ill-formed IR prints too.

    # edgerelax ir 1
    n = dim(lo=1, hi=64)

    w: f32[64, 8] = weight('fc1.weight')

    @graph
    def main(x: f32[n, 64]):
        h: f32[n, 8] = matmul(x, w)
        y: f32[n, 8] = relu(h)
        return {'y': y}

One statement a line. Bytes of weights never stand in text: `weights_of` gives them beside it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallGraph,
    CallLibrary,
    CallTIR,
    Constant,
    Expression,
    GetItem,
    GraphFunc,
    IfElse,
    MakeShape,
    MakeTuple,
    MatchCast,
    Module,
    ReadInts,
    Repeat,
    ToDevice,
    Value,
    Var,
    blocks,
    body_exprs,
    body_symbols,
    operands,
)
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.names import Names, identifier
from edgerelax.ir.op import Array
from edgerelax.ir.print_loop import loop_lines
from edgerelax.ir.spelling import Spelling, array_text
from edgerelax.ir.types import Annotation, Tuple, exprs_in, symbols_of
from edgerelax.ir.types import Callable as Signature
from edgerelax.sym import Expr, Symbol

VERSION = 1
HEADER = f"# edgerelax ir {VERSION}"
MAX_INLINE = 16
"""Constants of at most this many elements stand in the text."""


def write(module: Module, *, origins: bool = False) -> str:
    """The text of a module; with comments that say where bindings come from, if wanted."""
    return _Printer(module, origins).text()


def weights_of(module: Module) -> dict[str, Array]:
    """The arrays that the text of a module refers to by name."""
    return _Printer(module, False).weights


def same(a: Module, b: Module) -> bool:
    """Whether two modules are equal but for the names of what is not an interface."""
    first, second = weights_of(a), weights_of(b)
    return (
        write(a) == write(b)
        and first.keys() == second.keys()
        and all(w.tobytes() == second[k].tobytes() for k, w in first.items())
    )


def loop_text(func: LoopFunc) -> str:
    """The text of one loop function, without the header."""
    return "\n".join(loop_lines(func, Spelling(func.symbols())))


def binding_text(binding: Binding) -> str:
    """The text of one binding by itself, for messages."""
    symbols = dict.fromkeys(_binding_symbols(binding))
    function = _FuncPrinter(Spelling(symbols), {}, False)
    return "\n".join(function.binding(binding, ""))


class _Printer:
    def __init__(self, module: Module, origins: bool) -> None:
        self.module, self.origins = module, origins
        self.spelling = Spelling(module_symbols(module))
        names = Names(self.spelling.symbols.values())
        keys = _Keys()
        self.constants: dict[Constant, str] = {}
        self.weights: dict[str, Array] = {}
        self.declarations: list[str] = []
        for constant in _constants(module):
            name = self.constants[constant] = names.pick(constant.name)
            if constant.data.size <= MAX_INLINE:
                value = array_text(constant.data)
            else:
                key = keys.pick(constant.name)
                self.weights[key] = constant.data
                value = f"weight({key!r})"
            kind = self.spelling.annotation(constant.annotation)
            self.declarations.append(f"{name}: {kind} = {value}")

    def text(self) -> str:
        sections = [[HEADER, *self.spelling.header()], self.declarations]
        attrs = {k: v for k, v in self.module.attrs.items() if _is_literal(v)}
        if attrs:
            sections.append([f"attrs({', '.join(self.spelling.keywords(attrs, {}))})"])
        sections += [loop_lines(f, self.spelling) for f in self.module.loops.values()]
        for func in self.module.funcs.values():
            printer = _FuncPrinter(self.spelling, self.constants, self.origins)
            sections.append(printer.lines(func))
        return "\n\n".join("\n".join(s) for s in sections if s) + "\n"


class _Keys:
    """Names of weights: as they are, made unique."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def pick(self, name: str) -> str:
        key, k = name, 0
        while key in self.taken:
            k += 1
            key = f"{name}_{k}"
        self.taken.add(key)
        return key


class _FuncPrinter:
    """One graph function."""

    def __init__(
        self, spelling: Spelling, constants: Mapping[Constant, str], origins: bool
    ) -> None:
        self.spelling, self.constants, self.origins = spelling, constants, origins
        self.names = Names(constants.values())
        self.vars: dict[Var, str] = {}

    def lines(self, func: GraphFunc) -> list[str]:
        params = [f"{self.value(p)}: {self.spelling.annotation(p.annotation)}" for p in func.params]
        attrs = {k: v for k, v in func.attrs.items() if _is_literal(v)}
        words = self.spelling.keywords(attrs, {})
        renamed = {self.vars[p]: p.name for p in func.params if self.vars[p] != p.name}
        if renamed:
            words.insert(0, f"inputs={self.spelling.literal(renamed)}")
        if identifier(func.name) != func.name:
            words.insert(0, f"name={func.name!r}")
        lines = [f"@graph({', '.join(words)})" if words else "@graph"]
        lines.append(f"def {identifier(func.name)}({', '.join(params)}):")
        lines += self.block(func.body, "    ")
        results = zip(func.result_names, func.body.results, strict=False)
        pairs = ", ".join(f"{name!r}: {self.value(v)}" for name, v in results)
        return [*lines, f"    return {{{pairs}}}"]

    def value(self, value: Value) -> str:
        """A value's name, given at first sight."""
        if isinstance(value, Constant):
            return self.constants.get(value) or identifier(value.name)
        if value not in self.vars:
            self.vars[value] = self.names.pick(value.name)
        return self.vars[value]

    def block(self, block: Block, indent: str) -> list[str]:
        return [line for b in block.bindings for line in self.binding(b, indent)]

    def binding(self, binding: Binding, indent: str) -> list[str]:
        var = binding.var
        comment = f"  # from {var.origin}" if self.origins and var.origin else ""
        kind = self.spelling.annotation(var.annotation)
        if isinstance(binding.value, IfElse):
            return self._branch(var, kind, binding.value, indent, comment)
        if isinstance(binding.value, Repeat):
            return self._repeat(var, kind, binding.value, indent, comment)
        text = self.expression(binding.value)
        return [f"{indent}{self.value(var)}: {kind} = {text}{comment}"]

    def _branch(self, var: Var, kind: str, branch: IfElse, indent: str, comment: str) -> list[str]:
        cond = branch.cond
        test = f"dim({self.spelling.expr(cond)})" if isinstance(cond, Expr) else self.value(cond)
        name = self.value(var)
        lines = [f"{indent}{name}: {kind}{comment}", f"{indent}if {test}:"]
        arms = ((branch.then, branch.then_symbols), (branch.other, branch.other_symbols))
        for k, (arm, exprs) in enumerate(arms):
            if k:
                lines.append(f"{indent}else:")
            lines += self.block(arm, f"{indent}    ")
            results = self._results(arm, branch.symbols, exprs)
            lines.append(f"{indent}    {name} = {results}")
        return lines

    def _repeat(self, var: Var, kind: str, repeat: Repeat, indent: str, comment: str) -> list[str]:
        expr, name = self.spelling.expr, self.value(var)
        integers = ", ".join(self.spelling.symbols[s] for s in (repeat.counter, *repeat.symbols))
        first = ", ".join(map(expr, (repeat.trips, *repeat.first)))
        lines = [f"{indent}{name}: {kind}{comment}", f"{indent}for {integers} in repeat({first}):"]
        for param, value in zip(repeat.params, repeat.initial, strict=False):
            own = self.spelling.annotation(param.annotation)
            text = f"{self.value(param)}: {own} = carried({self.value(value)})"
            lines.append(f"{indent}    {text}")
        lines += self.block(repeat.body, f"{indent}    ")
        going = [] if repeat.going is None else [f"dim({expr(repeat.going)})"]
        results = self._results(repeat.body, repeat.after, repeat.next, going)
        return [*lines, f"{indent}    {name} = {results}"]

    def _results(
        self,
        block: Block,
        symbols: Iterable[Symbol],
        exprs: Iterable[Expr],
        more: Iterable[str] = (),
    ) -> str:
        """How a nested body ends."""
        pairs = zip(symbols, exprs, strict=False)
        words = [f"{self.spelling.symbols[s]}={self.spelling.expr(e)}" for s, e in pairs]
        return _call("results", (*map(self.value, block.results), *more), words)

    def expression(self, value: Expression) -> str:
        """The right-hand side of a binding; not for branches and loops."""
        keywords = self.spelling.keywords
        match value:
            case Call(op=op, args=args, attrs=attrs):
                parts = ["None" if a is None else self.value(a) for a in args]
                return _call(op.name, parts, keywords(attrs, op.attrs))
            case CallTIR(func=func, args=given):
                words = [f"device={value.device!r}"] if value.device else []
                if value.symbols:
                    pairs = ", ".join(
                        f"{self.spelling.symbols[s]}: {self.spelling.expr(e)}"
                        for s, e in value.symbols
                    )
                    words.insert(0, f"symbols={{{pairs}}}")
                return _call("call_tir", [_name(func), *map(self.value, given)], words)
            case CallGraph(func=func, args=given):
                return _call("call_graph", [_name(func), *map(self.value, given)], [])
            case CallLibrary(func=func, args=given, attrs=attrs):
                parts = [repr(func), *map(self.value, given)]
                words = [f"device={value.device!r}"] if value.device else []
                return _call("call_library", parts, [*words, *keywords(attrs, {})])
            case MatchCast(value=source):
                return f"match_cast({self.value(source)})"
            case ReadInts(value=source):
                return f"read_ints({self.value(source)})"
            case ToDevice(value=source, device=device):
                return f"to_device({self.value(source)}, {device!r})"
            case MakeShape(dims=dims):
                return f"make_shape({self.spelling.exprs(dims)})"
            case MakeTuple(fields=fields):
                return f"make_tuple({', '.join(map(self.value, fields))})"
            case GetItem(value=source, index=index):
                return f"{self.value(source)}[{index}]"
            case Var() | Constant():
                return self.value(value)
        return f"opaque({repr(value)!r})"


def _call(name: str, args: Iterable[str], keywords: Iterable[str]) -> str:
    return f"{name}({', '.join((*args, *keywords))})"


def _name(func: str) -> str:
    """A function's name, as a string where it is no identifier."""
    return func if identifier(func) == func else repr(func)


def _is_literal(value: Any) -> bool:
    """Whether text can hold an attribute of a module or function."""
    if isinstance(value, dict):
        return all(_is_literal(k) and _is_literal(v) for k, v in value.items())
    if isinstance(value, tuple | list):
        return all(map(_is_literal, value))
    return value is None or isinstance(value, bool | int | float | str | Expr)


def _constants(module: Module) -> dict[Constant, None]:
    """Every constant, in order of first use."""
    found: dict[Constant, None] = {}
    for func in module.funcs.values():
        for block in blocks(func.body):
            used = [v for b in block.bindings for v in operands(b.value)]
            used += [b.value for b in block.bindings if isinstance(b.value, Constant)]
            found.update((v, None) for v in (*used, *block.results) if isinstance(v, Constant))
    return found


def module_symbols(module: Module) -> Iterator[Symbol]:
    """Every symbol, in an order that the text itself determines."""
    for constant in _constants(module):
        yield from _sorted(symbols_of(constant.annotation))
    for func in module.funcs.values():
        for param in func.params:
            yield from _annotation_symbols(param.annotation)
        for block in blocks(func.body):
            for binding in block.bindings:
                yield from _binding_symbols(binding)
    for loop in module.loops.values():
        yield from loop.symbols()


def _binding_symbols(binding: Binding) -> Iterator[Symbol]:
    yield from _annotation_symbols(binding.var.annotation)
    match binding.value:
        case Call(attrs=attrs) | CallLibrary(attrs=attrs):
            for expr in exprs_in(attrs):
                yield from _sorted(expr.symbols())
        case CallTIR(symbols=symbols):
            for symbol, expr in symbols:
                yield from (symbol, *_sorted(expr.symbols()))
        case MakeShape(dims=dims):
            for expr in dims:
                yield from _sorted(expr.symbols())
        case IfElse() as branch:
            yield from branch.symbols
            cond = (branch.cond,) if isinstance(branch.cond, Expr) else ()
            for expr in (*cond, *body_exprs(branch)):
                yield from _sorted(expr.symbols())
        case Repeat() as repeat:
            yield from (*body_symbols(repeat), *repeat.after)
            for param in repeat.params:
                yield from _annotation_symbols(param.annotation)
            for expr in (repeat.trips, *repeat.first, *body_exprs(repeat)):
                yield from _sorted(expr.symbols())


def _annotation_symbols(annotation: Annotation) -> Iterator[Symbol]:
    match annotation:
        case Signature(params=params, result=result):
            for part in (*params, result):
                yield from _annotation_symbols(part)
        case Tuple(fields=fields):
            for part in fields:
                yield from _annotation_symbols(part)
        case _:
            yield from _sorted(symbols_of(annotation))


def _sorted(symbols: Iterable[Symbol]) -> list[Symbol]:
    return sorted(symbols, key=lambda s: (s.name, s.lo, s.multiple_of, s.hi or 0))
