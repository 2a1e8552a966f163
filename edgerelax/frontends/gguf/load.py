"""From a GGUF file to a module: its architecture, its sizes, the names of its tensors."""

import re
from collections.abc import Mapping
from pathlib import Path

from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.gguf.reading import File
from edgerelax.frontends.language.config import Config
from edgerelax.frontends.language.functions import language_module
from edgerelax.frontends.language.llama import Llama
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.graph import Module

ARCHITECTURES = {"llama": Llama}
"""By `general.architecture`. A new one is a file in frontends/language and a row here."""

NAMES = {
    "token_embd.weight": "embedding.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "head.weight",
}
LAYER_NAMES = {
    "attn_norm": "attention_norm",
    "attn_q": "attention.q",
    "attn_k": "attention.k",
    "attn_v": "attention.v",
    "attn_output": "attention.output",
    "ffn_norm": "mlp_norm",
    "ffn_gate": "mlp.gate",
    "ffn_up": "mlp.up",
    "ffn_down": "mlp.down",
}
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def load(path: str | Path, dims: Mapping[str, DimSpec] | None = None) -> Module:
    """A module with `main`: tokens i64[batch, length] → logits f32[batch, length, vocabulary].

    `dims` may give sizes or bounds of `batch` and `length`; the latter ends at the context that
    the model was trained for. Raises InputError for a file that is damaged or contradicts itself,
    UnsupportedError for an architecture or a tensor that is not known.
    """
    file = File(path)
    architecture = file.value("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{file.path.name} is a model of architecture {architecture}",
            hint=f"known are {', '.join(ARCHITECTURES)}; others can be written with edgerelax.nn",
        )
    config = config_of(file, architecture)
    model = ARCHITECTURES[architecture](config)
    model.load({our_name(name): data for name, data in file.tensors()})
    return language_module(model, config, dims)


def config_of(file: File, architecture: str) -> Config:
    """The sizes that the metadata gives."""

    def number(key: str, default: float | None = None) -> int:
        return int(file.value(f"{architecture}.{key}", default))

    heads, width = number("attention.head_count"), number("embedding_length")
    head_width = number("attention.key_length", width // max(heads, 1))
    scaling = file.value(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedError(f"{file.path.name}: rotary scaling {scaling!r} is not known")
    return Config(
        layers=number("block_count"),
        width=width,
        heads=heads,
        groups=number("attention.head_count_kv", heads),
        head_width=head_width,
        hidden=number("feed_forward_length"),
        vocabulary=number("vocab_size", len(file.value("tokenizer.ggml.tokens", ()))),
        context=number("context_length"),
        epsilon=float(file.value(f"{architecture}.attention.layer_norm_rms_epsilon")),
        rope_base=float(file.value(f"{architecture}.rope.freq_base", 10000.0)),
        rope_width=number("rope.dimension_count", head_width),
        interleaved=True,
        tied="output.weight" not in file.names,
    )


def our_name(name: str) -> str:
    """A tensor's name in our modules. Raises UnsupportedError for one that none of them has."""
    if name in NAMES:
        return NAMES[name]
    found = LAYER.fullmatch(name)
    if found is None or found[2] not in LAYER_NAMES:
        raise UnsupportedError(f"the tensor {name} is not known to this architecture")
    return f"layers.{found[1]}.{LAYER_NAMES[found[2]]}.{found[3]}"
