"""Products of 8-bit numbers on the CPU, two steps of the sum at a time.

    Σk (x[m,k] - a) (w[k,n] - b)  →  Σp dot_pairs(x'[m,p], w'[p,n])

An element of x' holds steps 2p and 2p + 1 as two i16 in an i32, zero points taken off; step K of an
odd K is 0. `dot_pairs` on four lanes is one instruction of wasm, twice the products of a float one.
Weights that vectors of columns are read from stay 8 bits wide. What is left is a contraction like
any other. Where no axis allows pairs, as in depthwise sums, the second half of each is 0: the
instruction is still faster than an i32 product. It is exact: i32 sums wrap as they did.
"""

from dataclasses import dataclass, replace

from edgerelax.ir.dtypes import I16, I32
from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import Cast, Const, Op, Scalar, Select, cast, loads, op
from edgerelax.schedule.contraction import contraction
from edgerelax.schedule.cost import typical
from edgerelax.schedule.strategies.base import Reject
from edgerelax.schedule.words import Made, Rewritten, Step, like, over_words, words_of
from edgerelax.sym import Axis, divisible, proves_lt

_REUSE = 8  # steps that each pair stands for, from which on making it pays


def in_pairs(func: LoopFunc) -> tuple[LoopFunc, tuple[Packed, ...]]:
    """The function with its 8-bit contractions over pairs, and the weights that it then reads."""
    return over_words(func, _in_pairs)


def _in_pairs(func: LoopFunc, stage: Stage) -> Rewritten | None:
    """The stage over pairs along the longest of its summed axes that allows it."""
    body = stage.body
    if stage.combiner != "sum" or body.dtype != I32:
        return None
    found = contraction(stage)
    if not isinstance(body, Op) or body.fn != "mul" or isinstance(found, Reject):
        return None
    products = _Products(func, stage, body, frozenset(n.buffer.name for n in loads(found.right)))
    for axis in sorted(stage.reduce, key=lambda a: -typical(a.extent)):
        guarded = stage.where is not None and axis in stage.where.axes()
        if not guarded and not proves_lt(axis.extent, 3):
            paired = products.along(axis)
            if paired is not None:
                return paired
    return products.along(None)


@dataclass(frozen=True, slots=True)
class _Products:
    """One stage of a function; `beside` are the buffers that its vectors of columns come from."""

    func: LoopFunc
    stage: Stage
    product: Op
    beside: frozenset[str]

    def along(self, axis: Axis | None) -> Rewritten | None:
        """Over pairs along an axis; without one each step is half a pair, as in depthwise sums."""
        step = None if axis is None else Step(axis, 2)
        made: list[Made] = []
        factors = []
        for number, factor in enumerate(self.product.operands):
            found = self._factor(factor, step, f"{self.func.name}_{self.stage.out.name}_{number}")
            if found is None:
                return None
            made.append(found[1])
            factors.append(found[0])
        if axis is not None and not divisible(axis.extent, 2) and not any(m.exact for m in made):
            return None
        steps = tuple(step.words if step and a is step.axis else a for a in self.stage.reduce)
        body = op("dot_pairs", *factors)
        return Rewritten(tuple(made), replace(self.stage, body=body, reduce=steps))

    def _factor(self, factor: Scalar, step: Step | None, name: str) -> tuple[Scalar, Made] | None:
        """The factor of a step over pairs; a choice of 0 in it stays where it is."""
        if isinstance(factor, Select) and isinstance(factor.other, Const):
            if factor.other.value != 0 or (step is not None and step.axis in factor.cond.axes()):
                return None
            inner = self._factor(factor.then, step, name)
            if inner is None:
                return None
            return Select(factor.cond, inner[0], factor.other), inner[1]
        if not _fits(factor, 16):
            return None
        if step is None:
            made = like(factor, name, lambda value: op("bit_and", value, 0xFFFF))
        else:
            short = self._short(factor, step, name)
            if short is not None:
                return op("widen_pairs", cast(short.load, I32)), short
            made = words_of(factor, step, self.stage, name)
        if made is None or not made.pays(self.func, self.stage, _REUSE):
            return None
        return made.load, made

    def _short(self, factor: Scalar, step: Step, name: str) -> Made | None:
        """Weights of 8 bits that columns come from stay so: widening them is part of the load."""
        if not _fits(factor, 8) or any(n.buffer.name not in self.beside for n in loads(factor)):
            return None
        made = words_of(factor, step, self.stage, name, I16)
        return None if made is None or made.packed(self.func) is None else made


def _fits(factor: Scalar, bits: int) -> bool:
    """Whether it is known to be a signed integer of that many bits."""
    found = _range(factor)
    return found is not None and found[0] >= -(1 << bits - 1) and found[1] < 1 << bits - 1


def _range(node: Scalar) -> tuple[int, int] | None:
    """Bounds of an integer, less another; None if there are none that the types tell."""
    match node:
        case Const(value=value):
            return int(value), int(value)
        case Cast(arg=arg) if arg.dtype.is_integer and arg.dtype.bits <= 16:
            return _range(arg) if isinstance(arg, Const) else arg.dtype.int_range
        case Op(fn="sub", operands=(a, b)):
            left, right = _range(a), _range(b)
            if left is not None and right is not None:
                return left[0] - right[1], left[1] - right[0]
    return None
