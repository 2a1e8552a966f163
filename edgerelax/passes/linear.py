"""Linear operators with a constant weight, and affine maps folded into that weight.

y = W x + b for conv, conv_transpose and matmul with one constant operand. A map after it scales W
along its output channels and changes b; a map before it scales W along its input channels and, if
every output sees all of its inputs (no padding), changes b by W's answer to the shift. All is
computed in f64 and rounded once. No shift passes through 16-bit weights: W x and b may cancel.
"""

from dataclasses import dataclass, replace

import numpy as np

from edgerelax.ir.graph import Binding, Call, Constant, Value, Var
from edgerelax.ir.names import Names
from edgerelax.ir.op import Array
from edgerelax.ir.types import Tensor
from edgerelax.ops import OPS
from edgerelax.passes.affine import Affine
from edgerelax.passes.fold_constants import make_constant
from edgerelax.sym import as_expr


@dataclass(frozen=True, slots=True)
class Linear:
    """One call, its data and its weight, which is operand `side`.

    Channels lie along `out_axis` of the result and along `in_axis` of the data.
    """

    binding: Binding
    call: Call
    data: Value
    weight: Constant
    side: int
    out_axis: int
    in_axis: int

    @property
    def result(self) -> Var:
        return self.binding.var

    def out_factor(self, scale: Array) -> Array:
        """What W is multiplied by to scale the outputs."""
        w, group = self.weight.data, self.call.attrs.get("group", 1)
        if self.call.op.name == "matmul":
            return along(scale, self._free_axis, w.ndim)
        if self.call.op.name == "conv":
            return along(scale, 0, w.ndim)
        per_group = np.repeat(scale.reshape(group, -1), w.shape[0] // group, axis=0)
        return per_group.reshape(*per_group.shape, *(1,) * (w.ndim - 2))

    def in_factor(self, scale: Array) -> Array:
        """What W is multiplied by to scale the inputs."""
        w, group = self.weight.data, self.call.attrs.get("group", 1)
        if self.call.op.name == "matmul":
            return along(scale, self._inner_axis, w.ndim)
        if self.call.op.name == "conv_transpose":
            return along(scale, 0, w.ndim)
        per_group = np.repeat(scale.reshape(group, -1), w.shape[0] // group, axis=0)
        return per_group.reshape(*per_group.shape, *(1,) * (w.ndim - 2))

    def answer(self, shift: Array) -> Array | None:
        """What a shift of the inputs adds to each output channel; None where not all see it."""
        w = self.weight.data
        weighted = w.astype(np.float64) * self.in_factor(shift)
        if self.call.op.name == "matmul":
            return weighted.sum(self._inner_axis) if w.ndim == 2 else None
        padded = any(as_expr(p).as_int() != 0 for p in self.call.attrs["pads"])
        if self.call.op.name == "conv_transpose" or padded:
            return None
        return np.asarray(weighted.sum(tuple(range(1, w.ndim))))

    @property
    def outputs(self) -> int:
        """Output channels."""
        w, group = self.weight.data, self.call.attrs.get("group", 1)
        if self.call.op.name == "matmul":
            return int(w.shape[self._free_axis])
        return int(w.shape[0] if self.call.op.name == "conv" else w.shape[1] * group)

    @property
    def inputs(self) -> int:
        """Input channels."""
        w, group = self.weight.data, self.call.attrs.get("group", 1)
        if self.call.op.name == "matmul":
            return int(w.shape[self._inner_axis])
        return int(w.shape[1] * group if self.call.op.name == "conv" else w.shape[0])

    @property
    def _turned(self) -> bool:
        return bool(self.call.attrs["transpose_b" if self.side == 1 else "transpose_a"])

    @property
    def _inner_axis(self) -> int:
        """The dim of a matmul's weight that is summed over."""
        return self.weight.data.ndim - (1 if self._turned == (self.side == 1) else 2)

    @property
    def _free_axis(self) -> int:
        return self.weight.data.ndim - (2 if self._turned == (self.side == 1) else 1)

    def folded(
        self, before: Affine | None, after: Affine | None, data: Value, result: Var, names: Names
    ) -> list[Binding] | None:
        """`result` as this operator of `data` with the maps folded in; None if it does not fit."""
        w = self.weight.data
        weight, bias = w.astype(np.float64), self._bias()
        if before is not None:
            scale, shift = before.vectors(self.inputs)
            if before.shifts:
                added = self.answer(shift) if w.dtype.itemsize >= 4 else None
                if added is None:
                    return None
                bias = bias + added
            weight = weight * self.in_factor(scale)
        if after is not None:
            scale, shift = after.vectors(self.outputs)
            weight, bias = weight * self.out_factor(scale), bias * scale + shift
        with np.errstate(over="ignore"):
            new, new_bias = weight.astype(w.dtype), bias.astype(w.dtype)
        if not _all_finite(new) or not _all_finite(new_bias):
            return None
        return self._emit(new, new_bias, data, result, names)

    def _bias(self) -> Array:
        given = self.call.args[2] if len(self.call.args) > 2 else None
        assert given is None or isinstance(given, Constant)
        return np.zeros(self.outputs) if given is None else given.data.astype(np.float64)

    def _emit(
        self, weight: Array, bias: Array, data: Value, result: Var, names: Names
    ) -> list[Binding]:
        own = make_constant(names.pick(self.weight.name), weight)
        given = None
        if np.any(bias != 0):
            bias = bias[:, None] if self.side == 0 else bias
            given = make_constant(names.pick(f"{result.name}_bias"), bias)
        if self.call.op.name != "matmul":
            return [Binding(result, replace(self.call, args=(data, own, given)))]
        args = (data, own) if self.side == 1 else (own, data)
        product = replace(self.call, args=args)
        if given is None:
            return [Binding(result, product)]
        inner = Var(names.pick(f"{result.name}_product"), result.annotation, result.origin)
        return [Binding(inner, product), Binding(result, Call(OPS["add"], (inner, given)))]


def _all_finite(data: Array) -> bool:
    return bool(np.isfinite(data.astype(np.float64)).all())


def along(values: Array, axis: int, rank: int) -> Array:
    """A vector as an array of that rank that varies along one dim."""
    return values.reshape(tuple(-1 if k == axis else 1 for k in range(rank)))


def linear_of(binding: Binding) -> Linear | None:
    """The linear operator that a binding is, if its weight and bias are constants of floats."""
    call = binding.value
    if not isinstance(call, Call) or not isinstance(binding.var.annotation, Tensor):
        return None
    rank, dtype = binding.var.annotation.rank, binding.var.annotation.dtype
    if rank is None or dtype is None or not dtype.is_float:
        return None
    if call.op.name == "matmul":
        return _product(binding, call, rank)
    if call.op.name not in ("conv", "conv_transpose"):
        return None
    x, w, bias = (*call.args, None)[:3]
    known = isinstance(w, Constant) and w.data.size and not isinstance(bias, Var)
    if x is None or not known:
        return None
    assert isinstance(w, Constant)
    return Linear(binding, call, x, w, 1, 1, 1)


def _product(binding: Binding, call: Call, rank: int) -> Linear | None:
    """A matmul of one constant of two dims or more, and data."""
    a, b = call.args
    assert a is not None and b is not None
    for side, weight, data in ((1, b, a), (0, a, b)):
        depth = data.annotation.rank if isinstance(data.annotation, Tensor) else None
        if not isinstance(weight, Constant) or isinstance(data, Constant) or depth is None:
            continue
        if not weight.data.size or weight.data.ndim < 2 or depth < (1 if side == 1 else 2):
            continue
        if side == 1:
            inner = depth - (2 if call.attrs["transpose_a"] and depth > 1 else 1)
            return Linear(binding, call, data, weight, 1, rank - 1, inner)
        inner = depth - (1 if call.attrs["transpose_b"] else 2)
        return Linear(binding, call, data, weight, 0, rank - 2, inner)
    return None
