"""The meaning of loop functions in numpy: the oracle of every lowering, fusion and schedule.

A stage is evaluated over all its points at once, axes as broadcast index arrays. What differs from
a device: floats are summed in f64 and rounded once to the body's dtype, 16-bit and 8-bit floats are
computed in f32 and rounded where cast or stored. Integers wrap in the body's dtype, as everywhere.

Faults are found, not hidden: loads and stores out of range (except in the branch of a Select that
is not taken), two points that store to one place, reading what nothing has written (temps and
outputs start as NaN or as the dtype's least value).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.concrete import bind_dims, concrete, evaluate_index
from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.dtypes import F64, I64, DType
from edgerelax.ir.kernel_interp import apply, compute_type, convert
from edgerelax.ir.loop import LoopFunc, Stage, Template, outputs_of
from edgerelax.ir.scalar import (
    Acc,
    Cast,
    Const,
    Load,
    Op,
    Scalar,
    Select,
    Value,
    gathers,
    own_exprs,
    walk,
)
from edgerelax.ir.templates import run_template
from edgerelax.sym import Axis, Expr, Opaque, Symbol

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Lanes = tuple[Array, Mask | None]
"""Values, and where they are not fit to use because a load was out of range (None: nowhere)."""

_MAX_POINTS = 1 << 22  # points at a time
_MAX_FACTOR = 1 << 25  # elements of a factor of a contraction


def run_loop(
    func: LoopFunc, arrays: Sequence[Array], symbols: Mapping[str, int] | None = None
) -> list[Array]:
    """Run a loop function. Symbols that are not given are found from the shapes of the inputs."""
    if len(arrays) != len(func.inputs):
        raise VerifyError(f"{func.name}: {len(arrays)} arrays for {len(func.inputs)} inputs")
    given = dict(symbols or {})
    known = {s: given[s.name] for s in func.symbols() if s.name in given}
    shapes = [(b.name, b.dims, np.shape(a)) for b, a in zip(func.inputs, arrays, strict=True)]
    env = bind_dims(func.name, shapes, known)
    missing = [s.name for s in func.symbols() if s not in env]
    if missing:
        raise VerifyError(f"{func.name}: no value for {', '.join(missing)}")
    memory: dict[str, Array] = {}
    for buffer, array in zip(func.inputs, arrays, strict=True):
        if np.asarray(array).dtype != buffer.dtype.numpy:
            raise VerifyError(f"{func.name}: {buffer.name} is {buffer.dtype}, got {array.dtype}")
        memory[buffer.name] = np.asarray(array)
    for buffer in (*func.outputs, *func.temps):
        memory[buffer.name] = _unwritten(concrete(buffer.dims, env), buffer.dtype)
    with np.errstate(all="ignore"):
        for number, stage in enumerate(func.stages):
            if isinstance(stage, Template):
                _run_template(stage, memory, env)
            else:
                _StageRun(f"{func.name}, stage {number}", stage, memory, env).run()
    return [memory[b.name] for b in func.outputs]


def _unwritten(shape: tuple[int, ...], dtype: DType) -> Array:
    if dtype.kind == "string":
        return np.full(shape, None, dtype.numpy)
    return np.full(shape, math.nan if dtype.is_float else dtype.int_range[0], dtype.numpy)


def _run_template(stage: Template, memory: dict[str, Array], env: Mapping[Symbol, int]) -> None:
    arrays = [memory[b.name] for b in stage.inputs]
    results = run_template(stage.kind, arrays, concrete(stage.params, env))
    for buffer, result in zip(outputs_of(stage), results, strict=True):
        target = memory[buffer.name]
        if result.shape != target.shape or result.dtype != target.dtype:
            raise VerifyError(
                f"template {stage.kind} gives {result.dtype}{list(result.shape)} for {buffer}, "
                f"which is {target.dtype}{list(target.shape)}"
            )
        target[...] = result


@dataclass(frozen=True, slots=True)
class _Reduced:
    """What `Acc` speaks of: the components of the reduced value, over the spatial axes."""

    components: tuple[Array, ...]


class _StageRun:
    """One stage on concrete memory."""

    def __init__(
        self, where: str, stage: Stage, memory: dict[str, Array], env: Mapping[Symbol, int]
    ) -> None:
        self.where, self.stage, self.memory, self.env = where, stage, memory, env
        self.extents: dict[Axis, int] = {
            a: concrete(a.extent, env) for a in (*stage.axes, *stage.reduce)
        }
        target = memory[stage.out.name]
        self.stored = np.zeros(target.shape, np.bool_)
        self.points = 0

    def run(self) -> None:
        for block in self._blocks():
            self._run_block(block)
        if int(self.stored.sum()) != self.points:
            raise VerifyError(f"{self.where}: two points store to one place of {self.stage.out}")

    def _run_block(self, block: Mapping[Axis, range]) -> None:
        stage = self.stage
        spatial = tuple(block[a] for a in stage.axes)
        points = _Evaluator(self, stage.axes, block)
        masked_store = stage.where is not None and not (axes_in(stage.where) & set(stage.reduce))
        if stage.combiner is None:
            value = points.scalar(stage.body)
        else:
            steps = _Evaluator(self, (*stage.axes, *stage.reduce), block)
            mask = None
            if stage.where is not None and not masked_store:
                mask = steps.settled(stage.where)
            points.reduced = self._reduce(steps, points, mask, tuple(map(len, spatial)))
            value = points.scalar(stage.result)
        mask = points.settled(stage.where) if masked_store and stage.where is not None else None
        self._store(points, value, mask, tuple(map(len, spatial)))

    def _store(
        self, points: "_Evaluator", value: Lanes, mask: Mask | None, shape: tuple[int, ...]
    ) -> None:
        stage, target = self.stage, self.memory[self.stage.out.name]
        values, bad = value
        if len(stage.store_index) != target.ndim:
            raise VerifyError(f"{self.where}: {len(stage.store_index)} indices into {stage.out}")
        index = [points.settled_index(e) for e in stage.store_index]
        keep = np.broadcast_to(True if mask is None else mask, shape)
        at: list[Array] = []
        for k, (i, dim) in enumerate(zip(index, target.shape, strict=True)):
            kept = np.broadcast_to(i, shape)[keep]
            if kept.size and (kept.min() < 0 or kept.max() >= dim):
                raise VerifyError(
                    f"{self.where}: stores at {stage.store_index[k]} in "
                    f"{int(kept.min())}…{int(kept.max())}, dim {k} of {stage.out} is {dim}"
                )
            at.append(kept)
        if bad is not None and (np.broadcast_to(bad, shape) & keep).any():
            raise VerifyError(f"{self.where}: {points.fault}")
        stored = convert(values, stage.result.dtype, stage.out.dtype)
        if at or keep.all():
            target[tuple(at)] = np.broadcast_to(stored, shape)[keep] if at else stored
            self.stored[tuple(at)] = True
        self.points += int(keep.sum())

    def _reduce(
        self, steps: "_Evaluator", points: "_Evaluator", mask: Mask | None, spatial: tuple[int, ...]
    ) -> _Reduced:
        stage, dtype = self.stage, self.stage.body.dtype
        whole = (*spatial, *(self.extents[a] for a in stage.reduce))
        axes = tuple(range(len(spatial), len(whole)))
        factors = factors_of(stage)
        if factors is not None:
            total = steps.contraction(factors, len(spatial), whole)
            if total is not None:
                return _Reduced((self._started(points, total, dtype),))
        values = np.broadcast_to(steps.settled(stage.body, mask), whole)
        included = np.broadcast_to(True if mask is None else mask, whole)
        combiner = str(stage.combiner)
        if combiner.startswith("arg"):
            return _Reduced(_arg_reduce(combiner, values, included, len(spatial), dtype))
        if combiner == "welford":
            return _Reduced(_welford(values, included, axes))
        held = _identity(combiner, dtype)
        if mask is not None:
            values = np.where(included, values, held)
        return _Reduced((self._started(points, _fold(combiner, values, axes, dtype), dtype),))

    def _started(self, points: "_Evaluator", total: Array, dtype: DType) -> Array:
        """The reduction with `init` counted in, in the body's dtype."""
        stage = self.stage
        if stage.init is not None:
            first = np.asarray(points.settled(stage.init))
            if dtype.is_float:
                first = first.astype(np.float64)
            total = np.asarray(_FOLDS[str(stage.combiner)](total, first))
        return convert(total, F64, dtype) if dtype.is_float else total.astype(compute_type(dtype))

    def _blocks(self) -> Iterator[dict[Axis, range]]:
        """Boxes of points small enough to hold, cut along the spatial axes, outermost first."""
        stage = self.stage
        factors = factors_of(stage)
        if factors is None:
            used, limit = [set(self.extents)], _MAX_POINTS
        else:
            used, limit = [axes_in(f) for f in factors], _MAX_FACTOR
            used.append(set(stage.axes))
        sizes = dict(self.extents)
        for axis in stage.axes:
            while sizes[axis] > 1 and any(
                axis in u and math.prod(sizes[a] for a in u) > limit for u in used
            ):
                sizes[axis] = -(-sizes[axis] // 2)
        whole = {a: range(self.extents[a]) for a in stage.reduce}
        cuts = [
            [range(at, min(at + sizes[a], n)) for at in range(0, n, max(1, sizes[a]))]
            for a in stage.axes
            for n in (self.extents[a],)
        ]
        for box in product(*cuts):
            yield {**whole, **dict(zip(stage.axes, box, strict=True))}


class _Evaluator:
    """Scalars over a box of points. Results have one array axis per loop axis, 1 where constant."""

    def __init__(self, run: _StageRun, axes: tuple[Axis, ...], box: Mapping[Axis, range]) -> None:
        self.run = run
        self.rank = len(axes)
        self.env: dict[Any, Any] = dict(run.env)
        for k, axis in enumerate(axes):
            span = np.arange(box[axis].start, box[axis].stop, dtype=np.int64)
            self.env[axis] = span.reshape([-1 if j == k else 1 for j in range(len(axes))])
        self.memo: dict[Scalar, Lanes] = {}
        self.reduced: _Reduced | None = None
        self.fault = ""

    def settled(self, root: Scalar, mask: Mask | None = None) -> Array:
        """The values, all fit to use (where `mask` says so)."""
        values, bad = self.scalar(root)
        if bad is not None and (bad if mask is None else bad & mask).any():
            raise VerifyError(f"{self.run.where}: {self.fault}")
        return values

    def settled_index(self, expr: Expr) -> Array:
        """An index expression whose gathers are all in range."""
        values, bad = self.index(expr)
        if bad is not None and bad.any():
            raise VerifyError(f"{self.run.where}: {self.fault}")
        return values

    def scalar(self, root: Scalar) -> Lanes:
        for node in walk(root):
            if node not in self.memo:
                self.memo[node] = self._node(node)
        return self.memo[root]

    def _node(self, node: Scalar) -> Lanes:
        args = [self.memo[a] for a in node.args]
        bad = _either([b for _, b in args])
        match node:
            case Const():
                return _held(node), None
            case Value():
                values, bad = self.index(node.expr)
                return convert(values, I64, node.type), bad
            case Load():
                return self._load(node)
            case Op():
                return apply(node.fn, node.operands[0].dtype, [v for v, _ in args]), bad
            case Cast():
                return convert(args[0][0], node.arg.dtype, node.type), bad
            case Select():
                return _choose(*args)
            case Acc():
                if self.reduced is None:
                    raise VerifyError(f"{self.run.where}: {node} where nothing is reduced")
                return convert(self.reduced.components[node.component], *self._acc(node)), None
        raise TypeError(f"{type(node).__name__} has no meaning here")

    def _acc(self, node: Acc) -> tuple[DType, DType]:
        is_index = str(self.run.stage.combiner).startswith("arg") and node.component == 1
        return (I64 if is_index else self.run.stage.body.dtype), node.type

    def _load(self, node: Load) -> Lanes:
        array = self.run.memory.get(node.buffer.name)
        if array is None:
            raise VerifyError(f"{self.run.where}: {node.buffer} is not written yet")
        if array.ndim != len(node.index):
            raise VerifyError(f"{self.run.where}: {node} into {array.ndim} dims")
        bads: list[Mask | None] = []
        at: list[Array] = []
        for k, (expr, dim) in enumerate(zip(node.index, array.shape, strict=True)):
            index, bad = self.index(expr)
            outside = np.asarray((index < 0) | (index >= dim))
            if outside.any():
                self.fault = (
                    f"loads {node} at {int(index.min())}…{int(index.max())}, "
                    f"dim {k} of {node.buffer} is {dim}"
                )
                index = np.clip(index, 0, max(0, dim - 1))
                bads.append(outside)
            bads.append(bad)
            at.append(index)
        if array.size == 0:
            shape = np.broadcast_shapes(*(i.shape for i in at))
            return np.zeros(shape, compute_type(node.dtype)), np.ones(shape, np.bool_)
        loaded = np.asarray(array[tuple(at)])
        return loaded.astype(compute_type(node.dtype), copy=False), _either(bads)

    def index(self, expr: Expr) -> Lanes:
        """An index expression, and where a load inside it was out of range."""
        bads: list[Mask | None] = []
        env = self.env
        for atom in expr.atoms():
            if isinstance(atom, Opaque) and atom not in env:
                values, bad = self.scalar(atom.payload)
                env[atom] = values.astype(np.int64)
                env[(atom, "bad")] = bad
            if isinstance(atom, Opaque):
                bads.append(env[(atom, "bad")])
        return evaluate_index(expr, env), _either(bads)

    def contraction(
        self, factors: Sequence[Scalar], spatial: int, whole: tuple[int, ...]
    ) -> Array | None:
        """The sum of a product as an einsum in f64; None if some factor loads out of range."""
        operands: list[Any] = []
        covered: set[int] = set()
        for factor in factors:
            values, bad = self.scalar(factor)
            if bad is not None and bad.any():
                return None
            full = values.reshape((1,) * (len(whole) - values.ndim) + values.shape)
            labels = [k for k, n in enumerate(full.shape) if n != 1]
            covered.update(labels)
            operands += [full.reshape([full.shape[k] for k in labels]).astype(np.float64), labels]
        kept = [k for k in range(spatial) if k in covered]
        total = np.asarray(np.einsum(*operands, kept, optimize=True))
        repeats = math.prod(whole[k] for k in range(spatial, len(whole)) if k not in covered)
        shape = [whole[k] if k in covered else 1 for k in range(spatial)]
        return (total * repeats if repeats != 1 else total).reshape(shape)


def axes_in(root: Scalar) -> set[Axis]:
    """The axes a scalar varies over, those inside gathers included."""
    found: set[Axis] = set()
    todo = [root]
    while todo:
        for node in walk(todo.pop()):
            for expr in own_exprs(node):
                found |= expr.axes()
                todo.extend(gathers(expr))
    return found


def factors_of(stage: Stage) -> tuple[Scalar, ...] | None:
    """The factors of a float contraction, a sum of a product; None for any other stage."""
    body = stage.body
    masked = stage.where is not None and bool(axes_in(stage.where) & set(stage.reduce))
    if stage.combiner != "sum" or masked or not body.dtype.is_float:
        return None
    if not (isinstance(body, Op) and body.fn == "mul"):
        return None
    factors: list[Scalar] = []
    todo: list[Scalar] = [body]
    while todo:
        node = todo.pop()
        if isinstance(node, Op) and node.fn == "mul":
            todo.extend(reversed(node.operands))
        else:
            factors.append(node)
    return tuple(factors)


def _held(node: Const) -> Array:
    """A literal as it is held, rounded to its dtype."""
    if node.type.is_float:
        return convert(np.asarray(node.value, np.float64), F64, node.type)
    return np.asarray(node.value).astype(compute_type(node.type))


def _either(masks: Sequence[Mask | None]) -> Mask | None:
    found = [m for m in masks if m is not None]
    if not found:
        return None
    total = found[0]
    for mask in found[1:]:
        total = total | mask
    return total


def _choose(cond: Lanes, then: Lanes, other: Lanes) -> Lanes:
    """A lazy choice: only the faults of the branch taken count."""
    values = np.where(cond[0], then[0], other[0])
    if cond[1] is None and then[1] is None and other[1] is None:
        return values, None
    nowhere = np.zeros((1,) * np.ndim(cond[0]), np.bool_)
    arms = [nowhere if b is None else b for b in (then[1], other[1])]
    return values, _either([cond[1], np.asarray(np.where(cond[0], *arms))])


_FOLDS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def _identity(combiner: str, dtype: DType) -> Any:
    """What a reduction of nothing gives."""
    lowest, highest = (-math.inf, math.inf) if dtype.is_float else dtype.int_range
    values = {"sum": 0, "prod": 1, "max": lowest, "min": highest, "any": False, "all": True}
    if combiner not in values:
        raise VerifyError(f"combiner {combiner} has no meaning on {dtype}")
    return np.asarray(values[combiner], compute_type(dtype))


def _fold(combiner: str, values: Array, axes: tuple[int, ...], dtype: DType) -> Array:
    """Reduce over array axes: floats in f64, integers in their dtype, wrapping."""
    ufunc = _FOLDS[combiner]
    compute = np.float64 if dtype.is_float else compute_type(dtype)
    if dtype.kind == "bool" and combiner in ("sum", "prod"):
        raise VerifyError(f"combiner {combiner} has no meaning on {dtype}")
    held = values.astype(compute, copy=False)
    return np.asarray(ufunc.reduce(held, axis=axes, initial=_identity(combiner, dtype)))


def _arg_reduce(
    combiner: str, values: Array, included: Mask, spatial: int, dtype: DType
) -> tuple[Array, Array]:
    """The extreme value and where it stands first (or last) among the included steps; NaN wins."""
    shape = values.shape[:spatial]
    flat = np.ascontiguousarray(values).reshape(*shape, -1)
    mask = np.ascontiguousarray(included).reshape(*shape, -1)
    kind = "max" if "max" in combiner else "min"
    empty = _identity(kind, dtype)
    best = _FOLDS[kind].reduce(np.where(mask, flat, empty), axis=-1, initial=empty)
    equal = (flat == best[..., None]) | ((flat != flat) & (best != best)[..., None])
    hits = equal & mask
    if flat.shape[-1] == 0:
        return best, np.zeros(shape, np.int64)
    if combiner.endswith("_last"):
        at = flat.shape[-1] - 1 - np.argmax(hits[..., ::-1], axis=-1)
        at = np.where(hits.any(axis=-1), at, 0)
    else:
        at = np.argmax(hits, axis=-1)
    return best, at.astype(np.int64)


def _welford(values: Array, included: Mask, axes: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Mean, sum of squared differences and count, in f64; all 0 for nothing."""
    wide = values.astype(np.float64)
    count = included.sum(axis=axes, keepdims=True)
    total = np.where(included, wide, 0).sum(axis=axes, keepdims=True)
    mean = total / np.maximum(count, 1)
    squares = np.where(included, (wide - mean) ** 2, 0).sum(axis=axes)
    return mean.reshape(squares.shape), squares, count.reshape(squares.shape).astype(np.float64)
