"""The k extremes of each row in order; with k the length of the row, a sort.

GPU: a thread per element counts the elements that come before it and stores its own at that rank.
CPU: an iteration sorts a row by merging runs of its indices back and forth between two
workspaces.
"""

from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import KExpr, KSelect, KVar, i32, kop
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Scalar, Value, compare
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body, axes_over, each
from edgerelax.schedule.target import Target
from edgerelax.sym import Axis, Expr, Opaque, as_expr

_MAX_PASSES = 31  # runs double in length


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """By rank on the GPU, by merging on the CPU."""
    if target.is_gpu:
        return _by_rank(template, name, weights, target)
    return _by_merging(template, name, weights, target)


def _before(a: KExpr, i: KExpr, b: KExpr, j: KExpr, largest: bool) -> KExpr:
    """Whether element i of value a comes before element j of value b."""
    better: KExpr = kop("gt" if largest else "lt", a, b)
    same: KExpr = kop("eq", a, b)
    if a.dtype.is_float:
        nan_a, nan_b = kop("isnan", a), kop("isnan", b)
        first, second = (nan_a, nan_b) if largest else (nan_b, nan_a)
        better = kop("or", better, kop("and", first, kop("not", second)))
        same = kop("or", same, kop("and", nan_a, nan_b))
    return kop("or", better, kop("and", same, kop("lt", i, j)))


def _by_rank(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    (x,), (values, indices) = template.inputs, template.outputs
    k, largest = as_expr(template.params["k"]), bool(template.params["largest"])
    row, column = axes_over(x.dims, "i")

    def element(body: Body) -> None:
        w, s = body.w, body.s
        own, here = w.let("x", s.value(x[row, column])), s.index.value(as_expr(column))
        rank = w.var("rank", i32(0))

        def step(j: Axis) -> None:
            other = w.let("x", s.value(x[row, j]))
            with w.when(_before(other, s.index.value(as_expr(j)), own, here, largest)):
                w.assign(rank, kop("add", rank, i32(1)))

        body.loop("j", x.dims[1], step)
        at = as_expr(Opaque(body.held(rank), 0, None))
        with w.when(s.value(compare("lt", at, k))):
            body.store(values, (row, at), x[row, column])
            body.store(indices, (row, at), Value(as_expr(column)))

    kernel = each(name, target, weights, (row, column), element, "top k: rank of each element")
    return Emitted((kernel,))


def _by_merging(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    (x,), (values, indices) = template.inputs, template.outputs
    k, largest = as_expr(template.params["k"]), bool(template.params["largest"])
    rows, length = x.dims
    order = Buffer(f"{values.name}_order", I32, (rows, as_expr(2), length))
    (row,) = axes_over((rows,), "r")

    def sort(body: Body) -> None:
        w, s = body.w, body.s
        body.loop("i", length, lambda i: body.store(order, (row, 0, i), Value(as_expr(i), I32)))
        slot, width = w.var("slot", i32(0)), w.var("width", i32(1))
        with w.loop("pass", i32(0), i32(_MAX_PASSES)):
            source = _index(body, slot)
            with w.when(kop("lt", width, w.params.scalar(length))):
                _merge_runs(body, x, order, row, source, width, largest)
                w.assign(slot, kop("sub", i32(1), slot))
                w.assign(width, kop("mul", width, i32(2)))
        last = _index(body, slot)

        def result(i: Axis) -> None:
            at = w.let("at", s.value(order[row, last, i]))
            place = _index(body, at)
            body.store(values, (row, i), x[row, place])
            body.store(indices, (row, i), Value(place))

        body.loop("i", k, result)

    kernel = each(name, target, weights, (row,), sort, "top k: merge sort of each row")
    return Emitted((kernel,), (order,))


def _index(body: Body, value: KExpr) -> Expr:
    """A computed integer as an index."""
    return as_expr(Opaque(body.held(value), 0, None))


def _merge_runs(
    body: Body, x: Buffer, order: Buffer, row: Axis, slot: Expr, width: KVar, largest: bool
) -> None:
    """One pass: pairs of runs of `width` in one workspace become single runs in the other."""
    w, s = body.w, body.s
    length = w.params.scalar(x.dims[1])
    left, middle = w.var("i", i32(0)), w.var("m", i32(0))
    right, end = w.var("j", i32(0)), w.var("n", i32(0))

    def load(at: KExpr) -> KExpr:
        return w.let("at", s.value(order[row, slot, _index(body, at)]))

    def value(at: KExpr) -> KExpr:
        return w.let("x", s.value(x[row, _index(body, at)]))

    def step(place: Axis) -> None:
        here = s.index.value(as_expr(place))
        with w.when(kop("eq", here, end)):
            w.assign(left, here)
            w.assign(middle, kop("min", kop("add", here, width), length))
            w.assign(right, middle)
            w.assign(end, kop("min", kop("add", middle, width), length))
        takes_left = w.var("l", kop("lt", left, middle))
        with w.when(kop("and", takes_left, kop("lt", right, end))):
            a, b = load(left), load(right)
            w.assign(takes_left, _before(value(a), a, value(b), b, largest))
        taken = load(KSelect(I32, 1, takes_left, left, right))
        kept: Scalar = body.held(taken)
        body.store(order, (row, 1 - slot, place), kept)
        w.branch(
            takes_left,
            lambda: w.assign(left, kop("add", left, i32(1))),
            lambda: w.assign(right, kop("add", right, i32(1))),
        )

    body.loop("p", x.dims[1], step)
