"""Importer of If: a branch, or the arm that is taken."""

from collections.abc import Callable, Sequence
from typing import Any

import onnx

from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Item, Result, importer
from edgerelax.frontends.onnx.walk import ImpossibleArmError, RanksDifferError, Rest
from edgerelax.ir.diagnostics import ShapeError, UnsupportedError
from edgerelax.ir.graph import Constant, Value, Var
from edgerelax.ir.types import as_tensor
from edgerelax.sym import Expr, as_expr, eq, prove_eq, select

ARMS = ("then_branch", "else_branch")
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
