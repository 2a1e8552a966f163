"""unique: the different elements of a tensor, where each came first, which one each is, how often.

Results are as long as the tensor could need, zeros past the end; the last one says how many are
meant. Sorting, marking what differs from its left neighbour and running sums do it all.

row_ranks: how many rows of a matrix [n, m] come before each one, those that begin with less coming
first. It makes rows as easy to tell apart as numbers are, by where each pair first differs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgerelax.ir.dtypes import I64
from edgerelax.ir.loop import LoopFunc, Stage, Template, axis
from edgerelax.ir.op import Array, CallSite, Operator, Sample
from edgerelax.ir.scalar import Buffer, Load, Scalar, Value, cast, compare, constant, op, select
from edgerelax.ir.types import Annotation, Tensor, Tuple
from edgerelax.ops.lowering import reduce_stage
from edgerelax.ops.maps import (
    Dims,
    fail,
    inputs_of,
    loop_func,
    map_stage,
    outputs_of_site,
    product,
    tensor_of,
)
from edgerelax.ops.rules import NUMERIC, allowed
from edgerelax.ops.shaping import reshape_index
from edgerelax.sym import Expr, Opaque, as_expr, maximum

Position = Callable[[Expr], Expr]


def _infer(site: CallSite) -> Annotation:
    x = tensor_of(site, 0)
    if x.dtype is not None:
        allowed(site, x.dtype, NUMERIC)
    count = Tensor((as_expr(1),), I64)
    dims = None if x.dims is None else (product(x.dims),)
    places = Tensor(dims, I64, 1)
    return Tuple((Tensor(dims, x.dtype, 1), places, places, places, count))


@dataclass(frozen=True, slots=True)
class _Sorted:
    """The elements in rising order, and where each stood.

    `fresh` is 1 for those that differ from the one before, `ranks` the running sum of that.
    """

    size: Expr
    values: Buffer
    places: Buffer
    fresh: Buffer
    ranks: Buffer

    def place(self, i: Expr) -> Expr:
        return _index(self.places[0, i], 0, self.size)

    def group(self, i: Expr) -> Expr:
        """Which of the different elements, in rising order, the i-th is equal to."""
        return _index(self.ranks[i], 1, self.size + 1) - 1

    def is_fresh(self, i: Expr) -> Scalar:
        return op("eq", self.fresh[i], 1)

    @property
    def count(self) -> Scalar:
        last = self.ranks[self.size - 1]
        return select(compare("ge", self.size, 1), last, constant(0, I64))


def _index(loaded: Load, low: int, end: Expr) -> Expr:
    """An integer that the program made itself, in [low, end), as an index."""
    return as_expr(Opaque(loaded, low, end - 1))


def _sort(x: Buffer) -> tuple[_Sorted, list[Stage | Template]]:
    size = product(x.dims)
    row, line = (as_expr(1), size), (size,)
    flat = Buffer("flat", x.dtype, row)
    found = _Sorted(
        size,
        Buffer("sorted", x.dtype, row),
        Buffer("places", I64, row),
        Buffer("fresh", I64, line),
        Buffer("ranks", I64, line),
    )

    def differs(i: Expr) -> Scalar:
        other = _differ(found.values[0, i], found.values[0, i - 1])
        first = compare("eq", i, 0)
        return select(first, constant(1, I64), cast(other, I64))

    order = {"k": size, "largest": False, "sorted": True}
    return found, [
        map_stage(flat, lambda at: x[reshape_index(x.dims, line, at[1:])]),
        Template("topk", (flat,), (found.values, found.places), order),
        map_stage(found.fresh, lambda at: differs(at[0])),
        Template("cumsum", (found.fresh,), (found.ranks,), {"exclusive": False, "reverse": False}),
    ]


def _differ(a: Load, b: Load) -> Scalar:
    """Whether two elements are not one; NaN is NaN."""
    other = op("ne", a, b)
    if not a.dtype.is_float:
        return other
    return op("and", other, op("not", op("and", op("isnan", a), op("isnan", b))))


def _less(a: Load, b: Load) -> Scalar:
    """Whether a comes before b; NaN comes last."""
    if not a.dtype.is_float:
        return op("lt", a, b)
    last = op("and", op("isnan", b), op("not", op("isnan", a)))
    return op("or", op("lt", a, b), last)


def _store(
    out: Buffer,
    size: Expr,
    value: Callable[[Expr], Scalar],
    at: Position,
    where: Callable[[Expr], Scalar] | None = None,
) -> Stage:
    """`value(i)` goes to `at(i)` for all i < size (where `where(i)` holds)."""
    step = axis("i0", size)
    i = as_expr(step)
    return Stage(out, (step,), value(i), where=None if where is None else where(i), index=(at(i),))


def _zeros(out: Buffer) -> Stage:
    return map_stage(out, lambda at: constant(0, out.dtype))


def _lower(site: CallSite) -> LoopFunc:
    x = inputs_of(site)[0]
    assert x is not None
    values, firsts, inverse, counts, count = outputs_of_site(site)
    found, stages = _sort(x)
    size, line = found.size, (found.size,)
    starts = Buffer("starts", I64, line)
    stages.append(_store(starts, size, Value, found.group, found.is_fresh))
    slot: Position = found.group if site.attrs["sorted"] else _by_first(found, stages)

    def how_often(i: Expr) -> Scalar:
        following = _index(found.ranks[i], 1, size + 1)
        is_last = op("eq", found.ranks[i], found.count)
        end = select(is_last, Value(size), starts[following])
        return op("sub", end, Value(i))

    per_group: list[tuple[Buffer, Callable[[Expr], Scalar]]] = [
        (values, lambda i: found.values[0, i]),
        (firsts, lambda i: found.places[0, i]),
        (counts, how_often),
    ]
    for out, value in per_group:
        stages.append(_zeros(out))
        stages.append(_store(out, size, value, slot, found.is_fresh))
    stages.append(_store(inverse, size, lambda i: Value(slot(i)), found.place))
    stages.append(map_stage(count, lambda at: found.count))
    return loop_func(site, stages)


def _by_first(found: _Sorted, stages: list[Stage | Template]) -> Position:
    """The different elements in the order in which they first appear: which one the i-th is."""
    line = (found.size,)
    first, marks, seen = (Buffer(name, I64, line) for name in ("first", "marks", "seen"))
    running = {"exclusive": False, "reverse": False}
    stages += [
        _store(first, found.size, lambda i: found.places[0, i], found.group, found.is_fresh),
        _store(marks, found.size, lambda i: found.fresh[i], found.place),
        Template("cumsum", (marks,), (seen,), running),
    ]

    def slot(i: Expr) -> Expr:
        place = _index(first[found.group(i)], 0, found.size)
        return _index(seen[place], 1, found.size + 1) - 1

    return slot


def _reference(x: Array, sorted: bool = True) -> tuple[Array, Array, Array, Array, Array]:
    flat = x.reshape(-1)
    values, firsts, inverse, counts = np.unique(flat, True, True, True)
    if not sorted:
        order = np.argsort(firsts, kind="stable")
        values, firsts, counts = values[order], firsts[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    padding = (0, flat.size - len(values))
    count = np.array([len(values)], np.int64)
    values, firsts, counts = (np.pad(v, padding) for v in (values, firsts, counts))
    return values, firsts, inverse.reshape(-1), counts, count


# Rows


def _infer_ranks(site: CallSite) -> Annotation:
    x = tensor_of(site, 0)
    if x.dtype is not None:
        allowed(site, x.dtype, NUMERIC)
    if x.rank not in (None, 2):
        raise fail(site, f"rank {x.rank}, not 2")
    return Tensor(None if x.dims is None else x.dims[:1], I64, 1)


def _lower_ranks(site: CallSite) -> LoopFunc:
    x = inputs_of(site)[0]
    assert x is not None
    rows, columns = x.dims
    first = Buffer("first", I64, (rows, rows))

    def where(at: Dims) -> Scalar:
        """Of equal rows the last column, where neither is less."""
        i, j, c = at
        return select(_differ(x[i, c], x[j, c]), Value(c), Value(columns - 1))

    def before(at: Dims) -> Scalar:
        i, j = at
        column = _index(first[i, j], 0, maximum(columns, 1))  # none is read where there is none
        less = cast(_less(x[j, column], x[i, column]), I64)
        return select(compare("ge", columns, 1), less, constant(0, I64))

    (out,) = outputs_of_site(site)
    stages = [
        reduce_stage(first, (rows, rows, columns), (2,), where, "min"),
        reduce_stage(out, (rows, rows), (1,), before, "sum"),
    ]
    return loop_func(site, stages)


def _ranks(x: Array) -> Array:
    order = np.lexsort(x.T[::-1]) if x.shape[1] else np.zeros(len(x), np.int64)
    ranks = np.zeros(len(x), np.int64)
    for k in range(1, len(x) if x.shape[1] else 0):
        here, before = x[order[k]], x[order[k - 1]]
        same = np.array_equal(here, before, equal_nan=x.dtype.kind == "f")
        ranks[order[k]] = ranks[order[k - 1]] if same else k
    return ranks


_NUMBERS = np.array([2, 1, 1, 3, 4, 3, 2], np.float32)
_NANS = np.array([[np.nan, 1], [0, np.nan], [-0.0, 1]], np.float32)

OPERATORS = (
    Operator(
        "unique",
        ("x",),
        _infer,
        _reference,
        _lower,
        attrs={"sorted": True},
        samples=(
            Sample((_NUMBERS,)),
            Sample((_NUMBERS,), {"sorted": False}),
            Sample((np.array([[5, 5], [5, 5]], np.int64),)),
            Sample((_NANS,), {"sorted": False}),
            Sample((np.zeros(0, np.float32),)),
            Sample((np.array(3, np.int32),)),
        ),
    ),
    Operator(
        "row_ranks",
        ("x",),
        _infer_ranks,
        _ranks,
        _lower_ranks,
        samples=(
            Sample((np.array([[1, 0], [0, 5], [1, 0], [0, 4], [1, -1]], np.float32),)),
            Sample((np.array([[2, 2, 2], [2, 2, 1]], np.int64),)),
            Sample((_NANS,)),
            Sample((np.zeros((3, 0), np.float32),)),
            Sample((np.zeros((0, 3), np.float32),)),
            Sample((np.arange(40, dtype=np.int32).reshape(20, 2) // 3 % 3,)),
        ),
    ),
)
