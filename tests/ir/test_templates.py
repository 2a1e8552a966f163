"""Template references against ONNX's reference implementation and plain loops."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from edgerelax.ir.templates import run_template

ort = pytest.importorskip("onnxruntime")


def run_onnx(node: onnx.NodeProto, inputs: dict[str, Any], opset: int = 18) -> list[Any]:
    """The node under onnxruntime."""
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(a.dtype), list(a.shape)
            )
            for n, a in inputs.items()
        ],
        [helper.make_tensor_value_info(o, TensorProto.UNDEFINED, None) for o in node.output if o],
    )
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=o) for o in node.output if o)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 9
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {
    "LSTM": [("sigmoid", 0, 0), ("tanh", 0, 0), ("tanh", 0, 0)],
    "GRU": [("sigmoid", 0, 0), ("tanh", 0, 0)],
    "RNN": [("tanh", 0, 0)],
}


@pytest.mark.parametrize("kind", list(GATES))
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("extra", ["plain", "states", "lengths", "options"])
def test_recurrence(kind: str, direction: str, extra: str) -> None:
    time, batch, size, hidden = 5, 3, 4, 2
    d = 2 if direction == "bidirectional" else 1
    g = GATES[kind]
    x, w, r = normal(time, batch, size), normal(d, g * hidden, size), normal(d, g * hidden, hidden)
    b = normal(d, 2 * g * hidden)
    inputs = {"x": x, "w": w, "r": r, "b": b}
    operands: dict[str, Any] = {}
    params: dict[str, Any] = {}
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if extra == "states":
        inputs["h"] = operands["h"] = normal(d, batch, hidden, seed=1)
        if kind == "LSTM":
            inputs["c"] = operands["c"] = normal(d, batch, hidden, seed=2)
            inputs["p"] = operands["p"] = normal(d, 3 * hidden, seed=3)
    if extra == "lengths":
        operands["lengths"] = inputs["l"] = np.array([5, 2, 3], np.int32)
    bias = b[:, : g * hidden] + b[:, g * hidden :]
    if extra == "options":
        params["clip"] = attrs["clip"] = 0.5
        if kind == "LSTM":
            attrs["input_forget"] = 1
            params["input_forget"] = True
        if kind == "GRU":
            attrs["linear_before_reset"] = 1
            params["linear_before_reset"] = True
            inner = b[:, g * hidden + 2 * hidden :]
            bias[:, 2 * hidden :] -= inner
            operands["rb"] = inner
    names = ["x", "w", "r", "b", "l" if "l" in inputs else "", "h" if "h" in inputs else ""]
    if kind == "LSTM":
        names += ["c" if "c" in inputs else "", "p" if "p" in inputs else ""]
    outputs = ["y", "hn", *(["cn"] if kind == "LSTM" else [])]
    expected = run_onnx(helper.make_node(kind, names, outputs, **attrs), inputs)

    xw = np.einsum("tbi,dgi->dtbg", x, w) + bias[:, None, None, :]
    directions = {"bidirectional": ("forward", "reverse")}.get(direction, (direction,))
    got = run_template(
        kind.lower(),
        [xw, r, *operands.values()],
        {
            "operands": ("xw", "r", *operands),
            "directions": directions,
            "activations": tuple(FUNCTIONS[kind] * d),
            **params,
        },
    )
    for a, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (2, 5), (3, 0)])
def test_cumsum(shape: tuple[int, ...], exclusive: bool, reverse: bool) -> None:
    x = normal(*shape)
    node = helper.make_node("CumSum", ["x", "a"], ["y"], exclusive=exclusive, reverse=reverse)
    expected = ReferenceEvaluator(node).run(None, {"x": x, "a": np.array(-1)})[0]
    got = run_template("cumsum", [x], {"exclusive": exclusive, "reverse": reverse})[0]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("largest", [False, True])
def test_topk_takes_lower_indices_first_among_equals(largest: bool) -> None:
    x = np.array([[3, 1, 3, 2, 1], [0, 0, 0, 0, 0]], np.uint8)
    values, indices = run_template("topk", [x], {"k": 4, "largest": largest})
    expected = sorted(range(5), key=lambda i: (-int(x[0, i]) if largest else int(x[0, i]), i))[:4]
    np.testing.assert_array_equal(indices, [expected, [0, 1, 2, 3]])
    np.testing.assert_array_equal(values, np.take_along_axis(x, indices, 1))


def test_topk_puts_nan_first() -> None:
    x = np.array([[1, np.nan, 2]], np.float32)
    assert run_template("topk", [x], {"k": 2})[1].tolist() == [[1, 2]]


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 0, 3)])
def test_nonzero(shape: tuple[int, ...]) -> None:
    x = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 3)
    indices, count = run_template("nonzero", [x], {"capacity": x.size + 1})
    expected = np.nonzero(x) if shape else ()
    for row, e in zip(indices, expected, strict=True):
        np.testing.assert_array_equal(row[: count[0]], e)
    assert count[0] == np.count_nonzero(x)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scatter_elements(reduction: str, axis: int) -> None:
    data = normal(4, 5)
    index = np.array([[0, -1, 2, 1], [3, 0, -2, 0]])
    updates = normal(2, 4)
    node = helper.make_node(
        "ScatterElements", ["d", "i", "u"], ["y"], axis=axis, reduction=reduction
    )
    expected = run_onnx(node, {"d": data, "i": index, "u": updates})[0]
    got = run_template("scatter", [data, index, updates], {"axis": axis, "reduction": reduction})
    np.testing.assert_allclose(got[0], expected, rtol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scatter_nd(reduction: str, depth: int) -> None:
    data = normal(3, 2, 4)
    index = np.array([[0, 1, 2], [-1, 0, -1], [0, 1, 2]])[:, :depth]
    updates = normal(3, *data.shape[depth:])
    node = helper.make_node("ScatterND", ["d", "i", "u"], ["y"], reduction=reduction)
    expected = run_onnx(node, {"d": data, "i": index, "u": updates})[0]
    got = run_template("scatter_nd", [data, index, updates], {"reduction": reduction})[0]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_scatter_skips_what_is_out_of_range() -> None:
    got = run_template("scatter", [np.zeros(3), np.array([5, -4, 1]), np.ones(3)], {})[0]
    assert got.tolist() == [0, 1, 0]
