"""Operators of models that onnxruntime quantised, against onnxruntime itself."""

import numpy as np
import pytest
from onnx import TensorProto

from edgerelax.frontends.onnx import load
from edgerelax.ir.evaluate import evaluate
from tests.frontends.onnx.contributed import MICROSOFT, Array, check, integers, normal
from tests.frontends.onnx.graphs import model, node, value


def test_quantised_products() -> None:
    # With larger weights onnxruntime saturates sums of two products on CPUs without VNNI.
    a, b = integers(0, 256, 3, 8, dtype="uint8"), integers(-64, 65, 8, 5, dtype="int8")
    constants = {
        "b": b, "as": np.float32(0.02), "bs": np.float32(0.03), "az": np.uint8(120),
        "bz": np.int8(3), "bias": normal(5),
    }  # fmt: skip
    operands = ["a", "b", "as", "bs", "az", "bz", "bias"]
    check("MatMulIntegerToFloat", operands, {"a": a}, constants, atol=1e-4)
    operands = ["x", "b", "bs", "bz", "bias"]
    check("DynamicQuantizeMatMul", operands, {"x": normal(3, 8)}, constants, atol=1e-3)


def test_quantised_products_of_matrices() -> None:
    a, b = integers(0, 256, 3, 8, dtype="uint8"), integers(-64, 65, 5, 8, dtype="int8")
    constants = {
        "b": b, "as": np.float32(0.02), "bs": normal(5) ** 2, "az": np.uint8(120),
        "bz": np.zeros(5, np.int8), "bias": integers(-500, 500, 5, dtype="int32"),
        "ys": np.float32(0.1), "yz": np.uint8(100),
    }  # fmt: skip
    operands = ["a", "as", "az", "b", "bs", "bz", "bias"]
    check("QGemm", operands, {"a": a}, constants, atol=1e-4, transB=1, alpha=0.5)
    check("QGemm", [*operands, "ys", "yz"], {"a": a}, constants, atol=1, transB=1)


def test_quantised_pools_and_softmax() -> None:
    x = {"x": integers(0, 256, 2, 3, 8, 7, dtype="uint8")}
    scales = {
        "xs": np.float32(0.02), "xz": np.uint8(128), "ys": np.float32(1 / 256), "yz": np.uint8(0),
    }  # fmt: skip
    operands = ["x", "xs", "xz", "ys", "yz"]
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    for counted in (0, 1):
        check(
            "QLinearAveragePool", operands, x, scales, atol=1, count_include_pad=counted, **window
        )
    for opset in (11, 13):
        check("QLinearSoftmax", operands, x, scales, atol=1, axis=2, opset=opset)


SCALES = {
    "xs": np.float32(0.02), "xz": np.uint8(128), "ys": np.float32(0.03), "yz": np.uint8(100),
}  # fmt: skip
OPERANDS = ["x", "xs", "xz", "ys", "yz"]


def image(*shape: int) -> dict[str, Array]:
    return {"x": integers(0, 256, *shape, dtype="uint8")}


def test_images_with_their_channels_last() -> None:
    x = image(2, 7, 6, 5)
    check("QLinearGlobalAveragePool", OPERANDS, x, SCALES, atol=1, channels_last=1)
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    check("QLinearAveragePool", OPERANDS, x, SCALES, atol=1, channels_last=1, **window)
    check("NhwcMaxPool", ["x"], x, **window)
    weights = {
        "w": integers(-60, 61, 4, 5, 3, 3, dtype="int8"), "ws": np.float32(0.01),
        "wz": np.int8(0), "b": integers(-500, 500, 4, dtype="int32"),
    }  # fmt: skip
    operands = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"]
    for last in (0, 1):
        x = image(2, 7, 6, 5) if last else image(2, 5, 7, 6)
        check("QLinearConv", operands, x, SCALES | weights, exact=() if last else ("x",), atol=1,
              channels_last=last, pads=[1, 1, 1, 1])  # fmt: skip


@pytest.mark.parametrize("keepdims", [0, 1])
def test_means(keepdims: int) -> None:
    """onnxruntime has no kernel of it on CPUs: the mean of the numbers, in the result's scale."""
    x = integers(0, 256, 2, 3, 4, dtype="uint8")
    made = node("QLinearReduceMean", OPERANDS, ["y"], domain=MICROSOFT, axes=[-1, 1],
                keepdims=keepdims)  # fmt: skip
    infos = [value("x", ["n", "m", "k"], TensorProto.UINT8)]
    proto = model([made], infos, ["y"], SCALES, domains={MICROSOFT: 1})
    found = evaluate(load(proto), {"x": x})["y"]
    mean = ((x - 128.0) * 0.02).mean((1, 2), keepdims=bool(keepdims))
    np.testing.assert_allclose(found, np.clip(np.rint(mean / 0.03) + 100, 0, 255), atol=1)


def test_choices() -> None:
    inputs = {
        "c": integers(0, 2, 3, 1, 4).astype(bool), "x": integers(0, 256, 3, 5, 4, dtype="uint8"),
        "v": integers(0, 256, 5, 4, dtype="uint8"),
    }  # fmt: skip
    more = {"vs": np.float32(0.05), "vz": np.uint8(7)}
    operands = ["c", "x", "xs", "xz", "v", "vs", "vz", "ys", "yz"]
    check("QLinearWhere", operands, inputs, SCALES | more, exact=("c",), atol=1)


@pytest.mark.parametrize("segments", [False, True])
def test_embeddings_of_eight_bits(segments: bool) -> None:
    hidden = 8
    tables = {
        "words": integers(0, 256, 20, hidden, dtype="uint8"),
        "places": integers(0, 256, 9, hidden, dtype="uint8"),
        "parts": integers(0, 256, 2, hidden, dtype="uint8"),
        "gamma": integers(0, 256, hidden, dtype="uint8"),
        "beta": integers(0, 256, hidden + 0, dtype="uint8"),
    }  # fmt: skip
    scales = {f"{n}.s": np.float32(0.01 + 0.01 * k) for k, n in enumerate(tables)}
    zeros = {f"{n}.z": np.uint8(100 + k) for k, n in enumerate(tables)}
    inputs = {"x": integers(0, 20, 2, 5, dtype="int32")}
    names = list(tables)
    if segments:
        inputs["s"] = integers(0, 2, 2, 5, dtype="int32")
    else:
        del tables["parts"], scales["parts.s"], zeros["parts.z"]
    kept = [n if n in tables else "" for n in names]
    operands = [
        "x", "s" if segments else "", *kept, "",
        *(f"{n}.s" if n else "" for n in kept), *(f"{n}.z" if n else "" for n in kept),
    ]  # fmt: skip
    check("QEmbedLayerNormalization", operands, inputs, tables | scales | zeros, exact=("x", "s"),
          outputs=2, atol=1e-4)  # fmt: skip
