"""Decoders in ONNX over a cache in pages: a graph's past inputs and present outputs become states.

Where a graph joins a past with new keys or values, these go into the cache, and what the sequence
now has comes from it; attention that is written out stays as the graph has it. What the graph
counts from the past's length is replaced by what it stands for (lengths.py): the context's
positions, masks and number of keys. Nothing else may depend on the past's length or on the
attention mask.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from edgerelax.frontends.language.context import CacheShape, Context, Decoder
from edgerelax.frontends.nn.tensor import Tensor
from edgerelax.frontends.onnx import families
from edgerelax.frontends.onnx.decoder_graph import DecoderGraph
from edgerelax.frontends.onnx.language_nodes import Nodes
from edgerelax.frontends.onnx.lengths import Lengths
from edgerelax.frontends.onnx.ordering import needed_nodes, title, used_names
from edgerelax.frontends.onnx.reading import Source, opsets
from edgerelax.frontends.onnx.symbols import Dimensions
from edgerelax.frontends.onnx.tensors import element_type
from edgerelax.frontends.onnx.walk import UNKNOWN, Frame, Unknown, Walk
from edgerelax.frontends.onnx.wide_graph import MASK, POSITIONS, TOKENS
from edgerelax.ir.dtypes import F32

assert families.LOADED

ALONE = ("Cast", "Identity", "Tanh", "Neg")
BESIDE_WEIGHTS = ("Add", "Sub", "Mul", "Div")
PRODUCTS = ("MatMul", "MatMulNBits")


class OnnxDecoder(Decoder):
    """A graph from tokens to logits whose attention has a past. `context`: the length it serves.

    Raises UnsupportedError for a graph that reaches its past in another way.
    """

    def __init__(self, source: Source, context: int) -> None:
        self.graph = DecoderGraph(source)
        self.lengths = Lengths(self.graph, context)
        self.vocabulary = self._vocabulary()
        self.nodes = self._left()
        self.split = self._before_head()
        self._at: tuple[Walk, Frame] | None = None
        self._windows: Mapping[int, set[int | None]] = {}

    @property
    def caches(self) -> list[CacheShape]:
        pasts = {(p.layer, p.name): p for p in self.graph.pasts.values()}
        shapes = []
        for layer in range(len(pasts) // 2):
            (groups, key), (same, value) = (pasts[layer, n].sizes for n in ("keys", "values"))
            if groups != same:
                raise self.graph.unsupported(f"layer {layer}: {groups} keys for {same} values")
            shapes.append(CacheShape(groups, key, value))
        return shapes

    @property
    def window(self) -> int | None:
        """Known once `hidden` is over a cache, if masks with windows hide keys in all layers."""
        found = [self._windows.get(k, {None}) for k in range(len(self.graph.pasts) // 2)]
        known = [w for windows in found for w in windows if w is not None]
        return None if any(None in windows for windows in found) else max(known, default=None)

    def hidden(self, tokens: Tensor, context: Context) -> Tensor:
        """What the last product with weights reads, [batch, length, width]; logits without one."""
        graph, builder = self.graph, tokens.builder
        nodes = Nodes(graph, self.lengths, tokens, context)
        dimensions = Dimensions({}, builder.names)
        walk = Walk(builder, dimensions, graph.label, graph.beside, own=nodes.own())
        frame = Frame(ChainMap(), opsets(graph.model.opset_import), {}, "")
        frame.names.update((name, walk.constant(name, data)) for name, data in graph.weights())
        for name in graph.inputs:
            frame.names[name] = self._input(name, nodes)
        needed = needed_nodes(self.nodes, [self.split], graph.label)
        for name in dict.fromkeys(n for node in needed for n in used_names(node)):
            if name in self.lengths.known:
                frame.names[name] = nodes.known_value(name)
        (result,) = walk.nodes(needed, [self.split], frame)
        walk.report()
        self._check(frame, needed)
        assert not isinstance(result, Unknown)
        self._at, self._windows = (walk, frame), nodes.windows
        return Tensor(builder, result).cast(F32)

    def logits(self, hidden: Tensor) -> Tensor:
        if self.split == "logits":
            return hidden
        assert self._at is not None
        walk, frame = self._at
        batch, *_, width = hidden.dims
        flat = len(hidden.dims) == 2
        frame.names[self.split] = (hidden.reshape(batch, 1, width) if flat else hidden).value
        rest = [n for n in self.nodes if self.split not in n.output]
        (result,) = walk.nodes(rest, ["logits"], frame)
        walk.report()
        logits = Tensor(hidden.builder, result).cast(F32)
        return logits.reshape(batch, self.vocabulary) if flat else logits

    def _input(self, name: str, nodes: Nodes) -> Any:
        """What stands for an input: of the past and its length nothing is known here."""
        dtype = element_type(self.graph.inputs[name].type.tensor_type.elem_type, name)
        if name == TOKENS:
            return nodes.tokens.cast(dtype).value
        if name == POSITIONS:
            return nodes.positions().cast(dtype).value
        return nodes.all_shown(dtype) if name == MASK else UNKNOWN

    def _left(self) -> list[onnx.NodeProto]:
        """The nodes whose results are not known to be positions, masks or sizes."""
        left: list[onnx.NodeProto] = []
        for node in self.graph.graph.node:
            for k, name in enumerate(node.output):
                if name in self.lengths.known:
                    node.output[k] = ""
            if any(node.output):
                left.append(node)
        return left

    def _vocabulary(self) -> int:
        """How many logits a token has; each must have its own."""
        dims = self.lengths.dims("logits")
        if len(dims) != 3 or dims[1] != self.lengths.length.expr or dims[2].as_int() is None:
            shape = ", ".join(map(str, dims))
            raise self.graph.unsupported(f"logits [{shape}] are not those of every token")
        return dims[2].as_int() or 0

    def _before_head(self) -> str:
        """What the last product of tokens with weights reads, if all after it goes by rows."""
        makers = {o: n for n in self.nodes for o in n.output if o}
        name = "logits"
        while (node := makers.get(name)) is not None:
            data = [n for n in node.input if n in self.lengths.tokens]
            if node.op_type in PRODUCTS and data == [node.input[0]]:
                return data[0] if len(self.lengths.dims(data[0])) == 3 else "logits"
            others = [n for n in node.input if n not in data]
            if len(data) != 1 or not all(map(self.lengths.is_row, others)):
                break
            if node.op_type not in (*ALONE, *BESIDE_WEIGHTS):
                break
            name = data[0]
        return "logits"

    def _check(self, frame: Frame, nodes: Sequence[onnx.NodeProto]) -> None:
        """Complain of the first node of tokens that reads what stands for no text's own length."""
        for node in nodes:
            lost = [n for n in node.input if isinstance(frame.names.get(n), Unknown)]
            mine = {o for o in node.output if isinstance(frame.names.get(o), Unknown)}
            mine -= {o for o in mine if self.graph.origin(o) in self.graph.pasts}
            if lost and mine & self.lengths.tokens:
                raise self.graph.unsupported(
                    f"{title(node)} ({node.op_type}) reads {lost[0]!r}, which depends on the past "
                    "or its length in another way than attention, positions and causal masks do"
                )
