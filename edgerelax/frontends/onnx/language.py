"""ONNX language models as onnxruntime-genai lays them out, over a cache in pages.

A folder has a model whose GroupQueryAttention nodes take past keys and values, genai_config.json
and a tokenizer. The graph's past inputs and present outputs become the states of a cache: each such
node attends through the context instead. What says how long the past is (the attention mask and
what is computed from it) must serve these nodes alone.
"""

import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.hf.reading import read_json
from edgerelax.frontends.hf.text import text_of
from edgerelax.frontends.language.context import Attend, CacheShape, Context, Decoder
from edgerelax.frontends.language.functions import language_module
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.language.storage import Kind
from edgerelax.frontends.nn.tensor import Tensor
from edgerelax.frontends.onnx import families
from edgerelax.frontends.onnx.attention import MICROSOFT, by_heads, from_heads, parts_of, rotated
from edgerelax.frontends.onnx.load import function_key
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.reading import Source, opsets, read_model
from edgerelax.frontends.onnx.registry import Result
from edgerelax.frontends.onnx.symbols import Dimensions
from edgerelax.frontends.onnx.tensors import element_type
from edgerelax.frontends.onnx.walk import UNKNOWN, Frame, Unknown, Walk
from edgerelax.ir.diagnostics import FormatError, InputError, UnsupportedError
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Module
from edgerelax.sym import as_expr

assert families.LOADED

CONFIG = "genai_config.json"
ATTENTION = "GroupQueryAttention"
PAST = re.compile(r"\D*(\d+)\D*(key|value)s?")


def is_genai(path: str | Path) -> bool:
    """Whether a folder is laid out as onnxruntime-genai has it."""
    return (Path(path) / CONFIG).is_file()


def load_genai(
    path: str | Path, dims: Mapping[str, DimSpec] | None = None, cache: Kind | None = None
) -> Module:
    """The module of a folder's language model: see `language_module`.

    `cache` says how keys and values are stored; without it they are f32. Raises InputError or
    FormatError for what is missing or damaged, UnsupportedError for a graph that reaches its past
    in another way.
    """
    folder = Path(path)
    config = read_json(folder / CONFIG)
    said = config.get("model") if isinstance(config, dict) else None
    if not isinstance(said, dict) or not isinstance(said.get("decoder"), dict):
        raise InputError(f"{CONFIG} says nothing of a model and its decoder")
    settings = Settings(said, CONFIG)
    name = str(said["decoder"].get("filename", "model.onnx"))
    if Path(name).name != name:
        raise InputError(f"{CONFIG}: the model's file is {name!r}, which leaves the folder")
    sizes = Sizes(settings.integer("context_length"), settings.integer("vocab_size"))
    model = OnnxDecoder(read_model(folder / name), sizes)
    text = text_of(folder, settings)
    return language_module(model, sizes, dims, settings.text("type"), text, cache or "f32")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a language model: the greatest length that it serves, and its vocabulary."""

    context: int
    vocabulary: int


class OnnxDecoder(Decoder):
    """A graph from tokens to logits whose attention has a past."""

    def __init__(self, source: Source, sizes: Sizes) -> None:
        self.source, self.sizes = source, sizes
        graph = source.model.graph
        self.nodes = [n for n in graph.node if n.op_type == ATTENTION and n.domain == MICROSOFT]
        self.inputs = {i.name: i for i in graph.input}
        self.pasts = {n.input[3]: _layer(source, n) for n in self.nodes if len(n.input) > 4}
        if len(self.pasts) < max(1, len(self.nodes)):
            raise UnsupportedError(
                f"{source.label}: no {ATTENTION} with a past, or some without",
                hint="models of onnxruntime-genai's builder have it; others run as they are, "
                "past and present being inputs and outputs",
            )
        if sorted(self.pasts.values()) != list(range(len(self.pasts))):
            raise FormatError(f"{source.label}: past inputs are not numbered from 0 on")

    @property
    def caches(self) -> list[CacheShape]:
        shapes = {}
        for node in self.nodes:
            key, value = (self._dims(name) for name in node.input[3:5])
            shapes[self.pasts[node.input[3]]] = CacheShape(key[1], key[3], value[3])
        return [shapes[k] for k in sorted(shapes)]

    def hidden(self, tokens: Tensor, context: Context) -> Tensor:
        """Logits already, [batch, length, vocabulary]."""
        source, builder = self.source, tokens.builder
        proto = source.model
        functions = {function_key(f): f for f in proto.functions}
        own = {(MICROSOFT, ATTENTION): lambda node: self._attend(node, context)}
        dimensions = Dimensions({}, builder.names)
        walk = Walk(builder, dimensions, source.label, source.folder, functions, own=own)
        frame = Frame(ChainMap(), opsets(proto.opset_import), {}, "")
        for name in self.inputs:
            frame.names[name] = self._input(name, tokens, context)
        results = walk.graph(proto.graph, frame, ["logits"])
        walk.report()
        if isinstance(results[0], Unknown):
            raise UnsupportedError(
                f"{source.label}: logits depend on the attention mask or the past elsewhere than "
                f"in {ATTENTION}"
            )
        return Tensor(builder, results[0]).cast(F32)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def _input(self, name: str, tokens: Tensor, context: Context) -> Any:
        """What stands for an input: of the past and its length nothing is known here."""
        if name not in ("input_ids", "position_ids"):
            return UNKNOWN
        declared = self.inputs[name].type.tensor_type.elem_type
        dtype = element_type(declared, f"{self.source.label}: input {name}")
        if name == "input_ids":
            return tokens.cast(dtype).value
        batch, length = tokens.dims
        return context.positions.expand(batch, length).cast(dtype).value

    def _dims(self, name: str) -> tuple[int, ...]:
        """The sizes of a past input [batch, groups, length, width]; those that vary are 0."""
        if name not in self.inputs:
            raise FormatError(f"{self.source.label}: {name!r} is no input of the graph")
        dims = tuple(d.dim_value for d in self.inputs[name].type.tensor_type.shape.dim)
        if len(dims) != 4 or not dims[1] or not dims[3]:
            raise FormatError(
                f"{self.source.label}: {name} must be [batch, groups, length, width], with groups "
                "and width known"
            )
        return dims

    def _attend(self, node: Node, context: Context) -> Result:
        """Attention of the new tokens, turned by their positions where the node does that."""
        heads, kept = as_expr(node.attr("num_heads")), as_expr(node.attr("kv_num_heads"))
        q, k, v = (by_heads(node, x, n) for x, n in parts_of(node, heads, kept))
        if node.attr("do_rotary", 0):
            batch, _, length, _ = node.dims(q)
            at = context.positions.expand(batch, length).value
            caches = (node.value(7), node.value(8))
            interleaved = bool(node.attr("rotary_interleaved", 0))
            q, k = (rotated(node, x, at, caches, interleaved) for x in (q, k))
        if node.input(10) is not None:
            raise node.unsupported("an attention bias beside a cache")
        window = node.attr("local_window_size", -1)
        how = Attend(
            node.attr("scale", 0.0) or None,
            window if window > 0 else None,
            node.attr("softcap", 0.0) or None,
        )
        dtype = node.dtype(q)
        builder = context.positions.builder
        wide, keys, values = (Tensor(builder, node.cast(x, F32)) for x in (q, k, v))
        found = context.attend(self.pasts[node.proto.input[3]], wide, keys, values, how)
        return (from_heads(node, node.cast(found.value, dtype)), None, None)


def _layer(source: Source, node: onnx.NodeProto) -> int:
    found = PAST.fullmatch(node.input[3])
    if found is None:
        raise FormatError(f"{source.label}: {node.input[3]!r} is no past of a numbered layer")
    return int(found[1])
