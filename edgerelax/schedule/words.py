"""Several steps of a sum side by side in one 32-bit word, for instructions that add their products.

Words of weights are made at export, others by a stage of their own; the sum is then over words.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from edgerelax.ir.dtypes import I32, DType
from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import (
    Buffer,
    Load,
    Scalar,
    cast,
    compare,
    constant,
    op,
    rewrite,
    select,
    walk,
)
from edgerelax.schedule.cost import typical
from edgerelax.schedule.index import is_one, stride_of
from edgerelax.schedule.points import count
from edgerelax.sym import Atom, Axis, Expr, ExprLike, ceildiv, divisible, prove_eq, proves_lt


@dataclass(frozen=True, slots=True)
class Step:
    """A summed axis, `width` of whose steps make a word."""

    axis: Axis
    width: int

    @property
    def words(self) -> Axis:
        """The axis that takes its place."""
        return Axis(f"{self.axis.name}/{self.width}", ceildiv(self.axis.extent, self.width))


@dataclass(frozen=True, slots=True)
class Made:
    """A factor's words, or what else is made of it: the stage that fills them, and their load.

    `exact`: what a word has past the last step is 0.
    """

    stage: Stage
    load: Load
    exact: bool

    def packed(self, func: LoopFunc) -> Packed | None:
        """What is made as a weight, if it depends on one weight of known size alone."""
        buffer, reads = self.stage.out, self.stage.reads()
        known = all(d.as_int() is not None for d in buffer.dims)
        if len(reads) != 1 or reads[0].name not in func.weights or not known:
            return None
        return Packed(LoopFunc(buffer.name, reads, (buffer,), (self.stage,)))

    def pays(self, func: LoopFunc, stage: Stage, reuse: int) -> bool:
        """Whether so many steps go with each element made; weights are made but once."""
        if self.packed(func) is not None:
            return True
        points = count((*stage.axes, *stage.reduce))
        return typical(points) >= reuse * typical(count(self.stage.axes))


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A stage over words, and what is made for it: by other stages or at export."""

    made: tuple[Made, ...]
    stage: Stage
    packed: tuple[Packed, ...] = ()


def over_words(
    func: LoopFunc, change: Callable[[LoopFunc, Stage], Rewritten | None]
) -> tuple[LoopFunc, tuple[Packed, ...]]:
    """The function with stages changed where that can be, and the weights that it then reads."""
    stages: list[Stage | Template] = []
    packed: dict[str, Packed] = {}
    for stage in func.stages:
        found = change(func, stage) if isinstance(stage, Stage) else None
        if found is not None and any(packed.get(p.buffer.name, p) != p for p in found.packed):
            found = None
        packed.update({} if found is None else {p.buffer.name: p for p in found.packed})
        for made in () if found is None else found.made:
            weight = made.packed(func)
            if weight is None:
                stages.append(made.stage)
            else:
                packed[weight.buffer.name] = weight
        stages.append(stage if found is None else found.stage)
    weights = tuple(p.buffer for p in packed.values())
    inputs, names = (*func.inputs, *weights), func.weights | packed.keys()
    return replace(func, inputs=inputs, stages=tuple(stages), weights=names), tuple(packed.values())


def words_of(
    factor: Scalar, step: Step, stage: Stage, name: str, dtype: DType = I32
) -> Made | None:
    """The words of a factor of i32 that hold its steps' low bits."""
    made = _by_place(factor, step, name, dtype)
    return _by_axes(factor, step, stage, name, dtype) if made is None else made


def like(factor: Scalar, name: str, value: Callable[[Scalar], Scalar]) -> Made | None:
    """`value` of a factor for each element of the one buffer that it reads at varying places."""
    load = _only_load(factor)
    if load is None:
        return None
    axes = _axes(load.buffer.dims)
    buffer = Buffer(name, I32, load.buffer.dims)
    body = value(_reading(factor, load, tuple(a.expr for a in axes)))
    return Made(Stage(buffer, axes, body), Load(buffer, load.index), exact=True)


def _by_place(factor: Scalar, step: Step, name: str, dtype: DType) -> Made | None:
    """Words in the layout of the loaded buffer, whose elements several steps may share."""
    load = _only_load(factor)
    place = None if load is None else _place(load, step)
    if load is None or place is None:
        return None
    sizes = load.buffer.dims
    dims = tuple(ceildiv(d, step.width) if j == place else d for j, d in enumerate(sizes))
    axes = _axes(dims)

    def element(number: Expr) -> Scalar:
        index = tuple(number if j == place else a.expr for j, a in enumerate(axes))
        return _reading(factor, load, index)

    buffer = Buffer(name, dtype, dims)
    at = (load.index[place] - step.axis) // step.width + step.words
    read = tuple(at if j == place else e for j, e in enumerate(load.index))
    stage = Stage(buffer, axes, word_of(element, axes[place], sizes[place], step.width, dtype))
    exact = prove_eq(sizes[place], step.axis.extent) is True
    return Made(stage, Load(buffer, read), exact)


def _by_axes(factor: Scalar, step: Step, stage: Stage, name: str, dtype: DType) -> Made | None:
    """Words by the axes that the factor varies over, where no others are summed."""
    if len(stage.reduce) > 1:
        return None
    axes = (*(a for a in stage.axes if a in factor.axes()), step.words)

    def element(number: Expr) -> Scalar:
        swaps: dict[Atom, ExprLike] = {step.axis: number}
        return factor.subs(swaps)

    buffer = Buffer(name, dtype, tuple(a.extent for a in axes))
    word = word_of(element, step.words, step.axis.extent, step.width, dtype)
    made = Stage(buffer, axes, word)
    return Made(made, Load(buffer, tuple(a.expr for a in axes)), exact=True)


def _only_load(factor: Scalar) -> Load | None:
    """The one load whose place varies."""
    varying = [n for n in walk(factor) if isinstance(n, Load) and n.axes()]
    return varying[0] if len(varying) == 1 else None


def _axes(dims: tuple[Expr, ...]) -> tuple[Axis, ...]:
    return tuple(Axis(f"u{j}", d) for j, d in enumerate(dims))


def _reading(factor: Scalar, load: Load, index: tuple[Expr, ...]) -> Scalar:
    """The factor with that load at another place."""
    own = Load(load.buffer, index)
    return rewrite(factor, lambda node: own if node is load else None)


def _place(load: Load, step: Step) -> int | None:
    """The dim whose index is the axis plus whole words, in range; None without such a dim."""
    places = [k for k, at in enumerate(load.index) if step.axis in at.axes()]
    if len(places) != 1:
        return None
    (place,) = places
    at = load.index[place]
    fits = is_one(stride_of(at, step.axis)) and proves_lt(at, load.buffer.dims[place])
    return place if fits and divisible(at - step.axis, step.width) else None


def word_of(
    element: Callable[[Expr], Scalar], words: Axis, size: Expr, width: int, dtype: DType
) -> Scalar:
    """The elements of one word, the first in the low bits; 0 past the end."""
    bits = dtype.bits // width
    word: Scalar | None = None
    for k in range(width):
        number = words.expr * width + k
        value = select(compare("lt", number, size), element(number), constant(0, I32))
        if k < width - 1:
            value = op("bit_and", value, (1 << bits) - 1)
        if k:
            value = op("shl", value, bits * k)
        word = value if word is None else op("bit_or", word, value)
    assert word is not None
    return cast(word, dtype)
