"""suppress: boxes of high scores, without those that overlap one chosen before them.

Per image and class a topk orders the scores; a template goes through them (ir/templates.py).
"""

import numpy as np

from edgerelax.ir.dtypes import F32, I64
from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.op import Array, CallSite, Operator, Sample
from edgerelax.ir.scalar import Buffer, Scalar, compare, op, select
from edgerelax.ir.templates import TEMPLATES
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.maps import (
    Dims,
    equal_dim,
    fail,
    inputs_of,
    loop_func,
    map_stage,
    outputs_of_site,
    product,
    tensor_of,
)
from edgerelax.ops.shaping import reshape_index
from edgerelax.sym import as_expr

_RANKS = {"boxes": 3, "scores": 3, "overlap": 1, "least": 1}


def _infer(site: CallSite) -> Annotation:
    """The boxes chosen of each class [images, classes, limit], -1 past their number."""
    tensors = [tensor_of(site, k) for k in range(len(_RANKS))]
    for (name, rank), tensor in zip(_RANKS.items(), tensors, strict=True):
        if tensor.dtype not in (None, F32):
            raise fail(site, f"{name} of {tensor.dtype}", "they are f32")
        if tensor.rank not in (None, rank):
            raise fail(site, f"{name} has rank {tensor.rank}, not {rank}")
    boxes, scores = tensors[0].dims, tensors[1].dims
    if boxes is None or scores is None:
        return Tensor(None, I64, 3)
    equal_dim(site, boxes[2], as_expr(4), "dim 2 of boxes and their four numbers")
    equal_dim(site, boxes[0], scores[0], "dim 0 of boxes and of scores, the images")
    equal_dim(site, boxes[1], scores[2], "dim 1 of boxes and dim 2 of scores, the boxes")
    return Tensor((*scores[:2], as_expr(site.attrs["limit"])), I64)


def _lower(site: CallSite) -> LoopFunc:
    boxes, scores, overlap, least = inputs_of(site)
    assert boxes is not None and scores is not None and overlap is not None and least is not None
    (out,) = outputs_of_site(site)
    rows = (product(scores.dims[:2]), scores.dims[2])
    flat, values = Buffer("flat", F32, rows), Buffer("values", F32, rows)
    order = Buffer("order", I64, rows)
    ranked, places = Buffer("ranked", F32, scores.dims), Buffer("places", I64, scores.dims)
    corners = Buffer("corners", F32, boxes.dims)

    def corner(at: Dims) -> Scalar:
        """The lesser of two corners' coordinates first, then the greater ones."""
        image, box, k = at
        first, second = boxes[image, box, k % 2], boxes[image, box, k % 2 + 2]
        low, high = op("min", first, second), op("max", first, second)
        if site.attrs["centres"]:
            half = op("div", second, 2)
            low, high = op("sub", first, half), op("add", first, half)
        return select(compare("lt", k, 2), low, high)

    limit = {"limit": out.dims[2]}
    stages: list[Stage | Template] = [
        map_stage(corners, corner),
        map_stage(flat, lambda at: scores[reshape_index(scores.dims, rows, at)]),
        Template("topk", (flat,), (values, order), {"k": rows[1], "largest": True, "sorted": True}),
        map_stage(ranked, lambda at: values[reshape_index(rows, scores.dims, at)]),
        map_stage(places, lambda at: order[reshape_index(rows, scores.dims, at)]),
        Template("suppress", (corners, ranked, places, overlap, least), (out,), limit),
    ]
    return loop_func(site, stages)


def _reference(
    boxes: Array, scores: Array, overlap: Array, least: Array, limit: int, centres: bool = False
) -> Array:
    first, second = boxes[..., :2], boxes[..., 2:]
    low, high = np.minimum(first, second), np.maximum(first, second)
    if centres:
        low, high = first - second / 2, first + second / 2
    corners = np.concatenate([low, high], axis=-1)
    flat = scores.reshape(int(np.prod(scores.shape[:2])), scores.shape[2])
    ranked, places = TEMPLATES["topk"](flat, k=flat.shape[1])
    chosen: Array = TEMPLATES["suppress"](
        corners, ranked.reshape(scores.shape), places.reshape(scores.shape), overlap, least,
        limit=limit,
    )  # fmt: skip
    return chosen


_RNG = np.random.default_rng(0)
_BOXES = _RNG.random((2, 9, 4)).astype(np.float32)
_SCORES = _RNG.random((2, 3, 9)).astype(np.float32)
_OVERLAP, _LEAST = np.array([0.3], np.float32), np.array([0.2], np.float32)
_TIES = np.full((1, 1, 4), 0.5, np.float32)

OPERATORS = (
    Operator(
        "suppress",
        tuple(_RANKS),
        _infer,
        _reference,
        _lower,
        attrs={"limit": 1, "centres": False},
        samples=(
            Sample((_BOXES, _SCORES, _OVERLAP, _LEAST), {"limit": 9}),
            Sample((_BOXES, _SCORES, _OVERLAP, _LEAST), {"limit": 2, "centres": True}),
            Sample((_BOXES[:1, :4], _TIES, _OVERLAP, _LEAST), {"limit": 4}),
            Sample((_BOXES, _SCORES, _OVERLAP, _LEAST), {"limit": 0}),
            Sample((_BOXES[:, :0], _SCORES[..., :0], _OVERLAP, _LEAST), {"limit": 2}),
        ),
    ),
)
