"""Small ONNX models made by tests, and what onnxruntime says of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper, numpy_helper

F32, I64, BOOL, I32, U8 = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.INT32,
    TensorProto.UINT8,
)
Info = tuple[str, int, Sequence[int | str] | None]
node = helper.make_node


def graph(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Info],
    outputs: Sequence[Info],
    weights: Mapping[str, Any] | None = None,
) -> onnx.GraphProto:
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    infos = [[helper.make_tensor_value_info(*i) for i in given] for given in (inputs, outputs)]
    return helper.make_graph(nodes, "g", *infos, stored)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Info],
    outputs: Sequence[Info],
    weights: Mapping[str, Any] | None = None,
    opset: int = 20,
) -> onnx.ModelProto:
    made = helper.make_model(
        graph(nodes, inputs, outputs, weights), opset_imports=[helper.make_opsetid("", opset)]
    )
    made.ir_version = 10
    return made


def by_onnxruntime(proto: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    names = [o.name for o in session.get_outputs()]
    return dict(
        zip(names, session.run(names, {n: np.asarray(a) for n, a in inputs.items()}), strict=True)
    )


def perceptron() -> onnx.ModelProto:
    """Two layers over a batch of any size: relu(x w1 + b1) w2, then softmax."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 16)).astype(np.float32),
        "b1": rng.standard_normal(16).astype(np.float32),
        "w2": rng.standard_normal((16, 4)).astype(np.float32),
    }
    nodes = [
        node("MatMul", ["x", "w1"], ["h0"], name="first"),
        node("Add", ["h0", "b1"], ["h1"], name="bias"),
        node("Relu", ["h1"], ["h2"], name="relu"),
        node("MatMul", ["h2", "w2"], ["h3"], name="second"),
        node("Softmax", ["h3"], ["y"], name="soft", axis=-1),
    ]
    return model(nodes, [("x", F32, ["batch", 8])], [("y", F32, ["batch", 4])], weights)
