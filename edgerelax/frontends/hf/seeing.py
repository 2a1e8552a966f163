"""Models that see images: LLaVA, Idefics 3, SmolVLM (frontends/language/vision, seeing)."""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgerelax.frontends.hf.decoder import load_decoder
from edgerelax.frontends.hf.images import Processor, processor_of
from edgerelax.frontends.hf.reading import Folder, Weights
from edgerelax.frontends.hf.text import added_tokens, text_of
from edgerelax.frontends.language.architectures import by_type
from edgerelax.frontends.language.config import Config
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.seeing import seeing_module
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.language.text import TOKENIZER
from edgerelax.frontends.language.vision import (
    Connector,
    Perceptron,
    Shuffle,
    Tower,
    Vision,
    VisionConfig,
    bucketed_places,
)
from edgerelax.frontends.language.weights import load_weights, name_of
from edgerelax.frontends.nn.module import Array
from edgerelax.frontends.nn.quantise import Quantiser
from edgerelax.ir.diagnostics import InputError, UnsupportedError
from edgerelax.ir.graph import Module

TYPES = ("llava", "idefics3", "smolvlm")
"""`model_type` of config.json."""

_SMALL = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768,
          "intermediate_size": 3072, "image_size": 224, "num_channels": 3}  # fmt: skip
TOWERS: dict[str, dict[str, Any]] = {
    "clip_vision_model": {
        **_SMALL, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
    },
    "siglip_vision_model": {
        **_SMALL, "patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    },
    "idefics3": {
        **_SMALL, "patch_size": 32, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
        "hidden_size": 1152, "num_attention_heads": 16,
    },
}  # fmt: skip
"""What towers are where config.json says nothing: files leave out what is as always."""

TEXTS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 2048,
    },
    "mistral": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 131072,
    },
}  # fmt: skip
"""The same of text models."""

NAMES = {
    "tower.patches": "embeddings.patch_embedding",
    "tower.positions": "embeddings.position_embedding",
    "tower.first_norm": "pre_layrnorm",
    "tower.last_norm": "post_layernorm",
    "tower.layers.{n}.attention_norm": "encoder.layers.{n}.layer_norm1",
    "tower.layers.{n}.attention.q": "encoder.layers.{n}.self_attn.q_proj",
    "tower.layers.{n}.attention.k": "encoder.layers.{n}.self_attn.k_proj",
    "tower.layers.{n}.attention.v": "encoder.layers.{n}.self_attn.v_proj",
    "tower.layers.{n}.attention.output": "encoder.layers.{n}.self_attn.out_proj",
    "tower.layers.{n}.mlp_norm": "encoder.layers.{n}.layer_norm2",
    "tower.layers.{n}.mlp.up": "encoder.layers.{n}.mlp.fc1",
    "tower.layers.{n}.mlp.down": "encoder.layers.{n}.mlp.fc2",
    "connector.first": "linear_1",
    "connector.second": "linear_2",
    "connector.project": "modality_projection.proj",
}
"""Our modules' names, and the files' behind what SECTIONS take away."""

HEAD = "lm_head"
SECTIONS = (
    (r"(model\.)?(vision_tower|vision_model)\.(vision_model\.)?", "tower."),
    (r"(model\.)?(multi_modal_projector|connector)\.", "connector."),
    (r"(language_model\.)?(?=lm_head\.)", ""),
    (r"(model\.)?(language_model|text_model)\.((model|transformer|gpt_neox)\.)?", ""),
)
"""Beginnings of names in files, and the parts that these are of: the text model's has no name."""


def load_seeing(folder: Folder) -> Module:
    """The module of a folder's model that sees images: see `seeing_module`.

    Raises InputError and UnsupportedError, as `load` does.
    """
    path, settings = folder.path, folder.settings
    text = text_of(path, _text_settings(settings))
    processor = processor_of(path)
    model, vision = parts_of(path, settings, processor, folder.longest, folder.quantiser)
    token = settings.integer("image_token_id", "image_token_index")
    if not 0 <= token < model.config.vocabulary:
        raise InputError(f"{settings.origin}: no token {token} of {model.config.vocabulary}")
    images = {
        "placeholder": _placeholder(path, token), "token": token, "tokens": vision.count,
        "side": vision.side, **processor.plan,
    }  # fmt: skip
    text = replace(text, images=images)
    dims, kind, cached = folder.dims, folder.kind, folder.cached
    return seeing_module(model, vision, model.config, dims, kind, text, cached)


def parts_of(
    folder: Path,
    settings: Settings,
    processor: Processor,
    longest: int | None = None,
    quantiser: Quantiser | None = None,
) -> tuple[GeneralDecoder, Vision]:
    """The folder's text model and what makes vectors of pixels, with their weights."""
    weights, part = Weights(folder), _text_settings(settings)
    names = by_type(part.text("model_type"), folder.name).names
    text = _Section(weights, ("",), names["head"])
    tied = settings.flag("tie_word_embeddings", default=False)
    tied |= part.flag("tie_word_embeddings", default=False)
    model = load_decoder(part, text, longest, quantiser, tied)
    vision = _vision(settings, processor, model.config)
    seeing = _Section(weights, ("tower.", "connector."))
    beyond = len(vision.tower.layers)
    unused = [
        r"tower\.embeddings\.position_ids", r"tower\.(post_layernorm|head)\..*",
        *(
            rf"tower\.encoder\.layers\.{k}\..*"
            for k in range(beyond, vision.tower.config.layers)
        ),
    ]  # fmt: skip
    load_weights(vision, seeing, _name, unused, _flattened, quantiser)
    return model, vision


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a model, and what a tensor of it is called in its file."""

    part: str
    name: str


def _part_of(name: str, head: str) -> _Part:
    """The part that a file's tensor belongs to, and its name there, in a text model with `head`."""
    for pattern, part in SECTIONS:
        found = re.match(pattern, name)
        if found is not None:
            own = part + name[found.end() :]
            return _Part(part, own.replace(f"{HEAD}.", f"{head}.", 1) if not part else own)
    return _Part("", name)


class _Section:
    """The tensors of some parts, by their names there."""

    def __init__(self, source: Weights, parts: Collection[str], head: str = HEAD) -> None:
        self.origin = source.origin
        self._source = source
        found = {name: _part_of(name, head) for name in source.names}
        self._file_name = {own.name: name for name, own in found.items() if own.part in parts}
        self.names = set(self._file_name)

    def read(self, name: str) -> Array:
        return self._source.read(self._file_name[name])


def _name(parameter: str) -> str:
    """What a parameter of a Vision is called."""
    if parameter == "tower.class_token":
        return "tower.embeddings.class_embedding"
    part, _, _ = parameter.partition(".")
    return f"{part}.{name_of(parameter, NAMES)}"


def _flattened(parameter: str, data: Array) -> Array:
    """Kernels of patches as rows of a matrix."""
    return data.reshape(len(data), -1) if parameter == "tower.patches.weight" else data


def _text_settings(settings: Settings) -> Settings:
    part = settings.part("text_config")
    if part is None:
        raise InputError(f"{settings.origin} has no text_config")
    kind = part.text("model_type", default="llama")
    given = {name: value for name, value in part.values.items() if value is not None}
    return Settings({**TEXTS.get(kind, {}), "model_type": kind, **given}, part.origin)


def _vision(settings: Settings, processor: Processor, text: Config) -> Vision:
    part = settings.part("vision_config")
    if part is None:
        raise InputError(f"{settings.origin} has no vision_config")
    of_llava = settings.text("model_type") == "llava"
    kind = part.text("model_type", default="clip_vision_model") if of_llava else "idefics3"
    if kind not in TOWERS:
        raise UnsupportedError(
            f"{part.origin}: a vision tower {kind}", hint=f"known are {', '.join(TOWERS)}"
        )
    given = {name: value for name, value in part.values.items() if value is not None}
    seen = Settings({**TOWERS[kind], **given}, part.origin)
    make = _llava if of_llava else _idefics
    config, connector = make(settings, seen, kind, processor, text.width)
    return Vision(
        Tower(config), connector, text.width, processor.scale, processor.shift, text.image_scale
    )


def _llava(
    settings: Settings, seen: Settings, kind: str, processor: Processor, width: int
) -> tuple[VisionConfig, Connector]:
    trained, layers = seen.integer("image_size"), seen.integer("num_hidden_layers")
    if trained != processor.side:
        raise InputError(
            f"images become {processor.side} pixels wide, the vision tower sees {trained}"
        )
    clip = kind == "clip_vision_model"
    how = settings.text("vision_feature_select_strategy", default="default")
    if how not in ("default", "full") or (how == "default" and not clip):
        raise UnsupportedError(f"{settings.origin}: features of a {kind} chosen by {how}")
    chosen = settings.value("vision_feature_layer", default=-2)
    several = isinstance(chosen, list)
    numbers = settings.items("vision_feature_layer", int) if several else [
        settings.integer("vision_feature_layer", default=-2)
    ]  # fmt: skip
    if not numbers or not all(-layers - 1 <= n <= layers for n in numbers):
        raise InputError(f"{settings.origin}: features of layer {chosen}, of {layers}")
    taken = tuple(n % (layers + 1) for n in numbers)
    across = trained // seen.integer("patch_size")
    config = replace(
        _tower(seen, processor.side, across**2, tuple(range(across**2)), taken),
        class_token=clip,
        without_class=how == "default",
        patch_bias=not clip,
        first_norm=clip,
    )
    connector = Perceptron(
        config.width * len(taken),
        width,
        settings.text("projector_hidden_act", default="gelu"),
        settings.flag("multimodal_projector_bias", default=True),
    )
    return config, connector


def _idefics(
    settings: Settings, seen: Settings, kind: str, processor: Processor, width: int
) -> tuple[VisionConfig, Connector]:
    patch, layers = seen.integer("patch_size"), seen.integer("num_hidden_layers")
    trained, across = seen.integer("image_size") // patch, processor.side // patch
    places = bucketed_places(trained, across)
    tower = _tower(seen, processor.side, trained**2, places, (layers,))
    config = replace(tower, last_norm=True)
    return config, Shuffle(config.width, width, settings.integer("scale_factor", default=2))


def _tower(
    seen: Settings, side: int, trained: int, places: tuple[int, ...], taken: tuple[int, ...]
) -> VisionConfig:
    return VisionConfig(
        width=seen.integer("hidden_size"),
        heads=seen.integer("num_attention_heads"),
        hidden=seen.integer("intermediate_size"),
        layers=seen.integer("num_hidden_layers"),
        side=side,
        patch=seen.integer("patch_size"),
        trained=trained,
        places=places,
        taken=taken,
        channels=seen.integer("num_channels"),
        activation=seen.text("hidden_act"),
        epsilon=seen.number("layer_norm_eps"),
    )


def _placeholder(folder: Path, token: int) -> str:
    """The text of the token that stands for an image in templates."""
    for content, number in added_tokens(folder).items():
        if number == token:
            return str(content)
    raise InputError(f"{TOKENIZER} has no added token {token}, which stands for images")
