"""Mixtures of experts on hosts, against plain numpy: chosen experts alone, weights as they lie."""

from typing import Any

import numpy as np
import pytest

import edgerelax
from edgerelax.frontends.language.config import Experts
from edgerelax.frontends.language.experts import Mixture
from edgerelax.frontends.nn import Input, trace
from edgerelax.frontends.nn.grouped import Grouped, halves
from edgerelax.ir.dtypes import F32
from edgerelax.sym import symbol

WIDTH, EXPERTS = 32, Experts(count=16, chosen=3, hidden=64, normalised=False, shared=32)
BATCHES = ((1, 1), (2, 3), (0, 4))


def grouped(rng: np.random.Generator, shape: tuple[int, int]) -> tuple[Grouped, np.ndarray]:
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    scales = rng.uniform(0.02, 0.04, (shape[0], shape[1] // 32)).astype(np.float16)
    wide = (codes.astype(np.float32) - 8) * np.repeat(scales.astype(np.float32), 32, axis=1)
    return Grouped(shape, halves(codes), (scales,), centre=8), wide


def filled(model: Mixture, few_bits: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    data: dict[str, Any] = {}
    numbers: dict[str, np.ndarray] = {}
    for name, parameter in model.parameters():
        if few_bits and name in ("gate.weight", "up.weight", "down.weight"):
            data[name], numbers[name] = grouped(rng, parameter.shape)
        else:
            wide = rng.standard_normal(parameter.shape).astype(np.float32) / 4
            data[name] = numbers[name] = wide
    model.load(data)
    return numbers


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def plain(x: np.ndarray, w: dict[str, np.ndarray]) -> np.ndarray:
    """Each token by itself."""

    def each(token: np.ndarray) -> np.ndarray:
        scores = np.exp(w["router.weight"] @ token)
        shares = scores / scores.sum()
        total = (silu(w["shared.gate.weight"] @ token) * (w["shared.up.weight"] @ token)) @ w[
            "shared.down.weight"
        ].T
        total = total / (1 + np.exp(-w["shared_gate.weight"] @ token))
        gates, ups, downs = (
            w[f"{name}.weight"].reshape(EXPERTS.count, -1, inputs)
            for name, inputs in (("gate", WIDTH), ("up", WIDTH), ("down", EXPERTS.hidden))
        )
        for e in np.argsort(-shares)[: EXPERTS.chosen]:
            total = total + shares[e] * (downs[e] @ (silu(gates[e] @ token) * (ups[e] @ token)))
        return total

    rows = [each(token) for token in x.reshape(-1, WIDTH)]
    return np.array(rows, np.float32).reshape(x.shape)


@pytest.mark.parametrize(
    ("device", "few_bits"), [("cpu", False), ("cpu", True), ("wgpu", True)], ids=str
)
def test_a_mixture_equals_plain_numpy(device: str, few_bits: bool) -> None:
    model = Mixture(WIDTH, EXPERTS, "silu")
    weights = filled(model, few_bits)
    sizes = symbol("batch", 0, 2), symbol("length", 0, 8), WIDTH
    module = trace(lambda x: {"y": model(x)}, {"x": Input(sizes, F32)})
    variant = "cpu" if device == "cpu" else "software"
    executable = edgerelax.compile(module, variants=(variant,), verify=True)
    (program,) = executable.artifact.manifest.programs
    tokens, stack = 2 * 8, EXPERTS.count * EXPERTS.hidden * WIDTH * 4
    assert program.memory.planned is not None
    assert program.memory.planned < stack, "a whole stack of experts' weights was written out"
    assert tokens * EXPERTS.chosen * EXPERTS.hidden * WIDTH * 4 > stack  # nor a gathered one
    session = executable.session(device)
    rng = np.random.default_rng(1)
    for batch, length in BATCHES:
        x = rng.standard_normal((batch, length, WIDTH)).astype(np.float32)
        found = session.run({"x": x})["y"]
        np.testing.assert_allclose(found, plain(x, weights), rtol=1e-4, atol=1e-4)
