"""BERT (arXiv 1810.04805), RoBERTa (1907.11692) and ModernBERT (2412.13663): encoders of texts.

BERT has norms of residual sums, learned positions and types of tokens; RoBERTa counts positions
from after the padding's id. ModernBERT is a decoder's layers that see both sides, most of them
through a window.
"""

from dataclasses import replace

from edgerelax.frontends.language.architecture import (
    Architecture,
    plan_of,
    standard,
    standard_rope,
    windows_of,
)
from edgerelax.frontends.language.config import Config, Norm, Plan
from edgerelax.frontends.language.settings import Settings
from edgerelax.ir.diagnostics import UnsupportedError


def _bert(settings: Settings, longest: int | None) -> Config:
    kind = settings.text("position_embedding_type", default="absolute")
    if kind != "absolute":
        raise UnsupportedError(f"{settings.origin}: position_embedding_type {kind} is not known")
    rows = settings.integer("max_position_embeddings")
    first = settings.integer("first_position", default=0)
    named = {**settings.values, "max_position_embeddings": rows - first}
    return standard(
        Settings(named, settings.origin),
        longest,
        (Plan(),) * settings.integer("num_hidden_layers"),
        norm=Norm(settings.number("layer_norm_eps", default=1e-12), "layer"),
        norms_before=False,
        norms_after=True,
        norms_of_sums=True,
        embedding_norm=True,
        positions=rows,
        first_position=first,
        types=settings.integer("type_vocab_size", default=2),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        gated=False,
        activation=settings.text("hidden_act", default="gelu"),
        tied=True,
    )


def _roberta(settings: Settings, longest: int | None) -> Config:
    padding = settings.integer("pad_token_id", default=1)
    named = {"type_vocab_size": 1, **settings.values, "first_position": padding + 1}
    return _bert(Settings(named, settings.origin), longest)


def _modernbert(settings: Settings, longest: int | None) -> Config:
    every = settings.integer("global_attn_every_n_layers", default=3)
    layers = range(settings.integer("num_hidden_layers"))
    kinds = ["sliding_attention" if k % every else "full_attention" for k in layers]
    windows = windows_of(settings, settings.integer("local_attention", default=128) // 2, kinds)

    def base(name: str, default: float) -> Settings:
        theta = settings.number(name, default=default)
        return Settings({**settings.values, "rope_theta": theta}, settings.origin)

    wide = standard_rope(base("global_rope_theta", 160_000.0), longest, kind="full_attention")
    near = standard_rope(base("local_rope_theta", 10_000.0), longest, kind="sliding_attention")
    plan = plan_of(settings, wide, windows)
    plan = tuple(p if p.attend.window is None else replace(p, rope=near) for p in plan)
    bias = settings.flag("norm_bias", default=False)
    return standard(
        settings,
        longest,
        plan,
        norm=Norm(settings.number("norm_eps", default=1e-5), "layer", bias),
        embedding_norm=True,
        fused_qkv=True,
        fused_gate=True,
        activation=settings.text("hidden_activation", default="gelu"),
        tied=True,
    )


_NAMES = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "layers.{n}.attention.q": "encoder.layer.{n}.attention.self.query",
    "layers.{n}.attention.k": "encoder.layer.{n}.attention.self.key",
    "layers.{n}.attention.v": "encoder.layer.{n}.attention.self.value",
    "layers.{n}.attention.output": "encoder.layer.{n}.attention.output.dense",
    "layers.{n}.attention_post_norm": "encoder.layer.{n}.attention.output.LayerNorm",
    "layers.{n}.mlp.up": "encoder.layer.{n}.intermediate.dense",
    "layers.{n}.mlp.down": "encoder.layer.{n}.output.dense",
    "layers.{n}.mlp_post_norm": "encoder.layer.{n}.output.LayerNorm",
}
_UNUSED = (r"(.*\.)?pooler\..*", r"(cls|lm_head)\..*", r".*embeddings\.position_ids")

BERT = Architecture(
    ("bert",),
    _bert,
    gguf=("bert",),
    names=_NAMES,
    prefixes=("bert.", ""),
    unused=_UNUSED,
    encoder=True,
)
ROBERTA = Architecture(
    ("roberta", "xlm-roberta"),
    _roberta,
    names=_NAMES,
    prefixes=("roberta.", ""),
    unused=_UNUSED,
    encoder=True,
)
MODERNBERT = Architecture(
    ("modernbert",),
    _modernbert,
    names={
        "embedding": "embeddings.tok_embeddings",
        "embedding_norm": "embeddings.norm",
        "norm": "final_norm",
        "layers.{n}.attention_norm": "layers.{n}.attn_norm",
        "layers.{n}.attention.qkv": "layers.{n}.attn.Wqkv",
        "layers.{n}.attention.output": "layers.{n}.attn.Wo",
        "layers.{n}.mlp_norm": "layers.{n}.mlp_norm",
        "layers.{n}.mlp.gate_up": "layers.{n}.mlp.Wi",
        "layers.{n}.mlp.down": "layers.{n}.mlp.Wo",
    },
    unused=(r"(head|decoder)\..*",),
    encoder=True,
)
