"""A contraction's right factor copied first: padding as zeros, strided columns laid side by side.

A convolution tests whether its window leaves the image, and with a stride its columns do not
adjoin. Both end once the image is copied into a workspace that holds the padding too and, for a
stride s along the columns, one plane per remainder of s. Place u of a copied dimension stands for
source index `low + step * u`; places outside [start, stop) are zeros.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import gcd

from edgerelax.ir.kernel import WORKGROUP, KConst, Kernel, KExpr, KSelect, i32, kop
from edgerelax.ir.scalar import Buffer, Cast, Load, Op, Scalar, Value, cast
from edgerelax.schedule.contraction import Contraction
from edgerelax.schedule.index import flat_index, stride_of
from edgerelax.schedule.points import count, decompose
from edgerelax.schedule.reduce import splat
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Writer
from edgerelax.sym import (
    Axis,
    Expr,
    FloorDiv,
    as_expr,
    bounds,
    ceildiv,
    maximum,
    minimum,
    prove_nonneg,
)


@dataclass(frozen=True, slots=True)
class Dim:
    """One copied dimension; with `phases` > 1, place u is number u // phases of plane u % phases.

    `place` is the place that the contraction reads, in terms of its axes.
    """

    place: Expr
    low: Expr
    step: int
    size: Expr
    phases: int
    start: Expr
    stop: Expr

    @property
    def is_whole(self) -> bool:
        """Whether no place is a zero."""
        return self.start.as_int() == 0 and self.stop is self.size


@dataclass(frozen=True, slots=True)
class Staged:
    """The copy, and the contraction that reads it."""

    source: Buffer
    copy: Buffer
    dims: tuple[Dim, ...]
    found: Contraction


def stage(found: Contraction, name: str) -> Staged | None:
    """The contraction over a copy of its right factor, if that helps and can be done."""
    load = _only_load(found.right)
    if load is None:
        return None
    settled: set[Scalar] = set()
    dims = []
    for extent, index in zip(load.buffer.dims, load.index, strict=True):
        limits = {g: room for g in found.guards if (room := _limit(g, index)) is not None}
        pace = stride_of(index, found.column)
        strided = pace is not None and (pace.as_int() or 0) > 1
        if not limits and not strided:
            dims.append(_kept(index, extent))
            continue
        dim = _copied(index, extent, found.column, limits.values())
        if dim is None:
            return None
        settled |= limits.keys()
        dims.append(dim)
    if all(d.phases == 1 and d.is_whole and d.step == 1 for d in dims):
        return None
    copy = Buffer(name, load.buffer.dtype, tuple(_sizes(dims)))
    read: Scalar = Load(copy, tuple(_places(dims)))
    right = cast(read, found.right.dtype) if isinstance(found.right, Cast) else read
    guards = tuple(g for g in found.guards if g not in settled)
    body = replace(found.stage, body=found.times(found.left, right), where=None)
    return Staged(
        load.buffer, copy, tuple(dims), replace(found, stage=body, right=right, guards=guards)
    )


def _only_load(right: Scalar) -> Load | None:
    inner = right.arg if isinstance(right, Cast) else right
    return inner if isinstance(inner, Load) else None


def _kept(index: Expr, extent: Expr) -> Dim:
    zero = as_expr(0)
    return Dim(index, zero, 1, extent, 1, zero, extent)


_Room = tuple[int, Expr]
"""A sign s and an axis-free r: a guard holds where s * index + r >= 0."""


def _limit(guard: Scalar, index: Expr) -> _Room | None:
    """The guard as a condition on this index alone."""
    if not isinstance(guard, Op) or guard.fn not in ("ge", "lt") or not index.axes():
        return None
    a, b = guard.operands
    if not (isinstance(a, Value) and isinstance(b, Value)):
        return None
    room = a.expr - b.expr if guard.fn == "ge" else b.expr - a.expr - 1
    for sign in (1, -1):
        rest = room - index * sign
        if not rest.axes():
            return sign, rest
    return None


def _copied(index: Expr, extent: Expr, column: Axis, limits: Collection[_Room]) -> Dim | None:
    """The dimension from the least to the greatest index, in steps of what all strides divide."""
    strides: dict[Axis, int] = {}
    quotients = _quotients(index, column)
    index = index.subs({atom: axis.expr + low for axis, (atom, low) in quotients.items()})
    for axis in sorted(index.axes(), key=lambda a: a.name):
        stride = stride_of(index, axis)
        number = None if stride is None else stride.as_int()
        if number is None:
            return None
        strides[axis] = number
    step = gcd(*strides.values())
    low, place, last = index, as_expr(0), as_expr(0)
    for axis, number in strides.items():
        end, pace = axis.extent - 1, abs(number) // step
        low = low.subs({axis: end if number < 0 else as_expr(0)})
        place = place + (axis.expr if number > 0 else end - axis) * pace
        last = last + end * pace
    size = last + 1 if prove_nonneg(last + 1) is True else maximum(last + 1, 0)
    start, stop = as_expr(0), size
    for sign, rest in (*limits, (1, as_expr(0)), (-1, extent - 1)):
        if sign > 0:
            start = maximum(start, ceildiv(-rest - low, step))
        else:
            stop = minimum(stop, (rest - low) // step + 1)
    place = place.subs({axis: as_expr(atom) - low for axis, (atom, low) in quotients.items()})
    return Dim(place, low, step, size, strides.get(column, step) // step, start, stop)


def _quotients(index: Expr, column: Axis) -> dict[Axis, tuple[FloorDiv, int]]:
    """Quotients of axes of few values, as remainders are, taken for axes: each with its least."""
    found: dict[Axis, tuple[FloorDiv, int]] = {}
    for atom in index.atoms():
        if isinstance(atom, FloorDiv) and column not in atom.num.axes():
            least, most = bounds(as_expr(atom))
            if least is not None and most is not None:
                axis = Axis(f"quotient{len(found)}", as_expr(most - least + 1))
                found[axis] = atom, least
    return found


def _sizes(dims: Sequence[Dim]) -> list[Expr]:
    sizes: list[Expr] = []
    for dim in dims:
        if dim.phases > 1:
            sizes += [as_expr(dim.phases), ceildiv(dim.size, dim.phases)]
        else:
            sizes.append(dim.size)
    return sizes


def _places(dims: Sequence[Dim]) -> list[Expr]:
    places: list[Expr] = []
    for dim in dims:
        if dim.phases > 1:
            places += [dim.place % dim.phases, dim.place // dim.phases]
        else:
            places.append(dim.place)
    return places


# The copy as a kernel


def copy_kernel(staged: Staged, name: str, target: Target, weights: frozenset[str]) -> Kernel:
    """A CPU kernel that makes the copy: an iteration does the innermost two dimensions."""
    w = Writer(target, weights)
    s = Scalars(w)
    axes = [Axis(f"u{k}", size) for k, size in enumerate(staged.copy.dims)]
    places, inner_phase = _axis_places(staged.dims, axes)
    *outer, inner = axes
    grid_axes, rows = outer[:-1], outer[-1:]
    for axis, value in zip(
        grid_axes, decompose(w, WORKGROUP, [a.extent for a in grid_axes]), strict=True
    ):
        w.bind(axis, value)
    row = _Row(w, s, staged, tuple(axes), tuple(places), inner, inner_phase)
    if not rows:
        row.write()
    else:
        (axis,) = rows
        with w.loop("u", i32(0), w.params.scalar(axis.extent)) as u:
            w.bind(axis, u)
            row.write()
    return w.kernel(name, count(grid_axes), 1, "copy with padding")


def _axis_places(dims: Sequence[Dim], axes: Sequence[Axis]) -> tuple[list[Expr], Axis | None]:
    """Each dimension's place in terms of the copy's axes; the axis of the last one's planes."""
    places: list[Expr] = []
    rest = list(axes)
    phase = None
    for dim in dims:
        first = rest.pop(0)
        if dim.phases > 1:
            second = rest.pop(0)
            places.append(second.expr * dim.phases + first)
            phase = first if not rest else None
        else:
            places.append(first.expr)
    return places, phase


@dataclass(frozen=True, slots=True)
class _Row:
    """One innermost run of the copy: zeros, source elements, zeros."""

    w: Writer
    s: Scalars
    staged: Staged
    axes: tuple[Axis, ...]
    places: tuple[Expr, ...]
    inner: Axis
    phase: Axis | None

    def write(self) -> None:
        w = self.w
        size = w.params.scalar(self.inner.extent)
        start, stop = self._run()
        inside = self._inside()
        if inside is not None:
            none = i32(0)
            start = w.let("start", KSelect(none.dtype, 1, inside, start, none))
            stop = w.let("stop", KSelect(none.dtype, 1, inside, stop, none))
        if not (isinstance(start, KConst) and start.value == 0):
            self._each(i32(0), start, self._zero)
        self._each(start, stop, self._element)
        if not self.staged.dims[-1].is_whole or inside is not None or self.phase is not None:
            self._each(stop, size, self._zero)

    def _run(self) -> tuple[KExpr, KExpr]:
        """Where source elements begin and end in the innermost dimension."""
        dim = self.staged.dims[-1]
        ends = [dim.start, dim.stop]
        if self.phase is not None:
            ends = [ceildiv(e - self.phase, dim.phases) for e in ends]
        ends[0] = minimum(ends[0], self.inner.extent)
        ends[1] = maximum(ends[0], ends[1])
        start, stop = (self.w.let("end", self.s.index.value(e)) for e in ends)
        return start, stop

    def _inside(self) -> KExpr | None:
        """Whether the outer dimensions are at source elements; None if they always are."""
        tests: list[KExpr] = []
        for dim, place in zip(self.staged.dims[:-1], self.places[:-1], strict=True):
            if dim.is_whole:
                continue
            at = self.s.index.value(place)
            tests.append(kop("ge", at, self.w.params.scalar(dim.start)))
            tests.append(kop("lt", at, self.w.params.scalar(dim.stop)))
        if not tests:
            return None
        inside = tests[0]
        for test in tests[1:]:
            inside = kop("and", inside, test)
        return self.w.let("inside", inside)

    def _each(self, start: KExpr, stop: KExpr, value: Callable[[], KExpr]) -> None:
        """Four elements at once, then the rest."""
        w = self.w
        quads = kop("mul", kop("index_div", kop("sub", stop, start), i32(4)), i32(4))
        end = w.let("end", kop("add", start, quads))
        with w.loop("i", start, end, step=4) as i:
            w.bind_vector(self.inner, i, aligned=False)
            self._store(4, value)
        with w.loop("i", end, stop) as i:
            w.bind(self.inner, i)
            self._store(1, value)

    def _store(self, lanes: int, value: Callable[[], KExpr]) -> None:
        index = self.s.index
        flat = flat_index(self.staged.copy, tuple(a.expr for a in self.axes))
        at = index.value(index.in_lane(flat, 0) if lanes == 4 else flat)
        stored = splat(value(), lanes)
        self.w.store(self.staged.copy, at, stored, aligned=False)

    def _zero(self) -> KExpr:
        dtype = self.staged.copy.dtype
        return KConst(dtype, 1, 0.0 if dtype.is_float else 0)

    def _element(self) -> KExpr:
        index = tuple(
            place * dim.step + dim.low
            for dim, place in zip(self.staged.dims, self.places, strict=True)
        )
        return self.s.value(Load(self.staged.source, index))
