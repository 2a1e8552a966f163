"""GPT-2: layer norms, learned positions, biases everywhere, an MLP without a gate.

Its Hugging Face files hold the matrices of layers as [inputs, outputs].
"""

from dataclasses import replace

import numpy as np

from edgerelax.frontends.language.architecture import Architecture, standard
from edgerelax.frontends.language.config import Config, Norm, Plan
from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.nn.module import Array

_NAMES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
}


def _gpt2(settings: Settings, longest: int | None) -> Config:
    named = {_NAMES.get(name, name): value for name, value in settings.values.items()}
    if named.get("intermediate_size") is None and isinstance(named.get("hidden_size"), int):
        named["intermediate_size"] = 4 * named["hidden_size"]
    settings = Settings(named, settings.origin)
    scaled = settings.flag("scale_attn_weights", default=True)
    by_layer = settings.flag("scale_attn_by_inverse_layer_idx", default=False)

    def scale(config: Config, layer: int) -> float:
        return (config.head_width**-0.5 if scaled else 1.0) / (layer + 1 if by_layer else 1)

    layers = settings.integer("num_hidden_layers")
    config = standard(
        settings,
        longest,
        (Plan(),) * layers,
        norm=Norm(settings.number("layer_norm_epsilon", "layer_norm_eps", default=1e-5), "layer"),
        positions=settings.integer("max_position_embeddings"),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        fused_qkv=True,
        gated=False,
        activation=settings.text("hidden_act", default="gelu_new"),
        tied=settings.flag("tie_word_embeddings", default=True),
    )
    plan = tuple(Plan(Attend(scale(config, k))) for k in range(layers))
    return replace(config, plan=plan)


def _turned(config: Config, name: str, data: Array) -> Array:
    """A matrix of a layer as [outputs, inputs]."""
    in_layer = name.startswith("layers.") and data.ndim == 2
    return np.ascontiguousarray(data.T) if in_layer else data


GPT2 = Architecture(
    ("gpt2",),
    _gpt2,
    gguf=("gpt2",),
    names={
        "embedding": "wte",
        "positions": "wpe",
        "norm": "ln_f",
        "head": "lm_head",
        "layers.{n}.attention_norm": "h.{n}.ln_1",
        "layers.{n}.attention.qkv": "h.{n}.attn.c_attn",
        "layers.{n}.attention.output": "h.{n}.attn.c_proj",
        "layers.{n}.mlp_norm": "h.{n}.ln_2",
        "layers.{n}.mlp.up": "h.{n}.mlp.c_fc",
        "layers.{n}.mlp.down": "h.{n}.mlp.c_proj",
    },
    prefixes=("transformer.", ""),
    unused=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),
    change=_turned,
)
