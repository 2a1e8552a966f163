"""Phi-3 and Phi-4 (arXiv 2404.14219, 2412.08905): Llama with fused projections and LongRoPE."""

from edgerelax.frontends.language.architecture import (
    STANDARD,
    Architecture,
    plan_of,
    standard,
    standard_rope,
    window_of,
)
from edgerelax.frontends.language.config import Config, Norm
from edgerelax.frontends.language.settings import Settings


def _phi3(settings: Settings, longest: int | None) -> Config:
    plan = plan_of(settings, standard_rope(settings, longest), window_of(settings))
    norm = Norm(settings.number("rms_norm_eps", default=1e-5))
    return standard(
        settings,
        longest,
        plan,
        norm=norm,
        fused_qkv=True,
        fused_gate=True,
        qkv_bias=False,
        output_bias=False,
    )


PHI3 = Architecture(
    ("phi3",),
    _phi3,
    gguf=("phi3",),
    names={
        **STANDARD,
        "layers.{n}.attention.qkv": "layers.{n}.self_attn.qkv_proj",
        "layers.{n}.mlp.gate_up": "layers.{n}.mlp.gate_up_proj",
    },
)
