"""From a GGUF file to a module: its architecture, its sizes, the names of its tensors."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import PoolingType

from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.gguf.reading import File
from edgerelax.frontends.gguf.settings import FACTORS, settings_of
from edgerelax.frontends.gguf.tokenizer import text_of
from edgerelax.frontends.language.architectures import by_gguf
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.encoder import Pooling, embedding_module
from edgerelax.frontends.language.functions import language_module, longest
from edgerelax.frontends.language.storage import Kind, no_cache
from edgerelax.frontends.language.weights import load_weights, name_of
from edgerelax.frontends.nn.quantise import Quantiser
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.graph import Module

NAMES = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "types": "token_types",
    "embedding_norm": "token_embd_norm",
    "norm": "output_norm",
    "head": "output",
    "layers.{n}.attention_norm": "blk.{n}.attn_norm",
    "layers.{n}.attention.q": "blk.{n}.attn_q",
    "layers.{n}.attention.k": "blk.{n}.attn_k",
    "layers.{n}.attention.v": "blk.{n}.attn_v",
    "layers.{n}.attention.qkv": "blk.{n}.attn_qkv",
    "layers.{n}.attention.q_norm": "blk.{n}.attn_q_norm",
    "layers.{n}.attention.k_norm": "blk.{n}.attn_k_norm",
    "layers.{n}.attention.output": "blk.{n}.attn_output",
    "layers.{n}.attention_post_norm": "blk.{n}.post_attention_norm",
    "layers.{n}.mlp_norm": "blk.{n}.ffn_norm",
    "layers.{n}.mlp.gate": "blk.{n}.ffn_gate",
    "layers.{n}.mlp.up": "blk.{n}.ffn_up",
    "layers.{n}.mlp.gate_up": "blk.{n}.ffn_up",
    "layers.{n}.mlp.down": "blk.{n}.ffn_down",
    "layers.{n}.mlp_post_norm": "blk.{n}.post_ffw_norm",
    "layers.{n}.experts.router": "blk.{n}.ffn_gate_inp",
    "layers.{n}.experts.gate": "blk.{n}.ffn_gate_exps",
    "layers.{n}.experts.up": "blk.{n}.ffn_up_exps",
    "layers.{n}.experts.down": "blk.{n}.ffn_down_exps",
    "layers.{n}.experts.shared.gate": "blk.{n}.ffn_gate_shexp",
    "layers.{n}.experts.shared.up": "blk.{n}.ffn_up_shexp",
    "layers.{n}.experts.shared.down": "blk.{n}.ffn_down_shexp",
    "layers.{n}.experts.shared_gate": "blk.{n}.ffn_gate_inp_shexp",
}
"""Our modules' names and those of GGUF files, the same for all architectures,"""

NAMES_OF_SUMS = {
    **NAMES,
    "layers.{n}.attention_post_norm": "blk.{n}.attn_output_norm",
    "layers.{n}.mlp_post_norm": "blk.{n}.layer_output_norm",
}
"""but for norms of residual sums."""

POOLINGS: dict[int, Pooling] = {
    PoolingType.MEAN: "mean",
    PoolingType.CLS: "first",
    PoolingType.LAST: "last",
}
"""By `pooling_type`."""


def load(
    path: str | Path,
    dims: Mapping[str, DimSpec] | None = None,
    quantiser: Quantiser | None = None,
    cache: Kind | None = None,
) -> Module:
    """The module of a file's language model: see `language_module`, `embedding_module`.

    It is the latter for encoders, and where the file says how vectors are made of hidden states.
    `quantiser` says how weights are stored, and learns what that cost; without it they stay as the
    file has them. `cache` says how keys and values are stored; without it they are f32. Raises
    InputError for a file that is damaged or contradicts itself, UnsupportedError for an
    architecture, a tensor or a tokenizer that is not known.
    """
    file = File(path)
    name, text = str(file.value("general.architecture")), text_of(file)
    model = decoder_of(file, longest(dims), quantiser)
    encoder, pooling = by_gguf(name, file.path.name).encoder, _pooling(file, name)
    if encoder or pooling is not None:
        if cache is not None:
            raise no_cache(file.path.name)
        how = pooling or "mean"
        return embedding_module(model, model.config, how, encoder, dims, name, text)
    return language_module(model, model.config, dims, name, text, cache or "f32")


def decoder_of(
    file: File, longest: int | None = None, quantiser: Quantiser | None = None
) -> GeneralDecoder:
    """The file's model with its weights, made for sequences up to `longest`."""
    architecture = by_gguf(str(file.value("general.architecture")), file.path.name)
    factors = {name: np.asarray(file.read(name)) for name in FACTORS if name in file.names}
    config = architecture.config(settings_of(file, factors), longest)
    model = GeneralDecoder(config)
    names = NAMES_OF_SUMS if config.norms_of_sums else NAMES
    load_weights(
        model, file, lambda parameter: name_of(parameter, names), tuple(FACTORS),
        quantiser=quantiser,
    )  # fmt: skip
    return model


def _pooling(file: File, name: str) -> Pooling | None:
    """How hidden states become vectors; None where the file doesn't say."""
    kind = int(file.value(f"{name}.pooling_type", PoolingType.NONE))
    if kind == PoolingType.NONE:
        return None
    if kind not in POOLINGS:
        raise UnsupportedError(f"{file.path.name}: pooling of type {kind} is not known")
    return POOLINGS[kind]
