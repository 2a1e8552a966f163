"""SmolLM3: Llama whose every fourth layer has no positions (NoPE, arXiv 2501.18795)."""

from dataclasses import replace

from edgerelax.frontends.language.architecture import (
    Architecture,
    plan_of,
    standard,
    standard_rope,
    window_of,
    windows_of,
)
from edgerelax.frontends.language.config import Config
from edgerelax.frontends.language.settings import Settings
from edgerelax.ir.diagnostics import InputError


def _smollm3(settings: Settings, longest: int | None) -> Config:
    layers = settings.integer("num_hidden_layers")
    every = settings.integer("no_rope_layer_interval", default=4)
    turns = settings.items("no_rope_layers", int) or [(k + 1) % every for k in range(layers)]
    if len(turns) != layers:
        raise InputError(f"{settings.origin}: no_rope_layers has {len(turns)} of {layers} layers")
    slides = settings.flag("use_sliding_window", default=False)
    window = window_of(settings) if slides else None
    kinds = ["full_attention" if turn else "sliding_attention" for turn in turns]
    rope = standard_rope(settings, longest, base=2e6)
    plan = plan_of(settings, rope, windows_of(settings, window, kinds))
    plan = tuple(p if turn else replace(p, rope=None) for p, turn in zip(plan, turns, strict=True))
    tied = settings.flag("tie_word_embeddings", default=True)
    return standard(settings, longest, plan, tied=tied)


SMOLLM3 = Architecture(("smollm3",), _smollm3, gguf=("smollm3",))
