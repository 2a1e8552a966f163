"""Granite 3: Llama with multipliers of embeddings, scores, residuals and logits."""

from edgerelax.frontends.language.architecture import (
    Architecture,
    plan_of,
    standard,
    standard_rope,
)
from edgerelax.frontends.language.config import Config
from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.settings import Settings


def _granite(settings: Settings, longest: int | None) -> Config:
    attend = Attend(settings.number("attention_multiplier", default=1.0))
    embedded = settings.number("embedding_multiplier", default=1.0)
    return standard(
        settings,
        longest,
        plan_of(settings, standard_rope(settings, longest), attend=attend),
        embedding_scale=embedded,
        image_scale=embedded,
        residual_scale=settings.number("residual_multiplier", default=1.0),
        logit_scale=1 / settings.number("logits_scaling", default=1.0),
    )


GRANITE = Architecture(("granite",), _granite, gguf=("granite",))
