"""A decoder with the weights of a Hugging Face file, or of the part of it that is a text model."""

from dataclasses import replace
from functools import partial

from edgerelax.frontends.language.architectures import by_type
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.language.weights import Source, load_weights, name_of
from edgerelax.frontends.nn.quantise import Quantiser


def load_decoder(
    settings: Settings,
    weights: Source,
    longest: int | None = None,
    quantiser: Quantiser | None = None,
    tied: bool = False,
) -> GeneralDecoder:
    """The model that settings describe, made for sequences up to `longest`.

    `tied`: it has no head of its own, whatever the settings say.
    """
    architecture = by_type(settings.text("model_type"), weights.origin)
    config = architecture.config(settings, longest)
    if tied:
        config = replace(config, tied=True)
    model = GeneralDecoder(config)
    embedding = name_of("embedding.weight", architecture.names)
    found = [p for p in architecture.prefixes if p + embedding in weights.names]
    prefix = found[0] if found else architecture.prefixes[0]

    def name(parameter: str) -> str:
        own = name_of(parameter, architecture.names)
        if not parameter.startswith("head."):
            return prefix + own
        inside = f"language_model.{own}"  # the head stands outside the prefix, or in another part
        return inside if inside in weights.names else own

    unused = [*architecture.unused, *([r".*lm_head\.weight"] if config.tied else [])]
    change = architecture.change and partial(architecture.change, config)
    load_weights(model, weights, name, unused, change, quantiser)
    return model
