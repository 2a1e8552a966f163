"""What nodes of a decoder's graph become where its past is a context's."""

from collections import defaultdict
from collections.abc import Container
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from edgerelax.frontends.language.context import Attend, Context
from edgerelax.frontends.nn.functional import repeat_heads
from edgerelax.frontends.nn.tensor import Tensor, apply
from edgerelax.frontends.onnx.attention import (
    MICROSOFT,
    Scores,
    attend,
    biased,
    by_heads,
    default_scale,
    from_heads,
    padding,
    parts_of,
    refuse_variants,
    rotated,
)
from edgerelax.frontends.onnx.broadcasting import broadcast_call
from edgerelax.frontends.onnx.decoder_graph import HINT, DecoderGraph, present
from edgerelax.frontends.onnx.lengths import KEYS, Lengths, Mask, Positions, Sizes
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.reading import DEFAULT_DOMAINS
from edgerelax.frontends.onnx.registry import Handler, Result, find
from edgerelax.frontends.onnx.walk import UNKNOWN, Unknown
from edgerelax.ir.dtypes import BOOL, F32, DType
from edgerelax.ir.graph import Call, Constant, Value, Var, operands
from edgerelax.ops import OPS
from edgerelax.sym import Atom, ExprLike, as_expr, prove_eq


class Nodes:
    """Handlers of nodes in one walk, with the context's positions, masks and keys."""

    def __init__(
        self, graph: DecoderGraph, lengths: Lengths, tokens: Tensor, context: Context
    ) -> None:
        self.graph, self.lengths, self.tokens, self.context = graph, lengths, tokens, context
        self.builder = tokens.builder
        self.batch, self.length = tokens.dims
        self.shown: dict[int | None, Tensor] = {}
        self.keys = self.seen(None).dims[-1]
        self.added: dict[Value, Tensor] = {}  # masks to add, and the conditions that they come from
        self.telling: dict[Value, int | None] = {}  # windows of masks; positions have none
        self.layers: dict[Value, int] = {}  # of keys and values that the sequences have
        self.windows: dict[int, set[int | None]] = defaultdict(set)
        """Of the masks by which each layer's scores come, as far as these are known."""

    def own(self) -> dict[tuple[str, str], Handler]:
        """What imports operators here, by domain and name."""
        found: dict[tuple[str, str], Handler] = {
            ("", "Concat"): self._concat,
            ("", "Add"): self._add,
            ("", "Slice"): self._slice,
            ("", "Softmax"): self._softmax,
            (MICROSOFT, "GroupQueryAttention"): self._grouped,
            (MICROSOFT, "MultiHeadAttention"): self._multi_head,
        }
        if any(n.op_type == "Attention" and self._pasts(n) for n in self.graph.graph.node):
            found["", "Attention"] = self._attention
        return found

    # What stands for what is counted

    def positions(self) -> Tensor:
        """Where the new tokens stand, [batch, length]."""
        found = self.context.positions.expand(self.batch, self.length)
        self.telling[found.value] = None
        return found

    def seen(self, window: int | None) -> Tensor:
        """The context's mask, made once."""
        if window not in self.shown:
            self.shown[window] = self.context.mask(window)
        return self.shown[window]

    def all_shown(self, dtype: DType) -> Value:
        """An attention mask [batch, keys] that hides nothing: causal masks hide what is unused."""
        dims = (self.batch, self.keys)
        return self.builder.call(OPS["full"], dims=dims, value=1, dtype=dtype)

    def known_value(self, name: str) -> Any:
        """What a name is in this context."""
        window = None
        match self.lengths.known[name]:
            case Sizes(values=None):
                return UNKNOWN
            case Sizes(values=values, rank=rank, dtype=dtype):
                assert values is not None
                (keys,) = KEYS.symbols()
                here: dict[Atom, ExprLike] = {
                    keys: self.keys, self.lengths.batch: self.batch,
                    self.lengths.length: self.length,
                }  # fmt: skip
                numbers = tuple(v.subs(here) for v in values)
                return self.builder.call(OPS["integers"], values=numbers, rank=rank, dtype=dtype)
            case Positions(axis=axis, rank=rank, dtype=dtype):
                dims = [self.batch, *[as_expr(1)] * (rank - 1)]
                dims[axis] = self.length
                found = self.positions().reshape(*dims).cast(dtype)
            case Mask() as mask:
                found, window = self._mask(mask), mask.window
        self.telling[found.value] = window
        return found.value

    def _mask(self, mask: Mask) -> Tensor:
        seen = self.seen(mask.window)
        batch, _, length, keys = seen.dims
        condition = seen if mask.rank == 4 else seen.reshape(batch, length, keys)
        if mask.dtype == BOOL:
            return condition if mask.shown else apply("not", condition)
        shown, hidden = (self._number(n, mask.dtype) for n in (mask.shown, mask.hidden))
        found = apply("where", condition, shown, hidden)
        if mask.shown == 0:
            self.added[found.value] = condition
        return found

    def _number(self, number: float, dtype: DType) -> Tensor:
        data = np.array(number, dtype.numpy)
        return Tensor(self.builder, self.builder.constant("number", data))

    # Nodes

    def _usual(self, node: Node) -> Result:
        """The operator as it is imported elsewhere."""
        if any(isinstance(i, Unknown) for i in self._items(node)):
            return [UNKNOWN] * node.output_count  # type: ignore[list-item]
        domain = "" if node.proto.domain in DEFAULT_DOMAINS else node.proto.domain
        handler = find(domain, node.op, node.version)
        assert handler is not None
        return handler(node)

    def _concat(self, node: Node) -> Result:
        past = self.graph.joins.get(node.proto.output[0])
        if past is None or isinstance(node.inputs[1], Unknown):
            return self._usual(node)
        return self._extended(past, node.value(1)).value

    def _extended(self, name: str, new: Value) -> Tensor:
        """What the sequences have with the new rows of an input for earlier ones."""
        past = self.graph.pasts[name]
        rows = Tensor(self.builder, new).permute(*past.order)
        found = self.context.extended(past.layer, past.name, rows).permute(*past.order)
        self.layers[found.value] = past.layer
        return found

    def _add(self, node: Node) -> Result:
        """A mask is better chosen by than added: it need not be stored as floats."""
        for k in (0, 1):
            condition = self.added.get(node.inputs[k])  # type: ignore[arg-type]
            if condition is not None and not isinstance(node.inputs[1 - k], Unknown):
                hidden = node.scalar(float("-inf"), F32)
                return broadcast_call(node, "where", condition.value, node.value(1 - k), hidden)
        return self._usual(node)

    def _slice(self, node: Node) -> Result:
        """Keys are counted from the first on; the last of them are not a text's own last ones."""
        x = node.inputs[0]
        if self.keys == self.length or not isinstance(x, Var | Constant) or node.version < 10:
            return self._usual(node)
        if any(isinstance(i, Unknown) for i in self._items(node)):
            return self._usual(node)
        starts = node.ints(1, lo=-(1 << 31)) or ()
        axes = node.numbers(3, "the axes") or range(len(starts))
        for start, axis in zip(starts, axes, strict=True):
            size = node.dims(x)[axis]
            if size.symbols() & self.keys.symbols() and prove_eq(start, 0) is not True:
                raise node.unsupported(f"keys from {start} on, counted from a past's length", HINT)
        return self._usual(node)

    def _softmax(self, node: Node) -> Result:
        scores = node.inputs[0]
        if isinstance(scores, Var):
            dims = node.dims(scores)
            if self.keys != self.length and dims[-1].symbols() & self.keys.symbols():
                windows = self._check_masked(node, scores)
                for layer in self._layers_of(node, scores):
                    self.windows[layer] |= windows
        return self._usual(node)

    def _check_masked(self, node: Node, scores: Value | None) -> set[int | None]:
        """Scores must come by a mask or by positions: pages hold more than a text's own keys.

        Gives the windows of all such masks, None for what has none.
        """
        told = {**self.telling, **{s.value: window for window, s in self.shown.items()}}
        found = {told[v] for v in self._sources(node, scores, told, 0)}
        if not found:
            raise node.unsupported("scores over the past that no causal mask hides any of", HINT)
        return found

    def _layers_of(self, node: Node, scores: Value) -> set[int]:
        """The layers of the keys that scores are products with."""
        return {self.layers[v] for v in self._sources(node, scores, self.layers, 1)}

    def _sources(
        self, node: Node, value: Value | None, ends: Container[Value], products: int
    ) -> set[Value]:
        """Those of `ends` that a value comes from, through as many products at most."""
        producers, found = node.walk.constants.producers, set[Value]()
        todo, done = [(value, products)], set[tuple[Value, int]]()
        while todo:
            value, left = todo.pop()
            if value is None or (value, left) in done:
                continue
            done.add((value, left))
            made = producers.get(value)
            if value in ends:
                found.add(value)
            elif made is not None:
                left -= isinstance(made, Call) and made.op.name == "matmul"
                todo.extend((v, left) for v in operands(made) if left >= 0)
        return found

    # Operators that attend

    def _pasts(self, proto: onnx.NodeProto) -> tuple[str, str] | None:
        """The inputs that an operator extends, for keys and values."""
        if len(proto.output) < 1 or present(proto, 0) not in self.graph.joins:
            return None
        return self.graph.joins[present(proto, 0)], self.graph.joins[present(proto, 1)]

    def _grouped(self, node: Node) -> Result:
        """Attention of the new tokens, turned by their positions where the node does that."""
        pasts = self._pasts(node.proto)
        if pasts is None:
            return self._usual(node)
        refuse_variants(node)
        if any(node.input(k) is not None for k in (10, 11)) or node.attr("smooth_softmax", -1) == 1:
            raise node.unsupported("an attention bias, or a sink of heads, beside a cache")
        heads, kept = as_expr(node.attr("num_heads")), as_expr(node.attr("kv_num_heads"))
        q, k, v = (by_heads(node, x, n) for x, n in parts_of(node, heads, kept))
        if node.attr("do_rotary", 0):
            at = self.positions().value
            caches = (node.value(7), node.value(8))
            interleaved = bool(node.attr("rotary_interleaved", 0))
            q, k = (rotated(node, x, at, caches, interleaved) for x in (q, k))
        window = node.attr("local_window_size", -1)
        how = Attend(
            node.attr("scale", 0.0) or None,
            window if window > 0 else None,
            node.attr("softcap", 0.0) or None,
        )
        wide, keys, values = (Tensor(self.builder, node.cast(x, F32)) for x in (q, k, v))
        layer = self.graph.pasts[pasts[0]].layer
        self.windows[layer].add(how.window)
        found = self.context.attend(layer, wide, keys, values, how)
        return (from_heads(node, found.value), None, None)

    def _lacks(self, node: Node) -> bool:
        """Whether something of lengths that an operator reads beside its past is not known."""
        pasts = self.graph.pasts
        return any(
            isinstance(item, Unknown) and self.graph.origin(name) not in pasts
            for name, item in zip(node.proto.input, self._items(node), strict=True)
        )

    def _items(self, node: Node) -> tuple[Any, ...]:
        """What a node reads; handlers of this walk get unknown things too."""
        return node.inputs

    def _multi_head(self, node: Node) -> Result:
        pasts = self._pasts(node.proto)
        if pasts is None or self._lacks(node):
            return self._usual(node)
        parts = [node.value(k) for k in range(3)]
        if any(node.rank(x) != 3 for x in parts):
            raise node.unsupported("a past beside packed queries, keys and values")
        given = node.input(3)
        heads = as_expr(node.attr("num_heads"))
        split = parts if given is None else list(biased(node, tuple(parts), given))
        q, *new = (by_heads(node, x, heads) for x in split)
        k, v = (self._extended(past, x).value for past, x in zip(pasts, new, strict=True))
        masks = [self.seen(None).value] if node.attr("unidirectional", 0) else []
        if node.input(4) is not None:
            masks.append(padding(node, node.value(4), self.batch, self.length, self.keys))
        scale = node.attr("scale", 0.0) or default_scale(node, node.dims(q)[3])
        causal = bool(node.attr("unidirectional", 0))
        found = attend(node, q, k, v, self._scores(node, scale, masks, node.input(5), causal))
        return (from_heads(node, found), None, None)

    def _attention(self, node: Node) -> Result:
        pasts = self._pasts(node.proto)
        if pasts is None:
            raise node.unsupported("attention without a past beside such with one")
        if self._lacks(node):
            return self._usual(node)
        if node.input(6) is not None or node.wants(3):
            raise node.unsupported("key lengths, or the scores as an output")
        counts = (node.attr("q_num_heads", 0), *[node.attr("kv_num_heads", 0)] * 2)
        flat = node.rank(node.value(0)) == 3
        q, *new = (
            by_heads(node, node.value(k), as_expr(n)) if flat else node.value(k)
            for k, n in enumerate(counts)
        )
        heads = node.dims(q)[1]
        k, v = (
            repeat_heads(self._extended(past, x), heads).value
            for past, x in zip(pasts, new, strict=True)
        )
        causal, bias = bool(node.attr("is_causal", 0)), node.input(3)
        masks = [self.seen(None).value] if causal else []
        if bias is not None and node.dtype(bias) == BOOL:
            if not causal:
                self._check_masked(node, bias)
            masks, bias, causal = [*masks, bias], None, True
        scale = node.attr("scale", 0.0) or default_scale(node, node.dims(q)[3])
        scores = self._scores(node, scale, masks, bias, causal)
        found = attend(node, q, k, v, replace(scores, softcap=node.attr("softcap", 0.0)))
        return (from_heads(node, found) if flat else found, None, None)

    def _scores(
        self, node: Node, scale: float, masks: list[Value], bias: Value | None, causal: bool
    ) -> Scores:
        """How to attend under masks and a bias, one of which must be causal."""
        condition = None if bias is None else self.added.get(bias)
        if condition is not None:
            return Scores(scale, (), (*masks, condition.value))
        if not causal:
            self._check_masked(node, bias)
        return Scores(scale, () if bias is None else (bias,), tuple(masks))
