"""References against onnxruntime, where an operator of ours has the meaning of one of ONNX's."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from edgerelax.ir.op import normal
from edgerelax.ops import OPS
from edgerelax.ops.recurrent import with_settings

ort = pytest.importorskip("onnxruntime")

Case = tuple[str, list[Any], dict[str, Any], str, dict[str, Any]]


def run_node(op_type: str, arrays: list[Any], attrs: dict[str, Any], outputs: int) -> list[Any]:
    """A model of one node. Absent operands are None."""
    names = [f"x{k}" if a is not None else "" for k, a in enumerate(arrays)]
    results = [f"y{k}" for k in range(outputs)]
    given = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
    ]
    node = helper.make_node(op_type, names, results, **attrs)
    empty = [onnx.ValueInfoProto(name=r) for r in results]
    graph = helper.make_graph([node], "g", inputs, empty)
    opset = [helper.make_opsetid("", 21)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    found: list[Any] = session.run(None, given)
    return found


def check(case: Case) -> None:
    op_type, arrays, onnx_attrs, name, attrs = case
    op = OPS[name]
    found = op.reference(*arrays, **{**op.attrs, **attrs})
    mine = found if isinstance(found, tuple) else (found,)
    theirs = run_node(op_type, arrays, onnx_attrs, len(mine))
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.kind == "f":
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(a, b)


def same(op_type: str, name: str, *arrays: Any, **attrs: Any) -> Case:
    """A call whose attributes have the same names and values on both sides."""
    return op_type, list(arrays), attrs, name, attrs


RAMP = np.linspace(-4, 4, 17, dtype=np.float32)
IMAGE, LINE = normal(2, 3, 7, 8), normal(1, 2, 9)


def bytes_of(*shape: int, dtype: str = "uint8") -> Any:
    info = np.iinfo(dtype)
    return np.random.default_rng(1).integers(info.min, info.max + 1, shape).astype(dtype)


ACTIVATIONS = [
    same("LeakyRelu", "leaky_relu", RAMP, alpha=0.2),
    same("Elu", "elu", RAMP, alpha=0.7),
    same("Selu", "selu", RAMP),
    same("Celu", "celu", RAMP, alpha=1.5),
    same("ThresholdedRelu", "thresholded_relu", RAMP, alpha=0.5),
    same("HardSigmoid", "hard_sigmoid", RAMP, alpha=0.3, beta=0.4),
    same("HardSwish", "hard_swish", RAMP),
    same("Softplus", "softplus", RAMP),
    same("Softsign", "softsign", RAMP),
    same("Mish", "mish", RAMP),
    same("Gelu", "gelu", RAMP),
    same("Gelu", "gelu", RAMP, approximate="tanh"),
    same("Shrink", "shrink", RAMP, lambd=1.0, bias=0.5),
    same("PRelu", "prelu", IMAGE, normal(3, 1, 1)),
    same("Erf", "erf", RAMP),
    same("Round", "round", RAMP),
    same("Sign", "sign", RAMP),
]

POOL_SETTINGS = [
    {"strides": (2, 2), "pads": (1, 1, 1, 1)},
    {"strides": (2, 3), "pads": (0, 1, 1, 0), "ceil_mode": 1},
    {"dilations": (2, 1), "strides": (1, 2)},
]


def pool(op_type: str, name: str, attrs: dict[str, Any], own: dict[str, Any]) -> Case:
    onnx_attrs = {"kernel_shape": (3, 2), **attrs, **own}
    return op_type, [IMAGE], onnx_attrs, name, {"kernel": (3, 2), **attrs, **own}


POOLS = [
    *(pool("MaxPool", "max_pool", s, {}) for s in POOL_SETTINGS),
    *(pool("AveragePool", "average_pool", s, {}) for s in POOL_SETTINGS),
    *(pool("AveragePool", "average_pool", s, {"count_include_pad": 1}) for s in POOL_SETTINGS),
    *(pool("LpPool", "lp_pool", s, {"p": 2}) for s in POOL_SETTINGS[:1]),
    ("MaxPool", [IMAGE], {"kernel_shape": (2, 2), "storage_order": 1}, "max_pool",
     {"kernel": (2, 2), "indices": True, "column_major": True}),
    ("MaxPool", [IMAGE], {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, "max_pool",
     {"kernel": (3, 3), "pads": (1, 1, 1, 1), "indices": True}),
]  # fmt: skip

WINDOWS = [
    same("Conv", "conv", IMAGE, normal(4, 3, 3, 3), normal(4), pads=(1, 0, 2, 1), strides=(2, 1)),
    same("Conv", "conv", normal(1, 4, 9), normal(6, 2, 3), None, group=2, dilations=(2,)),
    same("ConvTranspose", "conv_transpose", LINE, normal(2, 3, 3), normal(3), strides=(2,)),
    same(
        "ConvTranspose", "conv_transpose", normal(1, 4, 3, 4), normal(4, 2, 3, 2), None,
        strides=(2, 3), pads=(1, 0, 1, 1), output_padding=(1, 0), group=2, dilations=(1, 2),
    ),
    same("ConvInteger", "conv_integer", bytes_of(1, 2, 5, 5), bytes_of(3, 2, 3, 3),
         np.array(9, np.uint8), pads=(1, 1, 0, 1)),
    same("MatMulInteger", "matmul_integer", bytes_of(3, 4), bytes_of(4, 2), np.array(7, np.uint8),
         np.array(200, np.uint8)),
]  # fmt: skip

NORMS = [
    same("LRN", "lrn", IMAGE, size=3, alpha=0.1, beta=0.6, bias=2.0),
    same("InstanceNormalization", "instance_norm", IMAGE, normal(3), normal(3), epsilon=1e-3),
    same("LayerNormalization", "layer_norm", IMAGE, normal(7, 8), normal(7, 8), axis=2),
    same("MeanVarianceNormalization", "mean_variance_norm", IMAGE, axes=(0, 2)),
    same("LpNormalization", "lp_norm", IMAGE, axis=1, p=1),
    same("BatchNormalization", "batch_norm", IMAGE, *(np.abs(normal(3, seed=k)) for k in range(4))),
    same("GroupNormalization", "group_norm", normal(2, 6, 5), normal(6), normal(6), num_groups=3),
    same("Softmax", "softmax", IMAGE, axis=1),
    same("LogSoftmax", "log_softmax", IMAGE, axis=-2),
    same("Hardmax", "hardmax", IMAGE, axis=1),
]

REDUCTIONS = [
    (onnx_name, [IMAGE, np.array([1, -1])], {"keepdims": 0}, name, {"axes": (1, -1), "keepdims": 0})
    for onnx_name, name in (
        ("ReduceSum", "reduce_sum"), ("ReduceMean", "reduce_mean"), ("ReduceL1", "reduce_l1"),
        ("ReduceL2", "reduce_l2"), ("ReduceProd", "reduce_prod"), ("ReduceMax", "reduce_max"),
        ("ReduceSumSquare", "reduce_sum_square"), ("ReduceLogSumExp", "reduce_log_sum_exp"),
    )
]  # fmt: skip
OTHERS = [
    same("ArgMax", "argmax", IMAGE.round(), axis=2, select_last_index=1, keepdims=0),
    same("ArgMin", "argmin", IMAGE.round(), axis=-1),
    same("Einsum", "einsum", normal(2, 3, 4), normal(2, 4, 5), equation="bij,bjk->bki"),
    same("DynamicQuantizeLinear", "dynamic_quantize_linear", normal(3, 5)),
]

QUANTIZE = [
    same("QuantizeLinear", "quantize_linear", normal(2, 4) * 9, np.array([0.1, 1, 2, 0.03],
         np.float32), np.array([1, 2, 250, 4], np.uint8), axis=1),
    same("QuantizeLinear", "quantize_linear", RAMP, np.array(1, np.float32), np.array(0, np.int8)),
    same("DequantizeLinear", "dequantize_linear", bytes_of(2, 4), np.array([0.1, 1, 2, 0.03],
         np.float32), np.array([1, 2, 250, 4], np.uint8), axis=1),
    same("DequantizeLinear", "dequantize_linear", bytes_of(3, 8, dtype="int8"),
         np.abs(normal(3, 2)), bytes_of(3, 2, dtype="int8"), axis=1, block_size=4),
]  # fmt: skip


def cumsum(**attrs: Any) -> Case:
    return "CumSum", [normal(2, 5, 3), np.array(1)], attrs, "cumsum", {"axis": 1, **attrs}


RUNNING = [cumsum(), cumsum(exclusive=1), cumsum(reverse=1), cumsum(exclusive=1, reverse=1)]


CASES = [
    pytest.param(case, id=f"{case[3]}-{k}")
    for k, case in enumerate(
        [*ACTIVATIONS, *POOLS, *WINDOWS, *NORMS, *REDUCTIONS, *OTHERS, *QUANTIZE, *RUNNING]
    )
]
OPERAND_AS_ATTRIBUTE = ("CumSum", *(case[0] for case in REDUCTIONS))


@pytest.mark.parametrize("case", CASES)
def test_reference(case: Case) -> None:
    op_type, arrays, onnx_attrs, name, attrs = case
    if op_type not in OPERAND_AS_ATTRIBUTE:
        check(case)
        return
    found = OPS[name].reference(arrays[0], **{**OPS[name].attrs, **attrs})
    theirs = run_node(op_type, arrays, onnx_attrs, 1)[0]
    np.testing.assert_allclose(found, theirs, rtol=1e-4, atol=1e-5)


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {
    "LSTM": ("HardSigmoid", "Tanh", "Softsign"),
    "GRU": ("HardSigmoid", "Softsign"),
    "RNN": ("Affine",),
}
OUR_NAMES = {
    "HardSigmoid": "hard_sigmoid", "Tanh": "tanh", "Softsign": "softsign", "Affine": "affine",
}  # fmt: skip


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layer", GATES)
@pytest.mark.parametrize("flavour", ["plain", "lengths", "functions", "flag", "clip"])
def test_recurrent(layer: str, direction: str, flavour: str) -> None:
    if (layer, flavour) == ("RNN", "flag"):
        pytest.skip("RNN has no flags")
    if (layer, flavour) == ("LSTM", "clip"):
        pytest.skip("onnxruntime does not clip what enters h; the specification does")
    ways, time, batch, inner, hidden = 1 + (direction == "bidirectional"), 4, 3, 5, 2
    rows = GATES[layer] * hidden
    arrays: list[Any] = [
        normal(time, batch, inner), normal(ways, rows, inner), normal(ways, rows, hidden),
        normal(ways, 2 * rows), None, normal(ways, batch, hidden),
    ]  # fmt: skip
    if layer == "LSTM":
        arrays += [normal(ways, batch, hidden, seed=1), normal(ways, 3 * hidden)]
    theirs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    mine: dict[str, Any] = {"direction": direction}
    if flavour == "lengths":
        arrays[4] = np.array([4, 1, 3], np.int32)
    if flavour == "functions":
        names = FUNCTIONS[layer] * ways
        theirs |= {"activations": names, "activation_alpha": [0.3] * ways}
        theirs |= {"activation_beta": [0.4] * ways}
        ours = [OUR_NAMES[n] for n in names]
        mine["activations"] = with_settings(ours, [0.3] * ways, [0.4] * ways)
    if flavour == "flag":
        key = "linear_before_reset" if layer == "GRU" else "input_forget"
        theirs[key], mine[key] = 1, True
        if layer == "LSTM":
            arrays[7] = None
    if flavour == "clip":
        theirs["clip"], mine["clip"] = 0.5, 0.5
    check((layer, arrays, theirs, layer.lower(), mine))
