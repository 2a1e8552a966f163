"""Importers of control flow: If as a branch or as the arm that is taken; Loop and Scan unrolled."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Item, Result, importer
from edgerelax.frontends.onnx.slicing import concat
from edgerelax.frontends.onnx.walk import ImpossibleArmError, RanksDifferError, Rest, Unknown
from edgerelax.ir.diagnostics import ShapeError, UnsupportedError
from edgerelax.ir.graph import Constant, Value, Var
from edgerelax.ir.types import as_tensor
from edgerelax.ops.shaping import unsqueezed
from edgerelax.sym import Expr, as_expr, eq, prove_eq, select

ARMS = ("then_branch", "else_branch")
MAX_UNROLLED = 20_000
"""Nodes that unrolled loops of one model may come to."""

MAX_SPLITS = 128
"""Branches that may take the rest of the graph into their arms; each does the rest twice."""


@importer("If")
def _if(node: Node) -> Result:
    cond = node.value(0)
    known = node.walk.constants.integers(cond)
    if known is not None and len(known) != 1:
        raise node.bad(f"a condition of {len(known)} elements")
    if known is not None and (is_zero := prove_eq(known[0], 0)) is not None:
        graph: onnx.GraphProto = node.attr("else_branch" if is_zero else "then_branch")
        return inline(node, graph, ())
    return _branch(node, node.reshape(cond, ()) if known is None else known[0])


def inline(node: Node, graph: onnx.GraphProto, items: Sequence[Item]) -> list[Any]:
    """A subgraph's nodes here, its inputs standing for these."""
    frame = node.frame.inner()
    frame.names.update(zip((i.name for i in graph.input), items, strict=True))
    return node.walk.graph(graph, frame)


def _branch(node: Node, cond: Value | Expr) -> Result:
    """Both arms as one branch; where their ranks differ, what follows goes into the arms."""
    results = _both_arms(node, cond, lambda arm: inline(node, node.attr(arm), ()))
    if results is None:
        raise RanksDifferError(node, lambda rest: _with_rest(node, cond, rest))
    return list(results)


def _with_rest(node: Node, cond: Value | Expr, rest: Rest) -> list[Any]:
    """The rest of the graph in each arm, where it is known what the branch gave."""
    node.walk.splits += 1
    if node.walk.splits > MAX_SPLITS:
        raise _undecided(node, cond)

    def arm(name: str) -> list[Any]:
        frame = node.frame.inner()
        given = inline(node, node.attr(name), ())
        frame.names.update(zip(node.proto.output, given, strict=False))
        return rest(frame)

    results = _both_arms(node, cond, arm)
    if results is None:
        raise _undecided(node, cond)
    return list(results)


def _both_arms(
    node: Node, cond: Value | Expr, arm: Callable[[str], list[Any]]
) -> Sequence[Any] | None:
    """A branch; None, and nothing emitted, if its arms give other ranks or types.

    If an arm cannot be for any sizes, the other one alone, and a check that it is the one to take.
    """
    builder, before = node.walk.builder, node.walk.problems_so_far()
    name = next((o for o in node.proto.output if o), node.op)
    try:
        with builder.block() as bindings:
            then, other = (lambda a=a: _values(node, a, arm, before) for a in ARMS)
            results = builder.if_else(cond, then, other, name, node.origin)
    except ImpossibleArmError as impossible:
        node.walk.forget_problems(before)
        kept = next(a for a in ARMS if a != impossible.arm)
        try:
            return _if_taken(node, arm(kept), cond, wanted=kept == "then_branch")
        except ShapeError:
            raise impossible.problem from None
    known = [as_tensor(r.annotation) for r in results]
    if any(t is None or t.rank is None or t.dtype is None for t in known):
        return None
    for binding in bindings:
        builder.append(binding)
    return results


def _values(
    node: Node, name: str, arm: Callable[[str], list[Any]], before: tuple[int, int]
) -> list[Value]:
    """What an arm gives. Nodes that cannot be imported are told of after the last arm."""
    try:
        values = arm(name)
    except ShapeError as problem:
        raise ImpossibleArmError(name, problem) from None
    if node.walk.problems_so_far() != before:
        if name == ARMS[-1]:
            raise node.unsupported("its branches hold nodes that cannot be imported")
        return []
    if not all(isinstance(v, Var | Constant) for v in values):
        raise node.unsupported("a branch that gives sequences or absent values")
    return values


def _if_taken(node: Node, results: Sequence[Any], cond: Value | Expr, wanted: bool) -> list[Any]:
    """The results of the arm that was kept; at run time the condition must ask for it.

    A dim is asserted to be itself if the condition is as wanted, else -1, which no dim is.
    """
    found = (
        cond if isinstance(cond, Expr) else node.integers_of(cond, lo=0, what="the condition")[0]
    )

    def checked(value: Value) -> Value:
        dims = node.dims(value) or (as_expr(1),)
        given = node.reshape(value, dims)
        first = select(eq(found, 0), -1, dims[0]) if wanted else select(eq(found, 0), dims[0], -1)
        return node.reshape(node.recast(given, (first, *dims[1:]), dims), node.dims(value))

    return [checked(r) if isinstance(r, Var | Constant) else r for r in results]


def _undecided(node: Node, cond: Value | Expr) -> UnsupportedError:
    dims = sorted(map(str, cond.symbols())) if isinstance(cond, Expr) else []
    hint = f"fix {', '.join(dims)} with --dim" if dims else "export the model without the branch"
    return node.unsupported(
        "depending on the branch, the graph gives tensors of different ranks or types, and which "
        "is taken is not known before the model runs",
        hint,
    )


class _Budget:
    """Counts the nodes that a loop unrolls to."""

    def __init__(self, node: Node, graph: onnx.GraphProto) -> None:
        self.node, self.size, self.spent = node, max(1, len(graph.node)), 0

    def spend(self) -> None:
        self.spent += self.size
        if self.spent > MAX_UNROLLED:
            raise self.node.unsupported(
                f"unrolling it takes more than {MAX_UNROLLED} nodes",
                hint="export the model without the loop, or call it once per step",
            )


@importer("Loop")
def _loop(node: Node) -> Result:
    """Unrolled: how often it runs must be known now."""
    graph: onnx.GraphProto = node.attr("body")
    trips = _trips(node)
    state: list[Any] = list(node.inputs[2:])
    scanned: list[list[Value]] = [[] for _ in range(len(graph.output) - 1 - len(state))]
    going, budget = _is_true(node, node.input(1), default=True), _Budget(node, graph)
    step = 0
    while going and (trips is None or step < trips):
        budget.spend()
        counter = node.array(np.array(step, np.int64))
        truth = node.array(np.array(True))
        results = inline(node, graph, [counter, truth, *state])
        _refuse_unknown(node, results)
        going = _is_true(node, results[0], default=True)
        state = results[1 : 1 + len(state)]
        for parts, value in zip(scanned, results[1 + len(state) :], strict=True):
            parts.append(_as_row(node, value, 0))
        step += 1
    return [*state, *(_stacked(node, parts, 0) for parts in scanned)]


def _refuse_unknown(node: Node, results: Sequence[Any]) -> None:
    if any(isinstance(r, Unknown) for r in results):
        raise node.unsupported("its body holds nodes that cannot be imported")


def _trips(node: Node) -> int | None:
    """How often at most; None if only the condition ends it."""
    given = node.input(0)
    if given is None:
        return None
    known = node.walk.constants.integers(given)
    count = None if known is None or len(known) != 1 else known[0].as_int()
    if count is None:
        raise node.unsupported(
            f"the number of steps is not known before the model runs ({given.annotation})",
            hint="fix the sizes that it depends on with --dim",
        )
    return count


def _is_true(node: Node, cond: Value | None, default: bool) -> bool:
    """A loop's condition, which must be known before the model runs."""
    if cond is None:
        return default
    known = node.walk.constants.integers(cond)
    if known is not None and len(known) == 1:
        is_zero = prove_eq(known[0], 0)
        if is_zero is not None:
            return not is_zero
    raise node.unsupported(
        "whether it goes on is not known before the model runs",
        hint="export the model with a fixed number of steps",
    )


def _as_row(node: Node, value: Value, axis: int) -> Value:
    """A step's value as a slice of what is stacked along `axis`."""
    return node.reshape(value, unsqueezed(node.dims(value), (axis,)))


def _stacked(node: Node, parts: list[Value], axis: int) -> Value:
    if not parts:
        raise node.unsupported("a loop of no steps that gives one value per step")
    return concat(node, tuple(parts), axis)


@importer("Scan", since=9)
def _scan(node: Node) -> Result:
    """Unrolled: the scanned length must be known now."""
    graph: onnx.GraphProto = node.attr("body")
    count = node.attr("num_scan_inputs")
    values = node.values()
    state, scans = list(values[: len(values) - count]), values[len(values) - count :]
    given = node.attr("scan_input_axes", (0,) * count)
    axes = [node.axis(v, a) for v, a in zip(scans, given, strict=True)]
    backwards = node.attr("scan_input_directions", (0,) * count)
    length = _scan_length(node, scans, axes)
    outputs = len(graph.output) - len(state)
    scanned: list[list[Value]] = [[] for _ in range(outputs)]
    out_axes = node.attr("scan_output_axes", (0,) * outputs)
    reverse = node.attr("scan_output_directions", (0,) * outputs)
    budget = _Budget(node, graph)
    for step in range(length):
        budget.spend()
        rows = [
            _row(node, v, axis, length - 1 - step if back else step)
            for v, axis, back in zip(scans, axes, backwards, strict=True)
        ]
        results = inline(node, graph, [*state, *rows])
        _refuse_unknown(node, results)
        state = results[: len(state)]
        for parts, value, axis in zip(scanned, results[len(state) :], out_axes, strict=True):
            parts.append(_as_row(node, value, axis))
    stacks = [
        _stacked(node, parts[::-1] if back else parts, axis)
        for parts, axis, back in zip(scanned, out_axes, reverse, strict=True)
    ]
    return [*state, *stacks]


def _scan_length(node: Node, scans: Sequence[Value], axes: Sequence[int]) -> int:
    lengths = {node.dims(v)[a] for v, a in zip(scans, axes, strict=True)}
    numbers = {n for n in (dim.as_int() for dim in lengths) if n is not None}
    if len(numbers) > 1:
        raise node.bad(f"scanned lengths {', '.join(map(str, sorted(numbers)))} differ")
    if not numbers or len(lengths) > 1:
        names = ", ".join(map(str, lengths))
        raise node.unsupported(
            f"the scanned length {names} is not known before the model runs",
            hint=f"fix it with --dim {names}=…",
        )
    return numbers.pop()


def _row(node: Node, value: Value, axis: int, at: int) -> Value:
    """One step's part of a scanned input, without its axis."""
    return node.emit("gather", value, node.array(np.array(at, np.int64)), axis=axis)
