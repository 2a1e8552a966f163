"""Attention that projects its input itself, against onnxruntime: masks, pasts, quantised."""

from typing import Any

import numpy as np
import pytest

from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.evaluate import evaluate
from tests.frontends.onnx.contributed import MICROSOFT, Array, Arrays, check, integers, normal
from tests.frontends.onnx.graphs import model, node, value

BATCH, HEADS, HIDDEN = 2, 2, 8


def rows(*numbers: Any) -> Array:
    return np.array(numbers, np.int32)


def masks(length: int, past: int) -> dict[str, Array]:
    """Each form, hiding the same keys of the end or the start."""
    keys = past + length
    shown = np.arange(keys) < np.array([[keys], [keys - 2]])
    left = shown & (np.arange(keys) >= np.array([[0], [1]]))
    pairs = np.stack([shown] * length, 1)
    pairs[1, 0] = np.arange(keys) == 1
    return {
        "lengths": rows(keys, keys - 2),
        "lengths and starts": rows(keys, keys - 2, 0, 1),
        "keys": left.astype(np.int32),
        "a row without keys": np.stack([shown[0], shown[1] & False]).astype(np.int32),
        "pairs": pairs.astype(np.int32),
    }


def attention(length: int, past: int, mask: str | None = None, **attrs: Any) -> None:
    inputs = {"x": normal(BATCH, length, 6)}
    constants = {"w": normal(6, 3 * HIDDEN), "b": normal(3 * HIDDEN)}
    operands = ["x", "w", "b", "", "", ""]
    if mask is not None:
        inputs["m"], operands[3] = masks(length, past)[mask], "m"
    if past or attrs.pop("present", False):
        inputs["past"] = normal(2, BATCH, HEADS, past, HIDDEN // HEADS)
        operands[4] = "past"
    check("Attention", operands, inputs, constants, outputs=1 + (operands[4] != ""),
          exact=("m",), num_heads=HEADS, **attrs)  # fmt: skip


@pytest.mark.parametrize("mask", [None, *masks(3, 0)])
@pytest.mark.parametrize(("length", "past"), [(4, 0), (3, 2), (1, 5)])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(mask: str | None, length: int, past: int, causal: int) -> None:
    attention(length, past, mask, unidirectional=causal)


def test_attention_with_an_empty_past_and_settings() -> None:
    attention(3, 0, unidirectional=1, present=True)
    attention(3, 2, "keys", scale=0.3, mask_filter_value=-3.0)


def test_values_of_another_width_and_a_bias_of_the_scores() -> None:
    sizes = [HIDDEN, HIDDEN, 4]
    constants = {"w": normal(6, sum(sizes)), "b": normal(sum(sizes))}
    x = {"x": normal(BATCH, 5, 6), "e": normal(1, HEADS, 5, 5)}
    check("Attention", ["x", "w", "b", "", "", "e"], x, constants, exact=("e",),
          num_heads=HEADS, qkv_hidden_sizes=sizes)  # fmt: skip


def test_a_mask_of_all_pairs_of_positions() -> None:
    """onnxruntime has it on GPUs only: what it means for two queries after one key, as pairs."""
    whole = np.tril(np.ones((7, 7), np.int32))
    whole[2, 1] = 0
    x, past = normal(BATCH, 2, 6), normal(2, BATCH, HEADS, 1, HIDDEN // HEADS)
    pairs = np.stack([whole[1:3, :3]] * BATCH)
    found = []
    for mask in (np.stack([whole[None]] * BATCH), pairs):
        infos = [value("x", ["b", "n", 6]), value("m", mask.shape, 6), value("past", past.shape)]
        operands, constants = ["x", "w", "b", "m", "past"], {"w": normal(6, 24), "b": normal(24)}
        made = node("Attention", operands, ["y"], domain=MICROSOFT, num_heads=HEADS)
        proto = model([made], infos, ["y"], constants, domains={MICROSOFT: 1})
        found.append(evaluate(load(proto), {"x": x, "m": mask, "past": past})["y"])
    np.testing.assert_array_equal(*found)


def quantised(zero: bool, columns: bool) -> Arrays:
    """Weights small enough that onnxruntime's sums of two products saturate on no CPU."""
    wide = (3 * HIDDEN,) if columns else ()
    constants = {
        "w": integers(-60, 61, 6, 3 * HIDDEN, dtype="int8"), "b": normal(3 * HIDDEN),
        "xs": np.float32(0.02), "ws": np.abs(normal(*wide)).astype(np.float32) * 0.01,
    }  # fmt: skip
    if zero:
        constants |= {"xz": np.uint8(120), "wz": np.full(wide, 3, np.int8)}
    return constants


@pytest.mark.parametrize("mask", [None, *masks(3, 0)])
@pytest.mark.parametrize(("length", "past"), [(4, 0), (3, 2), (1, 3)])
def test_quantised_attention(mask: str | None, length: int, past: int) -> None:
    for zero, columns, causal in ((False, False, 0), (True, True, 1), (True, False, 0)):
        inputs = {"x": integers(0, 256, BATCH, length, 6, dtype="uint8")}
        operands = ["x", "w", "b", "xs", "ws", "", *(["xz", "wz"] if zero else ["", ""]), ""]
        if mask is not None:
            inputs["m"], operands[5] = masks(length, past)[mask], "m"
        if past:
            inputs["past"], operands[8] = normal(2, BATCH, HEADS, past, HIDDEN // HEADS), "past"
        check("QAttention", operands, inputs, quantised(zero, columns), outputs=1 + bool(past),
              exact=("m",), num_heads=HEADS, unidirectional=causal, atol=1e-4)  # fmt: skip


def test_a_mask_of_another_length_is_told() -> None:
    infos = [value("x", ["b", "n", 6]), value("m", ["k"], 6)]
    made = node("Attention", ["x", "w", "", "m"], ["y"], domain=MICROSOFT, num_heads=HEADS)
    proto = model([made], infos, ["y"], {"w": normal(6, 24)}, domains={MICROSOFT: 1})
    with pytest.raises(Exception, match="a length for each batch entry"):
        evaluate(load(proto), {"x": normal(2, 3, 6), "m": np.zeros(8, np.int32)})


def test_what_is_refused() -> None:
    made = node("Attention", ["x", "w"], ["y"], domain=MICROSOFT, num_heads=2, do_rotary=1)
    proto = model([made], [value("x", [1, 3, 6])], ["y"], {"w": normal(6, 24)},
                  domains={MICROSOFT: 1})  # fmt: skip
    with pytest.raises(UnsupportedError, match="rotary"):
        load(proto)
