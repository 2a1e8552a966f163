"""From a Hugging Face folder to a module."""

from collections.abc import Mapping
from pathlib import Path

from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.hf.decoder import load_decoder
from edgerelax.frontends.hf.pooling import is_embedder, pooling_of
from edgerelax.frontends.hf.reading import Folder, Weights, read_settings
from edgerelax.frontends.hf.seeing import TYPES as SEEING_TYPES
from edgerelax.frontends.hf.seeing import load_seeing
from edgerelax.frontends.hf.speech import TYPES as SPEECH_TYPES
from edgerelax.frontends.hf.speech import load_speech
from edgerelax.frontends.hf.text import text_of
from edgerelax.frontends.language.architectures import by_type
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.encoder import embedding_module
from edgerelax.frontends.language.functions import language_module
from edgerelax.frontends.language.storage import Kind, no_cache
from edgerelax.frontends.nn.quantise import Quantiser
from edgerelax.ir.graph import Module


def load(
    path: str | Path,
    dims: Mapping[str, DimSpec] | None = None,
    quantiser: Quantiser | None = None,
    cache: Kind | None = None,
) -> Module:
    """The module of a folder's language model: see `language_module`, `embedding_module`.

    It is the latter for encoders, and where the folder says how vectors are made of hidden states;
    that of a speech model is another (`speech_module`), and so is that of one that sees images
    (`seeing_module`).
    `quantiser` says how weights are stored, and learns what that cost; without it they are f32.
    `cache` says how keys and values are, which are f32 as well without it.
    Raises InputError for a folder where something is missing, damaged or contradicts config.json,
    UnsupportedError for an architecture or weights that are not known.
    """
    path = Path(path)
    folder = Folder(path, read_settings(path), dims, quantiser, cache)
    if folder.kind in SPEECH_TYPES:
        return load_speech(folder)
    if folder.kind in SEEING_TYPES:
        return load_seeing(folder)
    encoder = by_type(folder.kind, path.name, (*SPEECH_TYPES, *SEEING_TYPES)).encoder
    text = text_of(path, folder.settings)
    model = decoder_of(path, folder.longest, quantiser)
    if encoder or is_embedder(path):
        if cache is not None:
            raise no_cache(path.name)
        pooling = pooling_of(path)
        return embedding_module(model, model.config, pooling, encoder, dims, folder.kind, text)
    return language_module(model, model.config, dims, folder.kind, text, folder.cached)


def decoder_of(
    folder: Path, longest: int | None = None, quantiser: Quantiser | None = None
) -> GeneralDecoder:
    """The folder's model with its weights, made for sequences up to `longest`."""
    settings, headless = read_settings(folder), is_embedder(folder)  # nothing asks for logits
    return load_decoder(settings, Weights(folder), longest, quantiser, tied=headless)
