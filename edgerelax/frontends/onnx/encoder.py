"""Encoders in ONNX: hidden states of texts, whose padding the graph's own attention mask hides."""

from collections import ChainMap

from edgerelax.frontends.language.context import Context, Decoder
from edgerelax.frontends.language.encoder import Both
from edgerelax.frontends.nn.tensor import Tensor, apply
from edgerelax.frontends.onnx import families
from edgerelax.frontends.onnx.reading import Source, opsets
from edgerelax.frontends.onnx.symbols import Dimensions
from edgerelax.frontends.onnx.tensors import element_type
from edgerelax.frontends.onnx.walk import Frame, Walk
from edgerelax.frontends.onnx.wide_graph import MASK, POSITIONS, TOKENS, WideGraph
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import F32

assert families.LOADED

TYPES = "token_type_ids"
STATES = ("last_hidden_state", "token_embeddings")
"""What the output with a vector of each token is called; else the first of three dims is it."""


class OnnxEncoder(Decoder):
    """A graph from tokens and an attention mask to hidden states.

    Raises UnsupportedError where it takes or gives something else.
    """

    def __init__(self, source: Source) -> None:
        self.graph = WideGraph(source)
        known = (TOKENS, MASK, POSITIONS, TYPES)
        other = [name for name in self.graph.inputs if name not in known]
        deep = [o.name for o in self.graph.graph.output if len(o.type.tensor_type.shape.dim) == 3]
        found = [*(name for name in STATES if name in self.graph.outputs), *deep]
        if other or TOKENS not in self.graph.inputs or not found:
            raise UnsupportedError(
                f"{source.label}: neither a decoder from {TOKENS} to logits nor an encoder from "
                f"{', '.join(known)} to vectors of tokens: it takes "
                f"{', '.join(self.graph.inputs)} and gives {', '.join(self.graph.outputs)}",
                hint="named by its file it runs as it is",
            )
        self.states = found[0]

    def hidden(self, tokens: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Both)
        graph, builder = self.graph, tokens.builder
        walk = Walk(builder, Dimensions({}, builder.names), graph.label, graph.beside)
        frame = Frame(ChainMap(), opsets(graph.model.opset_import), {}, "")
        frame.names.update((name, walk.constant(name, data)) for name, data in graph.weights())
        batch, length = tokens.dims
        given = {
            TOKENS: tokens,
            MASK: context.shown.reshape(batch, length),
            POSITIONS: context.positions.expand(batch, length),
            TYPES: apply("sub", tokens, tokens),
        }
        for name, value in graph.inputs.items():
            dtype = element_type(value.type.tensor_type.elem_type, name)
            frame.names[name] = given[name].cast(dtype).value
        (result,) = walk.nodes(graph.graph.node, [self.states], frame)
        walk.report()
        return Tensor(builder, result).cast(F32)
