"""Small ONNX models for tests."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Dims = Sequence[int | str | None]


def value(name: str, dims: Dims | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """An input or output; dims None leave the shape out."""
    return helper.make_tensor_value_info(name, dtype, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """A model; constants are initializers."""
    graph = helper.make_graph(
        nodes,
        "test",
        inputs,
        [onnx.ValueInfoProto(name=o) for o in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


node = helper.make_node
