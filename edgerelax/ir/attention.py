"""Attention as a template stage: softmax(f(q kᵀ)) v, read and written through strided views.

A view is an offset and a stride per axis, in elements of a flat buffer: heads inside a packed
projection, broadcast masks (stride 0) and transposed results are views, no copies. Keys and values
may be rows of a buffer that a table of integers names, as those of a cache in pages are. They may
be of another type than queries, such as codes that are multiplied by a scale for each key.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.dtypes import F32, F64, from_numpy
from edgerelax.ir.functions import FUNCTIONS

Array = npt.NDArray[Any]
View = tuple[int, ...]
Step = tuple[str, int, float]
Table = tuple[int, int] | tuple[()]
"""Which other array it is, and elements of a row; (): there is none."""
Scale = tuple[int, ...]
"""Which other array it is, and the table of its rows if it has one; (): there is none."""


def attention(
    *arrays: Array,
    batch: Sequence[int],
    sizes: Sequence[int],
    views: Sequence[View],
    steps: Sequence[Step],
    dims: Sequence[int],
    nan_to_zero: bool = False,
    hidden: int = -1,
    tables: Sequence[Table] = ((), ()),
    scales: Sequence[Scale] = ((), ()),
) -> Array:
    """softmax(f(q kᵀ)) v for each point of `batch`; arrays are q, k, v and what the steps use.

    `sizes` are the numbers of queries and keys and the widths of a key and of a value. `views` say
    where the arrays hold q [batch…, query, width], k and v [batch…, key, width] and the others
    [batch…, query, key]; the last one where the result, of shape `dims`, takes [batch…, query,
    width]. f is a chain of steps (function, operand, number) on scores: a binary function with the
    other array `operand` (or with the number, if that is -1), or a unary one; `where` puts the
    number where its operand is false, `unless` where it is true.

    With a table, `tables[0]` for k and `tables[1]` for v, an element lies in the row of the buffer
    whose number the table has for its key, the same for all queries (an index as of a gather:
    negative ones count from the end, what is then outside is clamped); its view says where in it.

    With a scale, `scales[0]` for k and `scales[1]` for v, keys or values are multiplied by what the
    other array (the number that comes first) has for their key, the same for all queries. The rest
    of a scale is a table as above, by which that array is read.

    Scores and sums are f32, or f64 for f64. A query with no keys gives 0; one whose scores are all
    -inf NaN, as softmax does, or 0 if `nan_to_zero`, which holds for all weights that are NaN.
    Queries where the other array `hidden`, the same for all keys, is true give 0 as well.
    """
    queries, keys, width, depth = sizes
    held = np.dtype(np.float64) if from_numpy(arrays[0].dtype) == F64 else F32.numpy
    spans = [(queries, width), (keys, width), (keys, depth)]
    spans += [(queries, keys)] * (len(arrays) - 3)
    shapes = [(*batch, *span) for span in spans]
    by_rows = {scale[0] + 3 for scale in scales if len(scale) > 1}
    seen = [
        array if n in by_rows else _seen(array, views[n], shapes[n])
        for n, array in enumerate(arrays[3:], 3)
    ]
    q = _seen(arrays[0], views[0], shapes[0])
    k, v = (
        _rows(arrays[n], views[n], shapes[n], seen[table[0]][..., :1, :], table[1])
        if table
        else _seen(arrays[n], views[n], shapes[n])
        for n, table in enumerate(tables, 1)
    )
    k, v = (
        rows if not scale else rows.astype(held) * _factors(arrays, views, shapes, seen, scale)
        for rows, scale in zip((k, v), scales, strict=True)
    )
    scores = np.matmul(q.astype(held), k.astype(held).swapaxes(-1, -2))
    for step in steps:
        scores = _stepped(scores, step, seen)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - np.max(scores, axis=-1, keepdims=True, initial=-np.inf))
        weights = powers / powers.sum(axis=-1, keepdims=True)
    if nan_to_zero:
        weights = np.where(np.isnan(weights), held.type(0), weights)
    if hidden >= 0:
        weights = np.where(seen[hidden], held.type(0), weights)
    result = np.zeros(dims, arrays[0].dtype)
    target = _seen(result, views[-1], (*batch, queries, depth))
    target[...] = np.matmul(weights, v.astype(held))
    return result


def _stepped(scores: Array, step: Step, others: Sequence[Array]) -> Array:
    function, operand, number = step
    value = scores.dtype.type(number)
    if function in ("where", "unless"):
        shown = others[operand] if function == "where" else ~others[operand]
        return np.where(shown, scores, value)
    known = FUNCTIONS[function]
    if known.arity == 1:
        return known.meaning(scores)
    other = value if operand < 0 else others[operand].astype(scores.dtype)
    return known.meaning(scores, other)


def _factors(
    arrays: Sequence[Array],
    views: Sequence[View],
    shapes: Sequence[tuple[int, ...]],
    seen: Sequence[Array],
    scale: Scale,
) -> Array:
    """What keys are multiplied by: [batch…, key, 1]."""
    number, *table = scale
    if not table:
        return seen[number][..., 0, :, None]
    at, size = table
    numbers = seen[at][..., :1, :]
    offset, *strides = views[number + 3]
    *outer, _, keys = shapes[number + 3]
    view = (offset, *strides[:-2], strides[-1], 0)
    return _rows(arrays[number + 3], view, (*outer, keys, 1), numbers, size)


def _rows(array: Array, view: View, shape: tuple[int, ...], numbers: Array, size: int) -> Array:
    """The elements [batch…, key, column] of rows whose numbers are [batch…, 1, key]."""
    if 0 in shape or 0 in numbers.shape:
        return np.zeros(shape, array.dtype)
    count = array.size // size
    wide = numbers[..., 0, :, None].astype(np.int64)
    rows = np.clip(np.where(wide < 0, wide + count, wide), 0, count - 1)
    offset, *strides = view
    inner = np.asarray(offset, np.int64)
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = [1] * len(shape)
        steps[axis] = extent
        inner = inner + (np.arange(extent, dtype=np.int64) * stride).reshape(steps)
    return np.asarray(np.ascontiguousarray(array).reshape(-1)[rows * size + inner])


def _seen(array: Array, view: View, shape: tuple[int, ...]) -> Array:
    """The elements that a view sees. They may be written where no two are one."""
    offset, *strides = view
    flat = np.ascontiguousarray(array).reshape(-1)
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if math.prod(shape) and not 0 <= offset <= last < flat.size:
        raise VerifyError(f"attention: a view reaches from {offset} to {last} of {flat.size}")
    steps = [s * flat.itemsize for s in strides]
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps)
