"""The Llama architecture in plain numpy, over the tensors of a GGUF file by their names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, dequantize

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Sizes:
    """What of a model's sizes its tensors do not show."""

    layers: int
    heads: int
    groups: int
    epsilon: float
    base: float


def read(reader: GGUFReader) -> tuple[dict[str, Array], Sizes]:
    """Weights as f32, and sizes."""

    def value(key: str) -> Any:
        field = reader.get_field(f"llama.{key}")
        assert field is not None
        return field.contents()

    sizes = Sizes(
        value("block_count"),
        value("attention.head_count"),
        value("attention.head_count_kv"),
        value("attention.layer_norm_rms_epsilon"),
        value("rope.freq_base"),
    )
    return {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors}, sizes


def norm(x: Array, weight: Array, epsilon: float) -> Array:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def turn(x: Array, base: float) -> Array:
    """Neighbouring features as complex numbers, turned by position · frequency: [..., n, width]."""
    length, width = x.shape[-2:]
    frequencies = base ** (-np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * frequencies
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack((turned.real, turned.imag), axis=-1).reshape(x.shape).astype(np.float32)


def attend(x: Array, layer: Mapping[str, Array], sizes: Sizes) -> Array:
    batch, length, _ = x.shape

    def heads(name: str, count: int) -> Array:
        y = x @ layer[f"{name}.weight"].T
        return y.reshape(batch, length, count, -1).swapaxes(1, 2)

    q = turn(heads("attn_q", sizes.heads), sizes.base)
    k = turn(heads("attn_k", sizes.groups), sizes.base)
    each = sizes.heads // sizes.groups
    k, v = (np.repeat(part, each, axis=1) for part in (k, heads("attn_v", sizes.groups)))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    y = (weights / weights.sum(axis=-1, keepdims=True)) @ v
    return y.swapaxes(1, 2).reshape(batch, length, -1) @ layer["attn_output.weight"].T


def logits(weights: Mapping[str, Array], sizes: Sizes, tokens: Array) -> Array:
    """f32[batch, length, vocabulary] of i64[batch, length]."""
    x = weights["token_embd.weight"][tokens]
    for k in range(sizes.layers):
        start = f"blk.{k}."
        layer = {n.removeprefix(start): w for n, w in weights.items() if n.startswith(start)}
        x = x + attend(norm(x, layer["attn_norm.weight"], sizes.epsilon), layer, sizes)
        y = norm(x, layer["ffn_norm.weight"], sizes.epsilon)
        gate = y @ layer["ffn_gate.weight"].T
        x = (
            x
            + (gate / (1 + np.exp(-gate)) * (y @ layer["ffn_up.weight"].T))
            @ layer["ffn_down.weight"].T
        )
    x = norm(x, weights["output_norm.weight"], sizes.epsilon)
    head = weights.get("output.weight", weights["token_embd.weight"])
    return np.asarray(x @ head.T, np.float32)
