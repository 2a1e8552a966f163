"""Matrix products: numpy's matmul with optional transposes of the last two dims; its integer form.

One stage over (batch…, m, n) that sums over k; the batch dims broadcast by index maps. 16-bit
floats are summed as f32.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgerelax.ir.assumptions import agree
from edgerelax.ir.dtypes import I32
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.scalar import Buffer, Scalar, cast
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops.lowering import broadcast_index, narrow_reference, wide
from edgerelax.ops.maps import Dims, exprs, fail, inputs_of, loop_func, outputs_of_site, tensor_of
from edgerelax.ops.rules import INTEGERS, NUMERIC, allowed, broadcast_dims, common_dtype, show
from edgerelax.sym import Expr, as_expr, prove_eq


@dataclass(frozen=True, slots=True)
class Product:
    """The sizes of a matrix product; m or n is None where that operand is a vector."""

    batch: Dims
    m: Expr | None
    n: Expr | None
    k: Expr

    @property
    def dims(self) -> Dims:
        return (*self.batch, *(d for d in (self.m, self.n) if d is not None))


def _product(site: CallSite, a: Dims, b: Dims) -> Product:
    if not a or not b:
        raise fail(site, f"shapes {show(a)} and {show(b)}: no matrix product of scalars")
    rows = _matrix(a, site.attrs["transpose_a"])
    columns = _matrix(b, site.attrs["transpose_b"])
    left, right = rows[-1], columns[0]
    if not agree(left, right):
        crossed = len(b) > 1 and prove_eq(left, columns[-1]) is True
        raise fail(
            site,
            f"inner sizes {left} and {right} differ, shapes {show(a)} and {show(b)}",
            "transpose the second operand" if crossed else "",
        )
    return Product(
        broadcast_dims(site, (a[:-2], b[:-2])),
        rows[0] if len(a) > 1 else None,
        columns[1] if len(b) > 1 else None,
        right if left.as_int() is None else left,
    )


def _matrix(dims: Dims, transpose: bool) -> Dims:
    """The last two dims, or the one dim of a vector."""
    last = dims[-2:]
    return last[::-1] if transpose and len(last) == 2 else last


def _product_rank(a: int, b: int) -> int:
    return max(a, b, 2) - (a == 1) - (b == 1) if max(a, b) > 1 else 0


def infer_product(site: CallSite, a: Tensor, b: Tensor) -> Tensor:
    """The product's shape; the dtype is the caller's business."""
    if a.dims is not None and b.dims is not None:
        return Tensor(_product(site, a.dims, b.dims).dims)
    if a.rank is None or b.rank is None:
        return Tensor()
    return Tensor(None, None, _product_rank(a.rank, b.rank))


@dataclass(frozen=True, slots=True)
class Element:
    """One step of the sum: the elements' places in both operands."""

    a: Dims
    b: Dims


def product_stage(site: CallSite, a: Buffer, b: Buffer, out: Buffer) -> tuple[Stage, Element]:
    """The sum of products of loads, in the dtype of `out`, and where they load from."""
    sizes = _product(site, a.dims, b.dims)
    axes = grid(out)
    at = exprs(axes)
    k = axis("k", sizes.k)
    depth = len(sizes.batch)
    batch, matrix = at[:depth], list(at[depth:])
    m = matrix.pop(0) if sizes.m is not None else None
    n = matrix.pop(0) if sizes.n is not None else None
    element = Element(
        _place(a, batch, out, m, as_expr(k), site.attrs["transpose_a"]),
        _place(b, batch, out, n, as_expr(k), not site.attrs["transpose_b"]),
    )
    body = cast(a[element.a], wide(out.dtype)) * cast(b[element.b], wide(out.dtype))
    return Stage(out, axes, body, (k,), "sum"), element


def _place(
    buffer: Buffer, batch: Dims, out: Buffer, free: Expr | None, k: Expr, k_first: bool
) -> Dims:
    """The index of an operand: batch dims, then (free, k), or (k, free) if `k_first`."""
    if free is None:
        return (k,)
    outer = broadcast_index(buffer.dims[:-2], batch, out.dims[: len(batch)])
    return (*outer, k, free) if k_first else (*outer, free, k)


def _infer(site: CallSite) -> Annotation:
    a, b = tensor_of(site, 0), tensor_of(site, 1)
    found = infer_product(site, a, b)
    return Tensor(found.dims, common_dtype(site, (a, b), NUMERIC), found.rank)


def _lower(site: CallSite) -> LoopFunc:
    a, b = inputs_of(site)
    assert a is not None and b is not None
    stage, _ = product_stage(site, a, b, outputs_of_site(site)[0])
    return loop_func(site, [stage])


def _turned(x: Array, transpose: bool) -> Array:
    return x.swapaxes(-1, -2) if transpose and x.ndim > 1 else x


def _multiply(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    return np.asarray(np.matmul(_turned(a, transpose_a), _turned(b, transpose_b)))


# Integer products: 8-bit operands, less their zero points, give i32.


def _infer_integer(site: CallSite) -> Annotation:
    a, b = tensor_of(site, 0), tensor_of(site, 1)
    for tensor in (a, b):
        if tensor.dtype is not None:
            allowed(site, tensor.dtype, INTEGERS)
    found = infer_product(site, a, b)
    return Tensor(found.dims, I32, found.rank)


def _lower_integer(site: CallSite) -> LoopFunc:
    buffers = (*inputs_of(site), None, None)
    a, b, a_zero, b_zero = buffers[:4]
    assert a is not None and b is not None
    stage, element = product_stage(site, a, b, outputs_of_site(site)[0])
    body = _less_zero(a, element.a, a_zero, -2) * _less_zero(b, element.b, b_zero, -1)
    return loop_func(site, [Stage(stage.out, stage.axes, body, stage.reduce, "sum")])


def _less_zero(x: Buffer, at: Dims, zero: Buffer | None, along: int) -> Scalar:
    """An element less its zero point: one for all, or one per row of a (column of b)."""
    value = cast(x[at], I32)
    if zero is None:
        return value
    if zero.rank == 1 and x.rank > 1:
        own = broadcast_index(zero.dims, (at[along],), (x.dims[along],))
    else:
        own = broadcast_index(zero.dims, at, x.dims)
    return value - cast(zero[own], I32)


def _multiply_integer(
    a: Array,
    b: Array,
    a_zero: Array | None = None,
    b_zero: Array | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Array:
    left, right = a.astype(np.int32), b.astype(np.int32)
    if a_zero is not None:
        left = left - (a_zero[:, None] if a_zero.ndim == 1 and a.ndim > 1 else a_zero)
    if b_zero is not None:
        right = right - b_zero.astype(np.int32)
    return _multiply(left.astype(np.int32), right.astype(np.int32), transpose_a, transpose_b)


def _bytes(shape: Sequence[int], dtype: str = "uint8", seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    numbers = np.random.default_rng(seed).integers(info.min, info.max + 1, tuple(shape))
    return numbers.astype(dtype)


_TURNS = {"transpose_a": False, "transpose_b": False}

OPERATORS = (
    Operator(
        "matmul",
        ("a", "b"),
        _infer,
        narrow_reference(_multiply),
        _lower,
        attrs=_TURNS,
        samples=(
            Sample((normal(3, 4), normal(4, 5))),
            Sample((normal(4), normal(4))),
            Sample((normal(4), normal(4, 3))),
            Sample((normal(2, 3, 4), normal(4))),
            Sample((normal(4), normal(2, 4, 3))),
            Sample((normal(2, 1, 3, 4), normal(5, 4, 2))),
            Sample((normal(1, 3, 4), normal(2, 4, 2))),
            Sample((normal(3, 0), normal(0, 2))),
            Sample((normal(0, 3), normal(3, 2))),
            Sample((normal(1, 1), normal(1, 1))),
            Sample((normal(4, 3), normal(4, 5)), {"transpose_a": True}),
            Sample((normal(2, 3, 4), normal(2, 5, 4)), {"transpose_b": True}),
            Sample((normal(4, 3), normal(5, 4)), {"transpose_a": True, "transpose_b": True}),
            Sample((normal(3, 7, dtype="float16"), normal(7, 2, dtype="float16"))),
            Sample((np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2))),
        ),
    ),
    Operator(
        "matmul_integer",
        ("a", "b", "a_zero", "b_zero"),
        _infer_integer,
        _multiply_integer,
        _lower_integer,
        attrs=_TURNS,
        optional=2,
        samples=(
            Sample((_bytes((3, 4)), _bytes((4, 5), "int8"), None, None)),
            Sample((_bytes((3, 4)), _bytes((4, 5)), np.array(7, np.uint8), np.array(9, np.uint8))),
            Sample((_bytes((3, 4)), _bytes((4, 2)), _bytes((3,)), _bytes((2,)))),
            Sample((_bytes((2, 3, 4)), _bytes((4, 2)), _bytes((1,)), None)),
            Sample((_bytes((3, 0)), _bytes((0, 2)), np.array(7, np.uint8), None)),
        ),
    ),
)
