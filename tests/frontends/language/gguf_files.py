"""GGUF files of the models that transformers saves, made as llama.cpp's converter makes them.

Names of tensors are those that the gguf package maps Hugging Face's to; metadata goes through its
writer.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

KINDS = {
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "gpt_neox": "gptneox",
}
"""What a model_type is called there, where it differs."""
MODELS = {name: model for model, name in gguf.MODEL_ARCH_NAMES.items()}
NEIGHBOURS = ("llama", "granite", "smollm3")
STACKED = re.compile(r"(.*(?:experts|layernorm\.norms))\.(\d+)(?:\.(\w+))?\.weight")


def write(folder: Path, path: Path, pooling: gguf.PoolingType | None = None) -> Path:
    """A folder's model as a GGUF file of f32."""
    said = json.loads((folder / "config.json").read_text())
    name = KINDS.get(said["model_type"], said["model_type"])
    writer = gguf.GGUFWriter(str(path), name)
    sizes(writer, said, name)
    positions(writer, said, name)
    particulars(writer, said, name)
    if pooling is not None:
        writer.add_pooling_type(pooling)
    count = said.get("num_hidden_layers", said.get("n_layer"))
    names = gguf.get_tensor_name_map(MODELS[name], count)
    tensors = stacked(load_file(folder / "model.safetensors"))
    for own, data in tensors.items():
        if own.startswith("pooler."):
            continue  # the converter leaves it out
        ends = (".weight", ".bias")
        theirs = names.get_name(own, ends) or names.get_name(f"model.{own}", ends)
        assert theirs is not None, own
        if not (said.get("tie_word_embeddings") and theirs == "output.weight"):
            writer.add_tensor(theirs, np.ascontiguousarray(converted(own, data, said, name)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sizes(writer: gguf.GGUFWriter, said: dict[str, Any], name: str) -> None:
    width = said.get("hidden_size", said.get("n_embd"))
    heads = said.get("num_attention_heads", said.get("n_head"))
    writer.add_block_count(said.get("num_hidden_layers", said.get("n_layer")))
    writer.add_context_length(said.get("max_position_embeddings", said.get("n_positions")))
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(said.get("intermediate_size", said.get("n_inner")) or 4 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(said.get("num_key_value_heads") or heads)
    writer.add_vocab_size(said["vocab_size"])
    if said.get("head_dim"):
        writer.add_key_length(said["head_dim"])
        writer.add_value_length(said["head_dim"])
    if "rms_norm_eps" in said:
        writer.add_layer_norm_rms_eps(said["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(said.get("layer_norm_eps", said.get("layer_norm_epsilon")))


def positions(writer: gguf.GGUFWriter, said: dict[str, Any], name: str) -> None:
    rope = said.get("rope_parameters")
    if rope is None:
        return
    if "full_attention" in rope:
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    head = said.get("head_dim") or said["hidden_size"] // said["num_attention_heads"]
    turned = int(head * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(turned)
    writer.add_rope_freq_base(rope["rope_theta"])
    original = rope.get("original_max_position_embeddings")
    match rope["rope_type"]:
        case "linear" | "yarn" as kind:
            writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
            writer.add_rope_scaling_factor(rope["factor"])
            if original:
                writer.add_rope_scaling_orig_ctx_len(original)
        case "llama3":
            writer.add_tensor("rope_freqs.weight", llama3(rope, turned))
        case "longrope":
            factor = said["max_position_embeddings"] / original
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(
                math.sqrt(1 + math.log(factor) / math.log(original))
            )
            for kind in ("long", "short"):
                factors = np.array(rope[f"{kind}_factor"], np.float32)
                writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def llama3(rope: dict[str, Any], width: int) -> np.ndarray:
    """What frequencies are divided by."""
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, width, 2) / width)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    turns = rope["original_max_position_embeddings"] / waves
    smooth = (turns - low) / (high - low)
    between = 1 / ((1 - smooth) / factor + smooth)
    return np.where(turns < low, factor, np.where(turns > high, 1, between)).astype(np.float32)


def particulars(writer: gguf.GGUFWriter, said: dict[str, Any], name: str) -> None:
    if said.get("sliding_window") and name in ("llama", "phi3", "gemma2", "gemma3"):
        writer.add_sliding_window(said["sliding_window"])
    if name == "gemma3":
        slides = [kind == "sliding_attention" for kind in said["layer_types"]]
        writer.add_sliding_window_pattern(slides)
    if name == "gemma2":
        writer.add_attn_logit_softcapping(said["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(said["final_logit_softcapping"])
    if count := said.get("num_local_experts", said.get("num_experts")):
        writer.add_expert_count(count)
        writer.add_expert_used_count(said["num_experts_per_tok"])
    if "moe_intermediate_size" in said:
        writer.add_expert_feed_forward_length(said["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in said:
        writer.add_expert_shared_feed_forward_length(said["shared_expert_intermediate_size"])
    if name == "granite":
        writer.add_attention_scale(said["attention_multiplier"])
        writer.add_embedding_scale(said["embedding_multiplier"])
        writer.add_residual_scale(said["residual_multiplier"])
        writer.add_logit_scale(said["logits_scaling"])
    if "type_vocab_size" in said:
        writer.add_token_type_count(said["type_vocab_size"])
    if "use_parallel_residual" in said:
        writer.add_parallel_residual(said["use_parallel_residual"])


def stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Experts, and norms of heads, as one tensor each, named as the converter names them."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    rest = {}
    for name, data in tensors.items():
        found = STACKED.fullmatch(name)
        if found is None:
            rest[name] = data
            continue
        base, index, kind = found.groups()
        base = base.replace("model.layers", "layers").replace("block_sparse_moe", "feed_forward") \
            if "block_sparse_moe" in base else base.removesuffix(".norms")  # fmt: skip
        own = f"{base}.{kind}.weight" if kind else f"{base}.weight"
        parts.setdefault(own, {})[int(index)] = data
    return rest | {name: np.stack([p[k] for k in sorted(p)]) for name, p in parts.items()}


def converted(name: str, data: np.ndarray, said: dict[str, Any], kind: str) -> np.ndarray:
    """A tensor as files of that architecture hold it."""
    heads = said.get("num_attention_heads", said.get("n_head"))
    if kind in NEIGHBOURS and re.search(r"\.(q|k)_proj\.", name):
        count = heads if ".q_proj." in name else said["num_key_value_heads"]
        halves = data.reshape(count, 2, data.shape[0] // count // 2, *data.shape[1:])
        return halves.swapaxes(1, 2).reshape(data.shape)
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return data + 1
    if kind == "gpt2" and re.search(r"(c_attn|c_fc|c_proj)\.weight", name):
        return data.T
    if kind == "gptneox" and ".query_key_value." in name:
        parts = data.reshape(heads, 3, -1, *data.shape[1:])
        return parts.swapaxes(0, 1).reshape(data.shape)
    return data
