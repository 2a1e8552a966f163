"""Which nodes of a graph matter, and an order in which each comes after what it needs."""

import heapq
from collections.abc import Iterable, Sequence

import onnx
from onnx import AttributeProto

from edgerelax.ir.diagnostics import FormatError


def needed_nodes(
    nodes: Sequence[onnx.NodeProto], wanted: Iterable[str], where: str
) -> list[onnx.NodeProto]:
    """The nodes that the wanted names depend on, in the given order where that is a right one.

    Raises FormatError for a name defined twice and for a cycle.
    """
    makers = _makers(nodes, where)
    uses = [used_names(node) for node in nodes]
    kept: set[int] = set()
    todo = [makers[name] for name in wanted if name in makers]
    while todo:
        k = todo.pop()
        if k not in kept:
            kept.add(k)
            todo.extend(makers[name] for name in uses[k] if name in makers)
    before = {k: {makers[name] for name in uses[k] if name in makers} for k in kept}
    return [nodes[k] for k in _sorted(before, nodes, where)]


def used_names(node: onnx.NodeProto) -> tuple[str, ...]:
    """Names that a node reads, those that its subgraphs take from outside included."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        names += free_names(graph)
    return tuple(dict.fromkeys(names))


def subgraphs(node: onnx.NodeProto) -> tuple[onnx.GraphProto, ...]:
    """Graphs among a node's attributes."""
    return tuple(a.g for a in node.attribute if a.type == AttributeProto.GRAPH)


def free_names(graph: onnx.GraphProto) -> tuple[str, ...]:
    """Names that a graph uses and does not define."""
    own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    own |= {t.values.name for t in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    used = [name for node in graph.node for name in used_names(node)]
    used += [o.name for o in graph.output]
    return tuple(dict.fromkeys(name for name in used if name not in own))


def _makers(nodes: Sequence[onnx.NodeProto], where: str) -> dict[str, int]:
    """Which node defines a name."""
    makers: dict[str, int] = {}
    for k, node in enumerate(nodes):
        for name in node.output:
            if name and name in makers:
                raise FormatError(
                    f"{where}: {name!r} is defined twice, by {title(nodes[makers[name]])} and "
                    f"{title(node)}"
                )
            if name:
                makers[name] = k
    return makers


def _sorted(before: dict[int, set[int]], nodes: Sequence[onnx.NodeProto], where: str) -> list[int]:
    """A topological order, stable with respect to the file's."""
    waiting = {k: len(b) for k, b in before.items()}
    after: dict[int, list[int]] = {k: [] for k in before}
    for k, earlier in before.items():
        for e in earlier:
            after[e].append(k)
    ready = [k for k, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        k = heapq.heappop(ready)
        order.append(k)
        for later in after[k]:
            waiting[later] -= 1
            if waiting[later] == 0:
                heapq.heappush(ready, later)
    if len(order) < len(before):
        stuck = sorted(set(before) - set(order))
        names = ", ".join(title(nodes[k]) for k in stuck[:5])
        raise FormatError(f"{where}: {len(stuck)} nodes depend on their own results: {names}")
    return order


def title(node: onnx.NodeProto) -> str:
    """A node's name, or what tells it apart if it has none."""
    first = next((name for name in node.output if name), "")
    return node.name or (f"{node.op_type}:{first}" if first else node.op_type)
