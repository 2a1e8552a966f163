"""Importers of onnxruntime's attention operators on queries, keys and values."""

import math
from dataclasses import dataclass
from typing import Any

from edgerelax.frontends.onnx.broadcasting import broadcast_call
from edgerelax.frontends.onnx.nn import matmul
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.dtypes import BOOL, F32, I64
from edgerelax.ir.graph import Value
from edgerelax.sym import Expr, as_expr, maximum, prove_eq

MICROSOFT = "com.microsoft"


# Rotary embeddings


@importer("RotaryEmbedding", domain=MICROSOFT)
def _rotary_embedding(node: Node) -> Result:
    x, positions = node.value(0), node.value(1)
    cosines, sines = node.value(2), node.value(3)
    half = node.dims(cosines)[1].as_int()
    if half is None or node.attr("is_packed_batching", 0) or node.attr("scale", 1.0) != 1:
        raise node.unsupported("packed batching, a scale, or caches of unknown width")
    rotary = node.attr("rotary_embedding_dim", 0) or 2 * half
    flat = node.rank(x) == 3
    heads = node.attr("num_heads", 0) or (node.dims(x)[2] // rotary if flat else 0)
    split = by_heads(node, x, as_expr(heads)) if flat else x
    if node.rank(positions) < 2:
        steps = node.emit("range", start=0, limit=node.dims(split)[2], delta=1, dtype=I64)
        positions = node.emit("add", node.reshape(steps, (1, node.dims(split)[2])), positions)
    turned = rotated(node, split, positions, (cosines, sines), bool(node.attr("interleaved", 0)))
    return from_heads(node, turned) if flat else turned


def rotated(
    node: Node, x: Value, positions: Value, caches: tuple[Value, Value], interleaved: bool
) -> Value:
    """Pairs of x [batch, heads, length, width] turned by what is at `positions` [batch, length]."""
    batch, heads, length, width = node.dims(x)
    half = node.dims(caches[0])[1]
    rows, steps = node.dims(positions)
    cosines, sines = (
        node.cast(
            node.reshape(node.emit("gather", c, positions, axis=0), (rows, 1, steps, half)),
            node.dtype(x),
        )
        for c in caches
    )
    turning = node.emit("slice", x, starts=(0,), ends=(half * 2,), axes=(3,), steps=None)
    if interleaved:
        pairs = node.reshape(turning, (batch, heads, length, half, 2))
        first, second = (
            node.reshape(part, (batch, heads, length, half))
            for part in node.emit_all("split", pairs, sizes=(1, 1), axis=4)
        )
    else:
        first, second = node.emit_all("split", turning, sizes=(half, half), axis=3)
    left = node.emit(
        "sub",
        broadcast_call(node, "mul", first, cosines),
        broadcast_call(node, "mul", second, sines),
    )
    right = node.emit(
        "add",
        broadcast_call(node, "mul", second, cosines),
        broadcast_call(node, "mul", first, sines),
    )
    if interleaved:
        column = (batch, heads, length, half, 1)
        both = node.emit("concat", node.reshape(left, column), node.reshape(right, column), axis=4)
        turned = node.reshape(both, (batch, heads, length, half * 2))
    else:
        turned = node.emit("concat", left, right, axis=3)
    if width == half * 2:
        return turned
    rest = node.emit("slice", x, starts=(half * 2,), ends=(width,), axes=(3,), steps=None)
    return node.emit("concat", turned, rest, axis=3)


# Attention


def by_heads(node: Node, x: Value, heads: Expr) -> Value:
    """[batch, length, heads * width] as [batch, heads, length, width]."""
    batch, length, hidden = node.dims(x)
    return node.transpose(node.reshape(x, (batch, length, heads, hidden // heads)), (0, 2, 1, 3))


def from_heads(node: Node, x: Value) -> Value:
    """The way back."""
    batch, heads, length, width = node.dims(x)
    return node.reshape(node.transpose(x, (0, 2, 1, 3)), (batch, length, heads * width))


@dataclass(frozen=True, slots=True)
class Scores:
    """How queries and keys become weights. `biases` are added, `masks` say where to look.

    What a mask hides gets `hidden`, which is added where it is finite: a row that hides all its
    keys then looks at all. What comes later than a query by `causal` is never looked at.
    """

    scale: float
    biases: tuple[Value, ...] = ()
    masks: tuple[Value, ...] = ()
    hidden: float = -math.inf
    softcap: float = 0.0
    causal: Value | None = None
    sink: Value | None = None
    """A score beside those of the keys, which takes its share and gives nothing."""


def attend(node: Node, q: Value, k: Value, v: Value, scores: Scores) -> Value:
    """softmax(q kT) v over the last two dims."""
    dtype = node.dtype(q)
    found = matmul(node, q, k, transpose_b=True)
    found = node.cast(found, F32) if dtype.bits < 32 else found
    wide = node.dtype(found)
    found = node.emit("mul", found, node.scalar(scores.scale, wide))
    if scores.softcap:
        found = node.emit("div", found, node.scalar(scores.softcap, wide))
        found = node.emit("mul", node.emit("tanh", found), node.scalar(scores.softcap, wide))
    for bias in scores.biases:
        found = broadcast_call(node, "add", found, node.cast(bias, wide))
    finite = not math.isinf(scores.hidden)
    for mask in scores.masks if finite else ():
        shade = node.emit("where", mask, node.scalar(0, wide), node.scalar(scores.hidden, wide))
        found = broadcast_call(node, "add", found, shade)
    choices = [*(() if finite else scores.masks), scores.causal]
    for shown in choices:
        if shown is not None:
            found = broadcast_call(node, "where", shown, found, node.scalar(-math.inf, wide))
    return matmul(node, node.cast(_weights(node, found, scores.sink), dtype), v)


def _weights(node: Node, found: Value, sink: Value | None) -> Value:
    axis = node.rank(found) - 1
    if sink is None:
        return node.emit("softmax", found, axis=axis)
    *lead, keys = node.dims(found)
    column = node.emit("expand", node.cast(sink, node.dtype(found)), dims=(*lead, 1))
    shares = node.emit("softmax", node.emit("concat", found, column, axis=axis), axis=axis)
    return node.emit_all("split", shares, sizes=(keys, 1), axis=axis)[0]


def _positions(node: Node, size: Expr, rank: int, at: int) -> Value:
    """0, 1, … along one of `rank` dims."""
    steps = node.emit("range", start=0, limit=size, delta=1, dtype=I64)
    return node.reshape(steps, [size if k == at else 1 for k in range(rank)])


def causal(node: Node, queries: Expr, keys: Expr) -> Value:
    """Where a key is no later than the query: [1, 1, queries, keys], both ending together."""
    last = _positions(node, queries, 4, 2)
    shift = node.integers([keys - queries], I64, rank=0)
    return node.emit("le", _positions(node, keys, 4, 3), node.emit("add", last, shift))


def padding(node: Node, mask: Value, batch: Expr, queries: Expr, keys: Expr) -> Value:
    """Where keys are shown, as bools that broadcast to the scores.

    A mask is a length per batch entry, the lengths and then the first keys, or says of each key
    [batch, keys], of keys for each query [batch, queries, keys], or of each pair of positions
    [batch, 1, most, most] whether it is shown.
    """
    match node.rank(mask):
        case 1:
            return _between(node, node.cast(mask, I64), batch, keys)
        case 2:
            shown = node.reshape(node.with_dims(mask, (batch, keys)), (batch, 1, 1, keys))
        case 3:
            whole = node.with_dims(mask, (batch, queries, keys))
            shown = node.reshape(whole, (batch, 1, queries, keys))
        case 4:
            starts, ends = (0, keys - queries, 0), (1, keys, keys)
            shown = node.emit("slice", mask, starts=starts, ends=ends, axes=(1, 2, 3), steps=None)
            shown = node.with_dims(shown, (batch, 1, queries, keys))
        case _:
            raise node.unsupported(f"a mask of shape {mask.annotation}")
    return node.emit("cast", shown, dtype=BOOL)


def _between(node: Node, bounds: Value, batch: Expr, keys: Expr) -> Value:
    """Keys before the ends of each batch entry, and not before the starts if these follow."""
    at, column, count = _positions(node, keys, 4, 3), (batch, 1, 1, 1), node.dims(bounds)[0]
    if prove_eq(count, batch) is True:
        return node.emit("lt", at, node.reshape(bounds, column))
    wrong = (count - batch) * (count - batch * 2)
    node.walk.require(node, wrong, 0, "a mask has a length for each batch entry, or two")
    padded = node.emit("pad", bounds, None, pads=(0, batch))  # without starts these are 0
    ends, starts = (
        node.emit(
            "slice", padded, starts=(k * batch,), ends=((k + 1) * batch,), axes=(0,), steps=None
        )
        for k in (0, 1)
    )
    ends, starts = (node.reshape(node.with_dims(v, (batch,)), column) for v in (ends, starts))
    return node.emit("and", node.emit("lt", at, ends), node.emit("ge", at, starts))


@importer("MultiHeadAttention", domain=MICROSOFT)
def _multi_head_attention(node: Node) -> Result:
    if node.input(8) is not None or node.wants(3):
        raise node.unsupported("a past that is updated in its place, or the scores as an output")
    heads = as_expr(node.attr("num_heads"))
    q, k, v = _unpacked(node)
    bias = node.input(3)
    if bias is not None:
        q, k, v = biased(node, (q, k, v), bias)
    q = by_heads(node, q, heads)
    k, v = (by_heads(node, x, heads) if node.rank(x) == 3 else x for x in (k, v))
    if node.input(6) is not None and node.input(7) is not None:
        k = node.emit("concat", node.value(6), k, axis=2)
        v = node.emit("concat", node.value(7), v, axis=2)
    batch, _, length, width = node.dims(q)
    keys = node.dims(k)[2]
    scores = usual_scores(node, (batch, length, keys, width), node.input(4), node.input(5))
    return (from_heads(node, attend(node, q, k, v, scores)), k, v)


def usual_scores(
    node: Node, sizes: tuple[Expr, Expr, Expr, Expr], mask: Value | None, bias: Value | None
) -> Scores:
    """By the attributes of onnxruntime's operators; sizes are batch, queries, keys and width."""
    batch, queries, keys, width = sizes
    return Scores(
        node.attr("scale", 0.0) or default_scale(node, width),
        () if bias is None else (bias,),
        () if mask is None else (padding(node, mask, batch, queries, keys),),
        node.attr("mask_filter_value", -10000.0),
        causal=causal(node, queries, keys) if node.attr("unidirectional", 0) else None,
    )


def default_scale(node: Node, width: Expr) -> float:
    """What scores are multiplied by, if nothing else is said, for heads of a width."""
    number = width.as_int()
    if not number:
        raise node.unsupported(f"heads of width {width}")
    return 1 / math.sqrt(number)


def _unpacked(node: Node) -> tuple[Value, Value, Value]:
    """Queries, keys and values, of which all three or the last two may come as one.

    Such are [batch, length, heads, 2 or 3, width].
    """
    q, k, v = node.value(0), node.input(1), node.input(2)
    if k is not None and v is not None:
        return q, k, v
    if k is not None:
        k, v = _parts(node, k, 2)
        return q, k, v
    q, k, v = _parts(node, q, 3)
    return q, k, v


def _parts(node: Node, packed: Value, count: int) -> list[Value]:
    """As [batch, length, heads * width] each."""
    if node.rank(packed) != 5:
        raise node.bad(f"{packed.annotation} holds no {count} operands of attention")
    batch, length, heads, _, width = node.dims(packed)
    packed = node.with_dim(packed, 3, count)
    parts = node.emit_all("split", packed, sizes=(1,) * count, axis=3)
    return [node.reshape(p, (batch, length, heads * width)) for p in parts]


def biased(node: Node, parts: tuple[Value, ...], bias: Value) -> tuple[Value, ...]:
    """Each part plus its share of one long bias; those that are split already have theirs."""
    dims = [node.dims(p) for p in parts]
    sizes = tuple(d[2] if len(d) == 3 else d[1] * d[3] for d in dims)
    shares = node.emit_all("split", bias, sizes=sizes, axis=0)
    return tuple(
        node.emit("add", p, s) if len(d) == 3 else p
        for p, s, d in zip(parts, shares, dims, strict=True)
    )


# Grouped queries over a cache


@importer("GroupQueryAttention", domain=MICROSOFT)
def _group_query_attention(node: Node) -> Result:
    """Keys and values go into the cache behind what it holds; queries look at what is not later."""
    refuse_variants(node)
    heads, kept = as_expr(node.attr("num_heads")), as_expr(node.attr("kv_num_heads"))
    q, k, v = (by_heads(node, x, n) for x, n in parts_of(node, heads, kept))
    batch, _, length, width = node.dims(q)
    ends = node.with_dims(node.cast(node.value(5), I64), (batch,))
    start = node.emit("sub", ends, node.integers([length - 1], I64, rank=0))
    start = node.emit("max", start, node.scalar(0, I64))  # a padded prompt starts at 0
    places = node.emit("add", node.reshape(start, (batch, 1)), _positions(node, length, 2, 1))
    if node.attr("do_rotary", 0):
        caches = (node.value(7), node.value(8))
        turns = node.input(9) or places
        q, k = (
            rotated(node, x, turns, caches, bool(node.attr("rotary_interleaved", 0)))
            for x in (q, k)
        )
    k, v = _into_cache(node, (k, v), places)
    keys, group = node.dims(k)[2], heads // kept
    grouped = node.reshape(q, (batch, kept, group, length, width))
    at = node.reshape(places, (batch, 1, 1, length, 1))
    key_at = _positions(node, keys, 5, 4)
    masks = [node.emit("le", key_at, at)]
    window = node.attr("local_window_size", -1)
    if window > 0:
        first = node.emit("sub", at, node.scalar(window, I64))
        masks.append(node.emit("gt", key_at, first))
    scores = Scores(
        node.attr("scale", 0.0) or default_scale(node, width),
        _grouped_bias(node, kept, group),
        tuple(masks),
        softcap=node.attr("softcap", 0.0),
        sink=_sink(node, kept, group),
    )
    wide = [node.reshape(x, (batch, kept, 1, keys, node.dims(x)[3])) for x in (k, v)]
    found = attend(node, grouped, wide[0], wide[1], scores)
    whole = node.reshape(found, (batch, heads, length, node.dims(v)[3]))
    return (from_heads(node, whole), k, v)


def refuse_variants(node: Node) -> None:
    """Complain of what GroupQueryAttention may do and is not known here."""
    for name in ("k_quant_type", "v_quant_type", "qk_output"):
        if node.attr(name, 0) not in (0, "NONE", ""):
            raise node.unsupported(f"{name} {node.attr(name)!r}")
    if node.wants(3):
        raise node.unsupported("the scores as an output")


def _sink(node: Node, kept: Expr, group: Expr) -> Value | None:
    """What else the keys share with: a score of each head, or 0."""
    given = node.input(11)
    if given is not None:
        return node.reshape(given, (1, kept, group, 1, 1))
    smooth = node.attr("smooth_softmax", -1) == 1
    return node.reshape(node.scalar(0, F32), (1,) * 5) if smooth else None


def parts_of(node: Node, heads: Expr, kept: Expr) -> list[tuple[Value, Expr]]:
    """Queries, keys and values, taken apart if they come as one, with their numbers of heads."""
    q, k, v = node.value(0), node.input(1), node.input(2)
    if k is None or v is None:
        width = node.dims(q)[2] // (heads + kept * 2)
        sizes = (heads * width, kept * width, kept * width)
        q, k, v = node.emit_all("split", q, sizes=sizes, axis=2)
    return [(q, heads), (k, kept), (v, kept)]


def _into_cache(node: Node, new: tuple[Value, Value], places: Value) -> tuple[Value, ...]:
    """The caches, as long as the whole sequence needs, with the new rows at their places."""
    if node.input(3) is None or node.input(4) is None:
        return new
    (total,) = node.ints(6, lo=0, what="the total length") or (as_expr(0),)
    found: list[Value] = []
    for past, rows in zip((node.value(3), node.value(4)), new, strict=True):
        dims = node.dims(rows)
        held = node.dims(past)[2]
        size = maximum(held, total)
        pads = tuple(as_expr(p) for p in (0, 0, 0, 0, 0, 0, size - held, 0))
        grown = past if size == held else node.emit("pad", past, None, pads=pads)
        grown = node.with_dims(grown, (dims[0], dims[1], size, dims[3]))
        column = node.reshape(places, (dims[0], 1, dims[2], 1))
        indices = node.emit("expand", column, dims=dims)
        found.append(node.emit("scatter_elements", grown, indices, rows, axis=2))
    return tuple(found)


def _grouped_bias(node: Node, kept: Expr, group: Expr) -> tuple[Value, ...]:
    """An attention bias [batch or 1, heads or 1, length, keys] over groups."""
    bias = node.input(10)
    if bias is None:
        return ()
    batch, heads, length, keys = node.dims(bias)
    split: tuple[Any, Any] = (1, 1) if heads.as_int() == 1 else (kept, group)
    return (node.reshape(bias, (batch, *split, length, keys)),)
