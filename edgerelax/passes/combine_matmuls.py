"""Products of one value with several constant matrices become one product, and slices of it.

    q = x Wq + bq                qkv = x [Wq Wk Wv] + [bq bk bv]
    k = x Wk + bk       →        q, k, v = slices of the last dim
    v = x Wv + bv

A slice is an index map: it costs nothing where the branch is copied anyway, that is where it goes
through reshapes and maps into a transpose, which no product takes as its epilogue. Elsewhere it is
a kernel that reads and writes the branch. The rule: combine where launches are saved, n - 1 less
one for each branch whose slice costs, and no more bytes move, counting per row n - 1 reads of x
saved and two passes over each such branch.

Before: constants folded and scales in the weights. What it does not do: weights that others use
too, as they would be stored twice; batched weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgerelax.ir.graph import Binding, Call, GraphFunc, Module, Value, Var, blocks
from edgerelax.ir.names import Names
from edgerelax.ir.op import Array
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_func
from edgerelax.ir.types import Tensor
from edgerelax.ops import OPS
from edgerelax.passes.affine import link_of
from edgerelax.passes.fold_constants import make_constant
from edgerelax.passes.linear import Linear, linear_of
from edgerelax.passes.uses import Uses
from edgerelax.sym import as_expr

MAX_BYTES = 128 << 20  # what a binding of WebGPU holds


@dataclass(frozen=True, slots=True)
class _Branch:
    """One product, its bias if one is added next, and the variable that both give."""

    op: Linear
    bias: Array | None
    result: Var
    free: bool  # whether a slice in its place costs no kernel

    @property
    def columns(self) -> Array:
        """The weight as [k, n]."""
        w = self.op.weight.data
        return w.T if self.op.call.attrs["transpose_b"] else w


def combine_matmuls(module: Module) -> Module:
    """Combine in every graph function."""
    outcome = Outcome()
    funcs = {name: _combine(func, outcome) for name, func in module.funcs.items()}
    return outcome.on(replace(module, funcs=funcs))


def _combine(func: GraphFunc, outcome: Outcome) -> GraphFunc:
    uses = Uses(func.body)
    bindings = list(all_bindings(func.body))
    names = Names({b.var.name for b in bindings} | {p.name for p in func.params})
    plan: dict[Var, list[Binding]] = {}
    for block in blocks(func.body):
        for group in _groups(block.bindings, uses):
            if reason := _reason_against(group, uses):
                outcome.skip(reason, group[0].op.data.name)
                continue
            plan |= _combined(group, names)
            outcome.did(f"{len(group)} products combined")
    return rewrite_func(func, lambda b: plan.get(b.var, [b]))


def _groups(bindings: Sequence[Binding], uses: Uses) -> list[list[_Branch]]:
    """Products of one block that share their left operand, two or more at a time."""
    found: dict[tuple[Value, bool], list[_Branch]] = {}
    for binding in bindings:
        op = linear_of(binding)
        if op is None or op.call.op.name != "matmul" or op.side == 0 or op.weight.data.ndim > 2:
            continue
        key = (op.data, op.call.attrs["transpose_a"])
        found.setdefault(key, []).append(_branch(op, uses))
    return [group for group in found.values() if len(group) > 1]


def _branch(op: Linear, uses: Uses) -> _Branch:
    user = uses.only(op.result)
    link = None if user is None else link_of(user)
    bias, result = None, op.result
    if user is not None and link is not None:
        _, added = link
        if not added.scales and added.axis in (None, op.out_axis):
            bias, result = added.vectors(op.outputs)[1], user.var
    return _Branch(op, bias, result, _is_copied(result, uses))


def _is_copied(value: Var, uses: Uses) -> bool:
    """Whether a value goes, through maps and reshapes alone, into a transpose."""
    user = uses.only(value)
    while user is not None and isinstance(user.value, Call):
        if user.value.op.name == "transpose":
            return True
        if user.value.op.name != "reshape" and link_of(user) is None:
            return False
        user = uses.only(user.var)
    return False


def _reason_against(group: Sequence[_Branch], uses: Uses) -> str | None:
    if any(uses.only(b.op.weight) is None for b in group):
        return "products whose weights others use too"
    if sum(b.op.weight.data.nbytes for b in group) > MAX_BYTES:
        return "products whose weights together exceed a binding"
    costly = [b for b in group if not b.free]
    if len(group) - 1 <= len(costly):
        return "products whose slices would cost the launches saved"
    read_less = (len(group) - 1) * group[0].op.inputs
    if sum(2 * b.op.outputs for b in costly) > read_less:
        return "products whose slices would move more bytes"
    return None


def _combined(group: Sequence[_Branch], names: Names) -> dict[Var, list[Binding]]:
    """The product in place of the first, slices in place of the results."""
    first = group[0].op
    assert isinstance(first.result.annotation, Tensor)
    dims, dtype = first.result.annotation.dims, first.weight.data.dtype
    assert dims is not None
    weight = make_constant(
        names.pick(f"{first.weight.name}_and_more"),
        np.ascontiguousarray(np.concatenate([b.columns for b in group], axis=1)),
    )
    wide = replace(first.result.annotation, dims=(*dims[:-1], as_expr(weight.data.shape[1])))
    product = Var(names.pick(f"{first.result.name}_and_more"), wide, first.result.origin)
    turns = {**first.call.attrs, "transpose_b": False}
    emitted = [Binding(product, Call(first.call.op, (first.data, weight), turns))]
    if any(b.bias is not None for b in group):
        parts = [np.zeros(b.op.outputs) if b.bias is None else b.bias for b in group]
        bias = make_constant(names.pick("biases"), np.concatenate(parts).astype(dtype))
        product = Var(names.pick(f"{product.name}_biased"), wide, product.origin)
        emitted.append(Binding(product, Call(OPS["add"], (emitted[0].var, bias))))
    plan: dict[Var, list[Binding]] = {b.op.result: [] for b in group}
    start = 0
    for branch in group:
        cut = _slice(product, start, start + branch.op.outputs, len(dims) - 1)
        plan[branch.result] = [Binding(branch.result, cut)]
        start += branch.op.outputs
    plan[first.result] = emitted + plan[first.result]
    return plan


def _slice(value: Value, start: int, end: int, axis: int) -> Call:
    ends = {"starts": (as_expr(start),), "ends": (as_expr(end),)}
    return Call(OPS["slice"], (value,), {**ends, "axes": (axis,), "steps": (as_expr(1),)})
