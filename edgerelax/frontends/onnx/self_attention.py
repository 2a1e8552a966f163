"""Importers of onnxruntime's attention operators that project their input themselves."""

from edgerelax.frontends.onnx.attention import (
    MICROSOFT,
    attend,
    by_heads,
    from_heads,
    usual_scores,
)
from edgerelax.frontends.onnx.nn import matmul
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.normalisation import over_trailing
from edgerelax.frontends.onnx.quantization import matmul_integer, one, scaled
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value
from edgerelax.sym import Expr, as_expr


@importer("Attention", domain=MICROSOFT)
def _attention(node: Node) -> Result:
    x, weights, bias = node.value(0), node.value(1), node.input(2)
    projected = matmul(node, x, weights)
    if bias is not None:
        projected = node.emit("add", projected, over_trailing(node, projected, bias))
    given = tuple(as_expr(s) for s in node.attr("qkv_hidden_sizes", ()))
    return _attended(node, projected, given, (node.input(3), node.input(5)), node.input(4))


@importer("QAttention", domain=MICROSOFT)
def _quantised_attention(node: Node) -> Result:
    """Its projection is an exact product of integers; what follows is f32."""
    x, weights, bias = node.value(0), node.value(1), node.value(2)
    total = matmul_integer(node, x, weights, node.input(6), node.input(7))
    projected = scaled(node, total, one(node, node.value(3)), one(node, node.value(4)))
    projected = node.emit("add", projected, over_trailing(node, projected, bias))
    return _attended(node, projected, (), (node.input(5), None), node.input(8))


def _attended(
    node: Node,
    projected: Value,
    given: tuple[Expr, ...],
    beside: tuple[Value | None, Value | None],
    past: Value | None,
) -> Result:
    """Attention over [batch, length, queries + keys + values], and what the sequence now has.

    `given` are the three sizes, thirds by default; `beside` are a mask and a bias of the scores;
    `past` and what the sequence has are keys and values [2, batch, heads, length, width].
    """
    if node.attr("do_rotary", 0) or node.attr("past_present_share_buffer", 0):
        raise node.unsupported("rotary embeddings, or a past that is updated in its place")
    heads, total = as_expr(node.attr("num_heads")), node.dims(projected)[2]
    sizes = given or (total // 3, total // 3, total - total // 3 * 2)
    q, k, v = (
        by_heads(node, part, heads)
        for part in node.emit_all("split", projected, sizes=sizes, axis=2)
    )
    if past is not None:
        k, v = (_behind(node, past, rows, which) for which, rows in enumerate((k, v)))
    batch, _, length, width = node.dims(q)
    scores = usual_scores(node, (batch, length, node.dims(k)[2], width), *beside)
    found = from_heads(node, attend(node, q, k, v, scores))
    if not node.wants(1):
        return (found,)
    pair = (node.reshape(rows, (1, *node.dims(rows))) for rows in (k, v))
    return (found, node.emit("concat", *pair, axis=0))


def _behind(node: Node, past: Value, rows: Value, which: int) -> Value:
    """The past's keys (0) or values (1), then the new ones."""
    batch, heads, _, width = node.dims(rows)
    _, _, _, length, _ = node.dims(past)
    past = node.with_dims(past, (2, batch, heads, length, width))
    part = node.emit_all("split", past, sizes=(1, 1), axis=0)[which]
    held = node.reshape(part, (batch, heads, length, width))
    return node.emit("concat", held, rows, axis=2)
