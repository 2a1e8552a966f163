"""From a Hugging Face folder to a module."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.hf.pooling import is_embedder, pooling_of
from edgerelax.frontends.hf.reading import Weights, read_settings
from edgerelax.frontends.hf.text import text_of
from edgerelax.frontends.language.architecture import Architecture
from edgerelax.frontends.language.architectures import by_type
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.encoder import embedding_module
from edgerelax.frontends.language.functions import language_module, longest
from edgerelax.frontends.language.weights import load_weights, name_of
from edgerelax.frontends.nn.quantise import Quantiser
from edgerelax.ir.graph import Module


def load(
    path: str | Path,
    dims: Mapping[str, DimSpec] | None = None,
    quantiser: Quantiser | None = None,
) -> Module:
    """The module of a folder's language model: see `language_module`, `embedding_module`.

    It is the latter for encoders, and where the folder says how vectors are made of hidden states.
    `quantiser` says how weights are stored, and learns what that cost; without it they are f32.
    Raises InputError for a folder where something is missing, damaged or contradicts config.json,
    UnsupportedError for an architecture or weights that are not known.
    """
    folder = Path(path)
    settings = read_settings(folder)
    text = text_of(folder, settings)
    model = decoder_of(folder, longest(dims), quantiser)
    name = settings.text("model_type")
    encoder = by_type(name, folder.name).encoder
    if encoder or is_embedder(folder):
        pooling = pooling_of(folder)
        return embedding_module(model, model.config, pooling, encoder, dims, name, text)
    return language_module(model, model.config, dims, name, text)


def decoder_of(
    folder: Path, longest: int | None = None, quantiser: Quantiser | None = None
) -> GeneralDecoder:
    """The folder's model with its weights, made for sequences up to `longest`."""
    settings = read_settings(folder)
    architecture = by_type(settings.text("model_type"), folder.name)
    config = architecture.config(settings, longest)
    if is_embedder(folder):
        config = replace(config, tied=True)  # no head: nothing asks for logits
    model, weights = GeneralDecoder(config), Weights(folder)
    prefix = _prefix(architecture, weights.names)

    def name(parameter: str) -> str:
        own = name_of(parameter, architecture.names)
        return _head(own, weights.names) if parameter.startswith("head.") else prefix + own

    unused = [*architecture.unused, *([r".*lm_head\.weight"] if config.tied else [])]
    change = architecture.change and partial(architecture.change, config)
    load_weights(model, weights, name, unused, change, quantiser)
    return model


def _prefix(architecture: Architecture, names: set[str]) -> str:
    """What stands before the names here: the first under which there are embeddings."""
    embedding = name_of("embedding.weight", architecture.names)
    found = [p for p in architecture.prefixes if p + embedding in names]
    return found[0] if found else architecture.prefixes[0]


def _head(name: str, names: set[str]) -> str:
    """The head stands outside the model that a prefix names, or in another part."""
    inside = f"language_model.{name}"
    return inside if inside in names else name
