"""Importers of Loop and Scan: unrolled where all steps are known now, else a loop of the graph.

In a loop of the graph, integers that the host knows and that each step moves by what it need not
carry (a counter) stay with the host; all else that is carried are tensors, which keep dtype and
dims. Values of all steps are rows of a tensor that the loop carries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from edgerelax.frontends.onnx.control import inline
from edgerelax.frontends.onnx.node import Node, shape_text
from edgerelax.frontends.onnx.registry import Item, Result, importer
from edgerelax.frontends.onnx.slicing import concat
from edgerelax.frontends.onnx.walk import Unknown
from edgerelax.ir.deduce import defined_by, symbols_defined
from edgerelax.ir.dtypes import I64, STRING
from edgerelax.ir.graph import (
    Binding,
    Block,
    Constant,
    MakeShape,
    MatchCast,
    Repeat,
    Value,
    Var,
    used_symbols,
)
from edgerelax.ir.types import IntTensor, Tensor, symbols_of
from edgerelax.ops.shaping import unsqueezed
from edgerelax.sym import Expr, Symbol, as_expr, eq, maximum, prove_eq, proves_le, select
from edgerelax.sym import upper_bound as greatest

MAX_UNROLLED = 20_000
"""Nodes that one loop may unroll to."""
UNLIMITED = 1 << 62
"""Steps of a loop that only its condition ends."""
NO_LIMIT = (1 << 31) - 1
"""Exporters write this, or more, where the condition alone ends a loop."""
LOWEST = -(1 << 63)


class _NotKnownError(Exception):
    """Whether a step is taken is not known now, or there are too many."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """A loop as the operator says it: what a step takes and where what it gives goes.

    `trips` None: only the condition ends it. `begins`: no step is taken where it is 0. `feed` makes
    a step's inputs of its number and the carried values. A condition is the body's first output,
    if `asks`. Rows are stacked along `axes`, the first step last where `backwards`.
    """

    node: Node
    graph: onnx.GraphProto
    trips: Expr | None
    begins: Expr
    state: tuple[Item, ...]
    feed: Callable[[Expr, Sequence[Item]], list[Item]]
    asks: bool
    axes: tuple[int, ...]
    backwards: tuple[bool, ...]

    def take(self, at: Expr, state: Sequence[Item]) -> tuple[Value | None, list[Any], list[Value]]:
        """One step: its condition, what it carries on, its rows."""
        results = inline(self.node, self.graph, self.feed(at, state))
        if any(isinstance(r, Unknown) for r in results):
            raise self.node.unsupported("its body holds nodes that cannot be imported")
        cond = results.pop(0) if self.asks else None
        rows = results[len(self.state) :]
        if not all(isinstance(row, Var | Constant) for row in rows):
            raise self.node.unsupported("a loop that gives a sequence or nothing for each step")
        return cond, results[: len(self.state)], rows

    def results(self) -> Result:
        """Unrolled if that can be, else as a loop of the graph."""
        walk, before = self.node.walk, self.node.walk.problems_so_far()
        try:
            with walk.builder.block() as bindings:
                found = _unrolled(self)
        except _NotKnownError:
            walk.forget_problems(before)
            return _repeated(self)
        for binding in bindings:
            walk.builder.append(binding)
        return found


# Unrolled


def _unrolled(steps: _Steps) -> list[Any]:
    node, size = steps.node, max(1, len(steps.graph.node))
    going = _is_true(steps.begins)
    trips = None if steps.trips is None else _number(steps.trips)
    if trips is not None and trips * size > MAX_UNROLLED:
        raise _NotKnownError
    state, step = list(steps.state), 0
    scanned: list[list[Value]] = [[] for _ in steps.axes]
    while going and (trips is None or step < trips):
        if (step + 1) * size > MAX_UNROLLED:
            raise _NotKnownError
        cond, state, rows = steps.take(as_expr(step), state)
        going = cond is None or _is_true(_known(node, cond))
        for parts, row, axis in zip(scanned, rows, steps.axes, strict=True):
            parts.append(node.reshape(row, unsqueezed(node.dims(row), (axis,))))
        step += 1
    if scanned and not step:
        raise _NotKnownError  # what has no rows is not known from none
    stacks = [
        concat(node, tuple(parts[::-1] if back else parts), axis)
        for parts, axis, back in zip(scanned, steps.axes, steps.backwards, strict=True)
    ]
    return [*state, *stacks]


def _number(expr: Expr) -> int:
    found = expr.as_int()
    if found is None:
        raise _NotKnownError
    return found


def _is_true(expr: Expr | None) -> bool:
    is_zero = None if expr is None else prove_eq(expr, 0)
    if is_zero is None:
        raise _NotKnownError
    return not is_zero


def _known(node: Node, value: Value) -> Expr | None:
    """The one integer that a value is, if the host knows it."""
    found = node.walk.constants.integers(value)
    return found[0] if found is not None and len(found) == 1 else None


# As a loop of the graph


def _repeated(steps: _Steps) -> Result:
    """Integers of the host stay there if it turns out that they can."""
    node = steps.node
    if not all(isinstance(v, Var | Constant) for v in steps.state):
        raise node.unsupported(
            "a loop that carries sequences or absent values, of a length that is not known",
            hint="fix the sizes that it depends on with --dim",
        )
    plans = [
        _HostInts.of(node, value) for value in steps.state if isinstance(value, Var | Constant)
    ]
    limit = _limit(steps)
    while True:
        before = node.walk.problems_so_far()
        made = _Loop(steps, limit, plans)
        if made.build():
            return made.results()
        node.walk.forget_problems(before)


def _limit(steps: _Steps) -> Expr:
    """How many steps there can be: a size, as there may be as many rows."""
    most = as_expr(UNLIMITED) if steps.trips is None else steps.trips
    limit = select(eq(steps.begins, 0), 0, most)
    if proves_le(0, limit):
        return limit
    return steps.node.walk.name_dims(steps.node, (maximum(0, limit),))[0]


@dataclass(slots=True)
class _HostInts:
    """How a carried value that may be integers of the host is carried; `kind` None: as a tensor."""

    kind: IntTensor | None
    low: int = 0

    @classmethod
    def of(cls, node: Node, value: Value) -> "_HostInts":
        known, tensor = node.walk.constants.integers(value), node.tensor(value)
        if known is None or tensor.rank is None or tensor.dtype is None:
            return cls(None)
        low = 0 if all(proves_le(0, e) for e in known) else LOWEST
        return cls(IntTensor(known, tensor.rank, tensor.dtype), low)

    def changed(self, node: Node, symbols: Sequence[Symbol], after: Value) -> bool:
        """Whether what a step gives shows that they must be carried otherwise."""
        known, given = node.walk.constants.integers(after), node.tensor(after)
        kind = self.kind
        assert kind is not None
        alike = known is not None and len(known) == len(symbols)
        if not alike or (given.rank, given.dtype) != (kind.rank, kind.dtype):
            self.kind = None
            return True
        moved = [e - s.expr for e, s in zip(known or (), symbols, strict=True)]
        if any(not e.symbols().isdisjoint(symbols) for e in moved):
            self.kind = None
            return True
        if self.low == 0 and not all(proves_le(0, e) for e in known or ()):
            self.low = LOWEST
            return True
        return False


@dataclass(slots=True)
class _Loop:
    """A loop of the graph in the making. Fields are filled by `build`."""

    steps: _Steps
    limit: Expr
    plans: list[_HostInts]
    counter: Symbol = field(init=False)
    integers: dict[int, tuple[Symbol, ...]] = field(default_factory=dict)
    following: dict[int, tuple[Expr, ...]] = field(default_factory=dict)
    params: list[Var] = field(default_factory=list)
    after: list[Value] = field(default_factory=list)
    body: Block = field(init=False)
    going: Expr | None = None
    before: list[Binding] = field(default_factory=list)

    @property
    def _node(self) -> Node:
        return self.steps.node

    def build(self) -> bool:
        """Import the body; False if some plan for integers of the host did not come true."""
        node, builder, steps = self._node, self._node.walk.builder, self.steps
        name, most = next((o for o in node.proto.output if o), node.op), greatest(self.limit)
        last = None if most is None or most >= UNLIMITED else max(0, most - 1)
        self.counter = builder.fresh_symbol(f"{name}_step", 0, last)
        visible = builder.visible
        with builder.block() as bindings:
            builder.define((self.counter,))
            given = [self._taken(k, v) for k, v in enumerate(steps.state)]
            cond, state, rows = steps.take(self.counter.expr, given)
            changes = [
                self.plans[k].changed(node, symbols, self._tensor(state[k]))
                for k, symbols in self.integers.items()
            ]
            if any(changes):
                return False
            for k, value in enumerate(state):
                self._given(k, self._tensor(value))
            if cond is not None:
                self._ask(cond)
            self.before = _lifted(bindings, visible)
            for row, back in zip(rows, steps.backwards, strict=True):
                self._stack(row, back, visible)
            self.body = Block(tuple(bindings), tuple(self.after))
        return True

    def _tensor(self, value: Item) -> Value:
        if not isinstance(value, Var | Constant):
            raise self._node.unsupported("a loop whose steps carry sequences or absent values")
        return value

    def _taken(self, k: int, first: Item) -> Value:
        """What a step takes for a carried value."""
        node, builder, value = self._node, self._node.walk.builder, self._tensor(first)
        plan = self.plans[k]
        if plan.kind is not None:
            own = tuple(
                builder.fresh_symbol(f"{value.name}_{i}", plan.low)
                for i in range(len(plan.kind.values))
            )
            builder.define(own)
            self.integers[k] = own
            return node.integers([s.expr for s in own], plan.kind.dtype, plan.kind.rank)
        kind = Tensor(node.dims(value), node.dtype(value))
        self.params.append(Var(builder.names.pick(value.name), kind, node.origin))
        return self.params[-1]

    def _given(self, k: int, value: Value) -> None:
        """What a step gives for it."""
        node = self._node
        if k in self.integers:
            self.following[k] = node.walk.constants.integers(value) or ()
            return
        param = self.params[len(self.after)]
        old, new = node.dims(param), node.dims(value)
        if node.dtype(param) != node.dtype(value):
            raise node.bad(f"it carries {param.annotation}, a step makes it {value.annotation}")
        if len(old) != len(new) or any(
            prove_eq(a, b) is False for a, b in zip(old, new, strict=True)
        ):
            raise node.unsupported(
                f"a carried value has shape {shape_text(old)} before a step and {shape_text(new)} "
                "after it, and how many steps there are is not known before the model runs",
                hint="fix the sizes that it depends on with --dim",
            )
        self.after.append(node.with_dims(value, old))

    def _ask(self, cond: Value) -> None:
        """Whether to go on: a value of the host, or one that is read after each step."""
        node = self._node
        self.going = _known(node, cond)
        if self.going is None:
            self.going = node.integers_of(cond, lo=0, what="the condition")[0]
        if prove_eq(self.going, 0) is False:
            self.going = None

    def _stack(self, row: Value, backwards: bool, visible: set[Symbol]) -> None:
        """Write a row to its place in a tensor that the loop carries."""
        node, dims, count = self._node, self._node.dims(row), self.limit
        if not {s for d in dims for s in d.symbols()} <= visible:
            raise node.unsupported(f"steps give rows whose size only they know: {shape_text(dims)}")
        if self.steps.trips is None:
            raise node.unsupported(
                "it gives a row for each step, and nothing says how many steps there can be",
                hint="export the model with a greatest number of steps",
            )
        if node.dtype(row) == STRING:
            raise node.unsupported("a loop that gives text for each step")
        kind = Tensor((count, *dims), node.dtype(row))
        stack = Var(node.walk.builder.names.pick(f"{row.name}_rows"), kind, node.origin)
        at = count - 1 - self.counter.expr if backwards else self.counter.expr
        self.params.append(stack)
        index = node.integers((at,), I64)
        self.after.append(node.emit("scatter_nd", stack, index, row, reduction="none"))

    def results(self) -> list[Value]:
        """Emit the loop; what its results are outside."""
        node, builder, steps = self._node, self._node.walk.builder, self.steps
        if self.going is None and steps.trips is None:
            raise node.unsupported("nothing ends it")
        name = next((o for o in node.proto.output if o), node.op)
        for binding in self.before:
            builder.append(binding)
        inside = [s for k in self.integers for s in self.integers[k]]
        first = [
            e for k in self.integers for e in node.walk.constants.integers(self._state(k)) or ()
        ]
        following = [e for k in self.integers for e in self.following[k]]
        if self.going is not None:
            taken = builder.fresh_symbol(f"{name}_taken", 0)
            inside, first = [*inside, taken], [*first, as_expr(0)]
            following.append(self.counter.expr + 1)
        after = [builder.fresh_symbol(f"{s.name}_after", s.lo) for s in inside]
        carried = [self._state(k) for k in range(len(steps.state)) if k not in self.integers]
        stacks = self.params[len(carried) :]
        repeat = Repeat(
            self.limit,
            self.counter,
            (*carried, *map(self._empty, stacks)),
            tuple(self.params),
            self.body,
            tuple(inside),
            tuple(first),
            tuple(following),
            tuple(after),
            self.going,
        )
        fields = iter(builder.fields(builder.emit_repeat(repeat, name, node.origin)))
        outside = {s: a for s, a in zip(inside, after, strict=True)}
        state = [
            self._integers(k, [outside[s].expr for s in self.integers[k]])
            if k in self.integers
            else next(fields)
            for k in range(len(steps.state))
        ]
        count = None if self.going is None else after[-1].expr
        return [
            *state,
            *(self._rows_of(f, a, count) for f, a in zip(fields, steps.axes, strict=True)),
        ]

    def _state(self, k: int) -> Value:
        return self._tensor(self.steps.state[k])

    def _integers(self, k: int, values: Sequence[Expr]) -> Value:
        kind = self.plans[k].kind
        assert kind is not None
        return self._node.integers(values, kind.dtype, kind.rank)

    def _empty(self, stack: Var) -> Value:
        """What rows are written into."""
        node = self._node
        return node.emit("full", dims=node.dims(stack), value=0, dtype=node.dtype(stack))

    def _rows_of(self, stack: Value, axis: int, count: Expr | None) -> Value:
        """The rows of the steps that were taken, along their axis."""
        node = self._node
        if count is not None:
            stack = node.emit("slice", stack, starts=(0,), ends=(count,), axes=(0,), steps=None)
        rank = node.rank(stack)
        order = list(range(1, rank))
        order.insert(axis % rank, 0)
        return node.transpose(stack, order)


def _lifted(bindings: list[Binding], visible: set[Symbol]) -> list[Binding]:
    """Take out of a body what it says of sizes that are the same for all steps.

    Sizes that broadcasting names are such: rows may have them. Their symbols become visible.
    """
    lifted: list[Binding] = []
    values: set[Value] = set()
    for binding in bindings:
        match binding.value:
            case MakeShape() as made:
                known = used_symbols(made) <= visible
            case MatchCast(value):
                new = defined_by(binding.var.annotation)
                known = value in values and symbols_of(binding.var.annotation) - new <= visible
            case _:
                known = False
        if known:
            lifted.append(binding)
            values.add(binding.var)
            visible |= symbols_defined(binding)
    bindings[:] = [b for b in bindings if b.var not in values]
    return lifted


# The operators


@importer("Loop")
def _loop(node: Node) -> Result:
    graph: onnx.GraphProto = node.attr("body")
    begins = as_expr(1)
    if (cond := node.input(1)) is not None:
        begins = node.integers_of(cond, lo=0, what="the condition")[0]
    trips = None
    if (limit := node.input(0)) is not None:
        trips = node.integers_of(limit, lo=LOWEST, what="the number of steps")[0]
        trips = None if proves_le(NO_LIMIT, trips) else trips
    state = node.inputs[2:]
    rows = len(graph.output) - 1 - len(state)

    def feed(at: Expr, carried: Sequence[Item]) -> list[Item]:
        return [_number_of(node, at), node.array(np.array(True)), *carried]

    return _Steps(
        node, graph, trips, begins, state, feed, True, (0,) * rows, (False,) * rows
    ).results()


@importer("Scan", since=9)
def _scan(node: Node) -> Result:
    graph: onnx.GraphProto = node.attr("body")
    count = node.attr("num_scan_inputs")
    values = node.values()
    state, scans = values[: len(values) - count], list(values[len(values) - count :])
    given = node.attr("scan_input_axes", (0,) * count)
    axes = [node.axis(v, a) for v, a in zip(scans, given, strict=True)]
    backwards = node.attr("scan_input_directions", (0,) * count)
    length = _scan_length(node, scans, axes)
    scans = [node.with_dim(v, axis, length) for v, axis in zip(scans, axes, strict=True)]
    outputs = len(graph.output) - len(state)

    def feed(at: Expr, carried: Sequence[Item]) -> list[Item]:
        rows = (
            node.emit("gather", v, _number_of(node, length - 1 - at if back else at), axis=axis)
            for v, axis, back in zip(scans, axes, backwards, strict=True)
        )
        return [*carried, *rows]

    return _Steps(
        node,
        graph,
        length,
        as_expr(1),
        state,
        feed,
        False,
        node.attr("scan_output_axes", (0,) * outputs),
        tuple(map(bool, node.attr("scan_output_directions", (0,) * outputs))),
    ).results()


def _number_of(node: Node, at: Expr) -> Value:
    """A step's number as a tensor."""
    known = at.as_int()
    return node.integers((at,), I64, 0) if known is None else node.array(np.array(known, np.int64))


def _scan_length(node: Node, scans: Sequence[Value], axes: Sequence[int]) -> Expr:
    lengths = list(dict.fromkeys(node.dims(v)[a] for v, a in zip(scans, axes, strict=True)))
    numbers = [n for n in lengths if n.as_int() is not None]
    if len(numbers) > 1:
        raise node.bad(f"scanned lengths {', '.join(map(str, numbers))} differ")
    return numbers[0] if numbers else lengths[0]
