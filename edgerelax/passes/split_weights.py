"""Constant matrices larger than what every device binds are cut into parts.

    y = x W                 y = concat(x W1, x W2)                    W = [W1 W2]
    y = gather(W, i)   →    y = where(i < n1, gather(W1, i), gather(W2, i - n1))

Parts are of columns of a product, of rows of a table; indices are kept within each part. A matrix
that a product takes transposed and that is a table too, as in a language model, is cut once.

After combine_matmuls, which makes large ones. What it does not do: weights of other operators,
batched ones, tables along another axis. Devices whose limit is higher could bind them; a loader
asks for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from edgerelax.ir.deduce import deduce
from edgerelax.ir.dtypes import I32, I64
from edgerelax.ir.graph import Binding, Call, Constant, GraphFunc, Module, Value, Var
from edgerelax.ir.names import Names
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_func
from edgerelax.ir.types import as_tensor
from edgerelax.ops import OPS
from edgerelax.passes.fold_constants import make_constant
from edgerelax.passes.linear import linear_of
from edgerelax.sym import as_expr

MAX_BYTES = 128 << 20  # what a binding of WebGPU holds on every device
_MULTIPLE = 64  # of columns or rows: parts fill the tiles of kernels


def split_weights(module: Module) -> Module:
    """Cut the large weights of every graph function."""
    outcome = Outcome()
    funcs = {name: _Splitter(func, outcome).split() for name, func in module.funcs.items()}
    return outcome.on(replace(module, funcs=funcs))


@dataclass(slots=True)
class _Splitter:
    """One function; `parts` are of weights by the axis along which they are cut."""

    func: GraphFunc
    outcome: Outcome
    names: Names = field(init=False)
    parts: dict[tuple[Constant, int], list[Constant]] = field(default_factory=dict)
    made: list[Binding] = field(default_factory=list)

    def __post_init__(self) -> None:
        taken = {b.var.name for b in all_bindings(self.func.body)}
        self.names = Names(taken | {p.name for p in self.func.params})

    def split(self) -> GraphFunc:
        return rewrite_func(self.func, self._visit)

    def _visit(self, binding: Binding) -> list[Binding]:
        call = binding.value
        large = list(_large(call)) if isinstance(call, Call) else []
        if not large:
            return [binding]
        assert isinstance(call, Call)
        self.made = []
        result = self._product(binding) or self._rows(binding.var, call)
        if result is None:
            for weight in large:
                self.outcome.skip("large weights of other operators", weight.name)
            return [binding]
        self.outcome.did("large weights cut")
        return [*self.made, Binding(binding.var, result)]

    def _product(self, binding: Binding) -> Call | None:
        op = linear_of(binding)
        if op is None or op.call.op.name != "matmul" or op.side == 0:
            return None
        axis = 0 if op.call.attrs["transpose_b"] else 1
        if not _can_be_cut(op.weight, axis):
            return None
        products = [
            self._emit(replace(op.call, args=(op.data, part)), binding.var)
            for part in self._parts(op.weight, axis)
        ]
        return Call(OPS["concat"], tuple(products), {"axis": op.out_axis})

    def _rows(self, result: Var, call: Call) -> Call | None:
        """A gather of rows as those of each part, the right one chosen for each index."""
        if call.op.name != "gather" or call.attrs["axis"] != 0:
            return None
        table, indices = call.args
        given = None if indices is None else as_tensor(indices.annotation)
        if not isinstance(table, Constant) or not _can_be_cut(table, 0) or indices is None:
            return None
        if given is None or given.dims is None or given.dtype not in (I32, I64):
            return None
        dtype, column = given.dtype.numpy, {"dims": (*given.dims, as_expr(1))}

        def apply(name: str, *args: Value, **attrs: Any) -> Var:
            return self._emit(Call(OPS[name], args, attrs), result)

        def number(value: int) -> Constant:
            return make_constant(self.names.pick("row"), np.array(value, dtype))

        def rows(part: Constant, first: int) -> Var:
            own = apply("max", apply("sub", row, number(first)), number(0))
            near = apply("min", own, number(len(part.data) - 1))
            return self._emit(replace(call, args=(part, near)), result)

        wrapped = apply("add", indices, number(len(table.data)))  # for those from the end
        row = apply("where", apply("lt", indices, number(0)), wrapped, indices)

        def either(before: Var, part: Constant, first: int) -> Call:
            is_before = apply("reshape", apply("lt", row, number(first)), **column)
            return Call(OPS["where"], (is_before, before, rows(part, first)))

        head, *middle, last = self._parts(table, 0)
        chosen, first = rows(head, 0), len(head.data)
        for part in middle:
            chosen = self._emit(either(chosen, part, first), result)
            first += len(part.data)
        return either(chosen, last, first)

    def _parts(self, weight: Constant, axis: int) -> list[Constant]:
        if (weight, axis) not in self.parts:
            size = weight.data.shape[axis]
            most = max(1, MAX_BYTES * size // weight.data.nbytes)
            step = most // _MULTIPLE * _MULTIPLE or most
            cuts = [*range(0, size, step), size]
            self.parts[weight, axis] = [
                make_constant(
                    self.names.pick(f"{weight.name}_part"),
                    np.ascontiguousarray(weight.data.take(range(start, stop), axis)),
                )
                for start, stop in pairwise(cuts)
            ]
        return self.parts[weight, axis]

    def _emit(self, call: Call, near: Var) -> Var:
        """A new variable for a call, which is to come before what it is near."""
        name = self.names.pick(f"{near.name}_part")
        annotation = deduce(call, name, near.origin)
        assert annotation is not None
        var = Var(name, annotation, near.origin)
        self.made.append(Binding(var, call))
        return var


def _large(call: Call) -> Iterator[Constant]:
    for arg in call.args:
        if isinstance(arg, Constant) and arg.data.nbytes > MAX_BYTES:
            yield arg


def _can_be_cut(weight: Constant, axis: int) -> bool:
    """Whether it is a matrix with lines along the axis that fit."""
    data = weight.data
    return data.ndim == 2 and data.nbytes <= MAX_BYTES * data.shape[axis]
