"""Products of dequantised operands become exact products of integers, scaled afterwards.

    dequantize(x) @ dequantize(w) + b  →  (Σ (x - zx)(w - zw)) * (sx sw) + b

The same for convolutions, whose padding is then the zero point. Operands are of 8 bits, with one
scale, or a constant one with one for each output channel; reshapes and transposes may lie between.
The sum is exact in i32 as long as it cannot overflow, which is checked by the constant operand's
own numbers, else by K (2^31 / (255 * 255) = 33,025 steps); it is rounded once, to f32.

Before: constants are not folded yet, which would make floats of quantised weights. What is left of
the floats is dead if nothing else uses it. Zero points of constants are taken off them here.
"""

from dataclasses import dataclass, replace

import numpy as np

from edgerelax.ir.deduce import deduce
from edgerelax.ir.dtypes import F32, I8, U8, DType
from edgerelax.ir.graph import Binding, Call, Constant, Expression, GraphFunc, Module, Value, Var
from edgerelax.ir.names import Names
from edgerelax.ir.op import Array
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_func
from edgerelax.ir.types import Tensor, as_tensor
from edgerelax.ops import OPS
from edgerelax.passes.fold_constants import concrete, make_constant
from edgerelax.sym import Expr, as_expr, product, upper_bound

_PRODUCTS = {"matmul": "matmul_integer", "conv": "conv_integer"}
_MOVES = frozenset(("reshape", "transpose"))
_LIMIT = 1 << 31


def integer_products(module: Module) -> Module:
    """Rewrite every graph function."""
    outcome = Outcome()
    funcs = {name: _Products(f, outcome).rewritten() for name, f in module.funcs.items()}
    return outcome.on(replace(module, funcs=funcs))


class _RefusedError(Exception):
    """Why a product of quantised operands stays one of floats."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """scale * (moved(data) - zero); `axis` is the moved data's that the scale runs along, if any.

    `numbers` are the moved data less the zero point, where both are constants.
    """

    data: Value
    scale: Value
    zero: Value | None
    axis: int | None
    rank: int
    moves: tuple[Call, ...]
    numbers: Array | None

    @property
    def dtype(self) -> DType:
        return _tensor(self.data).dtype or U8


class _Products:
    """The products of one function."""

    def __init__(self, func: GraphFunc, outcome: Outcome) -> None:
        self.func, self.outcome = func, outcome
        bindings = list(all_bindings(func.body))
        self.calls = {b.var: b.value for b in bindings if isinstance(b.value, Call)}
        self.names = Names({b.var.name for b in bindings} | {p.name for p in func.params})
        self.arrays: dict[Value, Array | None] = {}

    def rewritten(self) -> GraphFunc:
        plan = {b.var: found for b in all_bindings(self.func.body) if (found := self._plan(b))}
        return rewrite_func(self.func, lambda b: plan.get(b.var, [b]))

    def _plan(self, binding: Binding) -> list[Binding] | None:
        call = binding.value
        if not isinstance(call, Call) or call.op.name not in _PRODUCTS:
            return None
        a, b = call.args[:2]
        assert a is not None and b is not None
        try:
            operands = [self._operand(v) for v in (a, b)]
            left, right = operands
            if left is None or right is None:
                return None
            found = _Product(self, binding, call, left, right).emitted()
        except _RefusedError as why:
            self.outcome.skip(str(why), binding.var.name)
            return None
        self.outcome.did(f"{call.op.name} of integers")
        return found

    # operands

    def _operand(self, value: Value) -> _Operand | None:
        """A dequantised value of 8 bits, through what moves it; None if it is not one."""
        moves: list[Call] = []
        call = self._call(value)
        while call is not None and call.op.name in _MOVES and call.args[0] is not None:
            moves.insert(0, call)
            call = self._call(call.args[0])
        if call is None or call.op.name != "dequantize_linear":
            return None
        data, scale, zero = (*call.args, None)[:3]
        assert data is not None and scale is not None
        if _tensor(data).dtype not in (I8, U8) or (call.attrs["dtype"] or F32) != F32:
            return None
        if call.attrs["block_size"]:
            raise _RefusedError("scales by block")
        rank = _tensor(value).rank
        if _tensor(scale).dtype != F32 or rank is None:
            raise _RefusedError("scales that are not f32, or operands of unknown rank")
        axis = self._axis(scale, call, moves)
        return _Operand(data, scale, zero, axis, rank, tuple(moves), self._numbers(call, moves))

    def _axis(self, scale: Value, call: Call, moves: list[Call]) -> int | None:
        """The axis that the scale runs along, after the moves; None for one scale."""
        found = self.known(scale)
        if _tensor(scale).rank == 0 or (found is not None and found.size == 1):
            return None
        rank = _tensor(call.args[0]).rank
        if found is None or rank is None:
            raise _RefusedError("scales by channel that are not constant")
        axis = int(call.attrs["axis"]) % rank
        for move in moves:
            if move.op.name != "transpose":
                raise _RefusedError("scales by channel of an operand that is reshaped")
            perm = move.attrs["perm"] or tuple(reversed(range(rank)))
            axis = perm.index(axis)
        return axis

    def _numbers(self, call: Call, moves: list[Call]) -> Array | None:
        """The moved data less the zero point, as i32."""
        data, _, zero = (*call.args, None)[:3]
        found = self.known(data)
        offset = None if zero is None else self.known(zero)
        attrs = [concrete(m.attrs) for m in moves]
        if found is None or (zero is not None and offset is None) or None in attrs:
            return None
        numbers = found.astype(np.int32)
        if offset is not None:
            along = call.attrs["axis"] % max(1, found.ndim)
            spread = [-1 if k == along else 1 for k in range(found.ndim)]
            offset = offset.reshape(() if offset.size == 1 else spread)
            numbers = numbers - offset.astype(np.int32)
        for move, own in zip(moves, attrs, strict=True):
            numbers = np.asarray(move.op.reference(numbers, **own))
        return numbers

    def _call(self, value: Value | None) -> Call | None:
        return self.calls.get(value) if isinstance(value, Var) else None

    def known(self, value: Value | None) -> Array | None:
        """The value of what depends on constants alone."""
        if isinstance(value, Constant):
            return value.data
        if value is not None and value not in self.arrays:
            self.arrays[value] = self._computed(self._call(value))
        return None if value is None else self.arrays[value]

    def _computed(self, call: Call | None) -> Array | None:
        if call is None or not call.op.pure or not any(call.args):
            return None
        args = [self.known(a) for a in call.args]
        attrs = concrete(call.attrs)
        unknown = any(x is None and a is not None for x, a in zip(args, call.args, strict=True))
        if unknown or attrs is None:
            return None
        with np.errstate(all="ignore"):
            result = call.op.reference(*args, **attrs)
        return None if isinstance(result, tuple) else np.asarray(result)


@dataclass(frozen=True, slots=True)
class _Product:
    """One product of two quantised operands."""

    owner: _Products
    binding: Binding
    call: Call
    a: _Operand
    b: _Operand

    def emitted(self) -> list[Binding]:
        """The bindings that take its place. Raises _RefusedError."""
        factor = self._factor()
        self._check_sum()
        out: list[Binding] = []
        data, zeros = zip(*(self._prepared(o, out) for o in (self.a, self.b)), strict=True)
        exact = Call(OPS[_PRODUCTS[self.call.op.name]], (*data, *zeros), self.call.attrs)
        total = self._bind("sum", exact, out)
        cast = OPS["cast"]
        value = self._bind("float", Call(cast, (total,), {**cast.attrs, "dtype": F32}), out)
        scale = factor if isinstance(factor, Constant) else self._bind("scale", factor, out)
        steps: list[tuple[str, Value]] = [("mul", scale)]
        bias = self.call.args[2] if len(self.call.args) > 2 else None
        if bias is not None:
            steps.append(("add", self._bind("bias", self._column(bias), out)))
        for name, other in steps:
            value = self._bind("scaled", Call(OPS[name], (value, other)), out)
        assert isinstance(value, Var)
        out[-1] = Binding(self.binding.var, out[-1].value)
        return out

    def _bind(self, hint: str, value: Expression, out: list[Binding]) -> Value:
        result = self.binding.var
        annotation = deduce(value, result.name, result.origin)
        assert annotation is not None
        var = Var(self.owner.names.pick(f"{result.name}_{hint}"), annotation, result.origin)
        out.append(Binding(var, value))
        return var

    def _column(self, bias: Value) -> Call:
        """A convolution's bias along dim 1."""
        channels = _dims(bias)[0]
        ones = (as_expr(1),) * (self.b.rank - 2)
        return Call(OPS["reshape"], (bias,), {"dims": (channels, *ones)})

    def _prepared(self, operand: _Operand, out: list[Binding]) -> tuple[Value, Value | None]:
        """The integers and their zero point; constants without one."""
        if operand.numbers is not None:
            least, most = operand.numbers.min(initial=0), operand.numbers.max(initial=0)
            fits = (d for d in (np.int8, np.uint8) if _holds(d, least, most))
            name = self.owner.names.pick(f"{operand.data.name}_less_zero")
            return make_constant(name, operand.numbers.astype(next(fits, np.int16))), None
        data, zero = operand.data, operand.zero
        for move in operand.moves:
            data = self._bind("moved", replace(move, args=(data,)), out)
        known = self.owner.known(zero)
        if known is not None:
            offset = known.reshape(-1)[0]
            name = self.owner.names.pick(f"{operand.data.name}_zero")
            zero = make_constant(name, offset.reshape(())) if offset else None
        return data, zero

    # scales

    def _factor(self) -> Constant | Call:
        """What the sums are multiplied by: a number, or one for each output channel."""
        scales = [self._scale(o, k) for k, o in enumerate((self.a, self.b))]
        known = [self.owner.known(s) if isinstance(s, Var) else s.data for s in scales]
        left, right = known
        if left is None or right is None:
            return Call(OPS["mul"], tuple(scales))
        with np.errstate(all="ignore"):
            both = np.multiply(left, right, dtype=np.float32)
        vanished = (both < np.finfo(np.float32).tiny) & (left != 0) & (right != 0)
        if not np.isfinite(both).all() or vanished.any():
            raise _RefusedError("scales whose product f32 does not hold")
        return make_constant(self.owner.names.pick(f"{self.binding.var.name}_scales"), both)

    def _scale(self, operand: _Operand, side: int) -> Value:
        """An operand's scale in a shape that broadcasts to the result."""
        known = self.owner.known(operand.scale)
        if known is None:
            return operand.scale
        shape: tuple[int, ...] = ()
        if operand.axis is not None:
            if operand.axis != self._free_axis(side):
                raise _RefusedError("scales along an axis that is summed, or a batch")
            after = self.b.rank - 2 if self.call.op.name == "conv" else int(side == 0)
            shape = (-1, *(1,) * after)
        name = self.owner.names.pick(operand.scale.name)
        return make_constant(name, known.reshape(shape))

    def _free_axis(self, side: int) -> int | None:
        """The axis of an operand that becomes one of the result's last two (dim 1 for a conv)."""
        if self.call.op.name == "conv":
            return 0 if side else None
        operand = (self.a, self.b)[side]
        if min(self.a.rank, self.b.rank) < 2:
            return None
        last = self.call.attrs["transpose_b"] if side else not self.call.attrs["transpose_a"]
        return operand.rank - (2 if last else 1)

    # the bound

    def _check_sum(self) -> None:
        """The sum of the products' magnitudes is less than 2^31."""
        steps = [self._summed(k) for k in (0, 1)]
        bounds = []
        for operand, own, other in ((self.a, steps[0], self.b), (self.b, steps[1], self.a)):
            if operand.numbers is not None:
                sums = np.abs(operand.numbers).sum(axis=own, dtype=np.int64)
                bounds.append(int(sums.max(initial=0)) * self._greatest(other))
        if not bounds:
            length = upper_bound(self._length(steps[0]))
            if length is None:
                raise _RefusedError("sums of no known greatest length")
            bounds.append(length * self._greatest(self.a) * self._greatest(self.b))
        if min(bounds) >= _LIMIT:
            raise _RefusedError("sums that could exceed 32 bits")

    def _greatest(self, operand: _Operand) -> int:
        """A bound of the magnitude of an operand's numbers."""
        if operand.numbers is not None:
            return int(np.abs(operand.numbers).max(initial=0))
        least, most = operand.dtype.int_range
        if operand.zero is None:
            return max(-least, most)
        known = self.owner.known(operand.zero)
        if known is None:
            return most - least
        zero = int(known.reshape(-1)[0])
        return max(zero - least, most - zero)

    def _summed(self, side: int) -> tuple[int, ...]:
        """The axes of an operand that are summed; of the data of a convolution, none is asked."""
        operand = (self.a, self.b)[side]
        if self.call.op.name == "conv":
            return tuple(range(1, operand.rank))
        turned = self.call.attrs["transpose_b" if side else "transpose_a"]
        if operand.rank == 1:
            return (0,)
        return (operand.rank - (1 if bool(turned) == bool(side) else 2),)

    def _length(self, axes: tuple[int, ...]) -> Expr:
        value = self.call.args[1 if self.call.op.name == "conv" else 0]
        assert value is not None
        return product([_dims(value)[k] for k in axes])


def _holds(dtype: type[np.integer], least: int, most: int) -> bool:
    info = np.iinfo(dtype)
    return bool(info.min <= least and most <= info.max)


def _tensor(value: Value | None) -> Tensor:
    found = None if value is None else as_tensor(value.annotation)
    return found or Tensor()


def _dims(value: Value) -> tuple[Expr, ...]:
    dims = _tensor(value).dims
    if dims is None:
        raise _RefusedError("operands of unknown shape")
    return dims
