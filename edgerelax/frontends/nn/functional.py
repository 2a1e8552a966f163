"""Functions of tensors that models are written in."""

import math
from collections.abc import Sequence

import numpy as np

from edgerelax.frontends.nn.module import Parameter
from edgerelax.frontends.nn.tensor import Tensor, apply, create
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32
from edgerelax.ops import OPS
from edgerelax.sym import ExprLike, as_expr


def linear(x: Tensor, weight: Parameter, bias: Parameter | None = None) -> Tensor:
    """x Wᵀ + b; the weight is [outputs, inputs]."""
    y = apply("matmul", x, weight, transpose_b=True)
    return y if bias is None else y + bias


def rms_norm(x: Tensor, weight: Parameter, epsilon: float, offset: float = 0.0) -> Tensor:
    """x / sqrt(mean(x²) + epsilon) · (weight + offset), over the last axis."""
    if not offset:
        return apply("rms_norm", x, weight, axis=-1, epsilon=epsilon)
    scale = apply("add", Tensor(x.builder, weight.emit(x.builder)), offset)
    return apply("rms_norm", x, scale, axis=-1, epsilon=epsilon)


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x)."""
    return apply("swish", x)


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """x · Φ(x), by erf, or by tanh."""
    return apply("gelu", x, approximate="tanh" if approximate else "none")


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return apply("relu", x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return apply("sigmoid", x)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap · tanh(x / cap): within ± `cap`."""
    return apply("tanh", x / cap) * cap


def total(x: Tensor) -> Tensor:
    """Sums over the last axis, which stays as 1."""
    return apply("reduce_sum", x, axes=(-1,), keepdims=True)


def topk(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The greatest `count` along the last axis, falling, and where they stand."""
    found = x.builder.call_all(OPS["topk"], x.value, k=count)
    values, places = (Tensor(x.builder, part) for part in found)
    return values, places


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / Σ exp(x) along an axis."""
    return apply("softmax", x, axis=axis)


def concat(parts: Sequence[Tensor], axis: int = -1) -> Tensor:
    """Tensors one after another along an axis."""
    return apply("concat", *parts, axis=axis % len(parts[0].dims))


def positions(like: Tensor, count: ExprLike, start: ExprLike = 0) -> Tensor:
    """start, start + 1, …: i64[count]."""
    first = as_expr(start)
    return create(like, "range", start=first, limit=first + as_expr(count), delta=1)


def rotary(
    x: Tensor, at: Tensor, frequencies: Sequence[float], interleaved: bool, factor: float = 1.0
) -> Tensor:
    """Rotate pairs of features by position · frequency (RoPE, arXiv 2104.09864).

    x is [batch, heads, length, width], `at` the positions, integers [batch or 1, length]. Pairs are
    neighbours where `interleaved`, else features k and k + pairs. What turns is multiplied by
    `factor`; features past the last pair stay as they are.
    """
    batch, heads, length, width = x.dims
    half = len(frequencies)
    turned, kept = x.split((2 * half, width - 2 * half))
    table = at.builder.constant("frequencies", np.asarray(frequencies, np.float32))
    angles = at.cast(F32).reshape(at.dims[0], 1, length, 1) * Tensor(at.builder, table)
    cosine, sine = apply("cos", angles), apply("sin", angles)
    if factor != 1:
        cosine, sine = cosine * factor, sine * factor
    if interleaved:
        pairs = turned.reshape(batch, heads, length, half, 2)
        first, second = (part.reshape(batch, heads, length, half) for part in pairs.split((1, 1)))
    else:
        first, second = turned.split((half, half))
    rotated = (first * cosine - second * sine, second * cosine + first * sine)
    if interleaved:
        columns = [part.reshape(batch, heads, length, half, 1) for part in rotated]
        result = concat(columns).reshape(batch, heads, length, 2 * half)
    else:
        result = concat(rotated)
    return result if width.as_int() == 2 * half else concat((result, kept))


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    cap: float | None = None,
) -> Tensor:
    """softmax(q kᵀ · scale, masked) v; scores within ± `cap` by cap · tanh(score / cap).

    q is [batch, heads, queries, width], k and v [batch, groups, keys, width], with heads a multiple
    of groups. `mask` is a condition that broadcasts to [batch, heads, queries, keys]: false hides.
    """
    _, heads, _, width = q.dims
    if scale is None:
        known = width.as_int()
        if not known:
            raise InputError(f"attention over a width of {width} needs a scale")
        scale = 1 / math.sqrt(known)
    scores = apply("matmul", q, repeat_heads(k, heads), transpose_b=True) * scale
    if cap is not None:
        scores = soft_cap(scores, cap)
    if mask is not None:
        scores = apply("where", mask, scores, float("-inf"))
    return softmax(scores) @ repeat_heads(v, heads)


def repeat_heads(x: Tensor, heads: ExprLike) -> Tensor:
    """[batch, groups, length, width] → [batch, heads, length, width], each group repeated."""
    batch, groups, length, width = x.dims
    each = as_expr(heads) // groups
    if each.as_int() == 1:
        return x
    wide = x.reshape(batch, groups, 1, length, width).expand(batch, groups, each, length, width)
    return wide.reshape(batch, heads, length, width)


def causal_mask(queries: Tensor, keys: Tensor, window: int | None = None) -> Tensor:
    """bool[queries, keys]: whether a key is not after the query, nor `window` or more before it."""
    (count,), (past,) = queries.dims, keys.dims
    column, row = queries.reshape(count, 1), keys.reshape(1, past)
    shown = apply("le", row, column)
    if window is None:
        return shown
    return apply("and", shown, apply("lt", column - row, window))
