"""Gemma 1, 2 and 3 (arXiv 2403.08295, 2408.00118, 2503.19786).

Norms keep their weights less 1, embeddings are scaled by the root of the width. Gemma 2 has norms
after attention and MLP, soft caps and a window in every other layer; Gemma 3 has norms of queries
and keys instead of caps, a window in five of six layers, and other rotary positions there.
"""

import math
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
from edgerelax.frontends.language.config import Config, Norm, Plan
from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.settings import Settings
from edgerelax.ir.diagnostics import UnsupportedError


def _gemma(settings: Settings, longest: int | None) -> Config:
    return _common(settings, longest, plan_of(settings, standard_rope(settings, longest)))


def _gemma2(settings: Settings, longest: int | None) -> Config:
    attend = Attend(_scale(settings), cap=_cap(settings, "attn_logit_softcapping", 50.0))
    plan = plan_of(settings, standard_rope(settings, longest), _windows(settings, 2), attend)
    cap = _cap(settings, "final_logit_softcapping", 30.0)
    return replace(_common(settings, longest, plan), norms_after=True, logit_cap=cap)


def _gemma3(settings: Settings, longest: int | None) -> Config:
    """As transformers and llama.cpp compute it, without a cap of scores, whatever the file says."""
    if settings.flag("use_bidirectional_attention", default=False):
        raise UnsupportedError(
            f"{settings.origin}: Gemma 3 whose tokens see what follows is not known",
            hint="use_bidirectional_attention is true: it is an embedder, not a decoder",
        )
    wide = standard_rope(settings, longest, 1e6, kind="full_attention")
    near = standard_rope(_near(settings), longest, 1e4, kind="sliding_attention")
    windows = _windows(settings, settings.integer("sliding_window_pattern", default=6))
    plan = plan_of(settings, wide, windows, Attend(_scale(settings)))
    plan = tuple(p if p.attend.window is None else replace(p, rope=near) for p in plan)
    cap = _cap(settings, "final_logit_softcapping", None)
    config = _common(settings, longest, plan)
    return replace(config, norms_after=True, qk_norm="head", logit_cap=cap)


def _gemma3_outer(settings: Settings, longest: int | None) -> Config:
    """The language model inside a model of pictures and text, whose file leaves out defaults."""
    inner = settings.part("text_config")
    if inner is None:
        return _gemma3(settings, longest)
    return _gemma3(Settings({**_DEFAULTS, **inner.values}, inner.origin), longest)


_DEFAULTS = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
}


def _common(settings: Settings, longest: int | None, plan: tuple[Plan, ...]) -> Config:
    config = standard(
        settings,
        longest,
        plan,
        norm=Norm(
            settings.number("rms_norm_eps", default=1e-6),
            offset=settings.number("norm_offset", default=1.0),
        ),
        head_width=settings.integer("head_dim", default=256),
        activation=_activation(settings),
        tied=settings.flag("tie_word_embeddings", default=True),
    )
    return replace(config, embedding_scale=math.sqrt(config.width))


def _activation(settings: Settings) -> str:
    """The first files say `hidden_act` gelu and mean its approximation."""
    named = settings.text("hidden_activation", "hidden_act", default="gelu")
    stated = settings.value("hidden_activation", default=None) is not None
    return "gelu_pytorch_tanh" if named == "gelu" and not stated else named


def _scale(settings: Settings) -> float:
    return float(settings.number("query_pre_attn_scalar", default=256) ** -0.5)


def _cap(settings: Settings, name: str, default: float | None) -> float | None:
    """A soft cap; null says none, and nothing says `default`."""
    return settings.maybe_number(name) if settings.has(name) else default


def _windows(settings: Settings, period: int) -> list[int | None]:
    """All layers but each `period`-th slide."""
    layers = range(1, settings.integer("num_hidden_layers") + 1)
    kinds = ["sliding_attention" if k % period else "full_attention" for k in layers]
    return windows_of(settings, window_of(settings, default=4096), kinds)


def _near(settings: Settings) -> Settings:
    """The settings of layers that slide: a base of their own, and no scaling."""
    values = {**settings.values, "rope_theta": settings.value("rope_local_base_freq", default=1e4)}
    values.pop("rope_scaling", None)
    return Settings(values, settings.origin)


_AFTER = {
    **STANDARD,
    "layers.{n}.attention_post_norm": "layers.{n}.post_attention_layernorm",
    "layers.{n}.mlp_norm": "layers.{n}.pre_feedforward_layernorm",
    "layers.{n}.mlp_post_norm": "layers.{n}.post_feedforward_layernorm",
}

GEMMA = Architecture(("gemma",), _gemma, gguf=("gemma",))
GEMMA2 = Architecture(("gemma2",), _gemma2, gguf=("gemma2",), names=_AFTER)
GEMMA3 = Architecture(
    ("gemma3_text", "gemma3"),
    _gemma3_outer,
    gguf=("gemma3",),
    names=_AFTER,
    prefixes=("model.", "language_model.model.", "model.language_model.", ""),
    unused=(r"(model\.)?(vision_tower|multi_modal_projector)\..*",),
)
