"""Grids over the points of a stage, for the strategies that give each point to one thread.

GPU: 64 threads a group; a thread owns four consecutive outputs: one vector where the innermost
extent allows it, else four scalars, or one scalar if a point is expensive. CPU: an iteration is
(a chunk of) one innermost row, in steps of four lanes with a scalar tail.
"""

from dataclasses import dataclass

from edgerelax.ir.dtypes import DType
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    Kernel,
    KExpr,
    KLoad,
    KStore,
    KVec,
    i32,
    kop,
)
from edgerelax.ir.loop import Stage
from edgerelax.schedule.index import flat_index, is_one, numel, stride_of
from edgerelax.schedule.points import (
    can_be_vector,
    compute_point,
    count,
    decompose,
    linear,
    store_flat,
    write_point,
)
from edgerelax.schedule.reduce import convert
from edgerelax.schedule.scalars import Scalars
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Writer
from edgerelax.sym import as_expr, ceildiv, divisible, prove_eq, proves_le

GROUP = 64
_CHUNK = 4096  # innermost elements of a map that one CPU iteration computes
_REDUCE_CHUNK = 64


@dataclass(frozen=True, slots=True)
class Points:
    """A stage with merged axes, ready to be laid over a grid."""

    name: str
    stage: Stage
    weights: frozenset[str]

    @property
    def inner_is_vector(self) -> bool:
        """Whether four neighbours along the innermost axis are stored next to each other."""
        if not self.stage.axes:
            return False
        s = Scalars(Writer(_ANY))
        return can_be_vector(self.stage, s, self.stage.axes[-1])

    @property
    def reads_neighbours(self) -> bool:
        """Whether whatever varies along the innermost axis is read from next to each other."""
        inner = self.stage.axes[-1]
        return all(
            is_one(stride_of(flat_index(load.buffer, load.index), inner))
            for load in self.stage.loads()
            if inner in load.axes()
        )

    @property
    def is_dense(self) -> bool:
        """Whether point number p is stored at p, every place exactly once."""
        stage = self.stage
        return (
            prove_eq(store_flat(stage), linear(stage.axes)) is True
            and prove_eq(count(stage.axes), numel(stage.out)) is True
            and (stage.where is None or bool(stage.where.axes() & set(stage.reduce)))
        )


_ANY = Target("any", "cpu", "wasm", 0, 1, 0, 1.0, 1.0, 1.0, 1)


def is_sub_word(dtype: DType) -> bool:
    """Whether several of them share a word, which on the GPU one invocation must own."""
    return dtype.bits < 32


def writes_vectors(p: Points) -> bool:
    """Whether a GPU thread can own one aligned vector of outputs."""
    if not p.inner_is_vector or divisible(p.stage.axes[-1].extent, 4) is not True:
        return False
    w = Writer(_ANY)
    s = Scalars(w)
    for axis in p.stage.axes:
        w.bind(axis, i32(0))
    w.bind_vector(p.stage.axes[-1], i32(0))
    return s.index.is_aligned(store_flat(p.stage))


def _thread() -> KExpr:
    return kop("add", kop("mul", WORKGROUP, i32(GROUP)), LOCAL)


def gpu_vector(p: Points, target: Target, comment: str) -> Kernel:
    """A thread per four neighbours along the innermost axis."""
    w, stage = Writer(target, p.weights), p.stage
    s = Scalars(w)
    *outer, inner = stage.axes
    quads = count(outer) * (inner.extent // 4)
    thread = w.let("t", _thread())
    with w.when(kop("lt", thread, w.params.scalar(quads))):
        extents = [a.extent for a in outer] + [inner.extent // 4]
        *coordinates, quad = decompose(w, thread, extents)
        for axis, value in zip(outer, coordinates, strict=True):
            w.bind(axis, value)
        w.bind_vector(inner, w.let("v", kop("mul", quad, i32(4))))
        write_point(w, s, stage, vector=True)
    return w.kernel(p.name, ceildiv(quads, GROUP), GROUP, comment)


def gpu_scalar(p: Points, target: Target, comment: str, *, each: int) -> Kernel:
    """A thread per `each` consecutive points."""
    w, stage = Writer(target, p.weights), p.stage
    s = Scalars(w)
    total = count(stage.axes)
    thread = w.let("t", _thread())

    def one(number: KExpr) -> None:
        with w.when(kop("lt", number, w.params.scalar(total))):
            bind_point(w, stage, number)
            write_point(w, s, stage, vector=False)

    if each == 1:
        one(thread)
    else:
        first = w.let("p", kop("mul", thread, i32(each)))
        with w.loop("e", i32(0), i32(each)) as e:
            one(w.let("p", kop("add", first, e)))
    return w.kernel(p.name, ceildiv(total, GROUP * each), GROUP, comment)


def bind_point(w: Writer, stage: Stage, number: KExpr) -> None:
    """Bind the spatial axes to the coordinates of a point's number."""
    coordinates = decompose(w, number, [a.extent for a in stage.axes])
    for axis, value in zip(stage.axes, coordinates, strict=True):
        w.bind(axis, value)


def gpu_words(p: Points, target: Target, comment: str) -> Kernel:
    """A thread per four consecutive outputs of a sub-word type, stored as whole words.

    Outputs past the end are stored as zeros into the rounding of the buffer to whole words.
    """
    w, stage = Writer(target, p.weights), p.stage
    s = Scalars(w)
    total = count(stage.axes)
    size = w.params.scalar(total)
    first = w.let("p", kop("mul", _thread(), i32(4)))
    four = w.array("y", stage.out.dtype, 4, shared=False)
    with w.loop("e", i32(0), i32(4)) as e:
        number = w.let("p", kop("add", first, e))
        with w.when(kop("lt", number, size)):
            bind_point(w, stage, number)
            value = convert(compute_point(w, s, stage), stage.out.dtype)
            w.emit(KStore(four, e, value))
    lanes = 4 if stage.out.dtype.bits <= 8 else 2
    for start in range(0, 4, lanes):
        at = w.let("w", kop("add", first, i32(start)))
        with w.when(kop("lt", at, size)):
            parts = tuple(KLoad(stage.out.dtype, 1, four, i32(start + k)) for k in range(lanes))
            w.store(stage.out, at, KVec(stage.out.dtype, lanes, parts))
    return w.kernel(p.name, ceildiv(total, GROUP * 4), GROUP, comment)


def cpu_rows(p: Points, target: Target, comment: str) -> Kernel:
    """An iteration per chunk of an innermost row."""
    w, stage = Writer(target, p.weights), p.stage
    s = Scalars(w)
    if not stage.axes:
        write_point(w, s, stage, vector=False)
        return w.kernel(p.name, as_expr(1), 1, comment)
    *outer, inner = stage.axes
    chunk = _CHUNK if stage.combiner is None else _REDUCE_CHUNK
    whole = proves_le(inner.extent, chunk)
    chunks = as_expr(1) if whole else ceildiv(inner.extent, chunk)
    extent = w.params.scalar(inner.extent)
    start: KExpr = i32(0)
    stop = extent
    number: KExpr = WORKGROUP
    if not whole:
        number, part = decompose(w, number, [count(outer), chunks])
        start = w.let("b", kop("mul", part, i32(chunk)))
        stop = w.let("b", kop("min", extent, kop("add", start, i32(chunk))))
    for axis, value in zip(outer, decompose(w, number, [a.extent for a in outer]), strict=True):
        w.bind(axis, value)
    vector = p.inner_is_vector and not proves_le(inner.extent, 3)
    if vector:
        start = _vector_loop(w, s, p, start, stop)
    if not (vector and divisible(inner.extent, 4) is True):
        with w.loop("i", start, stop) as i:
            w.bind(inner, i)
            write_point(w, s, stage, vector=False)
    return w.kernel(p.name, count(outer) * chunks, 1, comment)


def _vector_loop(w: Writer, s: Scalars, p: Points, start: KExpr, stop: KExpr) -> KExpr:
    """The main loop in steps of four; gives where the tail starts."""
    stage = p.stage
    length = kop("sub", stop, start)
    quads = kop("mul", kop("index_div", length, i32(4)), i32(4))
    end = w.let("b", kop("add", start, quads))
    with w.loop("i", start, end, step=4) as i:
        w.bind_vector(stage.axes[-1], i)
        write_point(w, s, stage, vector=True)
    return end
