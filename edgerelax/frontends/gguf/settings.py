"""A GGUF file's metadata under the names of Hugging Face's config.json, which architectures read.

What the metadata leaves out is told from the tensors that are there (biases, tied embeddings,
factors of rotary positions), or follows from how files of an architecture are made.
"""

from collections.abc import Collection
from typing import Any

import numpy as np

from edgerelax.frontends.gguf.reading import AGAIN, File
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.nn.module import Array
from edgerelax.ir.diagnostics import InputError, UnsupportedError

KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
    "use_parallel_residual": "use_parallel_residual",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attention.scale": "attention_multiplier",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "rope.freq_base": "rope_theta",
    "rope.freq_base_swa": "rope_local_base_freq",
    "rope.dimension_count": "rope_width",
}
"""After the architecture's name and a point."""

SCALING_KEYS = {
    "type": "rope_type",
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}
"""After `rope.scaling.`."""

NEIGHBOURS = ("llama", "granite", "smollm3")
"""Architectures whose queries and keys were reordered so that rotary pairs are neighbours."""

FACTORS = {
    "rope_freqs.weight": "factors",
    "rope_factors_long.weight": "long_factor",
    "rope_factors_short.weight": "short_factor",
}
"""Tensors that are no weights, and what they say of rotary positions."""

GREATEST = 2**31 - 1
"""No size of a model is more."""

_NOTHING = object()


def settings_of(file: File, factors: dict[str, Array]) -> Settings:
    """The settings of a file; `factors` has those of the tensors FACTORS that are there."""
    name = str(file.value("general.architecture"))

    def value(key: str) -> Any:
        found = file.value(f"{name}.{key}", _NOTHING)
        if found is _NOTHING:
            return None
        found = _one(found, f"{name}.{key}", file)
        if isinstance(found, int) and found > GREATEST:
            raise InputError(f"{file.path.name}: {name}.{key} is {found}", hint=AGAIN)
        return found

    values = {ours: value(key) for key, ours in KEYS.items()}
    values = {key: found for key, found in values.items() if found is not None}
    values.setdefault("vocab_size", len(file.texts("tokenizer.ggml.tokens", [])))
    values["type_vocab_size"] = _types(file)
    if "moe_intermediate_size" in values:
        values.setdefault("intermediate_size", values["moe_intermediate_size"])
    _check_layers(values, file)
    values.update(_by_tensors(file.names))
    values["rope_interleaved"] = name in NEIGHBOURS
    values["rope_scaling"] = _scaling(file, name, factors)
    values.update(_by_architecture(name, values, file))
    return Settings(values, file.path.name)


def _check_layers(values: dict[str, Any], file: File) -> None:
    """Before anything is made of so many layers."""
    stated = values.get("num_hidden_layers")
    there = len({name.split(".")[1] for name in file.names if name.startswith("blk.")})
    if isinstance(stated, int) and stated != there:
        raise InputError(
            f"{file.path.name} states {stated} layers and has tensors of {there}", hint=AGAIN
        )


def _one(found: Any, key: str, file: File) -> Any:
    """A value, of all layers where it is a list of one for each."""
    if not isinstance(found, list):
        return found
    if len(set(found)) != 1:
        raise UnsupportedError(f"{file.path.name}: {key} differs between layers: {found[:8]}")
    return found[0]


def _types(file: File) -> int:
    """How many types of tokens there are embeddings for."""
    there = "token_types.weight" in file.names
    return int(file.value("tokenizer.ggml.token_type_count", 2)) if there else 0


def _by_tensors(names: Collection[str]) -> dict[str, Any]:
    bias = "blk.0.attn_q.bias" in names or "blk.0.attn_qkv.bias" in names
    return {
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": bias,
        "qkv_bias": bias,
        "use_qkv_bias": bias,
        "output_bias": "blk.0.attn_output.bias" in names,
        "mlp_bias": "blk.0.ffn_down.bias" in names,
        "qk_layernorm": "blk.0.attn_q_norm.weight" in names,
    }


def _scaling(file: File, name: str, factors: dict[str, Array]) -> dict[str, Any]:
    found = {
        ours: said
        for key, ours in SCALING_KEYS.items()
        if (said := file.value(f"{name}.rope.scaling.{key}", _NOTHING)) is not _NOTHING
    }
    found.update({FACTORS[key]: [float(f) for f in data] for key, data in factors.items()})
    if "long_factor" in found:
        found["rope_type"] = "longrope"
    elif "factors" in found:
        found["rope_type"] = "factors"
    elif found.get("rope_type") in (None, "none"):
        found["rope_type"] = "default"
    attention = file.value(f"{name}.rope.scaling.attn_factor", _NOTHING)
    if attention is not _NOTHING:
        grown = 1.0
        if found["rope_type"] == "yarn" and found.get("factor", 0) > 1:
            grown += 0.1 * float(np.log(found["factor"]))
        found["attention_factor"] = float(attention) * grown
    return found


def _by_architecture(name: str, values: dict[str, Any], file: File) -> dict[str, Any]:
    """What files of an architecture leave out, as llama.cpp makes and reads them."""
    if name == "qwen3moe":
        return {"norm_topk_prob": True}
    if name == "stablelm" and "use_parallel_residual" not in values:
        return {"use_parallel_residual": "blk.0.ffn_norm.weight" not in file.names}
    if name.startswith("gemma"):
        return {"norm_offset": 0.0, **_gemma(name, values, file)}
    return {}


def _gemma(name: str, values: dict[str, Any], file: File) -> dict[str, Any]:
    """Norms hold their weights whole; the largest models scale scores by the width per head."""
    width, heads = values.get("hidden_size", 0), values.get("num_attention_heads", 1)
    largest = values.get("num_hidden_layers") == {"gemma2": 46, "gemma3": 62}.get(name)
    found: dict[str, Any] = {
        "query_pre_attn_scalar": width / heads if largest else values.get("head_dim", 256)
    }
    pattern = file.value(f"{name}.attention.sliding_window_pattern", _NOTHING)
    if isinstance(pattern, list):
        kinds = {True: "sliding_attention", False: "full_attention"}
        found["layer_types"] = [kinds[bool(slides)] for slides in pattern]
    elif pattern is not _NOTHING:
        found["sliding_window_pattern"] = int(pattern)
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        found[cap] = values.get(cap)
    return found
