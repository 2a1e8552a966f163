"""Layers and functions of edgerelax.nn, against plain numpy."""

import numpy as np
import pytest

from edgerelax.frontends import nn
from edgerelax.frontends.nn import functional
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32, I64
from edgerelax.ir.evaluate import evaluate
from edgerelax.sym import symbol

N = symbol("n")
RNG = np.random.default_rng(0)


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def filled(layer: nn.Module) -> dict[str, np.ndarray]:
    """Give a layer random weights."""
    weights = {name: data(*parameter.shape) for name, parameter in layer.parameters()}
    layer.load(weights)
    return weights


def run(layer: nn.Module, x: np.ndarray) -> np.ndarray:
    module = nn.trace(lambda x: {"y": layer(x)}, {"x": nn.Input((N, x.shape[1]), F32)})
    return evaluate(module, {"x": x})["y"]


@pytest.mark.parametrize("n", (0, 1, 5))
def test_linear(n: int) -> None:
    layer, x = nn.Linear(8, 3, bias=True), data(n, 8)
    w = filled(layer)
    np.testing.assert_allclose(run(layer, x), x @ w["weight"].T + w["bias"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("offset", (0.0, 1.0))
def test_rms_norm(offset: float) -> None:
    layer, x = nn.RMSNorm(8, 1e-3, offset), data(5, 8)
    scale = filled(layer)["weight"] + offset
    wanted = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3) * scale
    np.testing.assert_allclose(run(layer, x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bias", (False, True))
def test_layer_norm(bias: bool) -> None:
    layer, x = nn.LayerNorm(8, 1e-3, bias), data(5, 8)
    w = filled(layer)
    centred = x - x.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) * w["weight"]
    np.testing.assert_allclose(run(layer, x), wanted + w.get("bias", 0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("width", (6, 8))
def test_rotary(interleaved: bool, width: int) -> None:
    """Three pairs turn, in each sequence by its positions; features past them stay."""
    frequencies = (1.0, 0.5, 0.1)

    def forward(x: nn.Tensor, at: nn.Tensor) -> dict[str, nn.Tensor]:
        return {"y": functional.rotary(x, at, frequencies, interleaved)}

    inputs = {"x": nn.Input((2, 3, N, width), F32), "at": nn.Input((2, N), I64)}
    x, at = data(2, 3, 4, width), np.array([[0, 1, 7, 30], [5, 6, 7, 8]])
    found = evaluate(nn.trace(forward, inputs), {"x": x, "at": at})["y"]
    first, second = (slice(0, 6, 2), slice(1, 6, 2)) if interleaved else (slice(3), slice(3, 6))
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * at[:, None, :, None] * frequencies)
    wanted = x.copy()
    wanted[..., first], wanted[..., second] = turned.real, turned.imag
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", (None, 1, 3))
def test_causal_mask(window: int | None) -> None:
    def forward(at: nn.Tensor) -> dict[str, nn.Tensor]:
        return {"y": functional.causal_mask(at, at, window)}

    module = nn.trace(forward, {"at": nn.Input((N,), I64)})
    at = np.arange(6)
    gap = at[:, None] - at
    wanted = (gap >= 0) & (gap < (window or 6))
    np.testing.assert_array_equal(evaluate(module, {"at": at})["y"], wanted)


def test_a_weight_without_data() -> None:
    with pytest.raises(InputError, match="has no data"):
        run(nn.Linear(8, 3), data(1, 8))
