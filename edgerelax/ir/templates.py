"""Template stages: what loops cannot say, by kind, with the numpy function that defines each.

`TEMPLATES[kind](*input arrays, **params)` gives one array or several. Symbolic parameters come
evaluated. Schedules implement a kind per device; the meaning stands here alone (that of attention
in attention.py, that of lstm, gru and rnn in recurrence.py, those of sample_tokens and
greedy_tokens in token_sampling.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.attention import attention
from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.dtypes import from_numpy
from edgerelax.ir.kernel_interp import compute_type
from edgerelax.ir.recurrence import RECURRENCES
from edgerelax.ir.token_sampling import greedy_tokens, sample_tokens

Array = npt.NDArray[Any]


def run_template(kind: str, arrays: Sequence[Array], params: Mapping[str, Any]) -> list[Array]:
    """The outputs of a template, always as a list."""
    if kind not in TEMPLATES:
        raise VerifyError(f"no template {kind}; known: {', '.join(sorted(TEMPLATES))}")
    results = TEMPLATES[kind](*arrays, **params)
    return [np.asarray(r) for r in (results if isinstance(results, tuple | list) else [results])]


def cumsum(x: Array, *, exclusive: bool = False, reverse: bool = False) -> Array:
    """Running sums along the last axis, each without its own element if `exclusive`.

    Floats are summed in f64 and rounded once.
    """
    wide = x.astype(np.float64) if from_numpy(x.dtype).is_float else x
    turned = wide[..., ::-1] if reverse else wide
    total = np.cumsum(turned, axis=-1, dtype=wide.dtype)
    if exclusive:
        total = np.concatenate([np.zeros_like(total[..., :1]), total[..., :-1]], axis=-1)
        total = total[..., : x.shape[-1]]
    return (total[..., ::-1] if reverse else total).astype(x.dtype)


def topk(x: Array, *, k: int, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """The k extremes of each row of x [rows, n] in order, and where they stood (i64).

    Among equals the lower index comes first; NaN is greater than all. `sorted` False leaves the
    order open; here it is the sorted one.
    """
    held = x.astype(compute_type(from_numpy(x.dtype)), copy=False)
    if largest:
        rising = np.argsort(held[:, ::-1], axis=-1, kind="stable")
        order = x.shape[-1] - 1 - rising[:, ::-1]
    else:
        order = np.argsort(held, axis=-1, kind="stable")
    indices = order[:, :k].astype(np.int64)
    return np.take_along_axis(x, indices, axis=-1), indices


def nonzero(x: Array, *, capacity: int) -> tuple[Array, Array]:
    """Where x is not 0, in row-major order: indices [rank, capacity], 0 past the end; count [1]."""
    count = int(np.count_nonzero(x))
    if count > capacity:
        raise VerifyError(f"nonzero: {count} places, capacity is {capacity}")
    indices = np.zeros((x.ndim, capacity), np.int64)
    if x.ndim:
        indices[:, :count] = np.nonzero(x)
    return indices, np.array([count], np.int64)


def suppress(
    corners: Array, scores: Array, places: Array, overlap: Array, least: Array, *, limit: int
) -> Array:
    """Boxes chosen of each class of each image [images, classes, limit] (i64), -1 past the last.

    `scores` [images, classes, boxes] fall along the last axis, `places` says whose they are,
    `corners` [images, boxes, 4] are the least and the greatest coordinates. One by one, a box is
    chosen whose score is more than `least` [1] unless it shares with one chosen before it more
    than `overlap` [1] of the area that they cover together (as ONNX NonMaxSuppression).
    """
    chosen = np.full((*scores.shape[:2], limit), -1, np.int64)
    for image, group in np.ndindex(*scores.shape[:2]):
        kept: list[int] = []
        for score, place in zip(scores[image, group], places[image, group], strict=True):
            if len(kept) < limit and score > least[0]:
                box, others = corners[image, place], corners[image, kept]
                if not (_shared(box, others) > overlap[0]).any():
                    kept.append(int(place))
        chosen[image, group, : len(kept)] = kept
    return chosen


def _shared(box: Array, others: Array) -> Array:
    """What the intersections with others are of the unions; 0 where there is none."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    inner = sides[:, 0] * sides[:, 1]
    own, theirs = np.prod(box[2:] - box[:2]), np.prod(others[:, 2:] - others[:, :2], axis=1)
    outer = own + theirs - inner
    meet = (sides > 0).all(axis=1) & (own > 0) & (theirs > 0) & (outer > 0)
    return np.where(meet, inner / np.where(meet, outer, 1), 0)


def scatter(
    data: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    """ONNX ScatterElements: updates[i…] goes to data at i…, index along `axis` from `indices`.

    Negative indices count from the end, others out of range are skipped. Without a reduction
    the last of several updates of one place (in row-major order) stays.
    """
    at: list[Array] = list(np.indices(indices.shape))
    at[axis] = indices.astype(np.int64)
    return _scattered(data, np.stack(at, axis=-1).reshape(-1, data.ndim), updates, reduction)


def scatter_nd(data: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    """ONNX ScatterND: slices of `updates` go to data[indices[…, :]]; as `scatter` otherwise."""
    depth = indices.shape[-1]
    slices = data.shape[depth:]
    places = indices.astype(np.int64).reshape(-1, depth)
    inner = np.moveaxis(np.indices(slices), 0, -1).reshape(math.prod(slices), len(slices))
    outer = np.repeat(places, len(inner), axis=0)
    tiled = np.tile(inner, (len(places), 1))
    return _scattered(data, np.concatenate([outer, tiled], axis=-1), updates, reduction)


_REDUCTIONS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _scattered(data: Array, places: Array, updates: Array, reduction: str) -> Array:
    """`places` holds one row of indices per update, updates in row-major order."""
    held = compute_type(from_numpy(data.dtype))
    result = data.astype(held)
    dims = np.array(data.shape, np.int64)
    places = np.where(places < 0, places + dims, places)
    inside = ((places >= 0) & (places < dims)).all(axis=-1)
    at = tuple(places[inside].T)
    values = updates.reshape(-1).astype(held)[inside]
    if reduction == "none":
        flat = (
            np.ravel_multi_index(at, data.shape) if data.ndim else np.zeros(len(values), np.int64)
        )
        unique, first_from_end = np.unique(flat[::-1], return_index=True)
        result.reshape(-1)[unique] = values[::-1][first_from_end]
    else:
        _REDUCTIONS[reduction].at(result, at, values)
    return result.astype(data.dtype)


TEMPLATES: dict[str, Callable[..., Any]] = {
    **RECURRENCES,
    "attention": attention,
    "cumsum": cumsum,
    "greedy_tokens": greedy_tokens,
    "sample_tokens": sample_tokens,
    "suppress": suppress,
    "topk": topk,
    "nonzero": nonzero,
    "scatter": scatter,
    "scatter_nd": scatter_nd,
}
