"""Llama 2 and 3 (arXiv 2302.13971, 2307.09288, 2407.21783): RMS norms, rotary positions, gated MLP.

SmolLM2 and many others are the same with other sizes. In GGUF files, so are Mistral and Mixtral.
"""

from edgerelax.frontends.language.architecture import (
    Architecture,
    plan_of,
    standard,
    standard_rope,
    window_of,
)
from edgerelax.frontends.language.config import Config, Experts
from edgerelax.frontends.language.settings import Settings


def _llama(settings: Settings, longest: int | None) -> Config:
    """Settings of config.json, or of a GGUF file, which may have experts or a window."""
    experts = mixtral_experts(settings) if settings.value("num_local_experts", default=0) else None
    rope = standard_rope(settings, longest)
    return standard(
        settings, longest, plan_of(settings, rope, window_of(settings), experts=experts)
    )


def mixtral_experts(settings: Settings) -> Experts:
    """All MLPs are experts, without a shared one (arXiv 2401.04088)."""
    return Experts(
        count=settings.integer("num_local_experts", "num_experts"),
        chosen=settings.integer("num_experts_per_tok", default=2),
        hidden=settings.integer("intermediate_size"),
    )


LLAMA = Architecture(("llama",), _llama, gguf=("llama",), unused=(r".*\.rotary_emb\.inv_freq",))
