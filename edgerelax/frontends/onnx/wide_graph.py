"""A language model's graph with its functions inlined and its floats of 16 bits in f32."""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, inliner, numpy_helper

from edgerelax.frontends.onnx.ordering import subgraphs
from edgerelax.frontends.onnx.reading import Source
from edgerelax.frontends.onnx.tensors import array_of
from edgerelax.ir.op import Array

TOKENS, MASK, POSITIONS = "input_ids", "attention_mask", "position_ids"
HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


class WideGraph:
    """Nodes, inputs and weights."""

    def __init__(self, source: Source) -> None:
        self.label, self.beside = source.label, source.beside
        self.model = source.model
        if self.model.functions:
            self.model = inliner.inline_local_functions(self.model)
        self.graph = self.model.graph
        self.prepare()
        widen(self.graph)
        self._arrays: dict[str, Array] = {}
        stored = {t.name for t in self.graph.initializer}
        self.inputs = {i.name: i for i in self.graph.input if i.name not in stored}

    def prepare(self) -> None:
        """Change the graph before its inputs are looked at."""

    @property
    def outputs(self) -> list[str]:
        """Names of what the graph gives."""
        return [o.name for o in self.graph.output]

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Stored tensors by name, floats as f32; each is read once."""
        for stored in self.graph.initializer:
            if stored.name not in self._arrays:
                data = array_of(stored, self.beside)
                wide = data.astype(np.float32) if stored.data_type in HALVES else data
                self._arrays[stored.name] = wide
            yield stored.name, self._arrays[stored.name]


def widen(graph: onnx.GraphProto) -> None:
    """Nodes and inputs of 16-bit floats in f32."""
    for value in graph.input:
        tensor = value.type.tensor_type
        if tensor.elem_type in HALVES:
            tensor.elem_type = TensorProto.FLOAT
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype", "output_dtype") and attribute.i in HALVES:
                attribute.i = TensorProto.FLOAT
            elif attribute.HasField("t") and attribute.t.data_type in HALVES:
                wide = array_of(attribute.t, None).astype(np.float32)
                attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))
        for inner in subgraphs(node):
            widen(inner)
            for stored in inner.initializer:
                if stored.data_type in HALVES:
                    wide = array_of(stored, None).astype(np.float32)
                    stored.CopyFrom(numpy_helper.from_array(wide, stored.name))
