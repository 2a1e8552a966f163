"""Tensors in the making: values of a graph function, with Python's operators.

An operation emits a call into the function that its operands belong to; numbers and parameters
become constants of it. Sizes are symbolic: `x.dims` holds integer expressions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgerelax.frontends.nn.module import Parameter
from edgerelax.ir.builder import Builder
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import DType
from edgerelax.ir.graph import Value
from edgerelax.ir.types import as_tensor
from edgerelax.ops import OPS
from edgerelax.sym import Expr, ExprLike, as_expr


class Tensor:
    """A value of a graph function that is being built."""

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder, self.value = builder, value

    @property
    def dims(self) -> tuple[Expr, ...]:
        """Sizes of the axes."""
        known = as_tensor(self.value.annotation)
        if known is None or known.dims is None:
            raise InputError(f"{self.value.name} is {self.value.annotation}: its dims are unknown")
        return known.dims

    @property
    def dtype(self) -> DType:
        known = as_tensor(self.value.annotation)
        if known is None or known.dtype is None:
            raise InputError(f"{self.value.name} is {self.value.annotation}: its dtype is unknown")
        return known.dtype

    def __add__(self, other: Any) -> "Tensor":
        return apply("add", self, other)

    def __radd__(self, other: Any) -> "Tensor":
        return apply("add", other, self)

    def __sub__(self, other: Any) -> "Tensor":
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> "Tensor":
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> "Tensor":
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> "Tensor":
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> "Tensor":
        return apply("div", self, other)

    def __matmul__(self, other: Any) -> "Tensor":
        return apply("matmul", self, other)

    def __neg__(self) -> "Tensor":
        return apply("neg", self)

    def reshape(self, *dims: ExprLike) -> "Tensor":
        """The same elements in row-major order."""
        return apply("reshape", self, dims=tuple(as_expr(d) for d in dims))

    def permute(self, *axes: int) -> "Tensor":
        """Axes in another order."""
        return apply("transpose", self, perm=axes)

    def expand(self, *dims: ExprLike) -> "Tensor":
        """Broadcast to dims."""
        return apply("expand", self, dims=tuple(as_expr(d) for d in dims))

    def cast(self, dtype: DType) -> "Tensor":
        """Elements of another dtype; itself if it has that one."""
        return self if self.dtype == dtype else apply("cast", self, dtype=dtype)

    def split(self, sizes: Sequence[ExprLike], axis: int = -1) -> "tuple[Tensor, ...]":
        """Parts along an axis, of these sizes."""
        at = axis % len(self.dims)
        parts, start = [], as_expr(0)
        for size in sizes:
            stop = start + as_expr(size)
            parts.append(apply("slice", self, starts=(start,), ends=(stop,), axes=(at,)))
            start = stop
        return tuple(parts)


def apply(op: str, *args: Any, **attrs: Any) -> Tensor:
    """Call an operator of `OPS` on tensors, parameters, numbers and None."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    if not tensors:
        raise InputError(f"{op}: none of its operands is a tensor")
    owner = tensors[-1]  # the first may be a condition, the last has the dtype of numbers
    values = [_value(owner, a) for a in args]
    return Tensor(owner.builder, owner.builder.call(OPS[op], *values, **attrs))


def create(like: Tensor, op: str, **attrs: Any) -> Tensor:
    """Call an operator without operands in the function that `like` belongs to."""
    return Tensor(like.builder, like.builder.call(OPS[op], **attrs))


def _value(owner: Tensor, operand: Any) -> Value | None:
    match operand:
        case None:
            return None
        case Tensor(builder=builder):
            if builder is not owner.builder:
                raise InputError(f"{operand.value.name} belongs to another function")
            return operand.value
        case Parameter():
            return operand.emit(owner.builder)
        case _:
            number = np.asarray(operand, owner.dtype.numpy)
            return owner.builder.constant("number", number)
