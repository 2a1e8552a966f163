"""Mistral (arXiv 2310.06825): Llama with a sliding window; Mixtral (2401.04088): with experts."""

from edgerelax.frontends.language.architecture import (
    STANDARD,
    Architecture,
    plan_of,
    standard,
    standard_rope,
    window_of,
)
from edgerelax.frontends.language.architectures.llama import mixtral_experts
from edgerelax.frontends.language.config import Config
from edgerelax.frontends.language.settings import Settings


def _mistral(settings: Settings, longest: int | None) -> Config:
    window = window_of(settings, default=4096)
    return standard(settings, longest, plan_of(settings, standard_rope(settings, longest), window))


def _mixtral(settings: Settings, longest: int | None) -> Config:
    rope = standard_rope(settings, longest, base=1e6)
    experts = mixtral_experts(settings)
    return standard(
        settings, longest, plan_of(settings, rope, window_of(settings), experts=experts)
    )


MISTRAL = Architecture(("mistral",), _mistral)
MIXTRAL = Architecture(
    ("mixtral",),
    _mixtral,
    names={
        **STANDARD,
        "layers.{n}.experts.router": "layers.{n}.block_sparse_moe.gate",
        "layers.{n}.experts.gate": "layers.{n}.block_sparse_moe.experts.{e}.w1",
        "layers.{n}.experts.up": "layers.{n}.block_sparse_moe.experts.{e}.w3",
        "layers.{n}.experts.down": "layers.{n}.block_sparse_moe.experts.{e}.w2",
    },
)
