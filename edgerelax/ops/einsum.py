"""Einstein summation: any equation, with ellipses, diagonals and sizes of 1 that broadcast.

One stage for one or two operands; more are contracted pairwise from the left, each step keeping the
labels that the rest or the result still needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from edgerelax.ir.dtypes import DType
from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, Scalar, cast
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.lowering import broadcast_at, narrow_reference, wide
from edgerelax.ops.maps import Dims, fail, inputs_of, loop_func, outputs_of_site, present
from edgerelax.ops.rules import NUMERIC, broadcast_dim, common_dtype, operands, show
from edgerelax.sym import Axis, Expr, as_expr

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Equation:
    """The labels of each operand's dims and of the result's.

    Dims of an ellipsis are labelled by their place from the right: .0, .1, …
    """

    terms: tuple[Labels, ...]
    result: Labels


def parse(site: CallSite, ranks: Sequence[int]) -> Equation:
    """The attribute `equation` for operands of these ranks."""
    text = "".join(str(site.attrs["equation"]).split())
    left, arrow, right = text.partition("->")
    written = left.split(",")
    if len(written) != len(ranks):
        raise fail(site, f"{text!r} has {len(written)} terms for {len(ranks)} operands")
    terms = tuple(_labels(site, t, r) for t, r in zip(written, ranks, strict=True))
    widest = max((_dots(t) for t in terms), default=0)
    if arrow:
        result = _labels(site, right, len(right.replace("...", "")) + widest, "..." in right)
    else:
        flat = [label for term in terms for label in term]
        once = sorted(x for x in set(flat) if flat.count(x) == 1 and x[0] != ".")
        result = (*(f".{k}" for k in reversed(range(widest))), *once)
    known = {label for term in terms for label in term}
    if len(set(result)) < len(result) or not set(result) <= known:
        raise fail(site, f"the result of {text!r} repeats a label or names a new one")
    return Equation(terms, result)


def _labels(site: CallSite, term: str, rank: int, has_dots: bool | None = None) -> Labels:
    """One label per dim of a tensor of that rank."""
    before, dots, after = term.partition("...")
    letters = before + after
    hidden = rank - len(letters)
    spread = bool(dots) if has_dots is None else has_dots
    is_valid = letters == "" or (letters.isalpha() and letters.isascii())
    if not is_valid or hidden < 0 or (has_dots is None and hidden and not spread):
        raise fail(site, f"term {term!r} for a tensor of rank {rank}")
    inner = tuple(f".{k}" for k in reversed(range(hidden))) if spread else ()
    return (*before, *inner, *after)


def _dots(labels: Labels) -> int:
    return sum(label[0] == "." for label in labels)


def _sizes(site: CallSite, equation: Equation, shapes: Sequence[Dims]) -> dict[str, Expr]:
    """The size of each label."""
    found: dict[str, Expr] = {}
    for labels, dims in zip(equation.terms, shapes, strict=True):
        for label, dim in zip(labels, dims, strict=True):
            size = broadcast_dim(found[label], dim) if label in found else dim
            if size is None:
                raise fail(
                    site,
                    f"label {label!r} is {found[label]} and {dim} in {site.attrs['equation']!r}",
                    "shapes: " + ", ".join(map(show, shapes)),
                )
            found[label] = size
    return found


def _infer(site: CallSite) -> Annotation:
    tensors = operands(site)
    dtype = common_dtype(site, tensors, NUMERIC)
    ranks = [t.rank for t in tensors if t.rank is not None]
    if len(ranks) < len(tensors):
        return Tensor(None, dtype)
    equation = parse(site, ranks)
    shapes = [t.dims for t in tensors if t.dims is not None]
    if len(shapes) < len(tensors):
        return Tensor(None, dtype, len(equation.result))
    sizes = _sizes(site, equation, shapes)
    return Tensor(tuple(sizes[label] for label in equation.result), dtype)


@dataclass(frozen=True, slots=True)
class _Term:
    """A buffer with a label per dim."""

    buffer: Buffer
    labels: Labels


def _lower(site: CallSite) -> LoopFunc:
    buffers, out = present(inputs_of(site)), outputs_of_site(site)[0]
    equation = parse(site, [b.rank for b in buffers])
    sizes = _sizes(site, equation, [b.dims for b in buffers])
    todo = [_Term(b, t) for b, t in zip(buffers, equation.terms, strict=True)]
    stages: list[Stage] = []
    while len(todo) > 2:
        first, second, *rest = todo
        later = {label for term in rest for label in term.labels} | set(equation.result)
        own = dict.fromkeys(label for label in (*first.labels, *second.labels) if label in later)
        labels = tuple(own)
        dims = tuple(sizes[label] for label in labels)
        partial = _Term(Buffer(f"partial{len(stages)}", wide(out.dtype), dims), labels)
        stages.append(_contract((first, second), partial, sizes))
        todo = [partial, *rest]
    return loop_func(site, [*stages, _contract(todo, _Term(out, equation.result), sizes)])


def _contract(terms: Sequence[_Term], result: _Term, sizes: dict[str, Expr]) -> Stage:
    """Sum the product of the terms over the labels that the result lacks."""
    used = dict.fromkeys(label for term in terms for label in term.labels)
    axes = {label: Axis(f"i{k}", sizes[label]) for k, label in enumerate(result.labels)}
    summed = [label for label in used if label not in axes]
    axes |= {label: Axis(f"r{k}", sizes[label]) for k, label in enumerate(summed)}
    dtype = wide(result.buffer.dtype)
    body = reduce(lambda a, b: a * b, (_load(term, axes, sizes, dtype) for term in terms))
    spatial = tuple(axes[label] for label in result.labels)
    if not summed:
        return Stage(result.buffer, spatial, cast(body, result.buffer.dtype))
    return Stage(result.buffer, spatial, body, tuple(axes[s] for s in summed), "sum")


def _load(term: _Term, axes: dict[str, Axis], sizes: dict[str, Expr], dtype: DType) -> Scalar:
    at = tuple(
        broadcast_at(dim, as_expr(axes[label]), sizes[label])
        for dim, label in zip(term.buffer.dims, term.labels, strict=True)
    )
    return cast(term.buffer[at], dtype)


def _reference(*arrays: Array, equation: str) -> Array:
    return np.asarray(np.einsum(equation, *arrays), arrays[0].dtype)


def _sample(equation: str, *shapes: tuple[int, ...]) -> Sample:
    arrays = tuple(normal(*shape, seed=k) for k, shape in enumerate(shapes))
    return Sample(arrays, {"equation": equation})


OPERATORS = (
    Operator(
        "einsum",
        ("x",),
        _infer,
        narrow_reference(_reference),
        _lower,
        attrs={"equation": ""},
        variadic=True,
        samples=(
            _sample("ij,jk->ik", (2, 3), (3, 4)),
            _sample("ij,jk", (2, 3), (3, 4)),
            _sample("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
            _sample("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
            _sample("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
            _sample("...ij,jk", (2, 3, 4), (4, 5)),
            _sample("ii->i", (3, 3)),
            _sample("ii", (3, 3)),
            _sample("ij->ji", (2, 3)),
            _sample("ij->", (2, 3)),
            _sample("i,j->ij", (2,), (3,)),
            _sample("ij,kl->il", (2, 3), (4, 5)),
            _sample("ab,bc,cd->ad", (2, 3), (3, 4), (4, 5)),
            _sample("ab,cb,db,b->acd", (2, 3), (4, 3), (5, 3), (3,)),
            _sample("ij,ij->i", (3, 1), (3, 4)),
            _sample("ij,jk->ik", (0, 3), (3, 4)),
            _sample("ij,jk->ik", (2, 0), (0, 4)),
            _sample(" i j , j -> i ", (2, 3), (3,)),
            _sample("...->...", (2, 3)),
            _sample("i...->...", (2, 3)),
            Sample((normal(3, 4, dtype="float16"),) * 2, {"equation": "ij,kj->ik"}),
            Sample((np.arange(6).reshape(2, 3), np.arange(3)), {"equation": "ij,j->i"}),
        ),
    ),
)
