"""Mixtures of experts, floats and few bits, against onnxruntime."""

from typing import Any

import numpy as np
import pytest

from edgerelax.frontends.nn.grouped import packed
from tests.frontends.onnx.contributed import Array, Arrays, check, integers, normal

EXPERTS, HIDDEN, INNER = 4, 32, 16


@pytest.mark.parametrize(
    "attrs",
    [
        {"k": 1, "activation_type": "relu"},
        {"k": 2, "activation_type": "gelu", "normalize_routing_weights": 1},
        {"k": 2, "activation_type": "silu", "normalize_routing_weights": 0},
        {"k": 3, "activation_type": "identity", "normalize_routing_weights": 1},
        {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1,
         "activation_alpha": 1.7, "activation_beta": 1.0, "swiglu_limit": 0.8},
    ],
    ids=lambda a: a["activation_type"],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1,)], ids=str)
def test_mixtures(attrs: dict[str, Any], shape: tuple[int, ...]) -> None:
    wide = INNER * (2 if attrs["activation_type"] == "swiglu" else 1)
    constants = {
        "w1": normal(EXPERTS, wide, HIDDEN) * 0.2, "b1": normal(EXPERTS, wide),
        "w2": normal(EXPERTS, HIDDEN, INNER) * 0.2, "b2": normal(EXPERTS, HIDDEN),
    }  # fmt: skip
    tokens = int(np.prod(shape))
    inputs = {"x": normal(*shape, HIDDEN), "r": normal(tokens, EXPERTS)}
    check("MoE", ["x", "r", "w1", "b1", "w2", "b2"], inputs, constants, atol=1e-4, **attrs)
    if attrs["activation_type"] != "swiglu":
        check("MoE", ["x", "r", "w1", "", "w2"], inputs, constants, atol=1e-4, **attrs)


def layer(name: str, sizes: tuple[int, int], bits: int, block: int) -> tuple[Arrays, Array]:
    """Codes, scales, biases and zero points, and the weights that they stand for."""
    rows, columns = sizes
    blocks = columns // block if block else 1
    codes = integers(0, 1 << bits, EXPERTS, rows, columns, dtype="uint8")
    scales = (np.abs(normal(EXPERTS, rows, blocks)) + 1) * np.float32(0.2 / (1 << bits))
    zeros = integers(0, 1 << bits, EXPERTS, rows, blocks, dtype="uint8")
    numbers = codes.reshape(*zeros.shape, -1) - zeros[..., None].astype(np.float32)
    plain = (numbers * scales[..., None]).reshape(codes.shape)
    if not block:
        scales, zeros = scales[..., 0], zeros[..., 0]
    odd = zeros.shape[-1] % 2 if bits == 4 else 0
    zeros = packed(np.pad(zeros, [(0, 0)] * (zeros.ndim - 1) + [(0, odd)]), bits)
    stored = {f"{name}.w": packed(codes, bits), f"{name}.s": scales, f"{name}.z": zeros}
    return stored | {f"{name}.b": normal(EXPERTS, rows)}, plain


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [0, 16])
def test_mixtures_in_few_bits(bits: int, block: int) -> None:
    """As a mixture of those weights. onnxruntime rounds activations too with blocks of 8 bits."""
    (first, w1), (second, w2) = (
        layer(str(k), s, bits, block) for k, s in ((1, (2 * INNER, HIDDEN)), (2, (HIDDEN, INNER)))
    )
    inputs = {"x": normal(5, HIDDEN), "r": normal(5, EXPERTS)}
    attrs: dict[str, Any] = {
        "k": 2, "activation_type": "swiglu", "swiglu_fusion": 1, "normalize_routing_weights": 1
    }  # fmt: skip
    operands = ["x", "r", "1.w", "1.s", "1.b", "2.w", "2.s", "2.b", *[""] * 3, "1.z", "2.z"]
    atol = 0.1 if (bits, block) == (8, 16) else 1e-4
    form = {**attrs, "expert_weight_bits": bits, **({"block_size": block} if block else {})}
    stored = first | second
    found = check("QMoE", operands, inputs, stored, atol=atol, **form)
    middle = {k: v for k, v in stored.items() if not k.endswith(".z")}
    check("QMoE", operands[:8], inputs, middle, atol=atol, **form)
    plain = {"w1": w1, "b1": first["1.b"], "w2": w2, "b2": second["2.b"]}
    want = check("MoE", ["x", "r", *plain], inputs, plain, atol=1e-4, **attrs)
    np.testing.assert_allclose(found[0], want[0], rtol=1e-4, atol=1e-5)
