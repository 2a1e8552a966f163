"""Weights rounded to f16 where mixed precision would store them so; all arithmetic stays f32.

For CPUs: they have no f16, and decoding it in a kernel's inner loop costs more than what the loop
does. The rounded weights are f32 in memory; the artifact stores them as f16, since nothing is lost.
"""

from dataclasses import replace

import numpy as np

from edgerelax.ir.graph import Binding, Call, Constant, GraphFunc, Module, Value
from edgerelax.ir.names import Names
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_func, substitute_operands
from edgerelax.passes.mixed_precision import factors, fits, is_table


def round_weights(module: Module) -> Module:
    """Round the constants that contractions and tables of every graph function hold."""
    outcome = Outcome()
    funcs = {name: _Rounding(func, outcome).rounded() for name, func in module.funcs.items()}
    return outcome.on(replace(module, funcs=funcs))


class _Rounding:
    """One function."""

    def __init__(self, func: GraphFunc, outcome: Outcome) -> None:
        self.func, self.outcome = func, outcome
        bound = {b.var.name for b in all_bindings(func.body)}
        self.names = Names(bound | {p.name for p in func.params})
        self.constants: dict[Value, Value] = {}

    def rounded(self) -> GraphFunc:
        return rewrite_func(self.func, self.visit)

    def visit(self, binding: Binding) -> list[Binding]:
        call = binding.value
        if not isinstance(call, Call):
            return [binding]
        given = factors(binding.var, call)
        if given is None:
            given = [a for a in call.args if a is not None] if is_table(call) else []
        constants = [a for a in given if isinstance(a, Constant) and a.data.dtype == np.float32]
        if not constants:
            return [binding]
        if not all(map(fits, constants)):
            self.outcome.skip("a weight beyond the range of f16", binding.var.name)
            return [binding]
        self.outcome.did(call.op.name)
        swaps: dict[Value, Value] = {c: self.round(c) for c in constants}
        return [replace(binding, value=substitute_operands(call, swaps))]

    def round(self, constant: Constant) -> Value:
        if constant not in self.constants:
            data = constant.data.astype(np.float16).astype(np.float32)
            name = self.names.pick(f"{constant.name}_rounded")
            self.constants[constant] = Constant(name, data, constant.annotation)
        return self.constants[constant]
