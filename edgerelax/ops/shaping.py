"""Operators that rename or replicate elements: reshape, transpose, expand.

Squeeze, unsqueeze and flatten are reshapes; `resolve_reshape`, `squeezed`, `unsqueezed` and
`flattened` give the dims for their importers.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from edgerelax.ir.assumptions import agree
from edgerelax.ir.diagnostics import ShapeError
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.types import Annotation, IntTensor, Tensor
from edgerelax.ops.lowering import broadcast_load
from edgerelax.ops.maps import (
    MAX_INTS,
    Dims,
    exprs,
    fail,
    inputs_of,
    map_func,
    normal_axis,
    outputs_of_site,
    product,
    tensor_of,
)
from edgerelax.ops.rules import broadcast_dims, known_ints, show
from edgerelax.sym import Expr, ExprLike, as_expr, prove_eq


def resolve_reshape(
    dims: Sequence[ExprLike], target: Sequence[ExprLike], allow_zero: bool = False
) -> Dims:
    """ONNX Reshape's target as plain dims: 0 copies the input's dim, -1 takes what is left.

    The caller checks at run time what stays unproven, `product(dims) == product(result)`.
    """
    source, wanted = exprs(dims), list(exprs(target))
    for k, want in enumerate(wanted):
        if want.as_int() == 0 and not allow_zero:
            if k >= len(source):
                raise ShapeError(f"reshape: 0 at {k} copies a dim that {show(source)} lacks")
            wanted[k] = source[k]
    free = [k for k, want in enumerate(wanted) if want.as_int() == -1]
    if len(free) > 1:
        raise ShapeError(f"reshape: more than one -1 in {show(tuple(wanted))}")
    if free and allow_zero and any(want.as_int() == 0 for want in wanted):
        raise ShapeError(f"reshape: -1 beside a dim of 0 in {show(tuple(wanted))}")
    if free:
        wanted[free[0]] = _remaining(source, wanted[: free[0]] + wanted[free[0] + 1 :])
    return tuple(wanted)


def _remaining(source: Dims, known: list[Expr]) -> Expr:
    """What the product of `source` leaves beside `known`; equal dims cancel before dividing."""
    rest, divisors = list(source), []
    for dim in known:
        if dim in rest:
            rest.remove(dim)
        else:
            divisors.append(dim)
    total, divisor = product(rest), product(divisors)
    if divisor.as_int() == 0:
        raise ShapeError(
            f"reshape: -1 beside a dim of 0 in {show(tuple(known))}, of {show(source)}",
            hint="give every dim of an empty tensor",
        )
    quotient = total // divisor
    if prove_eq(quotient * divisor, total) is False:
        raise ShapeError(f"reshape: {show(source)} does not divide by {show(tuple(known))}")
    return quotient


def squeezed(dims: Sequence[Expr], axes: Sequence[int] | None) -> Dims:
    """ONNX Squeeze: dims without those axes; without axes, without the dims proven to be 1."""
    rank = len(dims)
    if axes is None:
        return tuple(d for d in dims if prove_eq(d, 1) is not True)
    for axis in axes:
        if not -rank <= axis < rank or prove_eq(dims[axis], 1) is False:
            raise ShapeError(f"squeeze: axis {axis} of {show(tuple(dims))} is no dim of 1")
    gone = {axis % rank for axis in axes}
    return tuple(d for k, d in enumerate(dims) if k not in gone)


def unsqueezed(dims: Sequence[Expr], axes: Sequence[int]) -> Dims:
    """ONNX Unsqueeze: dims with a 1 at each of `axes`, which count in the result."""
    rank = len(dims) + len(axes)
    if any(not -rank <= axis < rank for axis in axes):
        raise ShapeError(f"unsqueeze: axes {tuple(axes)} of a result of rank {rank}")
    new = {axis % rank for axis in axes}
    if len(new) != len(axes):
        raise ShapeError(f"unsqueeze: axes {tuple(axes)} name one twice")
    rest = iter(dims)
    return tuple(as_expr(1) if k in new else next(rest) for k in range(rank))


def flattened(dims: Sequence[Expr], axis: int) -> Dims:
    """ONNX Flatten: two dims, split before `axis`."""
    rank = len(dims)
    if not -rank <= axis <= rank:
        raise ShapeError(f"flatten: axis {axis} of {show(tuple(dims))}")
    at = axis + rank if axis < 0 else axis
    return product(dims[:at]), product(dims[at:])


# reshape


def _infer_reshape(site: CallSite) -> Annotation:
    source, dims = tensor_of(site, 0), exprs(site.attrs["dims"])
    if source.dims is not None and not agree(product(source.dims), product(dims)):
        raise fail(site, f"{show(source.dims)} does not have the elements of {show(dims)}")
    ints = known_ints(site, 0)
    if ints is not None and len(dims) <= 1 and (len(dims) == 1 or len(ints.values) == 1):
        return IntTensor(ints.values, len(dims), ints.dtype)
    return Tensor(dims, source.dtype)


def _lower_reshape(site: CallSite) -> LoopFunc:
    source = inputs_of(site)[0]
    assert source is not None
    return map_func(
        site, lambda at: source[reshape_index(source.dims, exprs(site.attrs["dims"]), at)]
    )


def reshape_index(source: Dims, result: Dims, at: Dims) -> Dims:
    """Where element `at` of the reshaped tensor lies in the source.

    Dims are matched in groups of equal product, cut as fine as the products show, so that a dim
    that only moves keeps its plain index; only within a group a position is flattened and split.
    """
    index: list[Expr] = []
    for (a, b), (c, d) in _groups(source, result):
        index.extend(_split_position(source[a:b], _flat_position(result[c:d], at[c:d])))
    return tuple(index)


def _groups(source: Dims, result: Dims) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of dim ranges of equal product: cut at equal prefixes and, past those, suffixes."""
    cuts = _equal_prefixes(source, result)
    a, c = cuts[-1]
    tail = _equal_prefixes(source[a:][::-1], result[c:][::-1])
    cuts += [(len(source) - x, len(result) - y) for x, y in reversed(tail)]
    return [((a, b), (c, d)) for (a, c), (b, d) in pairwise(cuts) if (a, c) != (b, d)]


def _equal_prefixes(source: Dims, result: Dims) -> list[tuple[int, int]]:
    """Lengths (x, y), from (0, 0) on and growing, of prefixes of equal product."""
    found = [(0, 0)]
    left = as_expr(1)
    for x in range(1, len(source) + 1):
        left = left * source[x - 1]
        right = product(result[: found[-1][1]])
        for y in range(found[-1][1], len(result) + 1):
            if y > found[-1][1]:
                right = right * result[y - 1]
            if left == right:
                found.append((x, y))
                break
    return found


def _flat_position(dims: Dims, at: Dims) -> Expr:
    position = as_expr(0)
    for dim, index in zip(dims, at, strict=True):
        position = position * dim + (0 if dim.as_int() == 1 else index)
    return position


def _split_position(dims: Dims, position: Expr) -> Dims:
    """The row-major index of a flat position; zeros where there are no elements anyway."""
    if any(d.as_int() == 0 for d in dims):
        return exprs([0] * len(dims))
    wide = [k for k, d in enumerate(dims) if d.as_int() != 1]
    index = [as_expr(0)] * len(dims)
    for k in wide:
        stride = product(dims[k + 1 :])
        index[k] = position // stride if k == wide[0] else (position // stride) % dims[k]
    return tuple(index)


# transpose


def _perm(site: CallSite, rank: int) -> tuple[int, ...]:
    """`perm` as non-negative axes; reversed by default."""
    perm = site.attrs["perm"]
    if perm is None:
        return tuple(reversed(range(rank)))
    found = tuple(normal_axis(site, p, rank) for p in perm)
    if sorted(found) != list(range(rank)):
        raise fail(site, f"perm {tuple(perm)} does not permute the {rank} axes")
    return found


def _infer_transpose(site: CallSite) -> Annotation:
    source = tensor_of(site, 0)
    if source.dims is None:
        return Tensor(None, source.dtype, source.rank)
    perm = _perm(site, len(source.dims))
    ints = known_ints(site, 0)
    return Tensor(tuple(source.dims[p] for p in perm), source.dtype) if ints is None else ints


def _lower_transpose(site: CallSite) -> LoopFunc:
    source = inputs_of(site)[0]
    assert source is not None
    perm = _perm(site, source.rank)
    return map_func(site, lambda at: source[tuple(at[perm.index(k)] for k in range(source.rank))])


# expand


def _infer_expand(site: CallSite) -> Annotation:
    source, wanted = tensor_of(site, 0), exprs(site.attrs["dims"])
    if source.dims is None:
        known = source.rank is not None and source.rank <= len(wanted)
        exact = known and all(prove_eq(d, 1) is False for d in wanted)
        return Tensor(wanted if exact else None, source.dtype, len(wanted) if known else None)
    dims = broadcast_dims(site, (source.dims, wanted))
    ints, count = known_ints(site, 0), product(dims).as_int()
    if ints is not None and len(dims) <= 1 and count is not None and count <= MAX_INTS:
        values = ints.values if len(ints.values) == count else ints.values * count
        return IntTensor(values, len(dims), ints.dtype)
    return Tensor(dims, source.dtype)


def _lower_expand(site: CallSite) -> LoopFunc:
    source = inputs_of(site)[0]
    assert source is not None
    out = outputs_of_site(site)[0]
    return map_func(site, lambda at: broadcast_load(source, at, out.dims))


def _reference_expand(x: Array, dims: tuple[int, ...]) -> Array:
    return np.array(np.broadcast_to(x, np.broadcast_shapes(x.shape, dims)))


OPERATORS = (
    Operator(
        "reshape",
        ("x",),
        _infer_reshape,
        lambda x, dims: np.reshape(x, dims),
        _lower_reshape,
        attrs={"dims": ()},
        view=True,
        samples=(
            Sample((normal(2, 3, 4),), {"dims": (2, 12)}),
            Sample((normal(2, 12, 5),), {"dims": (2, 3, 4, 5)}),
            Sample((normal(6, 4),), {"dims": (4, 6)}),
            Sample((normal(2, 3, 4, 5),), {"dims": (2, 4, 3, 5)}),
            Sample((normal(3, 1, 5),), {"dims": (3, 5)}),
            Sample((normal(3, 5),), {"dims": (1, 3, 1, 5, 1)}),
            Sample((normal(1),), {"dims": ()}),
            Sample((normal(),), {"dims": (1, 1)}),
            Sample((normal(0, 3),), {"dims": (5, 0)}),
            Sample((np.arange(12, dtype=np.uint8),), {"dims": (3, 2, 2)}),
        ),
    ),
    Operator(
        "transpose",
        ("x",),
        _infer_transpose,
        lambda x, perm: np.transpose(x, perm).copy(),
        _lower_transpose,
        attrs={"perm": None},
        samples=(
            Sample((normal(2, 3),)),
            Sample((normal(2, 3, 5),), {"perm": (2, 0, 1)}),
            Sample((normal(2, 1, 3, 4),), {"perm": (0, 2, 1, 3)}),
            Sample((normal(0, 4),), {"perm": (1, 0)}),
            Sample((normal(),), {"perm": ()}),
        ),
    ),
    Operator(
        "expand",
        ("x",),
        _infer_expand,
        _reference_expand,
        _lower_expand,
        attrs={"dims": ()},
        samples=(
            Sample((normal(3, 1),), {"dims": (2, 3, 4)}),
            Sample((normal(3, 4),), {"dims": (1, 1)}),
            Sample((normal(),), {"dims": (2, 2)}),
            Sample((normal(1, 5),), {"dims": (0, 5)}),
            Sample((normal(4),), {"dims": (2, 1, 1)}),
        ),
    ),
)
