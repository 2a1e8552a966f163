"""StableLM (arXiv 2402.17834): Llama with layer norms and a part of each head turned."""

from edgerelax.frontends.language.architecture import (
    STANDARD,
    Architecture,
    plan_of,
    standard,
    standard_rope,
)
from edgerelax.frontends.language.config import Config, Norm
from edgerelax.frontends.language.settings import Settings


def _stablelm(settings: Settings, longest: int | None) -> Config:
    return standard(
        settings,
        longest,
        plan_of(settings, standard_rope(settings, longest, partial=0.25)),
        norm=Norm(settings.number("layer_norm_eps", default=1e-5), "layer"),
        parallel="shared" if settings.flag("use_parallel_residual", default=False) else "",
        qk_norm="own" if settings.flag("qk_layernorm", default=False) else "",
        qkv_bias=settings.flag("use_qkv_bias", default=False),
        output_bias=False,
    )


STABLELM = Architecture(
    ("stablelm",),
    _stablelm,
    gguf=("stablelm",),
    names={
        **STANDARD,
        "layers.{n}.attention.q_norm": "layers.{n}.self_attn.q_layernorm.norms.{e}",
        "layers.{n}.attention.k_norm": "layers.{n}.self_attn.k_layernorm.norms.{e}",
    },
    unused=(r".*\.rotary_emb\.inv_freq",),
)
