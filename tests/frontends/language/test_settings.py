"""What config.json files say, as published models have them: names old and new, things left out."""

from typing import Any

import pytest

from edgerelax.frontends.language.architectures import by_type
from edgerelax.frontends.language.config import Config
from edgerelax.frontends.language.settings import Settings
from edgerelax.ir.diagnostics import UnsupportedError

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
LONG = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


def config(kind: str, longest: int | None = None, **changes: Any) -> Config:
    settings = {k: v for k, v in {**SIZES, **changes}.items() if v != "missing"}
    return by_type(kind, "config.json").config(Settings(settings, "config.json"), longest)


def windows(model: Config) -> list[int | None]:
    return [plan.attend.window for plan in model.plan]


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("llama", {"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5}}),
        (
            "llama",
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
        ),
        (
            "gpt_neox",
            {"rotary_pct": 0.5, "rotary_emb_base": 500},
            {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 500}},
        ),
        (
            "phi3",
            {"rope_scaling": {"type": "su", **LONG}, "original_max_position_embeddings": 512},
            {
                "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **LONG},
                "original_max_position_embeddings": 512,
            },
        ),
        (
            "gemma3_text",
            {
                "rope_theta": 2e6,
                "rope_local_base_freq": 500.0,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "sliding_window_pattern": 2,
            },
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                },
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
        ),
    ],
)
def test_old_and_new_names_say_the_same(
    kind: str, old: dict[str, Any], new: dict[str, Any]
) -> None:
    assert config(kind, **old) == config(kind, **new)
    assert config(kind, **old) != config(kind)


def test_null_is_not_the_same_as_nothing() -> None:
    assert windows(config("mistral")) == [4096] * 4
    assert windows(config("mistral", sliding_window=None)) == [None] * 4
    assert config("gemma2").logit_cap == 30
    assert config("gemma2", final_logit_softcapping=None).logit_cap is None


def test_windows_of_some_layers() -> None:
    assert windows(config("gemma2", sliding_window=8)) == [8, None, 8, None]
    assert windows(config("qwen2", sliding_window=8)) == [None] * 4
    slides = {"use_sliding_window": True, "sliding_window": 8}
    assert windows(config("qwen2", **slides, max_window_layers=3)) == [None, None, None, 8]


def test_the_context_that_scaling_reaches() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    assert config("qwen2", rope_scaling=yarn).context == 16384
    assert config("llama", rope_scaling={"type": "dynamic", "factor": 2.0}).context == 8192
    assert config("llama", rope_scaling={"type": "linear", "factor": 2.0}).context == 4096
    assert config("llama", 100).context == 100


def test_the_table_follows_the_greatest_length() -> None:
    scaling = {"rope_scaling": {"type": "su", **LONG}, "original_max_position_embeddings": 512}
    short, long = (config("phi3", n, **scaling).plan[0].rope for n in (512, 513))
    assert short is not None and long is not None
    assert short.frequencies == tuple(2 * f for f in long.frequencies)
    assert short.factor == long.factor > 1


def test_a_text_model_inside_another_leaves_out_defaults() -> None:
    inner = {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    model = config("gemma3", text_config=inner)
    assert (model.width, model.heads, model.groups, model.layers) == (2560, 8, 4, 34)
    assert windows(model)[:6] == [1024] * 5 + [None]
    assert model.vocabulary == 262_208


def test_gemma_that_sees_what_follows_is_no_decoder() -> None:
    with pytest.raises(UnsupportedError, match="Gemma 3 whose tokens see"):
        config("gemma3_text", use_bidirectional_attention=True)
    assert config("gemma3_text", attn_logit_softcapping=5.0) == config("gemma3_text")


def test_the_first_gemmas_say_gelu() -> None:
    assert config("gemma", hidden_act="gelu") == config("gemma")
    assert config("gemma2", hidden_activation="gelu").activation == "gelu"


def test_gpt2_names() -> None:
    names = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 77, "vocab_size": 10}
    model = config("gpt2", **dict.fromkeys(SIZES, "missing") | names)
    assert (model.width, model.layers, model.heads, model.context) == (32, 3, 4, 77)
    assert (model.hidden, model.positions, model.tied) == (128, 77, True)
