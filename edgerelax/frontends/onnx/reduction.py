"""Importers of reductions, of what orders along an axis, and of softmax and its kin."""

from collections.abc import Callable

from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Handler, Result, importer, register
from edgerelax.ir.graph import Value
from edgerelax.sym import Expr, as_expr, maximum, product, prove_eq

REDUCTIONS = {
    "ReduceSum": ("reduce_sum", 13),
    "ReduceMean": ("reduce_mean", 18),
    "ReduceMax": ("reduce_max", 18),
    "ReduceMin": ("reduce_min", 18),
    "ReduceProd": ("reduce_prod", 18),
    "ReduceL1": ("reduce_l1", 18),
    "ReduceL2": ("reduce_l2", 18),
    "ReduceLogSum": ("reduce_log_sum", 18),
    "ReduceLogSumExp": ("reduce_log_sum_exp", 18),
    "ReduceSumSquare": ("reduce_sum_square", 18),
}
"""The operator, and the opset from which axes are an operand."""

Axes = Callable[[Node], tuple[int, ...] | None]


def _axes_attribute(node: Node) -> tuple[int, ...] | None:
    return tuple(node.attr("axes", ())) or None


def _axes_operand(node: Node) -> tuple[int, ...] | None:
    axes = node.numbers(1, "the axes")
    if axes:
        return axes
    return () if node.attr("noop_with_empty_axes") else None


def _reduction(op: str, axes: Axes) -> Handler:
    def handler(node: Node) -> Result:
        return node.emit(
            op, node.value(0), axes=axes(node), keepdims=bool(node.attr("keepdims", 1))
        )

    return handler


for _name, (_op, _since) in REDUCTIONS.items():
    register(_name, _reduction(_op, _axes_attribute))
    register(_name, _reduction(_op, _axes_operand), since=_since)


@importer("ArgMax", "ArgMin")
def _arg(node: Node) -> Result:
    return node.emit(
        node.op.lower(),
        node.value(0),
        axis=node.attr("axis"),
        keepdims=bool(node.attr("keepdims")),
        select_last_index=bool(node.attr("select_last_index", 0)),
    )


SOFTMAXES = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}


@importer(*SOFTMAXES)
def _flat_softmax(node: Node) -> Result:
    return flat_softmax(node, SOFTMAXES[node.op], node.value(0), node.attr("axis"))


def flat_softmax(node: Node, op: str, x: Value, axis: int) -> Value:
    """Before opset 13: over all dims from `axis` on, as one."""
    dims = node.dims(x)
    at = node.axis(x, axis) if dims else 0
    if all(prove_eq(d, 1) is True for d in dims[at + 1 :]):
        return node.emit(op, x, axis=at)
    flat = node.reshape(x, (product(dims[:at]), product(dims[at:])))
    return node.reshape(node.emit(op, flat, axis=1), dims)


@importer(*SOFTMAXES, since=13)
def _softmax(node: Node) -> Result:
    return node.emit(SOFTMAXES[node.op], node.value(0), axis=node.attr("axis"))


@importer("CumSum", "CumProd")
def _cumulative(node: Node) -> Result:
    axis = node.numbers(1, "the axis") or (0,)
    return node.emit(
        node.op.lower(),
        node.value(0),
        axis=axis[0],
        exclusive=bool(node.attr("exclusive")),
        reverse=bool(node.attr("reverse")),
    )


@importer("TopK")
def _top_k_attribute(node: Node) -> Result:
    return _top_k_of(node, as_expr(node.attr("k")), True)


@importer("TopK", since=10)
def _top_k(node: Node) -> Result:
    k = node.ints(1, lo=0, what="k") or ()
    if len(k) != 1:
        raise node.bad(f"k has {len(k)} elements, not 1")
    return _top_k_of(node, k[0], bool(node.attr("largest", 1)))


def _top_k_of(node: Node, k: Expr, largest: bool) -> Result:
    x = node.value(0)
    axis = node.axis(x, node.attr("axis"))
    x = node.with_dim(x, axis, maximum(k, node.dims(x)[axis]))
    return node.emit_all(
        "topk", x, k=k, axis=axis, largest=largest, sorted=bool(node.attr("sorted", 1))
    )


@importer("Einsum")
def _einsum(node: Node) -> Result:
    equation = "".join(node.attr("equation").split())
    return node.emit("einsum", *_matched_labels(node, equation), equation=equation)


def _matched_labels(node: Node, equation: str) -> tuple[Value, ...]:
    """Operands whose dims of one label agree; checked at run time where unproven."""
    values = list(node.values())
    terms = equation.split("->")[0].split(",")
    if len(terms) != len(values):
        raise node.bad(f"{equation!r} speaks of {len(terms)} operands, there are {len(values)}")
    sizes: dict[str, Expr] = {}
    for k, (term, value) in enumerate(zip(terms, values, strict=True)):
        if "." in term:
            continue
        dims = list(node.dims(value))
        if len(term) != len(dims):
            raise node.bad(f"term {term!r} for a tensor of rank {len(dims)}")
        for at, label in enumerate(term):
            dims[at] = sizes.setdefault(label, dims[at])
        values[k] = node.with_dims(value, dims)
    return tuple(values)
