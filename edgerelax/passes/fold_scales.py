"""Fold batch normalisations, scales and biases per channel into the weights of linear operators.

    1. a chain of affine maps after a linear operator, each the only use of the one before, becomes
       part of its weight and bias: batch_norm(conv(x)) is one conv
    2. a chain before it likewise, if every use of the chain's value is a linear operator that can
       take it (a shift only where no padding hides inputs); again 1, for what 2 added
    3. a chain that neither takes and that is longer than one mul and one add becomes that

Before: constants folded. A weight that others use too stays as it is: two copies would be stored.
Numbers that overflow the weight's dtype stay as well. What it does not do: look through reshapes.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgerelax.ir.dtypes import F32, F64
from edgerelax.ir.graph import Binding, Call, GraphFunc, Module, Value, Var
from edgerelax.ir.names import Names
from edgerelax.ir.op import Array
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_func
from edgerelax.ir.types import Tensor
from edgerelax.ops import OPS
from edgerelax.passes.affine import Affine, identity, link_of
from edgerelax.passes.fold_constants import make_constant
from edgerelax.passes.linear import Linear, linear_of
from edgerelax.passes.uses import Uses

SMALL = 1024  # elements of a weight that may be stored twice


def fold_scales(module: Module) -> Module:
    """Fold in every graph function."""
    outcome = Outcome()
    funcs = {}
    for name, func in module.funcs.items():
        for step in (_after, _before, _after, _shorten):
            func = step(_Chains(func), outcome)
        funcs[name] = func
    return outcome.on(replace(module, funcs=funcs))


Plan = dict[Var, list[Binding]]
"""What takes the place of a binding; nothing for one that is folded into another."""


class _Chains:
    """A function's bindings, its affine maps and its linear operators."""

    def __init__(self, func: GraphFunc) -> None:
        self.func = func
        self.uses = Uses(func.body)
        bindings = list(all_bindings(func.body))
        self.names = Names({b.var.name for b in bindings} | {p.name for p in func.params})
        found = ((b.var, link_of(b)) for b in bindings)
        self.links = {var: link for var, link in found if link is not None}
        self.calls = {b.var: b.value for b in bindings if isinstance(b.value, Call)}
        self.linear = [op for op in map(linear_of, bindings) if op is not None]
        self.plan: Plan = {}

    def applied(self) -> GraphFunc:
        return rewrite_func(self.func, lambda b: self.plan.get(b.var, [b]))

    def following(self, value: Value) -> Var | None:
        """The affine map that is the only use of a value."""
        user = self.uses.only(value)
        return user.var if user is not None and user.var in self.links else None

    def cost(self, link: Var) -> int:
        """Operations per element."""
        call = self.calls[link]
        return 4 if call.op.name == "batch_norm" else 1

    def stored_elsewhere(self, op: Linear) -> bool:
        return op.weight.data.size > SMALL and self.uses.only(op.weight) is None


def _after(chains: _Chains, outcome: Outcome) -> GraphFunc:
    for op in chains.linear:
        total, chain = _channel_chain(chains, op)
        if total is None:
            continue
        if chains.stored_elsewhere(op):
            outcome.skip("scale after an operator whose weight others use too", op.result.name)
            continue
        folded = op.folded(None, total, op.data, chain[-1], chains.names)
        if folded is None:
            outcome.skip("scale after an operator whose weight would overflow", op.result.name)
            continue
        chains.plan.update({var: [] for var in chain} | {chain[-1]: folded})
        outcome.did(f"maps after {op.call.op.name}")
    return chains.applied()


def _channel_chain(chains: _Chains, op: Linear) -> tuple[Affine | None, list[Var]]:
    """The longest chain after an operator that varies along its output channels at most."""
    assert isinstance(op.result.annotation, Tensor) and op.result.annotation.rank is not None
    total, found = identity(op.result.annotation.rank), [op.result]
    while (link := chains.following(found[-1])) is not None:
        longer = total.then(chains.links[link][1])
        if longer is None or longer.axis not in (None, op.out_axis):
            break
        total = longer
        found.append(link)
    return (total if _worth(op, total, len(found) - 1) else None), found


def _worth(op: Linear, total: Affine, links: int) -> bool:
    """A product has no bias: one shift after it stays."""
    shift_alone = op.call.op.name == "matmul" and links == 1 and not total.scales
    return links > 0 and not shift_alone


def _before(chains: _Chains, outcome: Outcome) -> GraphFunc:
    by_data: dict[Value, list[Linear]] = {}
    for op in chains.linear:
        if op.data in chains.links:
            by_data.setdefault(op.data, []).append(op)
    for data, ops in by_data.items():
        if len(chains.uses.of(data)) != len(ops):
            outcome.skip("scale before a linear operator that others use too", data.name)
        elif any(chains.stored_elsewhere(op) for op in ops):
            outcome.skip("scale before an operator whose weight others use too", data.name)
        elif _absorb(chains, data, ops):
            outcome.did(f"maps before {ops[0].call.op.name}")
        else:
            outcome.skip("scale before a linear operator that cannot take it exactly", data.name)
    return chains.applied()


def _absorb(chains: _Chains, data: Value, ops: Sequence[Linear]) -> bool:
    """Fold as many of the maps that end in `data` as all of its users can take."""
    source, total = data, None
    passed: list[Var] = []
    best: Plan | None = None
    while isinstance(source, Var) and source in chains.links:
        if passed and chains.following(source) is not passed[-1]:
            break
        passed.append(source)
        source, link = chains.links[source]
        total = link if total is None else link.then(total)
        plan = None if total is None else _taken(chains, total, source, ops)
        if total is None:
            break
        if plan is not None:
            best = plan | {var: [] for var in passed}
    chains.plan.update(best or {})
    return best is not None


def _taken(chains: _Chains, total: Affine, source: Value, ops: Sequence[Linear]) -> Plan | None:
    """The operators with a map folded in, if each can take it."""
    plan: Plan = {}
    for op in ops:
        if total.axis not in (None, op.in_axis):
            return None
        folded = op.folded(total, None, source, op.result, chains.names)
        if folded is None:
            return None
        plan[op.result] = folded
    return plan


def _shorten(chains: _Chains, outcome: Outcome) -> GraphFunc:
    for first, (source, total) in chains.links.items():
        if isinstance(source, Var) and source in chains.links and chains.following(source) is first:
            continue
        chain = [first]
        while (link := chains.following(chain[-1])) is not None:
            longer = total.then(chains.links[link][1])
            if longer is None:
                break
            total = longer
            chain.append(link)
        short = _as_arithmetic(chains, source, total, chain[-1])
        if short and len(short) < sum(chains.cost(var) for var in chain):
            chains.plan.update({var: [] for var in chain} | {chain[-1]: short})
            outcome.did("chains of maps shortened")
    return chains.applied()


def _as_arithmetic(
    chains: _Chains, source: Value, total: Affine, result: Var
) -> list[Binding] | None:
    """A map as one mul and one add, whichever it needs; None for dtypes that would lose by it."""
    assert isinstance(result.annotation, Tensor) and result.annotation.dtype is not None
    dtype = result.annotation.dtype
    steps = [("mul", total.scale)] if total.scales else []
    steps += [("add", total.shift)] if total.shifts else []
    if dtype not in (F32, F64):
        return None
    numbers = [(name, _squeezed(number).astype(dtype.numpy)) for name, number in steps]
    if not all(np.isfinite(number).all() for _, number in numbers):
        return None
    out: list[Binding] = []
    for k, (name, number) in enumerate(numbers, 1):
        constant = make_constant(chains.names.pick(f"{result.name}_{name}"), number)
        var = result
        if k < len(numbers):
            var = Var(chains.names.pick(result.name), result.annotation, result.origin)
        out.append(Binding(var, Call(OPS[name], (source, constant))))
        source = var
    return out


def _squeezed(number: Array) -> Array:
    """Without the leading dims of 1, which broadcasting adds again."""
    lead = next((k for k, n in enumerate(number.shape) if n != 1), number.ndim)
    return number.reshape(number.shape[lead:])
