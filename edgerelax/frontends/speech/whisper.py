"""Whisper (arXiv 2212.04356): an encoder of log-mel spectrograms, a decoder that attends to it.

Layers are those of language models. What a decoder's layer attends to in the encoder's states does
not change while a text is written: its keys and values are a memory, made once for each window.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from edgerelax.frontends.language.config import Config, Norm, Plan
from edgerelax.frontends.language.context import Attend, Context
from edgerelax.frontends.language.decoder import Attention, GeneralDecoder, Layer
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.nn import Conv1d, Embedding, LayerNorm, Linear, Module, Tensor
from edgerelax.frontends.nn.functional import attention, gelu, positions
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.diagnostics import InputError

STRIDE = 2
"""Frames of the spectrogram that become one of the encoder's."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """An encoder's and a decoder's. `frames` are of the encoder, `bands` of the spectrogram."""

    encoder: Config
    decoder: Config
    frames: int
    bands: int


class Unmasked(Context):
    """Sequences that see all of themselves."""

    def __init__(self, x: Tensor) -> None:
        length = x.dims[1]
        self.positions = positions(x, length).reshape(1, length)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attend) -> Tensor:
        return attention(q, k, v, None, how.scale, how.cap)


class Heard(Context):
    """Texts that attend to audio too: `rows` i32[batch] are theirs in the memory.

    The memory is, for each layer k, `heard_keys.k` and `heard_values.k` f32[rows, frames, heads,
    width].
    """

    def __init__(self, text: Context, rows: Tensor, memory: Mapping[str, Tensor]) -> None:
        self.text, self.rows, self.memory = text, rows, memory
        self.positions = text.positions

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attend) -> Tensor:
        return self.text.attend(layer, q, k, v, how)

    def listen(self, layer: int, q: Tensor) -> Tensor:
        """Attention of all queries to all that their text's audio has."""
        k, v = (
            apply("gather", self.memory[name], self.rows, axis=0).permute(0, 2, 1, 3)
            for name in memory_names(layer)
        )
        return attention(q, k, v)


def memory_names(layer: int) -> tuple[str, str]:
    """The states that hold a layer's keys and values of the audio."""
    return f"heard_keys.{layer}", f"heard_values.{layer}"


class OwnAttention(Attention):
    """Attention to itself: keys have no bias."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer)
        self.k = Linear(config.width, config.groups * config.head_width)


class CrossAttention(Attention):
    """Attention to the encoder's states."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer)
        self.k = Linear(config.width, config.groups * config.head_width)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Heard) and self.q is not None
        config = self.config
        batch, length, _ = x.dims
        y = context.listen(self.layer, self._heads(self.q(x), config.heads, None))
        merged = y.permute(0, 2, 1, 3).reshape(batch, length, config.heads * config.head_width)
        result: Tensor = self.output(merged)
        return result

    def memory(self, heard: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of encoder states, [batch, frames, heads, width] each."""
        assert self.k is not None and self.v is not None
        batch, frames, _ = heard.dims
        shape = batch, frames, self.config.groups, self.config.head_width
        return self.k(heard).reshape(*shape), self.v(heard).reshape(*shape)


class EncoderLayer(Layer):
    """Attention and an MLP."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer)
        self.attention = OwnAttention(config, layer)


class DecoderLayer(EncoderLayer):
    """The same with attention to the encoder's states between them."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__(config, layer)
        self.cross_norm = LayerNorm(config.width, config.norm.epsilon)
        self.cross = CrossAttention(config, layer)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        assert self.attention_norm is not None and self.mlp_norm is not None
        x = x + self.attention(self.attention_norm(x), context)
        x = x + self.cross(self.cross_norm(x), context)
        return x + self._inner(self.mlp_norm(x))


class Encoder(Module):
    """Log-mel spectrograms to states: f32[batch, frames, bands] → f32[batch, frames / 2, width]."""

    def __init__(self, sizes: Sizes) -> None:
        config = sizes.encoder
        self.frames = sizes.frames
        self.first = Conv1d(sizes.bands, config.width, 3, padding=1)
        self.second = Conv1d(config.width, config.width, 3, STRIDE, padding=1)
        self.positions = Embedding(sizes.frames, config.width, role="")
        self.layers = [EncoderLayer(config, k) for k in range(config.layers)]
        self.norm = LayerNorm(config.width, config.norm.epsilon)

    def forward(self, mel: Tensor) -> Tensor:
        x = gelu(self.second(gelu(self.first(mel.permute(0, 2, 1))))).permute(0, 2, 1)
        x = x + self.positions.rows(x, 0, self.frames)
        context = Unmasked(x)
        for layer in self.layers:
            x = layer(x, context)
        result: Tensor = self.norm(x)
        return result


class Decoder(GeneralDecoder):
    """Texts of audio, in the context `Heard`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layers = [DecoderLayer(config, k) for k in range(config.layers)]

    def memory(self, heard: Tensor) -> dict[str, Tensor]:
        """What the layers keep of encoder states: `Heard`'s memory of these texts, by name."""
        found: dict[str, Tensor] = {}
        for k, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            found |= zip(memory_names(k), layer.cross.memory(heard), strict=True)
        return found


class Whisper(Module):
    """Both."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.encoder = Encoder(sizes)
        self.decoder = Decoder(sizes.decoder)


def sizes_of(settings: Settings, longest: int | None = None) -> Sizes:
    """From config.json, and the greatest length of a text to serve.

    Raises InputError for what is missing or does not fit.
    """
    trained = settings.integer("max_target_positions")
    if longest is not None and longest > trained:
        raise InputError(f"length is wanted up to {longest}; the model was trained for {trained}")
    return Sizes(
        _config(settings, "encoder", trained, trained),
        _config(settings, "decoder", trained, longest or trained),
        settings.integer("max_source_positions"),
        settings.integer("num_mel_bins"),
    )


def _config(settings: Settings, part: str, positions: int, context: int) -> Config:
    width, heads = settings.integer("d_model"), settings.integer(f"{part}_attention_heads")
    if heads < 1 or width % heads:
        raise InputError(f"{settings.origin}: {heads} heads cannot share d_model {width}")
    return Config(
        width=width,
        heads=heads,
        groups=heads,
        head_width=width // heads,
        hidden=settings.integer(f"{part}_ffn_dim"),
        vocabulary=settings.integer("vocab_size"),
        context=context,
        plan=(Plan(),) * settings.integer(f"{part}_layers"),
        norm=Norm(1e-5, "layer"),
        positions=positions,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        gated=False,
        activation=settings.text("activation_function", default="gelu"),
        tied=settings.flag("tie_word_embeddings", default=True),
    )


_LAYER = {
    "attention_norm": "self_attn_layer_norm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "cross_norm": "encoder_attn_layer_norm",
    "cross.q": "encoder_attn.q_proj",
    "cross.k": "encoder_attn.k_proj",
    "cross.v": "encoder_attn.v_proj",
    "cross.output": "encoder_attn.out_proj",
    "mlp_norm": "final_layer_norm",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}
NAMES = {
    "encoder.first": "encoder.conv1",
    "encoder.second": "encoder.conv2",
    "encoder.positions": "encoder.embed_positions",
    "encoder.norm": "encoder.layer_norm",
    "decoder.embedding": "decoder.embed_tokens",
    "decoder.positions": "decoder.embed_positions",
    "decoder.norm": "decoder.layer_norm",
    "decoder.head": "proj_out",
    **{
        f"{part}.layers.{{n}}.{own}": f"{part}.layers.{{n}}.{name}"
        for part in ("encoder", "decoder")
        for own, name in _LAYER.items()
    },
}
"""Our modules' names and those of Hugging Face files."""
