"""Constant factors of a product of two values move to the weight that one of them comes from.

    softmax(q kᵀ / √d)  →  softmax(q' kᵀ),  q' = x (Wq / √d) + bq / √d

A factor passes a product by either operand, and reshapes, transposes and slices as it is, until it
meets a linear operator with a constant weight, which takes it. All that lies between must have one
use. A power of two changes nothing but the exponents; any other factor rounds each weight once.

Before: scales after linear operators are folded. After: one multiplication an element less. A
factor below 1/LIMIT or above LIMIT stays: it could cost digits of small weights, or overflow.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from edgerelax.ir.graph import Binding, Call, GraphFunc, Module, Value, Var
from edgerelax.ir.names import Names
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_func
from edgerelax.ir.types import Tensor
from edgerelax.passes.affine import Affine, identity, link_of
from edgerelax.passes.linear import Linear, linear_of
from edgerelax.passes.uses import Uses

LIMIT = 1 << 20
MOVES = frozenset(("reshape", "transpose", "slice"))


@dataclass(frozen=True, slots=True)
class _Sink:
    """A linear operator, the map after it if there is one, and the last variable of both."""

    op: Linear
    after: Affine | None
    last: Var


def sink_factors(module: Module) -> Module:
    """Move the factors of every graph function, one at a time."""
    outcome = Outcome()
    funcs = {}
    for name, func in module.funcs.items():
        while (moved := _Factors(func, outcome).moved()) is not None:
            func = moved
        funcs[name] = func
    return outcome.on(replace(module, funcs=funcs))


class _Factors:
    """A function's bindings by what they define."""

    def __init__(self, func: GraphFunc, outcome: Outcome) -> None:
        self.func, self.outcome = func, outcome
        self.uses = Uses(func.body)
        self.bindings: dict[Value, Binding] = {b.var: b for b in all_bindings(func.body)}
        self.names = Names({v.name for v in self.bindings} | {p.name for p in func.params})

    def moved(self) -> GraphFunc | None:
        """The function with the first factor that can be moved in its place; None without one."""
        for var, (source, factor) in self._factors():
            sink = self._sink(source)
            folded = None if sink is None else self._folded(sink, factor)
            if sink is None or folded is None:
                self.outcome.skip("factors that reach no weight of their own", var.name)
                continue
            self.outcome.did("factors moved into weights")
            return self._with({sink.op.result: [], sink.last: folded, var: source})
        return None

    def _with(self, plan: dict[Var, Value | list[Binding]]) -> GraphFunc:
        return rewrite_func(self.func, lambda b: plan.get(b.var, [b]))

    def _factors(self) -> Iterator[tuple[Var, tuple[Value, Affine]]]:
        """Products with one number, of products or of what moves elements."""
        for binding in self.bindings.values():
            link = link_of(binding)
            producer = None if link is None else self._call(link[0])
            if link is None or producer is None or producer.op.name not in {*MOVES, "matmul"}:
                continue
            if is_factor(link[1]):
                yield binding.var, link

    def _call(self, value: Value) -> Call | None:
        found = self.bindings.get(value)
        return found.value if found is not None and isinstance(found.value, Call) else None

    def _sink(self, value: Value) -> _Sink | None:
        """Where a factor of this value can go; None if something else uses it, or nothing can."""
        binding, call = self.bindings.get(value), self._call(value)
        if binding is None or call is None or self.uses.only(value) is None:
            return None
        op = linear_of(binding)
        if op is not None:
            return _Sink(op, None, binding.var)
        link = link_of(binding)
        if link is not None:
            return self._through_map(binding.var, *link)
        if call.op.name not in {*MOVES, "matmul"}:
            return None
        ways = (self._sink(a) for a in call.args if a is not None)
        return next((way for way in ways if way is not None), None)

    def _through_map(self, var: Var, source: Value, after: Affine) -> _Sink | None:
        """A bias right after a linear operator."""
        binding = self.bindings.get(source)
        op = None if binding is None else linear_of(binding)
        if op is None or self.uses.only(source) is None or after.axis not in (None, op.out_axis):
            return None
        return _Sink(op, after, var)

    def _folded(self, sink: _Sink, factor: Affine) -> list[Binding] | None:
        """The operator with the map and the factor folded in."""
        if self.uses.only(sink.op.weight) is None:
            return None
        annotation = sink.op.result.annotation
        assert isinstance(annotation, Tensor) and annotation.rank is not None
        total = sink.after or identity(annotation.rank)
        total = Affine(total.scale * factor.scale.item(), total.shift * factor.scale.item())
        return sink.op.folded(None, total, sink.op.data, sink.last, self.names)


def is_factor(affine: Affine) -> bool:
    """Whether a map multiplies everything by one number, neither 1 nor too small nor too large."""
    if affine.axis is not None or affine.shifts or not affine.scales:
        return False
    return bool(1 / LIMIT <= abs(affine.scale.item()) <= LIMIT)
