"""Tiny models of every architecture with random weights, made by transformers as references."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

VOCABULARY, CONTEXT = 48, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ALTERNATING = ["sliding_attention", "full_attention"]


@dataclass(frozen=True)
class Case:
    """A config of transformers: its model_type, and what differs from SIZES (None: left out).

    `longest` is the length that a module is made for where rotary positions depend on it.
    transformers has them depend on the length of each call, so that only calls of that length
    compare.
    """

    name: str
    kind: str
    changes: dict[str, Any] = field(default_factory=dict)
    longest: int | None = None

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Batches and lengths to compare."""
        longest = self.longest or 24
        whole = ((1, longest), (3, longest))
        return whole if self.longest else ((1, 1), (3, 7), *whole)

    def config(self) -> Any:
        from transformers import AutoConfig

        settings = {k: v for k, v in {**SIZES, **self.changes}.items() if v is not None}
        return AutoConfig.for_model(self.kind, **settings)


def scaled(**how: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 100.0, **how}}


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.5],
    "long_factor": [1.5, 2.0, 3.0, 5.0],
    "original_max_position_embeddings": 16,
}
CASES = (
    Case("llama", "llama"),
    Case("llama-tied-biased", "llama", {
        "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 12,
        "num_key_value_heads": 1,
    }),
    Case("llama-linear", "llama", scaled(rope_type="linear", factor=4.0)),
    Case("llama-dynamic", "llama", {
        **scaled(rope_type="dynamic", factor=4.0), "max_position_embeddings": 16,
    }, longest=40),
    Case("llama-dynamic-short", "llama", {
        **scaled(rope_type="dynamic", factor=4.0), "max_position_embeddings": 40,
    }, longest=40),
    Case("llama-llama3", "llama", scaled(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16,
    )),
    Case("llama-yarn", "llama", scaled(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16,
    )),
    Case("llama-longrope", "llama", scaled(**LONGROPE), longest=40),
    Case("mistral", "mistral", {"sliding_window": 5, "head_dim": 16}),
    Case("mixtral", "mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    Case("qwen2", "qwen2"),
    Case("qwen2-window-yarn", "qwen2", {
        "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1,
        **scaled(rope_type="yarn", factor=2.0, original_max_position_embeddings=32,
                 attention_factor=1.3, beta_fast=16.0, beta_slow=2.0),
    }),
    Case("qwen3", "qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    Case("qwen2-moe", "qwen2_moe", {
        **EXPERTS, "shared_expert_intermediate_size": 28, "norm_topk_prob": False,
    }),
    Case("qwen3-moe", "qwen3_moe", {
        **EXPERTS, "norm_topk_prob": True, "head_dim": 16,
    }),
    Case("qwen3-moe-half", "qwen3_moe", {**EXPERTS, "mlp_only_layers": [0]}),
    Case("gemma", "gemma", {"head_dim": 16}),
    Case("gemma2", "gemma2", {
        "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16,
        "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
    }),
    Case("gemma2-scaled", "gemma2", {
        "head_dim": 16, "query_pre_attn_scalar": 24, "hidden_activation": "relu",
    }),
    Case("gemma3", "gemma3_text", {
        "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 16,
        "layer_types": ALTERNATING,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
        },
    }),
    Case("phi3", "phi3", {"sliding_window": 6}),
    Case("phi3-longrope", "phi3", {
        **scaled(**LONGROPE), "original_max_position_embeddings": 16,
    }, longest=40),
    Case("phi3-longrope-short", "phi3", {
        **scaled(**LONGROPE), "original_max_position_embeddings": 16,
    }, longest=16),
    Case("phi4-mini", "phi3", {
        **scaled(**{**LONGROPE, "short_factor": [1.0, 1.2, 1.4], "long_factor": [2.0, 3.0, 4.0]},
                 partial_rotary_factor=0.75),
        "original_max_position_embeddings": 16, "tie_word_embeddings": True,
    }, longest=40),
    Case("smollm3", "smollm3", {"num_hidden_layers": 4}),
    Case("gpt2", "gpt2", {"num_key_value_heads": None, "intermediate_size": None}),
    Case("gpt2-by-layer", "gpt2", {
        "num_key_value_heads": None, "intermediate_size": None, "n_inner": 40,
        "scale_attn_by_inverse_layer_idx": True,
    }),
    Case("gpt-neox", "gpt_neox", {"num_key_value_heads": None}),
    Case("gpt-neox-serial", "gpt_neox", {
        "num_key_value_heads": None, "use_parallel_residual": False,
        "rope_parameters": {"rope_theta": 100.0, "partial_rotary_factor": 0.5},
    }),
    Case("stablelm", "stablelm", {"use_qkv_bias": True}),
    Case("stablelm-parallel", "stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
    Case("olmo2", "olmo2"),
    Case("granite", "granite", {
        "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
        "logits_scaling": 5.0, "tie_word_embeddings": True,
    }),
)  # fmt: skip


def reference(case: Case, folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Save the model to a folder; gives logits of tokens [batch, length]."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(case.config()).float().eval()
    randomise(model)
    model.save_pretrained(folder)

    def logits(tokens: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(torch.from_numpy(tokens)).logits.numpy()

    return logits


def randomise(model: Any) -> None:
    """Weights of a size that hidden states keep."""
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.uniform_(0.2, 1.0)
