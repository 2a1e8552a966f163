"""Attention written out in primitive operators becomes one operator that stores no scores.

    s = q kᵀ;  s' = f(s);  p = softmax(s');  y = p v    →    y = attention(q, k, v, …)

Recognised by structure, backwards from the second product: f is any chain of scales, masks added
or chosen by `where`, clips and tanh, in any order, each with operands that broadcast to the scores;
casts and reshapes of the batch dims may stand between. Weights may be made 0 where they are NaN, or
for queries that a condition names.
Reshapes, transposes, slices and expands around q, k, v, the masks and y become strided views of
what they move (strided.py), so that heads are read where the projection left them. Keys and values
that are cast from a smaller type, and multiplied by a number for each key, are read as they are
stored.

The rule: fused always, where scores and probabilities have no other use (they would have to be
stored), their shapes are proven, and heads are at most MAX_WIDTH wide (a query and its result are
held in registers). It reads q, k and v no more often than the written-out form does, and saves two
launches and four passes over the scores or more.

Before: transposes and weights in their final places. After: attention calls; its operands and the
scores' are dead where nothing else uses them, and dropped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from edgerelax.ir.attention import Step
from edgerelax.ir.dtypes import BF16, BOOL, F16, F32, I8, DType
from edgerelax.ir.graph import Binding, Call, Constant, GraphFunc, Module, Value, Var
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_func
from edgerelax.ir.types import Tensor
from edgerelax.ops import OPS
from edgerelax.passes.affine import equal_dims
from edgerelax.passes.dce import dce
from edgerelax.passes.fold_transposes import dims_of
from edgerelax.passes.strided import (
    MOVES,
    Dims,
    Parts,
    View,
    broadcast,
    common_axes,
    exact,
    moved,
    unmoved,
    whole,
)
from edgerelax.passes.uses import Uses
from edgerelax.sym import Expr, as_expr, product, proves_le, proves_lt

MAX_WIDTH = 256
DTYPES = (F16, BF16, F32)
STORED = (F16, BF16, I8)
"""What keys and values may be cast from."""
EITHER_SIDE = frozenset(("add", "mul", "max", "min"))
LEFT_SIDE = frozenset(("sub", "div"))
UNARY = frozenset(("tanh",))


@dataclass(frozen=True, slots=True)
class _No:
    """Why something that looks like attention is not fused."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """A value, and where an operand's elements lie in it; what they are multiplied by, if that."""

    source: Value
    view: View
    scale: "_Seen | None" = None

    def through(self, change: Callable[[View], View | None]) -> "_Seen | None":
        """Seen through another view."""
        view = change(self.view)
        scale = None if self.scale is None else self.scale.through(change)
        if view is None or (self.scale is not None and scale is None):
            return None
        return replace(self, view=view, scale=scale)


@dataclass(slots=True)
class _Scores:
    """What stands between the first product and the softmax. Steps are in order."""

    product: Var
    call: Call
    steps: list[Step] = field(default_factory=list)
    others: list[_Seen] = field(default_factory=list)


def fuse_attention(module: Module) -> Module:
    """Fuse in every graph function."""
    outcome = Outcome()
    funcs = {name: _Finder(f, outcome).fused() for name, f in module.funcs.items()}
    return outcome.on(dce(replace(module, funcs=funcs)))


class _Finder:
    """One function: what computes each value, and who uses it."""

    def __init__(self, func: GraphFunc, outcome: Outcome) -> None:
        self.func, self.outcome = func, outcome
        self.uses = Uses(func.body)
        self.calls: dict[Value, Call] = {
            b.var: b.value for b in all_bindings(func.body) if isinstance(b.value, Call)
        }

    def fused(self) -> GraphFunc:
        plan: dict[Var, list[Binding]] = {}
        for var, call in self.calls.items():
            weights = self._weights(call)
            if weights is None or not isinstance(var, Var):
                continue
            found = self._attention(var, call, *weights)
            if isinstance(found, _No):
                self.outcome.skip(found.reason, var.name)
                continue
            plan[found.var] = [found]
            self.outcome.did("attention fused")
        return rewrite_func(self.func, lambda b: plan.get(b.var, [b])) if plan else self.func

    # the way back from the second product

    def _weights(self, call: Call) -> tuple[Value, Call | None] | None:
        """The softmax that gives a product's left operand, and what made 0 of some of it."""
        if call.op.name != "matmul" or call.attrs["transpose_a"]:
            return None
        value = self._plain(call.args[0])
        choice = self.calls.get(value) if value is not None else None
        if choice is not None and choice.op.name == "where" and _number(choice.args[1]) == 0:
            value = self._plain(choice.args[2])
        else:
            choice = None
        made = self.calls.get(value) if value is not None else None
        if value is None or made is None or made.op.name != "softmax":
            return None
        return value, choice

    def _plain(self, value: Value | None) -> Value | None:
        """The value without the casts and reshapes that it came through."""
        while value is not None and (call := self.calls.get(value)) is not None:
            if call.op.name not in ("cast", "reshape"):
                break
            value = call.args[0]
        return value

    def _nan_to_zero(self, call: Call) -> bool:
        """Whether a choice of 0 or x is where(isnan(x), 0, x)."""
        test, _, other = call.args
        found = self.calls.get(test) if test is not None else None
        return found is not None and found.op.name == "isnan" and found.args[0] is other

    def _hidden_rows(self, call: Call) -> _Seen | None:
        """The condition of a choice of 0 or x, if it is the same for all keys."""
        test, _, other = call.args
        given = None if test is None else dims_of(test)
        dims = None if other is None else dims_of(other)
        seen = None if test is None else self._seen(test)
        if seen is None or given is None or dims is None or (given and given[-1].as_int() != 1):
            return None
        view = broadcast(seen.view, given, dims)
        return None if view is None else _Seen(seen.source, view)

    def _attention(
        self, var: Var, call: Call, weights: Value, zeroed: Call | None
    ) -> Binding | _No:
        if _dtype(var) not in DTYPES:
            return _No(f"attention of {_dtype(var)}")
        scores = self._scores(call, weights)
        if isinstance(scores, _No):
            return scores
        q, k = scores.call.args
        v = call.args[1]
        assert q is not None and k is not None and v is not None
        if any(_dtype(x) != _dtype(var) for x in (q, k, v)):
            return _No("attention of operands of several types")
        safe, hidden = False, -1
        if zeroed is not None:
            safe = self._nan_to_zero(zeroed)
            rows = None if safe else self._hidden_rows(zeroed)
            if not safe and rows is None:
                return _No("probabilities chosen by more than their query")
            if rows is not None:
                hidden = len(scores.others)
                scores.others.append(rows)
        spans = self._spans(var, scores, v, bool(call.attrs["transpose_b"]))
        if isinstance(spans, _No):
            return spans
        last, target = self._destination(var)
        given = [
            self._operand(q, scores.product, bool(scores.call.attrs["transpose_a"])),
            self._stored(k, scores.product, not scores.call.attrs["transpose_b"]),
            self._stored(v, var, bool(call.attrs["transpose_b"])),
            *scores.others,
        ]
        seen = [g for g in given if g is not None]
        if len(seen) < len(given):
            return _No("attention whose batch dims may broadcast when it runs")
        scaled = [None if s.scale is None else _by_key(s.scale) for s in seen[1:3]]
        seen += [s for s in scaled if s is not None]
        views = _flat_views([*(s.view for s in seen), target])
        if views is None and last is not var:
            last, target = var, whole(_known(var))
            views = _flat_views([*(s.view for s in seen), target])
        if views is None:
            return _No("attention whose batch dims are not proven to agree")
        batch, places = views
        numbers = iter(range(len(scores.others), len(seen) - 3))
        scales: list[tuple[int, ...]] = [() if s is None else (next(numbers),) for s in scaled]
        read = self._by_tables(
            _Read([s.source for s in seen], list(places), [(), ()], scales), (*batch, *spans[1:])
        )
        attrs = {
            "batch": batch,
            "sizes": spans,
            "views": tuple(read.places),
            "steps": tuple(scores.steps),
            "dims": _known(last),
            "nan_to_zero": safe,
            "hidden": hidden,
            "tables": tuple(read.tables),
            "scales": tuple(read.scales),
        }
        return Binding(last, Call(OPS["attention"], tuple(read.sources), attrs))

    def _by_tables(self, read: "_Read", sizes: Dims) -> "_Read":
        """Keys, values and scales that are gathered rows are read where they were gathered from.

        `sizes` are of the batch, and of keys and both widths.
        """
        *outer, keys, width, depth = sizes
        for n, columns in ((1, width), (2, depth)):
            table = self._by_table(read, n, (*outer, keys, columns), -2)
            read.tables[n - 1] = table or ()
            if scale := read.scales[n - 1]:
                table = self._by_table(read, scale[0] + 3, (*outer, as_expr(1), keys), -1)
                read.scales[n - 1] = (*scale, *(table or ()))
        return read

    def _by_table(self, read: "_Read", n: int, sizes: Dims, along: int) -> tuple[int, int] | None:
        """Have an operand read by rows, whose table has one for each key, if it is gathered.

        Keys are the axis `along` of its sizes.
        """
        found = self._rows_of(read.sources[n])
        parts = None if found is None else _row_and_place(read.places[n], sizes, found.size)
        if found is None or parts is None:
            return None
        numbers, inner = parts
        view = (*numbers[:-2], as_expr(0), numbers[along])  # of no query, of no column
        read.sources[n], read.places[n] = found.data, inner
        known = [k for k, s in enumerate(read.sources[3:]) if s is found.numbers]
        same = [k for k in known if read.places[3 + k] == view]
        if not same:
            read.sources.append(found.numbers)
            read.places.insert(-1, view)
        return same[0] if same else len(read.sources) - 4, found.size

    def _rows_of(self, value: Value) -> "_Rows | None":
        """The rows that a gather along the first axis reads; there must be some."""
        call = self.calls.get(value)
        if call is None or call.op.name != "gather":
            return None
        data, numbers = call.args
        given = None if data is None else dims_of(data)
        if data is None or numbers is None or not given or call.attrs["axis"] % len(given):
            return None
        size = product(given[1:]).as_int()
        if not size or not proves_le(1, given[0]) or not isinstance(numbers, Var):
            return None
        return _Rows(data, numbers, size)

    def _spans(self, var: Var, scores: _Scores, v: Value, turned: bool) -> Dims | _No:
        """Queries, keys, width of a key and of a value; the widths must be known."""
        *_, queries, keys = _known(scores.product)
        left, right, result = scores.call.args[0], dims_of(v), dims_of(var)
        given = None if left is None else dims_of(left)
        if given is None or right is None or result is None or min(len(given), len(right)) < 2:
            return _No("attention over vectors")
        width = given[-2 if scores.call.attrs["transpose_a"] else -1]
        depth = right[-2 if turned else -1]
        along = right[-1 if turned else -2]
        if not equal_dims((*result[-2:], along), (queries, depth, keys)):
            return _No("attention whose keys and values are not proven to be as many")
        for size in (width, depth):
            known = size.as_int()
            if known is None or not 0 < known <= MAX_WIDTH:
                return _No(f"attention of heads not known to be at most {MAX_WIDTH} wide")
        return queries, keys, width, depth

    # the scores

    def _scores(self, call: Call, weights: Value) -> _Scores | _No:
        softmax = self.calls[weights]
        source, dims = softmax.args[0], dims_of(weights)
        if dims is None or source is None or len(dims) < 2:
            return _No("softmax of unknown dims")
        if softmax.attrs["axis"] % len(dims) != len(dims) - 1:
            return _No("softmax over another axis than the keys")
        probabilities = call.args[0]
        assert probabilities is not None
        reused = self._reused(probabilities, weights)
        if reused or not (self.uses.only(weights) or self._tested(weights)):
            return _No("probabilities that something else uses")
        last = _known(probabilities)[-2:] if dims_of(probabilities) is not None else ()
        if not equal_dims(last, dims[-2:]):
            return _No("probabilities reshaped across queries or keys")
        found = self._chain(source)
        return found or _No("softmax of something else than scores used once")

    def _tested(self, weights: Value) -> bool:
        """Whether all who use the softmax belong to where(isnan(x), 0, x)."""
        users = [u for u in self.uses.of(weights) if u is not None]
        names = sorted(u.value.op.name for u in users if isinstance(u.value, Call))
        return len(users) == len(self.uses.of(weights)) and names == ["isnan", "where"]

    def _reused(self, value: Value, origin: Value) -> bool:
        """Whether something on the way from the softmax to the product has other users."""
        while value is not origin:
            if self.uses.only(value) is None:
                return True
            call = self.calls[value]
            source = call.args[2] if call.op.name == "where" else call.args[0]
            assert source is not None
            value = source
        return False

    def _chain(self, value: Value) -> _Scores | None:
        """From the softmax's operand back to a product, all of it used once."""
        call, dims = self.calls.get(value), dims_of(value)
        if call is None or dims is None or self.uses.only(value) is None:
            return None
        if _dtype(value) not in DTYPES:
            return None
        name = call.op.name
        if name == "matmul" and isinstance(value, Var):
            return _Scores(value, call)
        if name in ("cast", "reshape", *UNARY):
            return self._through(value, call)
        if name == "where":
            return self._choice(call, dims)
        sides = (0, 1) if name in EITHER_SIDE else (0,) if name in LEFT_SIDE else ()
        for side in sides:
            found = self._arithmetic(call, dims, side)
            if found is not None:
                return found
        return None

    def _through(self, value: Value, call: Call) -> _Scores | None:
        (source,) = call.args
        assert source is not None
        found, given = self._chain(source), dims_of(source)
        if found is None or given is None or len(given) < 2:
            return None
        if not equal_dims(given[-2:], _known(value)[-2:]):
            return None
        if call.op.name in UNARY:
            found.steps.append((call.op.name, -1, 0.0))
        return found

    def _arithmetic(self, call: Call, dims: Dims, side: int) -> _Scores | None:
        """A binary function of the chain and of a number or something that broadcasts to it."""
        source, other = call.args[side], call.args[1 - side]
        if source is None or other is None or not self._keeps(source, dims):
            return None
        found = self._chain(source)
        if found is None:
            return None
        number = _number(other)
        if number is not None:
            found.steps.append((call.op.name, -1, number))
            return found
        return self._with_operand(found, call.op.name, other, dims, 0.0)

    def _choice(self, call: Call, dims: Dims) -> _Scores | None:
        """where(condition, chain, number), or the other way round."""
        condition = call.args[0]
        for side, name in ((1, "where"), (2, "unless")):
            source, number = call.args[side], _number(call.args[3 - side])
            if source is None or condition is None or number is None:
                continue
            found = self._chain(source) if self._keeps(source, dims) else None
            if found is not None and _dtype(condition) == BOOL:
                return self._with_operand(found, name, condition, dims, number)
        return None

    def _keeps(self, source: Value, dims: Dims) -> bool:
        """Whether the other operands do not make a value larger."""
        given = dims_of(source)
        return given is not None and equal_dims(given, dims)

    def _with_operand(
        self, found: _Scores, name: str, other: Value, dims: Dims, number: float
    ) -> _Scores | None:
        seen, given = self._seen(other), dims_of(other)
        view = None if seen is None or given is None else broadcast(seen.view, given, dims)
        if seen is None or view is None:
            return None
        found.steps.append((name, len(found.others), number))
        found.others.append(_Seen(seen.source, view))
        return found

    # views

    def _seen(self, value: Value, *, stored: bool = False) -> _Seen | None:
        """The farthest value of which this one is a view; with `stored` through dequantisation."""
        dims, call = dims_of(value), self.calls.get(value)
        if dims is None:
            return None
        found = None
        if call is not None and call.op.name in MOVES:
            (source,) = (a for a in call.args if a is not None)
            inner = self._seen(source, stored=stored)
            found = inner and inner.through(lambda view: moved(view, call, dims))
        elif call is not None and stored and _dtype(value) == F32:
            found = self._dequantised(call, dims)
        return found or _Seen(value, whole(dims))

    def _dequantised(self, call: Call, dims: Dims) -> _Seen | None:
        """What a cast from a smaller type reads, or such a cast times something."""
        source = call.args[0]
        if call.op.name == "cast" and source is not None and _dtype(source) in STORED:
            return self._seen(source, stored=True)
        if call.op.name != "mul":
            return None
        for source, other in (call.args, call.args[::-1]):
            if source is None or other is None or not self._keeps(source, dims):
                continue
            codes, factor, given = (
                self._seen(source, stored=True),
                self._seen(other),
                dims_of(other),
            )
            if codes is None or factor is None or given is None or codes.scale is not None:
                continue
            view = broadcast(factor.view, given, dims)
            if _dtype(codes.source) in STORED and view is not None:
                return replace(codes, scale=replace(factor, view=view))
        return None

    def _stored(self, value: Value, result: Var, swapped: bool) -> _Seen | None:
        """Keys or values as `_operand`, before they were dequantised by a number for each."""
        found = self._operand(value, result, swapped, stored=True)
        scale = None if found is None else found.scale
        if scale is None or all(stride.as_int() == 0 for _, stride in scale.view.dims[-1]):
            return found
        return self._operand(value, result, swapped)

    def _operand(
        self, value: Value, result: Var, swapped: bool, *, stored: bool = False
    ) -> _Seen | None:
        """An operand as [batch…, row, column], its batch dims broadcast to the product's."""
        seen, given = self._nearest(value, stored), dims_of(value)
        if seen is None or given is None:
            return None
        order = list(range(len(given)))
        if swapped:
            order[-2:] = order[:-3:-1]
        outer, batch = tuple(given[k] for k in order[:-2]), _known(result)[:-2]

        def arranged(view: View) -> View | None:
            view = view.permuted(order)
            wide = broadcast(replace(view, dims=view.dims[:-2]), outer, batch)
            return wide and replace(wide, dims=(*wide.dims, *view.dims[-2:]))

        return seen.through(arranged)

    def _nearest(self, value: Value, stored: bool) -> _Seen | None:
        """As `_seen`, but with one stride along rows and columns."""
        seen, dims = self._seen(value, stored=stored), dims_of(value)
        if seen is None or dims is None:
            return None
        views = [s.view for s in (seen, seen.scale) if s is not None]
        if any(len(parts) > 1 for view in views for parts in view.dims[-2:]):
            return _Seen(value, whole(dims))
        return seen

    def _destination(self, var: Var) -> tuple[Var, View]:
        """The last of the transposes and reshapes that only move the result, and where it lies."""
        path = [var]
        calls: list[Call] = []
        while (user := self.uses.only(path[-1])) is not None:
            if not isinstance(user.value, Call) or user.value.op.name not in MOVES:
                break
            if dims_of(user.var) is None:
                break
            path.append(user.var)
            calls.append(user.value)
        for count in range(len(calls), 0, -1):
            view: View | None = whole(_known(path[count]))
            for call in reversed(calls[:count]):
                view = None if view is None else unmoved(view, call)
            if view is not None and all(len(parts) <= 1 for parts in view.dims[-2:]):
                return path[count], view
        return var, whole(_known(var))


def _known(value: Value) -> Dims:
    dims = dims_of(value)
    assert dims is not None
    return dims


def _dtype(value: Value) -> DType | None:
    return value.annotation.dtype if isinstance(value.annotation, Tensor) else None


def _number(value: Value | None) -> float | None:
    """The one number that a constant holds everywhere, if it is of rank 0 or has dims of 1 only."""
    if not isinstance(value, Constant) or value.data.size == 0 or value.data.dtype.kind not in "fV":
        return None
    data = np.asarray(value.data, np.float64)
    first = float(data.reshape(-1)[0])
    return first if np.all(data == first) else None


def _flat_views(views: Sequence[View]) -> tuple[Dims, tuple[Dims, ...]] | None:
    """Batch axes, and for each view its offset and strides over them, rows and columns."""
    found = common_axes([_outer(view) for view in views])
    if found is None:
        return None
    batch, strides = found
    places = tuple(
        (view.offset, *outer, *(_stride(parts) for parts in view.dims[-2:]))
        for view, outer in zip(views, strides, strict=True)
    )
    return batch, places


@dataclass(slots=True)
class _Read:
    """The operands of attention, their places (and the result's); tables, scales of k and v."""

    sources: list[Value]
    places: list[Dims]
    tables: list[tuple[int, int] | tuple[()]]
    scales: list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a value, `size` elements each, by numbers."""

    data: Value
    numbers: Value
    size: int


def _row_and_place(place: Dims, sizes: Dims, size: int) -> tuple[Dims, Dims] | None:
    """A place in rows that stand one after the other, as the row's and that in the row.

    Both are an offset and strides over axes of these sizes. None where rows are not whole.
    """
    offset, *strides = place
    rows: list[Expr] = []
    inner: list[Expr] = []
    reach = offset
    for extent, stride in zip(sizes, strides, strict=True):
        row = exact(stride, as_expr(size))
        rows.append(row if row is not None else as_expr(0))
        inner.append(as_expr(0) if row is not None else stride)
        reach = reach + inner[-1] * (extent - 1)
    if not proves_lt(reach, size) or not proves_le(0, offset):
        return None
    return (as_expr(0), *rows), (offset, *inner)


def _by_key(scale: _Seen) -> _Seen:
    """What keys are multiplied by, [batch…, key, column], as [batch…, query, key]."""
    *outer, keys, _ = scale.view.dims
    return replace(scale, view=replace(scale.view, dims=(*outer, (), keys)))


def _outer(view: View) -> Parts:
    return tuple(part for parts in view.dims[:-2] for part in parts)


def _stride(parts: Parts) -> Expr:
    assert len(parts) <= 1
    return parts[0][1] if parts else as_expr(0)
