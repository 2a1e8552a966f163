"""The Llama architecture (arXiv 2302.13971, 2307.09288): RMS norms, rotary positions, gated MLP.

SmolLM2 and many others are the same with other sizes.
"""

from edgerelax.frontends.language.config import Config
from edgerelax.frontends.language.context import Attend, CacheShape, Context, Decoder
from edgerelax.frontends.nn import Embedding, Linear, Module, RMSNorm, Tensor
from edgerelax.frontends.nn.functional import rotary, silu


class Attention(Module):
    """Causal self-attention; several heads share keys and values where groups are fewer."""

    def __init__(self, config: Config, layer: int) -> None:
        self.config, self.layer = config, layer
        queries, shared = config.heads * config.head_width, config.groups * config.head_width
        self.q = Linear(config.width, queries)
        self.k = Linear(config.width, shared)
        self.v = Linear(config.width, shared)
        self.output = Linear(queries, config.width)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        config, at = self.config, context.positions
        batch, length, _ = x.dims

        def split(y: Tensor, heads: int) -> Tensor:
            return y.reshape(batch, length, heads, config.head_width).permute(0, 2, 1, 3)

        q = rotary(split(self.q(x), config.heads), at, config.frequencies, config.interleaved)
        k = rotary(split(self.k(x), config.groups), at, config.frequencies, config.interleaved)
        y = context.attend(self.layer, q, k, split(self.v(x), config.groups), Attend())
        merged = y.permute(0, 2, 1, 3).reshape(batch, length, config.heads * config.head_width)
        result: Tensor = self.output(merged)
        return result


class GatedMLP(Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, config: Config) -> None:
        self.gate = Linear(config.width, config.hidden)
        self.up = Linear(config.width, config.hidden)
        self.down = Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(silu(self.gate(x)) * self.up(x))
        return result


class Layer(Module):
    """Attention and MLP, each behind a norm and around a residual."""

    def __init__(self, config: Config, layer: int) -> None:
        self.attention_norm = RMSNorm(config.width, config.epsilon)
        self.attention = Attention(config, layer)
        self.mlp_norm = RMSNorm(config.width, config.epsilon)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        x = x + self.attention(self.attention_norm(x), context)
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Llama(Decoder):
    """The decoder of these layers."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.embedding = Embedding(config.vocabulary, config.width)
        self.layers = [Layer(config, k) for k in range(config.layers)]
        self.norm = RMSNorm(config.width, config.epsilon)
        self.head = None if config.tied else Linear(config.width, config.vocabulary)

    @property
    def caches(self) -> list[CacheShape]:
        config = self.config
        return [CacheShape(config.groups, config.head_width, config.head_width)] * config.layers

    def hidden(self, tokens: Tensor, context: Context) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, context)
        result: Tensor = self.norm(x)
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        if self.head is None:
            return self.embedding.as_linear(hidden)
        result: Tensor = self.head(hidden)
        return result
