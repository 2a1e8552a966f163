"""Products of 8-bit numbers on the CPU, two steps of the sum at a time.

    Σk (x[m,k] - a) (w[k,n] - b)  →  Σp dot_pairs(x'[m,p], w'[p,n])

An element of x' holds steps 2p and 2p + 1 as two i16 in an i32, zero points taken off; step K of an
odd K is 0. `dot_pairs` on four lanes is one instruction of wasm, twice the products of a float one.
Pairs of weights are made at export, others by a stage of their own; what is left is a contraction
like any other. Where no axis allows pairs, as in depthwise sums, the second half of each is 0: the
instruction is still faster than an i32 product. It is exact: i32 sums wrap as they did.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgerelax.ir.dtypes import I32
from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import (
    Buffer,
    Cast,
    Const,
    Load,
    Op,
    Scalar,
    Select,
    compare,
    constant,
    op,
    rewrite,
    select,
    walk,
)
from edgerelax.schedule.contraction import contraction
from edgerelax.schedule.cost import typical
from edgerelax.schedule.index import is_one, stride_of
from edgerelax.schedule.points import count
from edgerelax.schedule.strategies.base import Reject
from edgerelax.sym import (
    Atom,
    Axis,
    Expr,
    ExprLike,
    ceildiv,
    divisible,
    prove_eq,
    prove_lt,
)

_REUSE = 8  # products with each element, from which on making pairs of them pays


def in_pairs(func: LoopFunc) -> tuple[LoopFunc, tuple[Packed, ...]]:
    """The function with its 8-bit contractions over pairs, and the weights that it then reads."""
    stages: list[Stage] = []
    packed: dict[str, Packed] = {}
    for stage in func.stages:
        found = _Products(func, stage).in_pairs() if isinstance(stage, Stage) else None
        if found is None:
            stages.append(stage)  # type: ignore[arg-type]
            continue
        for made in found.made:
            weight = made.packed(func)
            if weight is None:
                stages.append(made.stage)
            else:
                packed[made.buffer.name] = weight
        stages.append(found.stage)
    if len(stages) == len(func.stages) and not packed:
        return func, ()
    weights = tuple(p.buffer for p in packed.values())
    inputs, names = (*func.inputs, *weights), func.weights | packed.keys()
    return replace(func, inputs=inputs, stages=tuple(stages), weights=names), tuple(packed.values())


@dataclass(frozen=True, slots=True)
class _Made:
    """Pairs of a factor's elements: the stage that fills them, and the load of the sum's step.

    `exact`: what a pair has past the last step is 0.
    """

    stage: Stage
    load: Load
    exact: bool

    @property
    def buffer(self) -> Buffer:
        return self.stage.out

    def packed(self, func: LoopFunc) -> Packed | None:
        """The pairs as a weight, if they depend on one weight of known size alone."""
        reads = self.stage.reads()
        known = all(d.as_int() is not None for d in self.buffer.dims)
        if len(reads) != 1 or reads[0].name not in func.weights or not known:
            return None
        return Packed(LoopFunc(self.buffer.name, reads, (self.buffer,), (self.stage,)))


@dataclass(frozen=True, slots=True)
class _Step:
    """A summed axis, and the one over pairs that takes its place."""

    axis: Axis

    @property
    def pair(self) -> Axis:
        return Axis(f"{self.axis.name}/2", ceildiv(self.axis.extent, 2))


@dataclass(frozen=True, slots=True)
class _Paired:
    made: tuple[_Made, ...]
    stage: Stage


@dataclass(frozen=True, slots=True)
class _Products:
    """One stage of a function."""

    func: LoopFunc
    stage: Stage

    def in_pairs(self) -> _Paired | None:
        """The stage over pairs along the longest of its summed axes that allows it."""
        stage = self.stage
        body = stage.body
        if stage.combiner != "sum" or body.dtype != I32:
            return None
        if not isinstance(body, Op) or body.fn != "mul" or isinstance(contraction(stage), Reject):
            return None
        for axis in sorted(stage.reduce, key=lambda a: -typical(a.extent)):
            guarded = stage.where is not None and axis in stage.where.axes()
            if not guarded and not prove_lt(axis.extent, 3):
                found = self._along(axis, body)
                if found is not None:
                    return found
        return self._along(None, body)

    def _along(self, axis: Axis | None, product: Op) -> _Paired | None:
        """Over pairs along an axis; without one each step is half a pair, as in depthwise sums."""
        step = None if axis is None else _Step(axis)
        made: list[_Made] = []
        factors = []
        for number, factor in enumerate(product.operands):
            found = self._factor(factor, step, f"{self.func.name}_{self.stage.out.name}_{number}")
            if found is None:
                return None
            made.append(found[1])
            factors.append(found[0])
        if axis is not None and not divisible(axis.extent, 2) and not any(m.exact for m in made):
            return None
        steps = tuple(step.pair if step and a is step.axis else a for a in self.stage.reduce)
        body = op("dot_pairs", *factors)
        return _Paired(tuple(made), replace(self.stage, body=body, reduce=steps))

    def _factor(self, factor: Scalar, step: _Step | None, name: str) -> tuple[Scalar, _Made] | None:
        """The factor of a step over pairs; a choice of 0 in it stays where it is."""
        if isinstance(factor, Select) and isinstance(factor.other, Const):
            if factor.other.value != 0 or (step is not None and step.axis in factor.cond.axes()):
                return None
            inner = self._factor(factor.then, step, name)
            if inner is None:
                return None
            return Select(factor.cond, inner[0], factor.other), inner[1]
        if not _is_narrow(factor):
            return None
        made = self._by_place(factor, step, name)
        if made is None and step is not None:
            made = self._by_axes(factor, step, name)
        return (made.load, made) if made is not None and self._pays(made) else None

    def _pays(self, made: _Made) -> bool:
        """Whether each element meets enough others; weights are paired but once."""
        if made.packed(self.func) is not None:
            return True
        points = count((*self.stage.axes, *self.stage.reduce))
        return typical(points) >= _REUSE * typical(count(made.stage.axes))

    def _by_place(self, factor: Scalar, step: _Step | None, name: str) -> _Made | None:
        """Pairs in the layout of the loaded buffer, whose elements several steps may share."""
        varying = [n for n in walk(factor) if isinstance(n, Load) and n.axes()]
        if len(varying) != 1:
            return None
        (load,) = varying
        place = None if step is None else _place(load, step.axis)
        if step is not None and place is None:
            return None
        sizes = load.buffer.dims
        dims = tuple(ceildiv(d, 2) if j == place else d for j, d in enumerate(sizes))
        axes = tuple(Axis(f"u{j}", d) for j, d in enumerate(dims))

        def element(number: Expr | None) -> Scalar:
            index = [a.expr for a in axes]
            if place is not None and number is not None:
                index[place] = number
            own = Load(load.buffer, tuple(index))
            return rewrite(factor, lambda node: own if node is load else None)

        buffer = Buffer(name, I32, dims)
        if step is None or place is None:
            half = op("bit_and", element(None), 0xFFFF)
            return _Made(Stage(buffer, axes, half), Load(buffer, load.index), exact=True)
        read = list(load.index)
        read[place] = (read[place] - step.axis) // 2 + step.pair
        stage = Stage(buffer, axes, _pair(element, axes[place], sizes[place]))
        exact = prove_eq(sizes[place], step.axis.extent) is True
        return _Made(stage, Load(buffer, tuple(read)), exact)

    def _by_axes(self, factor: Scalar, step: _Step, name: str) -> _Made | None:
        """Pairs by the axes that the factor varies over, where no others are summed."""
        if len(self.stage.reduce) > 1:
            return None
        axes = (*(a for a in self.stage.axes if a in factor.axes()), step.pair)

        def element(number: Expr) -> Scalar:
            swaps: dict[Atom, ExprLike] = {step.axis: number}
            return factor.subs(swaps)

        buffer = Buffer(name, I32, tuple(a.extent for a in axes))
        stage = Stage(buffer, axes, _pair(element, step.pair, step.axis.extent))
        return _Made(stage, Load(buffer, tuple(a.expr for a in axes)), exact=True)


def _place(load: Load, axis: Axis) -> int | None:
    """The dim whose index is the axis plus what is even, in range; None without such a dim."""
    places = [k for k, at in enumerate(load.index) if axis in at.axes()]
    if len(places) != 1:
        return None
    (place,) = places
    at = load.index[place]
    fits = is_one(stride_of(at, axis)) and prove_lt(at, load.buffer.dims[place])
    return place if fits and divisible(at - axis, 2) else None


def _pair(element: Callable[[Expr], Scalar], pair: Axis, size: Expr) -> Scalar:
    """Elements 2p and 2p + 1 as the low and the high half; 0 past the end."""
    second = pair.expr * 2 + 1
    high = select(compare("lt", second, size), element(second), constant(0, I32))
    return op("bit_or", op("bit_and", element(pair.expr * 2), 0xFFFF), op("shl", high, 16))


def _is_narrow(factor: Scalar) -> bool:
    """Whether it is known to fit an i16."""
    found = _range(factor)
    return found is not None and found[0] >= -(1 << 15) and found[1] < 1 << 15


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
