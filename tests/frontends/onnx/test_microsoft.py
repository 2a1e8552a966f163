"""onnxruntime's contributed operators against onnxruntime itself, batch and length symbolic."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.verify import verify
from tests.frontends.onnx.contributed import MICROSOFT, Array, Arrays, check, integers, normal
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


@pytest.mark.parametrize("sink", [False, True])
def test_group_query_attention_with_sinks(sink: bool) -> None:
    """A score for each head, or 0 for all, which takes its share of the weights."""
    inputs = grouped(2, 1, 7, [7, 7], 8)
    operands = [*GROUPED[:7], *([""] * 4 + ["sink"] if sink else [])]
    heads = {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 6}
    attrs = {} if sink else {"smooth_softmax": 1}
    check("GroupQueryAttention", operands, inputs, {"sink": normal(4)} if sink else {}, outputs=3,
          exact=("pk", "pv"), **heads, **attrs)  # fmt: skip


def test_packed_group_query_attention() -> None:
    inputs = grouped(1, 4, 0, [3], 4)
    packed = {"q": np.concatenate([inputs.pop(k) for k in "qkv"], -1), **inputs}
    check("GroupQueryAttention", ["q", "", "", *GROUPED[3:7]], packed, outputs=3,
          exact=("pk", "pv"), num_heads=4, kv_num_heads=2)  # fmt: skip


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


def test_fused_products_of_batches() -> None:
    a, b = {"a": normal(3, 2, 4)}, {"b": normal(2, 4, 5)}
    check("FusedMatMul", ["a", "b"], {**a, **b}, exact=("b",), transBatchA=1)
    check("FusedMatMul", ["a", "b"], {"a": normal(2, 4, 3), "b": normal(4, 2, 5)}, exact=("b",),
          transA=1, transBatchB=1, alpha=2.0)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "operands", "attrs"),
    [
        ("FusedMatMulActivation", ["x", "w"], {"activation": "Relu", "alpha": 0.5}),
        ("FusedMatMulActivation", ["x", "w"], {"activation": "Softmax", "activation_axis": 3}),
        ("GemmFastGelu", ["x", "w", "b"], {}),
        ("BiasSoftmax", ["x", "e"], {"axis": 3, "is_inner_broadcast": 1}),
        ("BiasSoftmax", ["x", "o"], {"axis": 2, "is_inner_broadcast": 0}),
        ("BiasDropout", ["x", "b8", "x"], {}),
        ("GroupNorm", ["i", "b8", "b8"], {"groups": 2, "activation": 1}),
        ("GroupNorm", ["i", "b4", "b4"], {"groups": 2, "activation": 0, "channels_last": 0}),
        ("SkipGroupNorm", ["i", "b8", "b8", "s", "b8"], {"groups": 4, "activation": 1}),
    ],
    ids=str,
)
def test_fusions_that_onnxruntime_has_on_gpus(
    op: str, operands: list[str], attrs: dict[str, Any]
) -> None:
    """Against what they are fused from, in numpy."""
    given = {
        "x": normal(2, 3, 4, 8), "w": normal(8, 5), "b": normal(5), "b8": normal(8),
        "b4": normal(4), "e": normal(2, 1, 1, 8), "o": normal(4, 8), "i": normal(2, 4, 3, 8),
        "s": normal(2, 8),
    }  # fmt: skip
    used = {k: given[k] for k in dict.fromkeys(operands)}
    first = operands[0]
    rank = used[first].ndim
    infos = [value(first, [*[f"d{k}" for k in range(rank - 1)], used[first].shape[-1]])]
    if not attrs.get("channels_last", 1):
        infos = [value(first, ["b", 4, "h", "w"])]
    constants = {k: v for k, v in used.items() if k != first}
    outputs = ["y", "t"] if op == "SkipGroupNorm" else ["y"]
    proto = model([node(op, operands, outputs, domain=MICROSOFT, **attrs)], infos, outputs,
                  constants, domains={MICROSOFT: 1})  # fmt: skip
    module = load(proto)
    verify(module)
    found = evaluate(module, {first: used[first]})
    want = fused(op, [used[k] for k in operands], attrs)
    np.testing.assert_allclose(found["y"], want, rtol=1e-4, atol=1e-5)


def fused(op: str, args: list[Array], attrs: dict[str, Any]) -> Array:
    """The operator in numpy."""

    def softmax(x: Array, axes: tuple[int, ...]) -> Array:
        e = np.exp(x - x.max(axes, keepdims=True))
        return e / e.sum(axes, keepdims=True)

    def groups(x: Array) -> Array:
        last = attrs.get("channels_last", 1)
        x = np.moveaxis(x, -1, 1) if last else x
        parts = x.reshape(len(x), attrs["groups"], -1)
        normed = (parts - parts.mean(2, keepdims=True)) / np.sqrt(
            parts.var(2, keepdims=True) + 1e-5
        )
        y = normed.reshape(x.shape) * args[1][:, None, None] + args[2][:, None, None]
        y = y / (1 + np.exp(-y)) if attrs["activation"] else y
        return np.moveaxis(y, 1, -1) if last else y

    match op:
        case "FusedMatMulActivation":
            y = attrs.get("alpha", 1) * args[0] @ args[1]
            return np.maximum(y, 0) if attrs["activation"] == "Relu" else softmax(y, (3,))
        case "GemmFastGelu":
            z = args[0] @ args[1] + args[2]
            return z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
        case "BiasSoftmax":
            return softmax(args[0] + args[1], tuple(range(attrs["axis"], 4)))
        case "BiasDropout":
            return args[0] + args[1] + args[2]
        case "GroupNorm":
            return groups(args[0])
    return groups(args[0] + args[3][:, None, None] + args[4])


@pytest.mark.parametrize("op", ["NhwcConv", "NhwcFusedConv"])
def test_convolutions_with_channels_last(op: str) -> None:
    """onnxruntime has them on some devices only: as Conv is on the same image turned."""
    x = normal(2, 6, 5, 4)
    constants = {"k": normal(4, 2, 3, 3), "b": normal(4)}
    attrs = {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 1]}
    turned = {"x": np.moveaxis(x, -1, 1)}
    (conv,) = check("Conv", ["x", "k", "b"], turned, constants, exact=("x",), domain="", **attrs)
    want = np.moveaxis(conv, 1, -1)
    fused = op == "NhwcFusedConv"
    z = normal(*want.shape)
    infos = [value("x", ["n", "h", "w", 4]), value("z", ["n", "u", "v", 4])][: 1 + fused]
    operands = ["x", "k", "b", "z"][: 3 + fused]
    extra: dict[str, Any] = {"activation": "Relu"} if fused else {}
    proto = model([node(op, operands, ["y"], domain=MICROSOFT, **attrs, **extra)], infos, ["y"],
                  constants, domains={MICROSOFT: 1})  # fmt: skip
    inputs = {"x": x, "z": z} if fused else {"x": x}
    found = evaluate(load(proto), inputs)["y"]
    np.testing.assert_allclose(found, np.maximum(want + z, 0) if fused else want, atol=1e-5)


def test_earlier_names_of_operators_of_the_standard() -> None:
    x = {"x": normal(3, 4, 5)}
    check("Trilu", ["x"], x)
    check("Trilu", ["x", "k"], x, {"k": np.array(-1)}, upper=0)
    check("Pad", ["x", "p"], x, {"p": np.array([0, 1, 2, 0, 0, 1])}, mode="reflect")
    check("ExpandDims", ["x", "k"], x, {"k": np.array(-1, np.int32)})
    check("GatherND", ["x", "k"], x, {"k": np.array([[0, 1], [2, 3]])})
    limits = {"a": np.array(3, np.float32), "b": np.array(9.5, np.float32)}
    check("Range", ["a", "b"], {}, limits)
    check("Range", ["a", "b", "c"], {}, {k: np.array(v, np.int64) for k, v in (("a", 9), ("b", 1),
          ("c", -3))})  # fmt: skip
    check("Unique", ["x"], {"x": integers(0, 4, 9).astype(np.float32)}, outputs=3)
    image = {"i": normal(2, 3, 4, 5), "g": normal(2, 3, 3, 2)}
    check("GridSample", ["i", "g"], image, exact=("g",))


def test_operators_of_models_from_core_ml() -> None:
    x = {"x": normal(2, 3, 6, 7)}
    old = {"domain": "", "standard": 8}
    check("Affine", ["x"], x, alpha=0.5, beta=2.0, **old)
    check("ScaledTanh", ["x"], x, alpha=1.5, beta=0.7, **old)
    check("ParametricSoftplus", ["x"], x, alpha=1.5, beta=0.7, **old)
    check("Scale", ["x"], x, scale=3.0, **old)
    check("ImageScaler", ["x"], x, scale=2.0, bias=[0.1, 0.2, 0.3], exact=("x",), **old)
    check("Crop", ["x"], x, border=[1, 2, 1, 1], **old)
    check("Crop", ["x"], x, border=[1, 2, 0, 0], scale=[3, 4], **old)


def test_packed_operands_of_attention() -> None:
    """onnxruntime has them on GPUs only: as if they came apart."""
    q, k, v = (normal(2, 5, 2, 4, seed=s) for s in range(3))
    bias = {"bias": normal(24)}

    def run(operands: list[str], inputs: Arrays) -> Array:
        infos = [value(n, [*a.shape[:1], "n", *a.shape[2:]]) for n, a in inputs.items()]
        made = node("MultiHeadAttention", operands, ["y"], domain=MICROSOFT, num_heads=2)
        proto = model([made], infos, ["y"], bias, domains={MICROSOFT: 1})
        return evaluate(load(proto), inputs)["y"]

    apart = {n: a.reshape(2, 5, 8) for n, a in (("q", q), ("k", k), ("v", v))}
    want = run(["q", "k", "v", "bias"], apart)
    both = {"q": apart["q"], "kv": np.stack([k, v], 3)}
    np.testing.assert_array_equal(run(["q", "kv", "", "bias"], both), want)
    np.testing.assert_array_equal(
        run(["qkv", "", "", "bias"], {"qkv": np.stack([q, k, v], 3)}), want
    )


def test_a_bias_beside_keys_and_values_that_are_split() -> None:
    inputs = {"q": normal(2, 3, 8), "k": normal(2, 2, 5, 4), "v": normal(2, 2, 5, 4, seed=1)}
    bias = {"bias": normal(24)}
    check("MultiHeadAttention", ["q", "k", "v", "bias"], inputs, bias, exact=("k", "v"),
          num_heads=2)  # fmt: skip


def test_what_is_not_supported_says_so() -> None:
    operands = ["q", "q", "q", "", "", "", "p", "p", "n"]
    proto = model(
        [node("MultiHeadAttention", operands, ["y"], domain=MICROSOFT, num_heads=2)],
        [value("q", [1, 3, 6]), value("p", [1, 2, 4, 3]), value("n", [1], TensorProto.INT32)],
        ["y"],
        domains={MICROSOFT: 1},
    )
    with pytest.raises(UnsupportedError, match="updated in its place"):
        load(proto)
