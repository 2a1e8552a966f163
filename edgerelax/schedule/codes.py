"""Factors computed from narrow integers: their codes side by side in words, the rest in planes.

A factor of a contraction that unpacks weights, as `scale[n, k/32] * (code[n, k] - 8) + offset[…]`,
is taken apart by what its loads vary over. An integer part of few values that changes at every step
is a code; codes of as many steps as fit a 32-bit word are made one word, at export. What stays as
it is for a group of steps is a plane. The summed axis becomes one for each width of group, one of
the words in the smallest group, and one of the steps in a word.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgerelax.ir.dtypes import F32, I32, U32, DType
from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import (
    Buffer,
    Cast,
    Const,
    Load,
    Op,
    Scalar,
    Value,
    cast,
    constant,
    gathers,
    index_exprs,
    loads,
    op,
    rewrite,
    walk,
)
from edgerelax.schedule.index import stride_of
from edgerelax.schedule.points import count
from edgerelax.schedule.ranges import Range, range_of
from edgerelax.schedule.words import word_of
from edgerelax.sym import Atom, Axis, Expr, ExprLike, FloorDiv, as_expr

_WORD = 32
_WIDTHS = (2, 4, 8, 16)
"""Bits of a code in a word: those that an even number of fit."""


@dataclass(frozen=True, slots=True)
class Word:
    """The last two summed axes where a factor reads words: the words, and the steps in one."""

    words: Axis
    inside: Axis


@dataclass(frozen=True, slots=True)
class Steps:
    """A summed axis taken apart: groups from the widest on, words, steps in a word."""

    axis: Axis
    axes: tuple[Axis, ...]
    bits: int

    @property
    def word(self) -> Word:
        return Word(*self.axes[-2:])

    @property
    def number(self) -> Expr:
        """The step in terms of the axes."""
        at = as_expr(0)
        for axis in self.axes:
            at = at * axis.extent + axis
        return at

    @property
    def places(self) -> dict[Atom, ExprLike]:
        """The axes in terms of the step."""
        found: dict[Atom, ExprLike] = {}
        at = self.axis.expr
        for axis in reversed(self.axes[1:]):
            found[axis], at = at % axis.extent, at // axis.extent
        return {**found, self.axes[0]: at}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where packed weights have what they vary over: `before` the steps and `after` them.

    `swaps` are what the axes of the contraction are in terms of those, `places` the reverse.
    """

    name: str
    before: tuple[Axis, ...]
    after: tuple[Axis, ...]
    swaps: Mapping[Atom, ExprLike]
    places: Mapping[Atom, ExprLike]


@dataclass(frozen=True, slots=True)
class Coded:
    """A factor over packed weights and the summed axes that it then has."""

    factor: Scalar
    packed: tuple[Packed, ...]
    steps: Steps | None
    reduce: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """The integer expressions of a factor that are codes, and what else it loads."""

    codes: tuple[Scalar, ...]
    planes: tuple[Scalar, ...]
    axis: Axis


def word_of_steps(factor: Scalar, reduce: Sequence[Axis]) -> Word | None:
    """The last summed axes, if the last one says only which part of a loaded word is a step's."""
    if len(reduce) < 2:
        return None
    words, inside = reduce[-2:]
    size = inside.extent.as_int()
    read = {axis for load in loads(factor) for axis in load.axes()}
    fits = size is not None and size in {_WORD // bits for bits in _WIDTHS}
    used = inside in factor.axes() and inside not in read and words in read
    return Word(words, inside) if fits and used else None


def parts_of(factor: Scalar, reduce: Sequence[Axis], weights: frozenset[str]) -> Parts | None:
    """The parts of a factor of floats that loads weights alone; None if it has no codes."""
    if not factor.dtype.is_float:
        return None
    leaves = tuple(dict.fromkeys(_leaves(factor, weights)))
    whole = all(_is_packable(leaf, weights) for leaf in leaves)
    if not leaves or not whole:
        return None
    for axis in sorted(reduce, key=lambda a: a.extent.as_int() or 0, reverse=True):
        codes = tuple(n for n in leaves if n.dtype.is_integer and _changes_with(n, axis))
        if codes and axis.extent.as_int() is not None:
            return Parts(codes, tuple(n for n in leaves if n not in codes), axis)
    return None


def _leaves(node: Scalar, weights: frozenset[str]) -> Iterator[Scalar]:
    """The largest integer expressions over one buffer, and other loads."""
    buffers = {load.buffer for load in loads(node)}
    if not buffers:
        return
    if isinstance(node, Load) or (node.dtype.is_integer and len(buffers) == 1):
        yield _narrow(node)
        return
    for arg in node.args:
        yield from _leaves(arg, weights)


def _is_packable(leaf: Scalar, weights: frozenset[str]) -> bool:
    """Whether it reads one weight of known size, at places that do not depend on data."""
    known = all(
        load.buffer.name in weights and all(d.as_int() is not None for d in load.buffer.dims)
        for load in loads(leaf)
    )
    return known and not any(True for expr in index_exprs(leaf) for _ in gathers(expr))


def _quotients(leaf: Scalar, axis: Axis) -> set[FloorDiv]:
    """The numbers of groups of the axis that it depends on."""
    atoms = {a for expr in index_exprs(leaf) for a in expr.atoms()}
    return {a for a in atoms if isinstance(a, FloorDiv) and a.num == axis.expr}


def _changes_with(leaf: Scalar, axis: Axis) -> bool:
    """Whether it depends on the axis otherwise than by the numbers of groups."""
    zeros: dict[Atom, ExprLike] = dict.fromkeys(_quotients(leaf, axis), 0)
    return any(axis in expr.subs(zeros).axes() for expr in index_exprs(leaf))


def steps_of(parts: Parts) -> Steps | None:
    """The summed axis taken apart; None if groups are of no known widths that fit each other."""
    axis = parts.axis
    if any(_changes_with(plane, axis) for plane in parts.planes):
        return None
    sizes = {q.den.as_int() for plane in parts.planes for q in _quotients(plane, axis)}
    extent = axis.extent.as_int()
    widths = sorted((s for s in sizes if s is not None), reverse=True)
    if extent is None or len(widths) < len(sizes):
        return None
    chain = [extent, *(s for s in widths if s != extent)]
    if any(a % b for a, b in pairwise(chain)):
        return None
    needed = max(bits_of(range_of(code)) for code in parts.codes)
    for bits in (b for b in _WIDTHS if b >= needed):
        inside = _WORD // bits
        if chain[-1] % inside == 0:
            sizes_of_axes = [a // b for a, b in zip(chain, [*chain[1:], inside], strict=True)]
            names = [f"{axis.name}/{k}" for k in range(len(sizes_of_axes))]
            outer = (Axis(n, as_expr(s)) for n, s in zip(names, sizes_of_axes, strict=True))
            return Steps(axis, (*outer, Axis(f"{axis.name}%", as_expr(inside))), bits)
    return None


def bits_of(found: Range) -> int:
    """How many bits hold these integers; with a sign where some are negative."""
    low, high = found
    if low >= 0:
        return max(1, high.bit_length())
    return 1 + max((-low - 1).bit_length(), high.bit_length(), 1)


def coded(
    factor: Scalar, reduce: tuple[Axis, ...], layout: Layout, weights: frozenset[str]
) -> Coded | None:
    """The factor over packed weights; None where it is not computed from codes."""
    parts = parts_of(factor, reduce, weights)
    steps = None if parts is None else steps_of(parts)
    if parts is None or steps is None:
        return None
    others = tuple(a for a in reduce if a is not steps.axis)
    axes = (*layout.before, *others, *steps.axes[:-1], *layout.after)
    packed: list[Packed] = []
    reads: dict[Scalar, Scalar] = {}
    table: dict[Atom, ExprLike] = {**layout.swaps, steps.axis: steps.number}
    inverse: dict[Atom, ExprLike] = {**layout.places, **steps.places}
    for number, leaf in enumerate(n for n in (*parts.codes, *parts.planes) if n.axes()):
        is_code = leaf in parts.codes
        used = {*leaf.subs(table).axes(), *([steps.word.words] if is_code else [])}
        own = tuple(a for a in axes if a in used)
        if any(a.extent.as_int() is None for a in own) or count(own).as_int() == 0:
            return None
        name = f"{_source(leaf).name}_{layout.name}{number}"
        if is_code:
            dtype = I32 if range_of(leaf)[0] < 0 else U32
            buffer = Buffer(name, dtype, tuple(a.extent for a in own))
            body = _words(leaf, steps, layout.swaps, dtype)
            reads[leaf] = _decoded(_at(buffer, own), steps)
        else:
            value = _uncast(leaf)
            buffer = Buffer(name, value.dtype, tuple(a.extent for a in own))
            body = value.subs(table)
            reads[leaf] = cast(_at(buffer, own), leaf.dtype)
        make = LoopFunc(name, (_source(leaf),), (buffer,), (Stage(buffer, own, body),))
        packed.append(Packed(make, leaf, cast(reads[leaf], leaf.dtype).subs(inverse)))
    read = _with_reads(factor, reads).subs(table)
    return Coded(read, tuple(packed), steps, (*others, *steps.axes))


def _source(leaf: Scalar) -> Buffer:
    return next(iter(loads(leaf))).buffer


def _at(buffer: Buffer, axes: Sequence[Axis]) -> Load:
    return Load(buffer, tuple(a.expr for a in axes))


def _uncast(leaf: Scalar) -> Scalar:
    """What a wider integer of the same value was made of."""
    while isinstance(leaf, Cast) and leaf.arg.dtype.is_integer:
        if leaf.arg.dtype.bits > leaf.type.bits or range_of(leaf.arg) != range_of(leaf):
            break
        leaf = leaf.arg
    return leaf


def _narrow(leaf: Scalar) -> Scalar:
    """What an integer was made of with literals alone, as long as that is of fewer bits."""
    while leaf.dtype.is_integer and leaf.args:
        inner = [a for a in leaf.args if not isinstance(a, Const)]
        if len(inner) != 1 or not inner[0].dtype.is_integer:
            break
        if bits_of(range_of(inner[0])) >= bits_of(range_of(leaf)):
            break
        (leaf,) = inner
    return leaf


def _words(code: Scalar, steps: Steps, swaps: Mapping[Atom, ExprLike], dtype: DType) -> Scalar:
    """The codes of the steps that are in one word, the first in the highest bits."""
    words, inside = steps.word.words, steps.word.inside.extent
    width = inside.as_int()
    assert width is not None
    last = steps.number.subs({steps.word.inside: inside - 1})

    def element(number: Expr) -> Scalar:
        step = last + words * inside - number
        return cast(code.subs({**swaps, steps.axis: step}), I32)

    return cast(word_of(element, words, words.extent * inside, width, I32), dtype)


def _decoded(word: Load, steps: Steps) -> Scalar:
    """The code of a step, in i32: what is above it is shifted out, then what is below it."""
    turned = op("shl", word, Value(steps.word.inside * steps.bits, word.dtype))
    return cast(op("shr", turned, constant(_WORD - steps.bits, word.dtype)), I32)


def turned_words(factor: Scalar, inside: Axis) -> dict[Scalar, tuple[Load, int]]:
    """The words in a factor with the code of a step on top: their loads, and the bits of a step."""
    found: dict[Scalar, tuple[Load, int]] = {}
    for node in walk(factor):
        match node:
            case Op(fn="shl", operands=(Load() as load, Value(expr=expr))):
                bits = stride_of(expr, inside)
                by = None if bits is None else bits.as_int()
                if by and expr == inside * by and inside not in load.axes():
                    found[node] = load, by
    return found


def in_place(factor: Scalar) -> Scalar:
    """The factor with floats made of codes where these stand in their words, shifted by literals.

    What such a code is as an integer there is as many times too large as its place says, which a
    float is divided by without an error.
    """
    return rewrite(factor, _float_in_place)


def _float_in_place(node: Scalar) -> Scalar | None:
    if not isinstance(node, Cast) or node.type != F32:
        return None
    match node.arg:
        case Cast(arg=Op() as shifted, type=kind) if kind == I32:
            pass
        case Op() as shifted:
            pass
        case _:
            return None
    match shifted:
        case Op(
            fn="shr",
            operands=(Op(fn="shl", operands=(word, Value(expr=expr))), Const(value=dropped)),
        ) if word.dtype in (I32, U32):
            above = expr.as_int()
        case _:
            return None
    if above is None or not above <= int(dropped) < _WORD:
        return None
    bits, below = _WORD - int(dropped), int(dropped) - above
    code = op("bit_and", word, _mask(bits, below, word.dtype))
    if above and word.dtype == I32:
        sign = 1 << (below + bits - 1)
        code = op("sub", op("bit_xor", code, sign), sign)
    value = cast(cast(code, I32) if above else code, F32)
    return op("mul", value, 2.0**-below) if below else value


def _mask(bits: int, below: int, dtype: DType) -> Scalar:
    mask = ((1 << bits) - 1) << below
    wraps = dtype == I32 and mask >> (_WORD - 1)
    return constant(mask - (1 << _WORD) if wraps else mask, dtype)


def _with_reads(factor: Scalar, reads: Mapping[Scalar, Scalar]) -> Scalar:
    """The factor with its parts replaced; a float made of a code is made of the decoded one."""
    whole = {cast(read, leaf.dtype): read for leaf, read in reads.items()}

    def replaced(node: Scalar) -> Scalar | None:
        if node in reads:
            return cast(reads[node], node.dtype)
        if isinstance(node, Cast) and node.arg in whole and node.type.is_float:
            return cast(whole[node.arg], node.type)
        return None

    return rewrite(factor, replaced)


def factored(root: Scalar, inner: frozenset[Axis]) -> dict[Scalar | None, Scalar | None]:
    """An expression as a sum of products: by what varies over `inner`, what does not.

    None stands for 1.
    """
    if not root.axes() & inner:
        return {None: root}
    match root:
        case Op(fn="add" | "sub" as fn, operands=(a, b)):
            total = factored(a, inner)
            for varying, fixed in factored(b, inner).items():
                term = fixed
                if fn == "sub":
                    term = op("neg", constant(1, root.dtype) if fixed is None else fixed)
                total[varying] = _sum(total[varying], term, root) if varying in total else term
            return total
        case Op(fn="neg", operands=(a,)):
            one = constant(1, root.dtype)
            return {v: op("neg", one if f is None else f) for v, f in factored(a, inner).items()}
        case Op(fn="mul", operands=(a, b)):
            for fixed, rest in ((a, b), (b, a)):
                if not fixed.axes() & inner:
                    terms = factored(rest, inner)
                    return {
                        v: fixed if f is None else op("mul", fixed, f) for v, f in terms.items()
                    }
    return {root: None}


def _sum(a: Scalar | None, b: Scalar | None, like: Scalar) -> Scalar:
    one = constant(1, like.dtype)
    return op("add", one if a is None else a, one if b is None else b)
