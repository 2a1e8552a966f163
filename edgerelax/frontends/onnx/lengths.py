"""What a decoder's graph makes of lengths alone: sizes, positions of new tokens, masks over keys.

An exported graph counts from one past's length, the same for all texts of a batch. Over a cache
each text has its own, so what is counted must be named for what it is. It is recognised by value,
however it is computed: the graph is imported as it stands, and what depends on no token and no
weight is evaluated for several sizes. An array that says P + i of new token i is its position; one
of two values, that of keys up to the token's own position and that of all others, is a causal mask,
with a window if all sizes agree on one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgerelax.frontends.onnx.attention import MICROSOFT
from edgerelax.frontends.onnx.decoder_graph import DecoderGraph
from edgerelax.frontends.onnx.load import begin
from edgerelax.frontends.onnx.ordering import needed_nodes, used_names
from edgerelax.frontends.onnx.wide_graph import MASK, POSITIONS, TOKENS
from edgerelax.ir.deduce import defined_by
from edgerelax.ir.dtypes import DType
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import (
    Binding,
    Block,
    Constant,
    GraphFunc,
    MatchCast,
    Module,
    Value,
    Var,
    operands,
    used_symbols,
)
from edgerelax.ir.op import Array
from edgerelax.ir.types import IntTensor, as_tensor, symbols_of
from edgerelax.sym import Expr, Symbol, symbol

BATCH, LENGTH, PAST = "batch", "length", "past"
KEYS = symbol("keys")
PROBES = ((3, 7, 11), (3, 7, 4), (2, 5, 6))
"""Batch, new tokens and earlier ones; the first two differ in these alone."""
FARTHEST = 1 << 16
"""Earlier tokens that a mask is looked at with, if the model serves as many: windows are seen."""
LARGEST = 1 << 26
"""Elements of one array that may be made for that."""
HIDDEN = -1e4
"""What is added to a score to hide it is this or less."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Integers in batch, length and KEYS. None: they tell one past's length for all texts."""

    values: tuple[Expr, ...] | None
    rank: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Positions:
    """Where new tokens stand; `axis` is theirs of `rank`, the first one the batch's."""

    axis: int
    rank: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Mask:
    """[batch, 1, length, keys] or without the 1: `shown` where a key is seen, else `hidden`."""

    window: int | None
    shown: float
    hidden: float
    rank: int
    dtype: DType


Known = Sizes | Positions | Mask
SHAPED = {"Reshape": (1,), "Expand": (1,), "Slice": (1, 2)}
"""Operators, and which operands are sizes."""


class Lengths:
    """`known`: what names of the graph are; `tokens`: those that depend on tokens.

    `dims` are those of all tensors, in `batch`, `length` and `past`.
    """

    def __init__(self, graph: DecoderGraph, context: int) -> None:
        self.graph = graph
        _name_dims(graph)
        walk, frame, self.params = begin(
            graph.model, graph.label, graph.beside, {}, graph.weights()
        )
        walk.nodes(graph.graph.node, graph.outputs, frame)
        walk.report()
        self.batch, self.length, self.past = _atoms(graph, self.params)
        self.loops = walk.builder.loops
        self.bindings = walk.builder.finish(()).bindings
        found = {
            name: item for name, item in frame.names.items() if isinstance(item, Var | Constant)
        }
        self._trace()
        self.tokens = {name for name, value in found.items() if value in self.of_tokens}
        self._dims = {n: t.dims for n, v in found.items() if (t := as_tensor(v.annotation))}
        inputs = set(graph.inputs)
        self.known = self._recognised({k: v for k, v in found.items() if k not in inputs}, context)

    def dims(self, name: str) -> tuple[Expr, ...]:
        """A tensor's dims."""
        return self._dims.get(name) or ()

    def is_row(self, name: str) -> bool:
        """Whether a tensor has one element or row for all tokens."""
        outer = self.dims(name)[:-1]
        return name in self._dims and all(d.as_int() == 1 for d in outer)

    def _trace(self) -> None:
        """Which values depend on tokens, and which on the past's length or the mask."""
        self.of_tokens: set[Value] = {p for p in self.params if p.name != MASK}
        self.of_lengths: set[Value] = {p for p in self.params if p.name == MASK}
        tainted = {self.past}
        for binding in self.bindings:
            given = operands(binding.value)
            if any(v in self.of_tokens for v in given):
                self.of_tokens.add(binding.var)
            spoken = used_symbols(binding.value) | symbols_of(binding.var.annotation)
            if tainted & spoken or any(v in self.of_lengths for v in given):
                self.of_lengths.add(binding.var)
                if isinstance(binding.value, MatchCast) and binding.var not in self.of_tokens:
                    tainted |= defined_by(binding.var.annotation) - {self.batch, self.length}

    def _recognised(self, values: Mapping[str, Value], context: int) -> dict[str, Known]:
        known: dict[str, Known] = {}
        wanted: dict[str, Var] = {}
        for name, value in values.items():
            annotation = value.annotation
            if isinstance(annotation, IntTensor):
                if any(self.past in e.symbols() for e in annotation.values):
                    known[name] = self._sizes(name, annotation)
            elif isinstance(value, Var) and as_tensor(annotation) and self._is_counted(value):
                wanted[name] = value
        far = self._far(wanted.values(), context)
        probes = (*PROBES, far)
        found = [self._evaluated(wanted, sizes) for sizes in probes]
        for name, value in wanted.items():
            dtype, arrays = _dtype(value), [arrays[name] for arrays in found]
            is_one = _positions(arrays, probes, dtype) or _mask(arrays, probes, dtype)
            if is_one is not None:
                known[name] = is_one
        for name in self._loose(known, wanted):
            first, second = found[0][name], found[1][name]
            if not _same(first, second, self._added(name)):
                known[name] = Sizes(None, 0, _dtype(wanted[name]))
        return known

    def _loose(self, known: Mapping[str, Known], wanted: Mapping[str, Var]) -> list[str]:
        """What nodes of tokens read and nothing was recognised on the way to."""
        loose = {MASK} | {name for name, one in known.items() if isinstance(one, Sizes)}
        for node in needed_nodes(self.graph.graph.node, self.graph.outputs, self.graph.label):
            if not loose.isdisjoint(used_names(node)):
                loose.update(o for o in node.output if o in wanted and o not in known)
        return [name for name in wanted if name in loose and self._joins_tokens(name)]

    def _joins_tokens(self, name: str) -> bool:
        """Whether something computed of tokens reads a name."""
        return any(not self.tokens.isdisjoint(n.output) for n in self.graph.users(name))

    def _added(self, name: str) -> bool:
        """Whether a name is only added to what is computed of tokens, as a bias to scores is."""
        users = [n for n in self.graph.users(name) if not self.tokens.isdisjoint(n.output)]
        return all(n.op_type == "Add" for n in users)

    def _is_size(self, name: str) -> bool:
        """Whether what is computed of tokens reads an integer only as a size."""
        for node in self.graph.users(name):
            if self.tokens.isdisjoint(node.output) or node.domain == MICROSOFT:
                continue
            places = [k for k, n in enumerate(node.input) if n == name]
            if any(k not in SHAPED.get(node.op_type, ()) for k in places):
                return False
        return True

    def _is_counted(self, value: Value) -> bool:
        """Whether a value depends on the past's length or the attention mask, not on tokens."""
        return value in self.of_lengths and value not in self.of_tokens

    def _needed(self, wanted: Iterable[Value]) -> tuple[Binding, ...]:
        """The bindings that values depend on; asserted sizes are among them."""
        needed: set[Value] = set(wanted)
        kept: list[Binding] = []
        for binding in reversed(self.bindings):
            asserts = isinstance(binding.value, MatchCast) and binding.var not in self.of_tokens
            if binding.var in needed or asserts:
                kept.append(binding)
                needed.update(operands(binding.value))
        return tuple(reversed(kept))

    def _far(self, wanted: Iterable[Value], context: int) -> tuple[int, int, int]:
        """Sizes with as long a past as the model serves, as far as that can be tried."""
        bindings = self._needed(wanted)
        length = 2
        past = min(context, FARTHEST) - length
        while past > PROBES[0][2] and self._largest(bindings, (1, length, past)) > LARGEST:
            past //= 2
        return 1, length, past

    def _largest(self, bindings: Sequence[Binding], sizes: tuple[int, int, int]) -> int:
        env = self._env(sizes)
        most = 0
        for binding in bindings:
            tensor = as_tensor(binding.var.annotation)
            dims = () if tensor is None or tensor.dims is None else tensor.dims
            if all(d.symbols() <= set(env) for d in dims):
                most = max(most, int(np.prod([float(d.eval(env)) for d in dims])))
        return most

    def _env(self, sizes: tuple[int, int, int]) -> dict[Symbol, int]:
        return dict(zip((self.batch, self.length, self.past), sizes, strict=True))

    def _sizes(self, name: str, annotation: IntTensor) -> Sizes:
        """Where keys are counted that stays, though they are as many as pages hold."""
        length = self.length.expr
        values = tuple(e.subs({self.past: KEYS - length}) for e in annotation.values)
        kept = not any(self._mixed(e) for e in values) and self._is_size(name)
        return Sizes(values if kept else None, annotation.rank, annotation.dtype)

    def _mixed(self, value: Expr) -> bool:
        """Whether keys and new tokens are added up or compared, not just multiplied."""
        both = {self.length, *KEYS.symbols()}
        return both <= value.symbols() and any(not both <= set(m) for _, m in value.terms())

    def _evaluated(
        self, wanted: Mapping[str, Var], sizes: tuple[int, int, int]
    ) -> dict[str, Array]:
        names = [f"r{k}" for k in range(len(wanted))]
        results = tuple(wanted.values())
        body = Block(self._needed(results), results)
        func = GraphFunc("lengths", tuple(self.params), body, tuple(names))
        env = self._env(sizes)
        given: dict[str, Array] = {}
        for param in self.params:
            tensor = as_tensor(param.annotation)
            assert tensor is not None and tensor.dims is not None and tensor.dtype is not None
            dims = tuple(d.eval(env) for d in tensor.dims)
            given[param.name] = np.ones(dims, tensor.dtype.numpy)
        arrays = evaluate(Module({"lengths": func}, self.loops), given, "lengths")
        return {name: arrays[key] for name, key in zip(wanted, names, strict=True)}


def _name_dims(graph: DecoderGraph) -> None:
    """Inputs speak of batch, length and past, whatever their dims were called."""
    dims: dict[str, Sequence[str | int]] = {TOKENS: (BATCH, LENGTH), POSITIONS: (BATCH, LENGTH)}
    dims[MASK] = (BATCH, f"{PAST} + {LENGTH}")
    for name, past in graph.pasts.items():
        groups, width = past.sizes
        plain: tuple[str | int, ...] = (BATCH, groups, PAST, width)
        dims[name] = tuple(plain[k] for k in past.order)
    for name, value in graph.inputs.items():
        shape = value.type.tensor_type.shape
        if name not in dims:
            continue
        if len(shape.dim) != len(dims[name]):
            raise graph.unsupported(f"input {name!r} has {len(shape.dim)} dims")
        for dim, wanted in zip(shape.dim, dims[name], strict=True):
            if isinstance(wanted, int):
                dim.dim_value = wanted
            else:
                dim.dim_param = wanted


def _atoms(graph: DecoderGraph, params: Sequence[Var]) -> tuple[Symbol, Symbol, Symbol]:
    """Batch, length and past as the inputs have them."""
    dims = {}
    for param in params:
        tensor = as_tensor(param.annotation)
        assert tensor is not None and tensor.dims is not None
        dims[param.name] = tensor.dims
    first, past = next(iter(graph.pasts.items()))
    found = [d.atom for d in (*dims[TOKENS], dims[first][past.axis])]
    batch, length, earlier = (a for a in found if isinstance(a, Symbol))
    return batch, length, earlier


def _dtype(value: Value) -> DType:
    tensor = as_tensor(value.annotation)
    assert tensor is not None and tensor.dtype is not None
    return tensor.dtype


def _same(more: Array, fewer: Array, added: bool) -> bool:
    """Whether values of a longer past go on from those of a shorter one.

    What is added to scores may differ by a number for all keys: softmax does not see it.
    """
    axes = [k for k, (a, b) in enumerate(zip(more.shape, fewer.shape, strict=True)) if a != b]
    first = more[tuple(slice(n) for n in fewer.shape)]
    if np.array_equal(first, fewer, equal_nan=fewer.dtype.kind == "f"):
        return True
    if not added or axes != [fewer.ndim - 1] or fewer.dtype.kind == "b":
        return False
    shift = fewer.astype(np.float64) - first
    return bool(np.allclose(shift, shift[..., :1], rtol=1e-5, atol=1e-5))


def _positions(
    arrays: Sequence[Array], probes: Sequence[tuple[int, int, int]], dtype: DType
) -> Positions | None:
    rank = arrays[0].ndim
    if dtype.kind == "bool" or rank < 2:
        return None
    axes = [
        k for k in range(1, rank)
        if all(a.shape[k] == length for a, (_, length, _) in zip(arrays, probes, strict=True))
    ]  # fmt: skip
    if len(axes) != 1:
        return None
    for array, (batch, length, past) in zip(arrays, probes, strict=True):
        others = [n for k, n in enumerate(array.shape) if k not in (0, axes[0])]
        if array.shape[0] not in (1, batch) or any(n != 1 for n in others):
            return None
        row = array.reshape(array.shape[0], length).astype(np.float64)
        if not np.array_equal(row, np.broadcast_to(np.arange(past, past + length), row.shape)):
            return None
    return Positions(axes[0], rank, dtype)


def _mask(
    arrays: Sequence[Array], probes: Sequence[tuple[int, int, int]], dtype: DType
) -> Mask | None:
    rank = arrays[0].ndim
    if rank not in (3, 4):
        return None
    for array, (batch, length, past) in zip(arrays, probes, strict=True):
        outer = (array.shape[0] in (1, batch), *(n == 1 for n in array.shape[1:-2]))
        if array.shape[-2:] != (length, past + length) or not all(outer):
            return None
    last = arrays[-1].reshape(-1, arrays[-1].shape[-1])[-1]
    shown = last[-1]
    other = np.flatnonzero(last != shown)
    window = None if other.size == 0 else int(last.size - 1 - other[-1])
    hidden: list[float] = []
    for array, (_, length, past) in zip(arrays, probes, strict=True):
        at, key = np.arange(past, past + length)[:, None], np.arange(past + length)[None]
        seen = (key <= at) & (True if window is None else at - key < window)
        every = np.broadcast_to(seen, array.shape)
        if not np.all(array[every] == shown):
            return None
        hidden.extend(np.unique(array[~every]).tolist())
    if not hidden or shown in hidden:
        return None
    if dtype.kind == "bool":
        return Mask(window, float(shown), float(hidden[0]), rank, dtype)
    if not dtype.is_float or max(hidden) > HIDDEN:
        return None
    return Mask(window, float(shown), max(hidden), rank, dtype)
