"""Qwen 2, 2.5 and 3 (arXiv 2407.10671, 2412.15115, 2505.09388), dense and with experts.

Qwen 2 has biases in the projections of attention, Qwen 3 norms of queries and keys instead.
"""

from collections.abc import Callable
from dataclasses import replace

from edgerelax.frontends.language.architecture import (
    STANDARD,
    Architecture,
    plan_of,
    standard,
    standard_rope,
    window_of,
    windows_of,
)
from edgerelax.frontends.language.config import Config, Experts
from edgerelax.frontends.language.settings import Settings


def _qwen2(settings: Settings, longest: int | None) -> Config:
    windows = _windows(settings, lambda k: k >= settings.integer("max_window_layers", default=28))
    plan = plan_of(settings, standard_rope(settings, longest), windows)
    return standard(settings, longest, plan, qkv_bias=True, output_bias=False)


def _qwen3(settings: Settings, longest: int | None) -> Config:
    qwen = _qwen2(settings, longest)
    bias = settings.flag("attention_bias", default=False)
    return replace(qwen, qk_norm="head", qkv_bias=bias, output_bias=bias)


def _qwen2_moe(settings: Settings, longest: int | None) -> Config:
    most = settings.integer("max_window_layers", default=28)
    windows = _windows(settings, lambda k: k % 2 == 0 and k < most)
    plan = plan_of(settings, standard_rope(settings, longest), windows)
    shared = settings.integer("shared_expert_intermediate_size")
    bias = settings.flag("qkv_bias", default=True)
    config = standard(settings, longest, plan, qkv_bias=bias, output_bias=False)
    return _with_experts(config, settings, shared)


def _qwen3_moe(settings: Settings, longest: int | None) -> Config:
    windows = _windows(settings, lambda k: True)
    plan = plan_of(settings, standard_rope(settings, longest), windows)
    config = standard(settings, longest, plan, qk_norm="head")
    return _with_experts(config, settings, 0)


def _windows(settings: Settings, slides: Callable[[int], bool]) -> list[int | None]:
    """Layers that slide, where the model uses windows at all."""
    layers = range(settings.integer("num_hidden_layers"))
    if not settings.flag("use_sliding_window", default=False):
        return [None for _ in layers]
    kinds = ["sliding_attention" if slides(k) else "full_attention" for k in layers]
    return windows_of(settings, window_of(settings, default=4096), kinds)


def _with_experts(config: Config, settings: Settings, shared: int) -> Config:
    experts = Experts(
        count=settings.integer("num_experts", "num_local_experts"),
        chosen=settings.integer("num_experts_per_tok"),
        hidden=settings.integer("moe_intermediate_size"),
        normalised=settings.flag("norm_topk_prob", default=False),
        shared=shared,
    )
    dense = settings.items("mlp_only_layers", int)
    step = settings.integer("decoder_sparse_step", default=1)

    def sparse(k: int) -> bool:
        return k not in dense and (k + 1) % step == 0

    plan = (replace(p, experts=experts if sparse(k) else None) for k, p in enumerate(config.plan))
    return replace(config, plan=tuple(plan))


_EXPERTS = {
    **STANDARD,
    "layers.{n}.experts.router": "layers.{n}.mlp.gate",
    "layers.{n}.experts.gate": "layers.{n}.mlp.experts.{e}.gate_proj",
    "layers.{n}.experts.up": "layers.{n}.mlp.experts.{e}.up_proj",
    "layers.{n}.experts.down": "layers.{n}.mlp.experts.{e}.down_proj",
    "layers.{n}.experts.shared.gate": "layers.{n}.mlp.shared_expert.gate_proj",
    "layers.{n}.experts.shared.up": "layers.{n}.mlp.shared_expert.up_proj",
    "layers.{n}.experts.shared.down": "layers.{n}.mlp.shared_expert.down_proj",
    "layers.{n}.experts.shared_gate": "layers.{n}.mlp.shared_expert_gate",
}

QWEN2 = Architecture(("qwen2",), _qwen2, gguf=("qwen2",))
QWEN3 = Architecture(("qwen3",), _qwen3, gguf=("qwen3",))
QWEN2_MOE = Architecture(("qwen2_moe",), _qwen2_moe, gguf=("qwen2moe",), names=_EXPERTS)
QWEN3_MOE = Architecture(("qwen3_moe",), _qwen3_moe, gguf=("qwen3moe",), names=_EXPERTS)
