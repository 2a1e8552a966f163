"""onnxruntime's contributed operators against onnxruntime itself, batch and length symbolic."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import UnsupportedError
from tests.frontends.onnx.contributed import MICROSOFT, Arrays, check, integers, normal
from tests.frontends.onnx.graphs import model, node, value

X = {"x": normal(2, 5, 8)}
ROW = {"w": normal(8), "b": normal(8, seed=1)}


def test_activations() -> None:
    check("Gelu", ["x"], X)
    check("QuickGelu", ["x"], X, alpha=1.5)
    check("FastGelu", ["x"], X)
    check("FastGelu", ["x", "b"], X, ROW)
    check("BiasGelu", ["x", "b"], X, ROW)


def test_normalisations() -> None:
    two = {**X, "s": normal(2, 5, 8, seed=2)}
    check("SkipLayerNormalization", ["x", "s", "w", "b"], two, ROW, epsilon=1e-5)
    check("SkipLayerNormalization", ["x", "s", "w", "b", "w"], two, ROW, epsilon=1e-5)
    check("SkipSimplifiedLayerNormalization", ["x", "s", "w"], two, ROW, epsilon=1e-5)


def test_fused_products() -> None:
    a, b = {"a": normal(2, 3, 4)}, {"b": normal(2, 5, 3)}
    check("FusedMatMul", ["a", "b"], {**a, **b}, exact=("b",), transA=1, transB=1, alpha=0.5)
    image = {"x": normal(1, 4, 6, 6)}
    kernel = {"w": normal(3, 4, 3, 3), "b": normal(3)}
    check("FusedConv", ["x", "w", "b"], image, kernel, exact=("x",), activation="Relu",
          pads=[1, 1, 1, 1])  # fmt: skip


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("offset", [False, True])
def test_rotary_embedding(interleaved: int, offset: bool) -> None:
    angles = np.random.default_rng(0).uniform(0, 6, (16, 4))
    caches = {"cos": np.cos(angles).astype("f"), "sin": np.sin(angles).astype("f")}
    positions = np.array([3]) if offset else integers(0, 16, 2, 5)
    inputs = {"x": normal(2, 5, 16), "p": positions}
    check("RotaryEmbedding", ["x", "p", "cos", "sin"], inputs, caches, exact=("p",),
          interleaved=interleaved)  # fmt: skip


def test_multi_head_attention() -> None:
    same = {"q": normal(2, 3, 8), "k": normal(2, 5, 8, seed=1), "v": normal(2, 5, 8, seed=2)}
    check("MultiHeadAttention", ["q", "k", "v"], same, num_heads=2)
    check("MultiHeadAttention", ["q", "k", "v"], same, num_heads=2, scale=0.3)
    mask = {"m": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)}
    check("MultiHeadAttention", ["q", "k", "v", "", "m"], {**same, **mask}, num_heads=2)
    bias = {"bias": normal(24)}
    check("MultiHeadAttention", ["q", "k", "v", "bias"], same, bias, num_heads=2)
    extra = {"e": normal(1, 2, 3, 5)}
    operands = ["q", "k", "v", "", "", "e"]
    check("MultiHeadAttention", operands, {**same, **extra}, exact=("e",), num_heads=2)


def test_multi_head_attention_with_a_past() -> None:
    inputs = {
        "q": normal(2, 3, 8), "k": normal(2, 3, 8, seed=1), "v": normal(2, 3, 8, seed=2),
        "pk": normal(2, 2, 4, 4), "pv": normal(2, 2, 4, 4, seed=1),
    }  # fmt: skip
    operands = ["q", "k", "v", "", "", "", "pk", "pv"]
    check("MultiHeadAttention", operands, inputs, outputs=3, num_heads=2)


def grouped(batch: int, length: int, past: int, ends: Sequence[int], total: int) -> Arrays:
    return {
        "q": normal(batch, length, 64), "k": normal(batch, length, 32, seed=1),
        "v": normal(batch, length, 32, seed=2), "pk": normal(batch, 2, past, 16),
        "pv": normal(batch, 2, past, 16, seed=1), "ends": np.array(ends, np.int32),
        "total": np.array(total, np.int32),
    }  # fmt: skip


GROUPED = ["q", "k", "v", "pk", "pv", "ends", "total", "cos", "sin"]
ANGLES = np.random.default_rng(0).uniform(0, 6, (32, 8))
CACHES = {"cos": np.cos(ANGLES).astype("f"), "sin": np.sin(ANGLES).astype("f")}


@pytest.mark.parametrize(
    ("batch", "length", "past", "ends", "total"),
    [(1, 5, 0, [4], 5), (1, 1, 5, [5], 6), (2, 1, 7, [7, 7], 8)],
    ids=["prompt", "step", "two steps"],
)
@pytest.mark.parametrize("attrs", [{}, {"local_window_size": 3}, {"softcap": 5.0}], ids=str)
def test_group_query_attention(
    batch: int, length: int, past: int, ends: list[int], total: int, attrs: dict[str, Any]
) -> None:
    inputs = grouped(batch, length, past, ends, total)
    for rotary in (0, 1):
        operands = GROUPED if rotary else GROUPED[:7]
        heads = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": rotary}
        check("GroupQueryAttention", operands, inputs, CACHES if rotary else {}, outputs=3,
              exact=("pk", "pv"), **heads, **attrs)  # fmt: skip


def test_packed_group_query_attention() -> None:
    inputs = grouped(1, 4, 0, [3], 4)
    packed = {"q": np.concatenate([inputs.pop(k) for k in "qkv"], -1), **inputs}
    check("GroupQueryAttention", ["q", "", "", *GROUPED[3:7]], packed, outputs=3,
          exact=("pk", "pv"), num_heads=4, kv_num_heads=2)  # fmt: skip


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


def dynamic_lstm(dtype: str, columns: bool, directions: int) -> tuple[Arrays, Arrays]:
    """Quantised weights, and the weights of a plain layer that they stand for."""
    low, high, middle = (-60, 61, 0) if dtype == "int8" else (0, 256, 128)
    stored = {"b": normal(directions, 32)}
    plain = {"b": stored["b"]}
    for name, rows in (("w", 5), ("r", 4)):
        shape = (directions, 16) if columns else (directions,)
        codes = integers(low, high, directions, rows, 16, dtype=dtype)
        scales = np.abs(normal(*shape)) * 0.005 + 0.002
        zeros = np.full(shape, middle, dtype)
        stored |= {name: codes, f"{name}s": scales, f"{name}z": zeros}
        each = scales.reshape(directions, 1, -1)
        plain[name] = np.swapaxes((codes.astype(np.float32) - middle) * each, 1, 2)
    return stored, plain


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_dynamic_quantize_lstm(dtype: str, columns: bool, direction: str) -> None:
    """As a plain layer of those weights; as onnxruntime but for its rounding to 8 bits."""
    directions = 2 if direction == "bidirectional" else 1
    stored, plain = dynamic_lstm(dtype, columns, directions)
    inputs = {
        "x": normal(6, 3, 5), "n": np.array([6, 1, 4], np.int32),
        "h": normal(directions, 3, 4), "c": normal(directions, 3, 4, seed=1),
    }  # fmt: skip
    operands = ["x", "w", "r", "b", "n", "h", "c", ""]
    scales = ["ws", "wz", "rs", "rz"]
    attrs = {"hidden_size": 4, "direction": direction}
    found = check("DynamicQuantizeLSTM", operands + scales, inputs, stored, outputs=3,
                  exact=("h", "c", "n"), atol=0.03, **attrs)  # fmt: skip
    want = check("LSTM", operands[:-1], inputs, plain, outputs=3, exact=("h", "c", "n"), domain="",
                 **attrs)  # fmt: skip
    for one, other in zip(found, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_what_is_not_supported_says_so() -> None:
    proto = model(
        [node("MultiHeadAttention", ["q"], ["y"], domain=MICROSOFT, num_heads=2)],
        [value("q", [1, 3, 2, 3, 4], TensorProto.FLOAT)],
        ["y"],
        domains={MICROSOFT: 1},
    )
    with pytest.raises(UnsupportedError, match="packed"):
        load(proto)
