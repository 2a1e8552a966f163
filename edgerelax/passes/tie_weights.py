"""A matrix that is read by rows and multiplied by as well is one constant: the one read by rows.

    gather(E, ids)                     gather(E, ids)
    matmul(x, Eᵀ as stored)     →      matmul(x, E, transpose_b=True)

Files hold the transpose of a tied embedding beside it, or transpose it, which folding turns into a
second constant, or name a copy of it. Products by one constant with the table are products whose
weight others use too: no scale is folded into it, and `share_weights` finds what is stored once.

Before: constants folded. What it does not do: tables in batches, or of another dtype.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from edgerelax.ir.graph import Binding, Call, Constant, GraphFunc, Module
from edgerelax.ir.op import Array
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_func
from edgerelax.passes.linear import linear_of

SMALL = 1024  # elements of a weight that may be stored twice
ROWS = 256  # that are compared at a time
FLAGS = ("transpose_a", "transpose_b")

Key = tuple[np.dtype[Any], tuple[int, ...]]


def tie_weights(module: Module) -> Module:
    """Let the products of every graph function read the tables of the module."""
    outcome = Outcome()
    own = {name: _tables(func) for name, func in module.funcs.items()}
    funcs = {}
    for name, func in module.funcs.items():
        others = (t for other, tables in own.items() if other != name for t in tables)
        funcs[name] = _Tying([*own[name], *others], outcome).tied(func)
    return outcome.on(replace(module, funcs=funcs))


def _tables(func: GraphFunc) -> list[Constant]:
    """The matrices that a function gathers from."""
    calls = (b.value for b in all_bindings(func.body) if isinstance(b.value, Call))
    sources = (c.args[0] for c in calls if c.op.name == "gather")
    matrices = (s for s in sources if isinstance(s, Constant) and s.data.ndim == 2)
    return list(dict.fromkeys(m for m in matrices if m.data.size > SMALL))


class _Tying:
    """One function. Of equal tables the first counts: its own come before those of others."""

    def __init__(self, tables: Iterable[Constant], outcome: Outcome) -> None:
        self.outcome = outcome
        self.tables: dict[Key, list[Constant]] = defaultdict(list)
        for table in tables:
            self.tables[table.data.dtype, table.data.shape].append(table)

    def tied(self, func: GraphFunc) -> GraphFunc:
        return rewrite_func(func, self._visit) if self.tables else func

    def _visit(self, binding: Binding) -> list[Binding]:
        op = linear_of(binding)
        if op is None or op.call.op.name != "matmul" or op.weight.data.ndim != 2:
            return [binding]
        found = self._table(op.weight.data)
        if found is None or found[0] is op.weight:
            return [binding]
        table, turned = found
        args, attrs, flag = list(op.call.args), dict(op.call.attrs), FLAGS[op.side]
        args[op.side] = table
        attrs[flag] = attrs[flag] != turned
        self.outcome.did("products by transposes of tables" if turned else "products by copies")
        return [Binding(binding.var, replace(op.call, args=tuple(args), attrs=attrs))]

    def _table(self, weight: Array) -> tuple[Constant, bool] | None:
        """The table that a weight is, and whether it is its transpose."""
        for turned, data in ((False, weight), (True, weight.T)):
            for table in self.tables.get((data.dtype, data.shape), ()):
                if _same_bits(table.data, data):
                    return table, turned
        return None


def _same_bits(one: Array, other: Array) -> bool:
    """Whether two matrices of one dtype and shape are equal; most that are not differ early."""
    bits = np.dtype(f"u{one.dtype.itemsize}")
    one, other = one.view(bits), other.view(bits)
    starts = range(0, len(one), ROWS)
    return all(np.array_equal(one[k : k + ROWS], other[k : k + ROWS]) for k in starts)
