"""The k extremes of each row in order; with k the length of the row, a sort.

Few of long rows: topk_few.py. Else on a GPU tiles, then merging passes (sort_tiles.py); on a CPU an
iteration sorts a row by merging runs of its indices back and forth between two workspaces; of each
run the first k live on.
"""

from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import KExpr, KSelect, KVar, i32, kop
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Value
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates import sort_tiles, topk_few
from edgerelax.schedule.strategies.templates.grids import Body, axes_over, each
from edgerelax.schedule.strategies.templates.ordering import comes_before, index_of
from edgerelax.schedule.target import Target
from edgerelax.sym import Axis, Expr, as_expr

_MAX_PASSES = 31  # runs double in length


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """In parallel on the GPU, a row an iteration on the CPU."""
    if topk_few.fits(template, target):
        return topk_few.emit(template, name, weights, target)
    if target.is_gpu:
        return sort_tiles.emit(template, name, weights, target)
    return _by_merging(template, name, weights, target)


def _by_merging(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    (x,), (values, indices) = template.inputs, template.outputs
    k = as_expr(template.params["k"])
    rows, length = x.dims
    order = Buffer(f"{values.name}_order", I32, (rows, as_expr(2), length))
    (row,) = axes_over((rows,), "r")

    def sort(body: Body) -> None:
        w, s = body.w, body.s
        body.loop("i", length, lambda i: body.store(order, (row, 0, i), Value(as_expr(i), I32)))
        slot, width = w.var("slot", i32(0)), w.var("width", i32(1))
        with w.loop("pass", i32(0), i32(_MAX_PASSES)):
            source = index_of(body, slot)
            with w.when(kop("lt", width, w.params.scalar(length))):
                _merge_runs(body, template, order, row, source, width)
                w.assign(slot, kop("sub", i32(1), slot))
                w.assign(width, kop("mul", width, i32(2)))
        last = index_of(body, slot)

        def result(i: Axis) -> None:
            at = w.let("at", s.value(order[row, last, i]))
            place = index_of(body, at)
            body.store(values, (row, i), x[row, place])
            body.store(indices, (row, i), Value(place))

        body.loop("i", k, result)

    kernel = each(name, target, weights, (row,), sort, "top k: merge sort of each row")
    return Emitted((kernel,), (order,))


def _merge_runs(
    body: Body, template: Template, order: Buffer, row: Axis, slot: Expr, width: KVar
) -> None:
    """One pass: pairs of runs of `width` in one workspace become single runs in the other."""
    w, s, (x,) = body.w, body.s, template.inputs
    length, k = (w.params.scalar(as_expr(e)) for e in (x.dims[1], template.params["k"]))
    largest = bool(template.params["largest"])
    both = w.let("n", kop("mul", width, i32(2)))
    pairs = kop("index_div", kop("add", length, kop("sub", both, i32(1))), both)

    def load(at: KExpr) -> KExpr:
        return w.let("at", s.value(order[row, slot, index_of(body, at)]))

    def value(at: KExpr) -> KExpr:
        return w.let("x", s.value(x[row, index_of(body, at)]))

    def living(start: KExpr, end: KExpr) -> KExpr:
        return w.let("n", kop("min", end, kop("add", start, k)))

    with w.loop("run", i32(0), w.let("n", pairs)) as run:
        start = w.let("b", kop("mul", run, both))
        middle = w.let("b", kop("min", kop("add", start, width), length))
        end = w.let("b", kop("min", kop("add", start, both), length))
        left, right = w.var("i", start), w.var("j", middle)
        left_end, right_end = living(start, middle), living(middle, end)
        with w.loop("p", start, living(start, end)) as p:
            takes_left = w.var("l", kop("lt", left, left_end))
            with w.when(kop("and", takes_left, kop("lt", right, right_end))):
                a, b = load(left), load(right)
                w.assign(takes_left, comes_before(value(a), a, value(b), b, largest=largest))
            taken = load(KSelect(I32, 1, takes_left, left, right))
            body.store(order, (row, 1 - slot, index_of(body, p)), body.held(taken))
            w.branch(
                takes_left,
                lambda: w.assign(left, kop("add", left, i32(1))),
                lambda: w.assign(right, kop("add", right, i32(1))),
            )
