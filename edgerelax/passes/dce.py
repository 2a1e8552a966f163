"""Remove bindings whose value nothing needs, and loop functions that nothing calls.

A MatchCast stays while its value or a symbol that it defines is needed; one of sizes that defines
nothing is a check and stays. Results of a branch or loop stay together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgerelax.ir.deduce import symbols_defined
from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallLibrary,
    CallTIR,
    Expression,
    IfElse,
    MatchCast,
    Module,
    Repeat,
    Value,
    bodies,
    body_exprs,
    body_symbols,
    operands,
    used_symbols,
    with_bodies,
)
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import Shape, exprs_in, symbols_of
from edgerelax.sym import Expr, Symbol


def dce(module: Module) -> Module:
    """Drop dead bindings of every graph function, then dead loop functions."""
    funcs = {}
    for name, func in module.funcs.items():
        symbols: set[Symbol] = set()
        for param in func.params:
            symbols |= symbols_of(param.annotation)
        for result in func.body.results:
            symbols |= symbols_of(result.annotation)
        given = {s for p in func.params for s in symbols_of(p.annotation)}
        body = _Sweep(module.loops, set(), symbols).block(func.body, given)
        funcs[name] = replace(func, body=body)
    calls = (b.value for f in funcs.values() for b in all_bindings(f.body))
    used = {call.func for call in calls if isinstance(call, CallTIR)}
    loops = {n: f for n, f in module.loops.items() if n in used}
    return replace(module, funcs=funcs, loops=loops)


@dataclass(slots=True)
class _Sweep:
    """What of a function is needed so far, from its end backwards."""

    loops: Mapping[str, LoopFunc]
    needed: set[Value]
    symbols: set[Symbol]

    def block(self, block: Block, given: set[Symbol]) -> Block:
        """The block without what nothing needs; `given` are symbols that are defined outside."""
        self.needed |= set(block.results)
        checks, given = _checks(block, given)
        self.needed |= checks
        kept: list[Binding] = []
        for binding in reversed(block.bindings):
            defined = not self.symbols.isdisjoint(symbols_defined(binding))
            if binding.var not in self.needed and not defined and _is_removable(binding):
                continue
            value = binding.value
            self.symbols |= self._used(value) | symbols_of(binding.var.annotation)
            inner = given | set(body_symbols(value))
            value = with_bodies(value, [self.block(body, inner) for body in bodies(value)])
            self.needed |= set(operands(value))
            kept.append(Binding(binding.var, value))
        return Block(tuple(reversed(kept)), block.results)

    def _used(self, value: Expression) -> set[Symbol]:
        """The symbols that an expression reads besides those of annotations."""
        exprs: list[Expr] = []
        found: set[Symbol] = set()
        match value:
            case CallTIR(func):
                found = set(self.loops[func].symbols()) - {s for s, _ in value.symbols}
                exprs.extend(e for _, e in value.symbols)
            case Call() | CallLibrary():
                exprs.extend(exprs_in(value.attrs))
            case IfElse() | Repeat():
                exprs.extend(body_exprs(value))
                found = used_symbols(value)
        return found.union(*(e.symbols() for e in exprs))


def _checks(block: Block, given: set[Symbol]) -> tuple[set[Value], set[Symbol]]:
    """Match_casts of known sizes that define nothing, and the symbols known at the block's end."""
    found: set[Value] = set()
    for binding in block.bindings:
        new = symbols_defined(binding) - given
        if isinstance(binding.value, MatchCast) and not new:
            source = binding.value.value.annotation
            if isinstance(source, Shape) and source.dims is not None:
                found.add(binding.var)
        given = given | new
    return found, given


def _is_removable(binding: Binding) -> bool:
    return not isinstance(binding.value, Call) or binding.value.op.pure
