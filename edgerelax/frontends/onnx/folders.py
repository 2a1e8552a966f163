"""Folders with a language model in ONNX: as onnxruntime-genai lays them out, or as optimum does."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.hf.pooling import is_embedder, pooling_of
from edgerelax.frontends.hf.reading import read_json, read_settings
from edgerelax.frontends.hf.text import text_of
from edgerelax.frontends.language.encoder import embedding_module
from edgerelax.frontends.language.functions import language_module, longest
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.language.storage import Kind, no_cache
from edgerelax.frontends.onnx.encoder import OnnxEncoder
from edgerelax.frontends.onnx.external import locations
from edgerelax.frontends.onnx.language import OnnxDecoder
from edgerelax.frontends.onnx.reading import Source, read_model
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.graph import Module

CONFIG = "genai_config.json"
PLACES = ("onnx/*.onnx", "*.onnx")
FILES = "files"
"""Attribute of modules: the ONNX model and what holds its tensors, by name in the folder."""
LONGEST = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
)
"""What config.json calls the greatest length that a model serves."""


FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "mpnet")
"""Types of models whose first position is the one after that of padding."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a language model: the greatest length that it serves, and its vocabulary."""

    context: int
    vocabulary: int


def is_genai(path: str | Path) -> bool:
    """Whether a folder is laid out as onnxruntime-genai has it."""
    return (Path(path) / CONFIG).is_file()


def onnx_files(path: str | Path) -> list[Path]:
    """The ONNX models of a folder, relative to it."""
    folder = Path(path)
    return [p.relative_to(folder) for place in PLACES for p in sorted(folder.glob(place))]


def load_genai(
    path: str | Path, dims: Mapping[str, DimSpec] | None = None, cache: Kind | None = None
) -> Module:
    """The module of a folder's language model: see `language_module`.

    `cache` says how keys and values are stored; without it they are f32. Raises InputError or
    FormatError for what is missing or damaged, UnsupportedError for a graph that reaches its past
    in another way.
    """
    folder = Path(path)
    config = read_json(folder / CONFIG)
    said = config.get("model") if isinstance(config, dict) else None
    if not isinstance(said, dict) or not isinstance(said.get("decoder"), dict):
        raise InputError(f"{CONFIG} says nothing of a model and its decoder")
    settings = Settings(said, CONFIG)
    name = str(said["decoder"].get("filename", "model.onnx"))
    if Path(name).name != name:
        raise InputError(f"{CONFIG}: the model's file is {name!r}, which leaves the folder")
    context = settings.integer("context_length")
    return _module(folder, Path(name), settings, context, dims, cache)


def load_optimum(
    path: str | Path,
    dims: Mapping[str, DimSpec] | None = None,
    cache: Kind | None = None,
    file: str | None = None,
) -> Module:
    """The same of a folder with config.json, tokenizer.json and ONNX models.

    For a model that gives hidden states, or with modules.json, see `embedding_module`. `file` says
    which: its name, with or without `.onnx` and folder. Raises InputError where several are there
    and nothing says which.
    """
    folder = Path(path)
    settings = read_settings(folder)
    chosen = _chosen(folder, file)
    text = settings.part("text_config")
    sizes = settings if text is None else text
    return _module(folder, chosen, settings, sizes.integer(*LONGEST), dims, cache)


def _module(
    folder: Path,
    file: Path,
    settings: Settings,
    context: int,
    dims: Mapping[str, DimSpec] | None,
    cache: Kind | None,
) -> Module:
    source = read_model(folder / file)
    assert source.beside is not None
    files = {str(file): folder / file}
    for place in locations(source.model.graph):
        files[str(file.parent / place)] = source.beside.find(place, source.label)
    module = _built(folder, source, settings, context, dims, cache)
    return replace(module, attrs={**module.attrs, FILES: files})


def _built(
    folder: Path,
    source: Source,
    settings: Settings,
    context: int,
    dims: Mapping[str, DimSpec] | None,
    cache: Kind | None,
) -> Module:
    text, kind = text_of(folder, settings), settings.text("model_type", "type")
    if "logits" in {o.name for o in source.model.graph.output} and not is_embedder(folder):
        decoder = OnnxDecoder(source, context)
        wanted = longest(dims)
        served = context if wanted is None else min(context, wanted)
        sizes = Sizes(served, decoder.vocabulary)
        return language_module(decoder, sizes, dims, kind, text, cache or "f32")
    if cache is not None:
        raise no_cache(folder.name)
    before = settings.integer("pad_token_id") + 1 if kind in FROM_PADDING else 0
    sizes = Sizes(context - before, settings.integer("vocab_size"))
    return embedding_module(OnnxEncoder(source), sizes, pooling_of(folder), True, dims, kind, text)


def _chosen(folder: Path, file: str | None) -> Path:
    files = onnx_files(folder)
    names = ", ".join(map(str, files))
    if file is None:
        if len(files) > 1:
            raise InputError(
                f"{folder.name} has {len(files)} ONNX models: {names}",
                hint="say which by --file, in Python by file=",
            )
        return files[0]
    found = [f for f in files if file in (str(f), f.name, f.stem)]
    if not found:
        raise InputError(f"{folder.name} has no ONNX model {file!r}", hint=f"there are {names}")
    if len(found) > 1:
        places = ", ".join(map(str, found))
        raise InputError(f"{file!r} is {len(found)} ONNX models: {places}", hint="say it so")
    return found[0]
