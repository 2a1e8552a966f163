"""Check at run time what operators take for granted: sizes that must agree and are not proven to.

Before: operator calls whose dims may contradict each other for some sizes. After: a match_cast
checks each such pair, once, as soon as its symbols are known; whoever built the module need not.
"""

from dataclasses import replace

from edgerelax.ir.assumptions import collected
from edgerelax.ir.deduce import call_site, defined_by
from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    MakeShape,
    MatchCast,
    Module,
    Var,
    bodies,
    symbols_after,
    with_bodies,
)
from edgerelax.ir.names import Names
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import Shape
from edgerelax.sym import Expr, Symbol


def guard(module: Module) -> Module:
    """Add the checks to every graph function."""
    funcs = {}
    for name, func in module.funcs.items():
        taken = {b.var.name for b in all_bindings(func.body)} | {p.name for p in func.params}
        body = _Guards(Names(taken)).block(func.body, set())
        funcs[name] = replace(func, body=body)
    return replace(module, funcs=funcs)


class _Guards:
    def __init__(self, names: Names) -> None:
        self.names = names

    def block(self, block: Block, checked: set[tuple[Expr, Expr]]) -> Block:
        """`checked` are the pairs that hold here already."""
        out: list[list[Binding]] = [[]]  # what stands before the first binding, after it, …
        known: dict[Symbol, int] = {}  # which of these lists may use a symbol of this block
        for k, binding in enumerate(block.bindings, 1):
            value = binding.value
            if isinstance(value, Call):
                for pair, check in self._checks(binding, value, checked):
                    symbols = pair[0].symbols() | pair[1].symbols()
                    out[max((known.get(s, 0) for s in symbols), default=0)] += check
            elif inner := bodies(value):
                inner = tuple(self.block(body, set(checked)) for body in inner)
                binding = Binding(binding.var, with_bodies(value, inner))
                known.update(dict.fromkeys(symbols_after(value), k))
            elif isinstance(value, MatchCast):
                new = defined_by(binding.var.annotation) - known.keys()
                known.update(dict.fromkeys(new, k))
            out.append([binding])
        return Block(tuple(b for group in out for b in group), block.results)

    def _checks(
        self, binding: Binding, call: Call, checked: set[tuple[Expr, Expr]]
    ) -> list[tuple[tuple[Expr, Expr], list[Binding]]]:
        origin = binding.var.origin or binding.var.name
        with collected() as pairs:
            call.op.infer(call_site(call, binding.var.name, origin))
        new = [(pair, need) for pair, need in pairs.items() if pair not in checked]
        checked.update(pairs)
        return [(pair, self._check(*pair, f"{origin}: {need}")) for pair, need in new]

    def _check(self, a: Expr, b: Expr, origin: str) -> list[Binding]:
        size = Var(self.names.pick("size"), Shape((a,)), origin)
        agreed = Var(self.names.pick("agreed"), Shape((b,)), origin)
        return [Binding(size, MakeShape((a,))), Binding(agreed, MatchCast(size))]
