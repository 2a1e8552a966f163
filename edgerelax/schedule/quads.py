"""Products of 8-bit numbers on the GPU, four steps of the sum at a time.

    Σk (x[m,k] - a) w[k,n]  →  Σq dot_quads(x'[m,q], w'[q,n]) - a' Σk w[k,n]

An element of x' holds four steps as i8 in an i32: unsigned numbers and their zero point less 128.
`dot_quads` is WGSL's dot4I8Packed. Sums of weights are made at export; where a convolution looks
into its padding, x' holds the zero point, so that they are the same everywhere. It is exact.
"""

from dataclasses import dataclass, replace

from edgerelax.ir.dtypes import I8, I32, U8
from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import Buffer, Cast, Const, Load, Op, Scalar, Select, constant, op
from edgerelax.schedule.contraction import contraction
from edgerelax.schedule.cost import typical
from edgerelax.schedule.strategies.base import Reject
from edgerelax.schedule.words import Made, Rewritten, Step, over_words, words_of
from edgerelax.sym import Axis, divisible, proves_lt

_REUSE = 128  # steps that each word stands for, from which on a launch to make it pays
_ONES = 0x01010101


def in_quads(func: LoopFunc, max_buffers: int) -> tuple[LoopFunc, tuple[Packed, ...]]:
    """The function with its 8-bit contractions over words, and the weights that it then reads.

    A kernel of theirs binds no more than `max_buffers`.
    """
    return over_words(func, lambda f, s: _Products(f, s, max_buffers).in_quads())


@dataclass(frozen=True, slots=True)
class _Bytes:
    """A factor as signed bytes less a zero point, both i32; inside `cond`, elsewhere 0."""

    value: Scalar
    zero: Scalar
    cond: Scalar | None

    @property
    def is_plain(self) -> bool:
        return self.cond is None and self.zero == constant(0, I32)


@dataclass(frozen=True, slots=True)
class _Products:
    """One stage of a function."""

    func: LoopFunc
    stage: Stage
    max_buffers: int

    def in_quads(self) -> Rewritten | None:
        """The stage over words along the longest of its summed axes that allows it."""
        stage, body = self.stage, self.stage.body
        if stage.combiner != "sum" or body.dtype != I32 or stage.where is not None:
            return None
        if not isinstance(body, Op) or body.fn != "mul" or isinstance(contraction(stage), Reject):
            return None
        factors = [_bytes(f) for f in body.operands]
        left, right = factors
        if left is None or right is None:
            return None
        if not right.is_plain:
            left, right = right, left
        if not right.is_plain:
            return None
        for axis in sorted(stage.reduce, key=lambda a: -typical(a.extent)):
            if not proves_lt(axis.extent, 4):
                found = self._along(axis, left, right)
                if found is not None:
                    return found
        return None

    def _along(self, axis: Axis, left: _Bytes, right: _Bytes) -> Rewritten | None:
        step = Step(axis, 4)
        if left.cond is not None and axis in left.cond.axes():
            return None
        words, weights = (self._words(f, step, k) for k, f in enumerate((left, right)))
        if words is None or weights is None:
            return None
        if not divisible(axis.extent, 4) and not (words.exact or weights.exact):
            return None
        made, init = [words, weights], self.stage.init
        factor: Scalar = words.load
        if left.zero != constant(0, I32):
            total = self._total(right)
            if total is None:
                return None
            made.append(total)
            less = op("neg", op("mul", left.zero, total.load))
            init = less if init is None else op("add", init, less)
        if left.cond is not None:
            factor = Select(left.cond, factor, _four_of(left.zero))
        steps = tuple(step.words if a is axis else a for a in self.stage.reduce)
        body = op("dot_quads", factor, weights.load)
        stage = replace(self.stage, body=body, reduce=steps, init=init)
        if len({*stage.reads(), stage.out}) > self.max_buffers:
            return None
        return Rewritten(tuple(made), stage)

    def _words(self, factor: _Bytes, step: Step, number: int) -> Made | None:
        name = f"{self.func.name}_{self.stage.out.name}_{number}"
        made = words_of(factor.value, step, self.stage, name)
        return made if made is not None and made.pays(self.func, self.stage, _REUSE) else None

    def _total(self, factor: _Bytes) -> Made | None:
        """The sum of a weight's steps, as a weight."""
        axes = tuple(a for a in self.stage.axes if a in factor.value.axes())
        dims = tuple(a.extent for a in axes)
        buffer = Buffer(f"{self.func.name}_{self.stage.out.name}_total", I32, dims)
        stage = Stage(buffer, axes, factor.value, self.stage.reduce, "sum")
        made = Made(stage, Load(buffer, tuple(a.expr for a in axes)), exact=True)
        return made if made.packed(self.func) is not None else None


def _bytes(factor: Scalar) -> _Bytes | None:
    """A factor of 8-bit elements less a zero point that is one for all; None if it is not one."""
    match factor:
        case Select(cond=cond, then=then, other=Const(value=0)):
            inner = _bytes(then)
            return None if inner is None or inner.cond is not None else replace(inner, cond=cond)
        case Cast(arg=Load() as load) if load.dtype in (I8, U8):
            return _shifted(factor, constant(0, I32), load)
        case Op(fn="sub", operands=(Cast(arg=Load() as load) as value, zero)):
            narrow = isinstance(zero, Const) or (
                isinstance(zero, Cast) and zero.arg.dtype in (I8, U8)
            )
            if load.dtype in (I8, U8) and narrow and not zero.axes():
                return _shifted(value, zero, load)
    return None


def _shifted(value: Scalar, zero: Scalar, load: Load) -> _Bytes | None:
    """Unsigned elements and their zero point less 128. A zero point must be one of its type."""
    low, high = load.dtype.int_range
    if isinstance(zero, Cast) and isinstance(zero.arg, Const):
        zero = constant(int(zero.arg.value), I32)
    if isinstance(zero, Const):
        fits = low <= int(zero.value) <= high
    else:
        fits = zero.args[0].dtype == load.dtype
    if not fits:
        return None
    if load.dtype == I8:
        return _Bytes(value, zero, None)
    less = constant(int(zero.value) - 128, I32) if isinstance(zero, Const) else op("sub", zero, 128)
    return _Bytes(op("sub", value, 128), less, None)


def _four_of(zero: Scalar) -> Scalar:
    """A word of four zero points."""
    if not isinstance(zero, Const):
        return op("mul", op("bit_and", zero, 0xFF), _ONES)
    word = (int(zero.value) & 0xFF) * _ONES
    return constant(word - (1 << 32) if word >= 1 << 31 else word, I32)
