"""Importers of sequences and optionals, all resolved here: how many elements there are is known."""

from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.frontends.onnx.slicing import concat
from edgerelax.ir.dtypes import BOOL, I64
from edgerelax.ir.graph import Value
from edgerelax.ops.shaping import unsqueezed
from edgerelax.sym import as_expr


@importer("SequenceConstruct")
def _construct(node: Node) -> Result:
    return (node.values(),)


@importer("SequenceEmpty")
def _empty(node: Node) -> Result:
    return ((),)


@importer("SequenceLength")
def _length(node: Node) -> Result:
    return node.integers([len(node.sequence(0))], I64, rank=0)


def _position(node: Node, k: int, count: int, extra: int = 0) -> int:
    """Operand k as a place in a sequence."""
    numbers = node.numbers(k, "the position") or ()
    if len(numbers) != 1 or not -count <= numbers[0] < count + extra:
        raise node.bad(f"position {list(numbers)} in a sequence of {count}")
    return numbers[0] % count if numbers[0] < 0 else numbers[0]


@importer("SequenceAt")
def _at(node: Node) -> Result:
    parts = node.sequence(0)
    return parts[_position(node, 1, len(parts))]


@importer("SequenceInsert")
def _insert(node: Node) -> Result:
    parts, value = node.sequence(0), node.value(1)
    at = len(parts) if node.input(2) is None else _position(node, 2, len(parts), extra=1)
    return ((*parts[:at], value, *parts[at:]),)


@importer("SequenceErase")
def _erase(node: Node) -> Result:
    parts = node.sequence(0)
    at = len(parts) - 1 if node.input(1) is None else _position(node, 1, len(parts))
    return ((*parts[:at], *parts[at + 1 :]),)


@importer("ConcatFromSequence")
def _concat_from_sequence(node: Node) -> Result:
    parts, axis = node.sequence(0), node.attr("axis")
    if not parts:
        raise node.bad("a sequence of nothing")
    if node.attr("new_axis"):
        parts = tuple(node.reshape(p, unsqueezed(node.dims(p), (axis,))) for p in parts)
    return concat(node, parts, axis)


@importer("SplitToSequence")
def _split_to_sequence(node: Node) -> Result:
    x = node.value(0)
    axis = node.axis(x, node.attr("axis"))
    total = node.dims(x)[axis].as_int()
    numbers = node.numbers(1, "the sizes")
    if numbers is None or node.rank(node.value(1)) == 0:
        if total is None:
            raise node.unsupported(f"how many parts there are depends on {node.dims(x)[axis]}")
        size = 1 if numbers is None else numbers[0]
        if size < 1:
            raise node.bad(f"parts of {size}")
        sizes = [min(size, total - at) for at in range(0, total, size)]
    else:
        sizes = list(numbers)
        x = node.with_dim(x, axis, sum(sizes))
    parts = node.emit_all("split", x, sizes=tuple(as_expr(s) for s in sizes), axis=axis)
    if numbers is not None or node.attr("keepdims"):
        return (parts,)
    return (tuple(_without_axis(node, p, axis) for p in parts),)


def _without_axis(node: Node, value: Value, axis: int) -> Value:
    return node.reshape(value, [d for k, d in enumerate(node.dims(value)) if k != axis])


@importer("Optional")
def _optional(node: Node) -> Result:
    return (node.inputs[0] if node.inputs else None,)


@importer("OptionalHasElement")
def _has_element(node: Node) -> Result:
    present = bool(node.inputs) and node.inputs[0] is not None
    return node.integers([int(present)], BOOL, rank=0)


@importer("OptionalGetElement")
def _get_element(node: Node) -> Result:
    if not node.inputs or node.inputs[0] is None:
        raise node.bad("an optional that is absent has no element")
    return (node.inputs[0],)
