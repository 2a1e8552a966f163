"""What all families share: operands and buffers of a call site, one-stage index maps."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from edgerelax.ir.assumptions import agree
from edgerelax.ir.diagnostics import ShapeError
from edgerelax.ir.dtypes import DType
from edgerelax.ir.loop import LoopFunc, Stage, Template, grid
from edgerelax.ir.op import CallSite
from edgerelax.ir.scalar import Buffer, Scalar
from edgerelax.ir.types import Annotation, IntTensor, Tensor, Tuple, as_tensor
from edgerelax.sym import Expr, ExprLike, as_expr, ceildiv, ge, maximum, prove_le
from edgerelax.sym import select as choose

Dims = tuple[Expr, ...]

MAX_INTS = 256
"""More integers than this are data: they are not tracked one by one."""


def fail(site: CallSite, what: str, hint: str = "") -> ShapeError:
    """A contradiction at this call, to raise."""
    return ShapeError(f"{site.op.name}: {what}", node=site.name, origin=site.origin, hint=hint)


def tensor_of(site: CallSite, k: int) -> Tensor:
    """Operand k as a tensor annotation; all unknown if nothing is known of it."""
    arg = site.args[k]
    found = None if arg is None else as_tensor(arg)
    return Tensor() if found is None else found


def ints_of(site: CallSite, k: int) -> IntTensor | None:
    """Operand k if its elements are known integers."""
    if k >= len(site.args):
        return None
    arg = site.args[k]
    return arg if isinstance(arg, IntTensor) else None


def exprs(values: Sequence[ExprLike]) -> Dims:
    """Integer attributes as expressions."""
    return tuple(as_expr(v) for v in values)


def product(values: Sequence[ExprLike]) -> Expr:
    """The number of elements of a shape."""
    total = as_expr(1)
    for value in values:
        total = total * value
    return total


def normal_axis(site: CallSite, axis: int, rank: int) -> int:
    """A possibly negative axis, counted from the front."""
    if not -rank <= axis < rank:
        raise fail(site, f"axis {axis} of a tensor of rank {rank}", f"axes are {-rank}…{rank - 1}")
    return axis % rank


def equal_dim(site: CallSite, a: Expr, b: Expr, what: str) -> Expr:
    """The one of two dims that must agree which says more."""
    if not agree(a, b):
        raise fail(site, f"{what}: {a} and {b} differ")
    return b if a.as_int() is None else a


def inputs_of(site: CallSite) -> tuple[Buffer | None, ...]:
    """One buffer per operand, named as in the record; None for absent ones."""
    found: list[Buffer | None] = []
    for k, arg in enumerate(site.args):
        name = site.op.operands[min(k, len(site.op.operands) - 1)]
        if site.op.variadic and k >= len(site.op.operands) - 1:
            name = f"{name}{k - len(site.op.operands) + 1}"
        found.append(None if arg is None else buffer_of(name, arg))
    return tuple(found)


def buffer_of(name: str, annotation: Annotation) -> Buffer:
    """A buffer for a tensor whose dims and dtype are all known, as they are when code is made."""
    tensor = as_tensor(annotation)
    if tensor is None or tensor.dims is None or tensor.dtype is None:
        raise TypeError(f"{name}: no buffer for {annotation}")
    return Buffer(name, tensor.dtype, tensor.dims)


def outputs_of_site(site: CallSite) -> tuple[Buffer, ...]:
    """One buffer per result: out, or out0, out1, …"""
    assert site.result is not None, "lower needs the call's annotation"
    if isinstance(site.result, Tuple):
        return tuple(buffer_of(f"out{k}", f) for k, f in enumerate(site.result.fields))
    return (buffer_of("out", site.result),)


def present(buffers: Sequence[Buffer | None]) -> tuple[Buffer, ...]:
    """The operands that are there."""
    return tuple(b for b in buffers if b is not None)


def loop_func(site: CallSite, stages: Sequence[Stage | Template]) -> LoopFunc:
    """The call's loop function."""
    return LoopFunc(site.op.name, present(inputs_of(site)), outputs_of_site(site), tuple(stages))


def map_func(site: CallSite, body: Callable[[Dims], Scalar]) -> LoopFunc:
    """A loop function of one map stage; `body` takes the output's index."""
    out = outputs_of_site(site)[0]
    return loop_func(site, [map_stage(out, body)])


def map_stage(out: Buffer, body: Callable[[Dims], Scalar]) -> Stage:
    """One stage that fills a buffer point by point."""
    axes = grid(out)
    return Stage(out, axes, body(exprs(axes)))


def dtype_attr(site: CallSite) -> DType:
    """The attribute `dtype`."""
    dtype: Any = site.attrs["dtype"]
    assert isinstance(dtype, DType)
    return dtype


def range_count(first: ExprLike, limit: ExprLike, step: ExprLike) -> Expr:
    """How many of first, first + step, … come before `limit`, for a step of either sign."""
    way, stride = as_expr(limit) - first, as_expr(step)
    forward = prove_le(1, stride)
    if forward is True:
        return maximum(0, ceildiv(way, stride))
    if forward is False:
        return maximum(0, ceildiv(-way, -stride))
    ahead, back = maximum(1, stride), maximum(1, -stride)
    count = choose(ge(stride, 1), ceildiv(way, ahead), ceildiv(-way, back))
    return maximum(0, count)


def even_steps(values: Dims, at: ExprLike) -> Expr | None:
    """The value at position `at`, as one expression; None where they do not step evenly."""
    steps = {b - a for a, b in pairwise(values)}
    if not values or len(steps) > 1:
        return None
    return values[0] + (as_expr(at) * steps.pop() if steps else 0)
