"""Remove bindings whose value nothing needs, and loop functions that nothing calls.

A MatchCast stays while its value or a symbol that it defines is needed; one of sizes that defines
nothing is a check and stays. Results of an IfElse stay together.
"""

from dataclasses import replace

from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallTIR,
    IfElse,
    MatchCast,
    Module,
    Value,
    operands,
)
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import Shape, exprs_in, exprs_of, symbols_of
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
        body = _block(func.body, set(), symbols, given)
        funcs[name] = replace(func, body=body)
    calls = (b.value for f in funcs.values() for b in all_bindings(f.body))
    used = {call.func for call in calls if isinstance(call, CallTIR)}
    loops = {n: f for n, f in module.loops.items() if n in used}
    return replace(module, funcs=funcs, loops=loops)


def _block(block: Block, needed: set[Value], symbols: set[Symbol], given: set[Symbol]) -> Block:
    """Sweep backwards; `needed` and `symbols` grow by what this block needs from outside.

    `given` are symbols that are defined outside.
    """
    needed |= set(block.results)
    checks, given = _checks(block, given)
    needed |= checks
    kept: list[Binding] = []
    for binding in reversed(block.bindings):
        value = binding.value
        live = binding.var in needed or not symbols.isdisjoint(_defined(binding))
        if not live and _is_removable(binding):
            continue
        if isinstance(value, IfElse):
            for expr in (*value.then_symbols, *value.other_symbols):
                symbols |= expr.symbols()
            if isinstance(value.cond, Expr):
                symbols |= value.cond.symbols()
            value = replace(
                value,
                then=_block(value.then, needed, symbols, given),
                other=_block(value.other, needed, symbols, given),
            )
        if isinstance(value, Call):
            for expr in exprs_in(value.attrs):
                symbols |= expr.symbols()
        symbols |= symbols_of(binding.var.annotation)
        needed |= set(operands(value))
        kept.append(Binding(binding.var, value))
    return Block(tuple(reversed(kept)), block.results)


def _checks(block: Block, given: set[Symbol]) -> tuple[set[Value], set[Symbol]]:
    """Match_casts of known sizes that define nothing, and the symbols known at the block's end."""
    found: set[Value] = set()
    for binding in block.bindings:
        new = _defined(binding) - given
        if isinstance(binding.value, MatchCast) and not new:
            source = binding.value.value.annotation
            if isinstance(source, Shape) and source.dims is not None:
                found.add(binding.var)
        given = given | new
    return found, given


def _defined(binding: Binding) -> set[Symbol]:
    """Symbols that a binding may define: those of an IfElse, bare dims of a MatchCast."""
    if isinstance(binding.value, IfElse):
        return set(binding.value.symbols)
    if not isinstance(binding.value, MatchCast):
        return set()
    atoms = (e.atom for e in exprs_of(binding.var.annotation))
    return {a for a in atoms if isinstance(a, Symbol)}


def _is_removable(binding: Binding) -> bool:
    return not isinstance(binding.value, Call) or binding.value.op.pure
