"""GPT-NeoX and Pythia (arXiv 2204.06745, 2304.01373): attention and MLP side by side.

Its Hugging Face files have query, key and value of a head next to each other.
"""

import numpy as np

from edgerelax.frontends.language.architecture import (
    Architecture,
    plan_of,
    standard,
    standard_rope,
)
from edgerelax.frontends.language.config import Config, Norm
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.nn.module import Array


def _gpt_neox(settings: Settings, longest: int | None) -> Config:
    bias = settings.flag("attention_bias", default=True)
    return standard(
        settings,
        longest,
        plan_of(settings, standard_rope(settings, longest, partial=0.25)),
        norm=Norm(settings.number("layer_norm_eps", default=1e-5), "layer"),
        parallel="own" if settings.flag("use_parallel_residual", default=True) else "",
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        fused_qkv=True,
        gated=False,
        activation=settings.text("hidden_act", default="gelu"),
    )


def _by_kind(config: Config, name: str, data: Array) -> Array:
    """Rows of all queries, then all keys, then all values."""
    if ".attention.qkv." not in name:
        return data
    heads, rest = config.heads, data.shape[1:]
    parts = data.reshape(heads, 3, data.shape[0] // (3 * heads), *rest)
    return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(data.shape)


GPT_NEOX = Architecture(
    ("gpt_neox",),
    _gpt_neox,
    gguf=("gptneox",),
    names={
        "embedding": "embed_in",
        "norm": "final_layer_norm",
        "head": "embed_out",
        "layers.{n}.attention_norm": "layers.{n}.input_layernorm",
        "layers.{n}.attention.qkv": "layers.{n}.attention.query_key_value",
        "layers.{n}.attention.output": "layers.{n}.attention.dense",
        "layers.{n}.mlp_norm": "layers.{n}.post_attention_layernorm",
        "layers.{n}.mlp.up": "layers.{n}.mlp.dense_h_to_4h",
        "layers.{n}.mlp.down": "layers.{n}.mlp.dense_4h_to_h",
    },
    prefixes=("gpt_neox.", ""),
    unused=(r".*\.rotary_emb\.inv_freq", r".*\.attention\.(masked_)?bias"),
    change=_by_kind,
)
