"""What describes an architecture: how its sizes are read, and what its weights are called.

A new one is a file in architectures/ with a function from settings to a Config, usually `standard`
with what differs, and a row in architectures/__init__.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgerelax.frontends.language.config import Config, Experts, Norm, Plan
from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.rope import Lengths, Rope, rope_of
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.nn.module import Array
from edgerelax.ir.diagnostics import InputError

STANDARD = {
    "embedding": "embed_tokens",
    "norm": "norm",
    "head": "lm_head",
    "layers.{n}.attention_norm": "layers.{n}.input_layernorm",
    "layers.{n}.attention.q": "layers.{n}.self_attn.q_proj",
    "layers.{n}.attention.k": "layers.{n}.self_attn.k_proj",
    "layers.{n}.attention.v": "layers.{n}.self_attn.v_proj",
    "layers.{n}.attention.q_norm": "layers.{n}.self_attn.q_norm",
    "layers.{n}.attention.k_norm": "layers.{n}.self_attn.k_norm",
    "layers.{n}.attention.output": "layers.{n}.self_attn.o_proj",
    "layers.{n}.mlp_norm": "layers.{n}.post_attention_layernorm",
    "layers.{n}.mlp.gate": "layers.{n}.mlp.gate_proj",
    "layers.{n}.mlp.up": "layers.{n}.mlp.up_proj",
    "layers.{n}.mlp.down": "layers.{n}.mlp.down_proj",
}
"""Our modules' names and those of most Hugging Face files, {n} a layer, {e} one of a stack."""

Change = Callable[[Config, str, Array], Array]


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture of decoders, or of encoders: decoders whose tokens see what follows.

    Attributes:
        types: `model_type` of config.json; the first is its name.
        config: from settings, and the greatest length to serve (None: all that it was trained
            for), to a Config.
        gguf: `general.architecture` of GGUF files; their weights' names are the same for all.
        names: our modules' names and a Hugging Face file's.
        prefixes: what may stand before all of the file's names but the head's.
        unused: patterns of names that belong to no weight of the decoder.
        encoder: tokens see the whole sequence; a model gives vectors of texts.
        change: an array of a Hugging Face file, by our parameter's name, as we have it.
    """

    types: tuple[str, ...]
    config: Callable[[Settings, int | None], Config]
    gguf: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=lambda: STANDARD)
    prefixes: tuple[str, ...] = ("model.", "")
    unused: tuple[str, ...] = ()
    encoder: bool = False
    change: Change | None = None


def lengths_of(settings: Settings, longest: int | None = None) -> Lengths:
    """The context that a file states, and the one to serve.

    YaRN and dynamic scaling lengthen what the file states where it states the unscaled one.
    """
    trained = settings.integer("max_position_embeddings")
    most, scaling = trained, settings.part("rope_scaling") or settings.part("rope_parameters")
    if scaling is not None and scaling.has("factor"):
        kind, factor = scaling.text("rope_type", "type", default=""), scaling.maybe_number("factor")
        original = scaling.integer("original_max_position_embeddings", default=trained)
        if kind == "yarn" and factor:
            most = max(trained, round(original * factor))
        elif kind == "dynamic" and factor:
            most = round(trained * factor)
    if longest is not None and longest > most:
        raise InputError(f"length is wanted up to {longest}; the model was trained for {most}")
    return Lengths(trained, most if longest is None else longest)


def head_width_of(settings: Settings) -> int:
    """The width of a head, stated or what the heads share."""
    given = settings.value("head_dim", default=None)
    if given is not None:
        return settings.integer("head_dim")
    heads, width = settings.integer("num_attention_heads"), settings.integer("hidden_size")
    if heads < 1 or width % heads:
        raise InputError(f"{settings.origin}: {heads} heads cannot share hidden_size {width}")
    return width // heads


def standard_rope(
    settings: Settings,
    longest: int | None,
    base: float = 10000.0,
    partial: float = 1.0,
    kind: str | None = None,
) -> Rope:
    """Rotary positions of most config.json, old style or new.

    `base` and `partial` are the architecture's defaults. `kind` names the entry of a kind of layers
    where there are several.
    """
    how = settings.part("rope_parameters")
    if how is not None and kind is not None and how.has(kind):
        how = how.part(kind)
    if how is None:
        how = settings.part("rope_scaling") or Settings({}, settings.origin)
    base = settings.number("rope_theta", "rotary_emb_base", default=base)
    partial = settings.number("partial_rotary_factor", "rotary_pct", default=partial)
    values = {**how.values}
    outside = settings.value("original_max_position_embeddings", default=None)
    if outside is not None:
        values["original_max_position_embeddings"] = outside
    values.setdefault("interleaved", settings.flag("rope_interleaved", default=False))
    how = Settings(values, how.origin)
    width = int(head_width_of(settings) * how.number("partial_rotary_factor", default=partial))
    width = settings.integer("rope_width", default=width)
    base = how.number("rope_theta", default=base)
    return rope_of(how, base, width, lengths_of(settings, longest))


def windows_of(settings: Settings, window: int | None, kinds: Sequence[str]) -> list[int | None]:
    """Each layer's window: of those that `layer_types` (or `kinds`) call sliding_attention."""
    given = settings.items("layer_types", str) or list(kinds)
    layers = settings.integer("num_hidden_layers")
    if len(given) != layers:
        raise InputError(f"{settings.origin}: layer_types has {len(given)} of {layers} layers")
    return [window if kind == "sliding_attention" else None for kind in given]


def window_of(settings: Settings, default: int | None = None) -> int | None:
    """The width of sliding windows; null says none, and nothing says `default`."""
    if not settings.has("sliding_window"):
        return default
    found = settings.value("sliding_window", default=0)
    return settings.integer("sliding_window") if found else None


def plan_of(
    settings: Settings,
    rope: Rope | None,
    windows: Sequence[int | None] | int | None = None,
    attend: Attend = Attend(),  # noqa: B008 (frozen)
    experts: Experts | None = None,
) -> tuple[Plan, ...]:
    """A plan for each layer, with one window for all or one for each."""
    layers = settings.integer("num_hidden_layers")
    each = [windows] * layers if windows is None or isinstance(windows, int) else windows
    return tuple(Plan(Attend(attend.scale, w, attend.cap), rope, experts) for w in each)


def standard(
    settings: Settings, longest: int | None, plan: tuple[Plan, ...], **changes: Any
) -> Config:
    """A Config by the names that most config.json use; `changes` are fields that differ."""
    heads = settings.integer("num_attention_heads")
    bias = settings.flag("attention_bias", default=False)
    fields: dict[str, Any] = {
        "width": settings.integer("hidden_size"),
        "heads": heads,
        "groups": settings.integer("num_key_value_heads", default=heads),
        "head_width": head_width_of(settings),
        "hidden": settings.integer("intermediate_size"),
        "vocabulary": settings.integer("vocab_size"),
        "context": lengths_of(settings, longest).longest,
        "plan": plan,
        "norm": changes.get("norm") or Norm(settings.number("rms_norm_eps", default=1e-6)),
        "qkv_bias": settings.flag("qkv_bias", default=bias),
        "output_bias": settings.flag("output_bias", default=bias),
        "mlp_bias": settings.flag("mlp_bias", default=False),
        "activation": settings.text("hidden_act", "hidden_activation", default="silu"),
        "tied": settings.flag("tie_word_embeddings", default=False),
    }
    return Config(**{**fields, **changes})
