"""The Llama architecture (arXiv 2302.13971, 2307.09288): RMS norms, rotary positions, gated MLP.

SmolLM2 and many others are the same with other sizes.
"""

from edgerelax.frontends.language.config import Config
from edgerelax.frontends.nn import Embedding, Linear, Module, RMSNorm, Tensor
from edgerelax.frontends.nn.functional import (
    attention,
    causal_mask,
    positions,
    rotary,
    silu,
)


class Attention(Module):
    """Causal self-attention; several heads share keys and values where groups are fewer."""

    def __init__(self, config: Config) -> None:
        self.config = config
        queries, shared = config.heads * config.head_width, config.groups * config.head_width
        self.q = Linear(config.width, queries)
        self.k = Linear(config.width, shared)
        self.v = Linear(config.width, shared)
        self.output = Linear(queries, config.width)

    def forward(self, x: Tensor, at: Tensor, mask: Tensor) -> Tensor:
        config = self.config
        batch, length, _ = x.dims

        def split(y: Tensor, heads: int) -> Tensor:
            return y.reshape(batch, length, heads, config.head_width).permute(0, 2, 1, 3)

        q = rotary(split(self.q(x), config.heads), at, config.frequencies, config.interleaved)
        k = rotary(split(self.k(x), config.groups), at, config.frequencies, config.interleaved)
        y = attention(q, k, split(self.v(x), config.groups), mask).permute(0, 2, 1, 3)
        result: Tensor = self.output(y.reshape(batch, length, config.heads * config.head_width))
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

    def __init__(self, config: Config) -> None:
        self.attention_norm = RMSNorm(config.width, config.epsilon)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.width, config.epsilon)
        self.mlp = GatedMLP(config)

    def forward(self, x: Tensor, at: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), at, mask)
        result: Tensor = x + self.mlp(self.mlp_norm(x))
        return result


class Llama(Module):
    """Tokens i64[batch, length] → logits f32[batch, length, vocabulary]."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.embedding = Embedding(config.vocabulary, config.width)
        self.layers = [Layer(config) for _ in range(config.layers)]
        self.norm = RMSNorm(config.width, config.epsilon)
        self.head = None if config.tied else Linear(config.width, config.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        at = positions(tokens, tokens.dims[1])
        mask = causal_mask(at, at)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, at, mask)
        x = self.norm(x)
        result: Tensor = self.embedding.as_linear(x) if self.head is None else self.head(x)
        return result
