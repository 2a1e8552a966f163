"""Values that are a constant times another value plus a constant, per channel or overall."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgerelax.ir.graph import Binding, Call, Constant, Value, Var
from edgerelax.ir.op import Array
from edgerelax.ir.types import Tensor
from edgerelax.sym import Expr, prove_eq


@dataclass(frozen=True, slots=True)
class Affine:
    """x * scale + shift. Both are f64, of the rank of x, and vary along at most one dim, `axis`."""

    scale: Array
    shift: Array

    @property
    def axis(self) -> int | None:
        """The dim along which it varies; None where it is the same everywhere."""
        shape = np.broadcast_shapes(self.scale.shape, self.shift.shape)
        return next((k for k, size in enumerate(shape) if size != 1), None)

    @property
    def shifts(self) -> bool:
        return bool(np.any(self.shift != 0))

    @property
    def scales(self) -> bool:
        return bool(np.any(self.scale != 1))

    def then(self, after: "Affine") -> "Affine | None":
        """First this, then `after`; None where the two vary along different dims."""
        return checked(self.scale * after.scale, self.shift * after.scale + after.shift)

    def vectors(self, size: int) -> tuple[Array, Array]:
        """Scale and shift of each of the `size` elements along the axis."""
        scale = np.broadcast_to(self.scale.reshape(-1), (size,))
        return scale, np.broadcast_to(self.shift.reshape(-1), (size,))


def checked(scale: Array, shift: Array) -> Affine | None:
    """The map, if it varies along one dim at most and all its numbers are finite."""
    shape = np.broadcast_shapes(scale.shape, shift.shape)
    finite = np.isfinite(scale).all() and np.isfinite(shift).all()
    return Affine(scale, shift) if finite and sum(n != 1 for n in shape) <= 1 else None


def identity(rank: int) -> Affine:
    """The map that changes nothing."""
    one = np.ones((1,) * rank)
    return Affine(one, one * 0)


def link_of(binding: Binding) -> tuple[Value, Affine] | None:
    """The value that a binding is an affine map of, and the map; None for anything else."""
    call = binding.value
    if not isinstance(call, Call):
        return None
    found = _batch_norm(call) if call.op.name == "batch_norm" else _arithmetic(call)
    if found is None or not same_dims(found[0], binding.var):
        return None
    return found


def same_dims(a: Value, b: Value) -> bool:
    """Whether two values are proven to have one shape, of floats."""
    left, right = a.annotation, b.annotation
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return False
    if left.dims is None or right.dims is None or left.dtype is None or not left.dtype.is_float:
        return False
    return equal_dims(left.dims, right.dims)


def equal_dims(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Whether two shapes are proven equal."""
    return len(a) == len(b) and all(prove_eq(x, y) is True for x, y in zip(a, b, strict=True))


def _rank(value: Value) -> int | None:
    return value.annotation.rank if isinstance(value.annotation, Tensor) else None


def _batch_norm(call: Call) -> tuple[Value, Affine] | None:
    x, *fitted = call.args
    constants = [a.data.astype(np.float64) for a in fitted if isinstance(a, Constant)]
    rank = None if x is None else _rank(x)
    if x is None or rank is None or len(constants) != 4:
        return None
    scale, bias, mean, variance = constants
    with np.errstate(all="ignore"):
        scale = scale / np.sqrt(variance + call.attrs["epsilon"])
        shift = bias - mean * scale
    per_channel = (1, -1, *(1,) * (rank - 2))
    found = checked(scale.reshape(per_channel), shift.reshape(per_channel))
    return None if found is None else (x, found)


def _arithmetic(call: Call) -> tuple[Value, Affine] | None:
    """neg, and mul, div, add and sub with a constant."""
    name, args = call.op.name, call.args
    x = next((a for a in args if isinstance(a, Var)), None)
    constants = [a for a in args if isinstance(a, Constant)]
    rank = None if x is None else _rank(x)
    if x is None or rank is None or len(args) - len(constants) != 1:
        return None
    one = np.ones((1,) * rank)
    if name == "neg":
        return x, Affine(-one, one * 0)
    if name not in ("mul", "div", "add", "sub") or constants[0].data.ndim > rank:
        return None
    data = constants[0].data.astype(np.float64)
    number = data.reshape((1,) * (rank - data.ndim) + data.shape)
    first = args[0] is constants[0]
    found = None
    if name == "mul":
        found = checked(number, one * 0)
    elif name == "div" and not first:
        with np.errstate(all="ignore"):
            found = checked(1 / number, one * 0)
    elif name == "add":
        found = checked(one, number)
    elif name == "sub":
        found = checked(-one, number) if first else checked(one, -number)
    return None if found is None else (x, found)
