"""OLMo 2 (arXiv 2501.00656): norms after attention and MLP only, and of all queries and keys."""

from edgerelax.frontends.language.architecture import (
    STANDARD,
    Architecture,
    plan_of,
    standard,
    standard_rope,
)
from edgerelax.frontends.language.config import Config, Norm
from edgerelax.frontends.language.settings import Settings


def _olmo2(settings: Settings, longest: int | None) -> Config:
    return standard(
        settings,
        longest,
        plan_of(settings, standard_rope(settings, longest)),
        norm=Norm(settings.number("rms_norm_eps", default=1e-5)),
        norms_before=False,
        norms_after=True,
        qk_norm="all",
    )


OLMO2 = Architecture(
    ("olmo2",),
    _olmo2,
    gguf=("olmo2",),
    names={
        **STANDARD,
        "layers.{n}.attention_post_norm": "layers.{n}.post_attention_layernorm",
        "layers.{n}.mlp_post_norm": "layers.{n}.post_feedforward_layernorm",
    },
)
