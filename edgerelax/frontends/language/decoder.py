"""The decoder that architectures are described by: layers of attention and MLP, with options."""

from edgerelax.frontends.language.config import Config, Norm
from edgerelax.frontends.language.context import CacheShape, Context, Decoder
from edgerelax.frontends.language.experts import Mixture
from edgerelax.frontends.language.mlp import MLP
from edgerelax.frontends.language.rope import Rope
from edgerelax.frontends.nn import (
    Embedding,
    LayerNorm,
    Linear,
    Module,
    Parameter,
    RMSNorm,
    Tensor,
    linears,
)
from edgerelax.frontends.nn.functional import rotary, soft_cap
from edgerelax.frontends.nn.tensor import apply


def norm_of(norm: Norm, width: int) -> Module:
    """A norm over so many features."""
    if norm.kind == "rms":
        return RMSNorm(width, norm.epsilon, norm.offset)
    return LayerNorm(width, norm.epsilon, norm.bias)


class HeadNorm(Module):
    """A layer norm of each head with a weight of its own: [..., heads, width]."""

    def __init__(self, heads: int, width: int, epsilon: float) -> None:
        self.weight = Parameter(heads, width)
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return apply("layer_norm", x, self.weight, None, axis=-1, epsilon=self.epsilon)


class Attention(Module):
    """Causal self-attention; several heads share keys and values where groups are fewer."""

    def __init__(self, config: Config, layer: int) -> None:
        self.config, self.layer = config, layer
        self.plan = config.plan[layer]
        width, bias = config.width, config.qkv_bias
        queries, shared = config.heads * config.head_width, config.groups * config.head_width
        fused = config.fused_qkv
        self.qkv = Linear(width, queries + 2 * shared, bias) if fused else None
        self.q = None if fused else Linear(width, queries, bias)
        self.k = None if fused else Linear(width, shared, bias)
        self.v = None if fused else Linear(width, shared, bias)
        self.q_norm = self._norm(config.heads)
        self.k_norm = self._norm(config.groups)
        self.output = Linear(queries, width, config.output_bias)

    def _norm(self, heads: int) -> Module | None:
        config, width = self.config, self.config.head_width
        match config.qk_norm:
            case "head":
                return norm_of(config.norm, width)
            case "own":
                return HeadNorm(heads, width, config.norm.epsilon)
            case "all":
                return norm_of(config.norm, heads * width)
        return None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        config = self.config
        batch, length, _ = x.dims
        q, k, v = self._project(x)
        q = self._turned(self._heads(q, config.heads, self.q_norm), context)
        k = self._turned(self._heads(k, config.groups, self.k_norm), context)
        v = self._heads(v, config.groups, None)
        y = context.attend(self.layer, q, k, v, self.plan.attend)
        merged = y.permute(0, 2, 1, 3).reshape(batch, length, config.heads * config.head_width)
        result: Tensor = self.output(merged)
        return result

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.qkv is not None:
            config = self.config
            queries, shared = config.heads * config.head_width, config.groups * config.head_width
            q, k, v = self.qkv(x).split((queries, shared, shared))
            return q, k, v
        assert self.q is not None and self.k is not None and self.v is not None
        q, k, v = linears(x, self.q, self.k, self.v)
        return q, k, v

    def _heads(self, y: Tensor, heads: int, norm: Module | None) -> Tensor:
        """[batch, length, heads · width] → [batch, heads, length, width], normed."""
        batch, length, _ = y.dims
        if norm is not None and self.config.qk_norm == "all":
            y, norm = norm(y), None
        split = y.reshape(batch, length, heads, self.config.head_width)
        return (split if norm is None else norm(split)).permute(0, 2, 1, 3)

    def _turned(self, y: Tensor, context: Context) -> Tensor:
        rope = self.plan.rope
        if rope is None:
            return y
        at = context.positions
        return rotary(y, at, rope.frequencies, rope.interleaved, rope.factor)


class Layer(Module):
    """Attention and an MLP or experts, around residual sums."""

    def __init__(self, config: Config, layer: int) -> None:
        self.config, experts = config, config.plan[layer].experts
        before, after, width = config.norms_before, config.norms_after, config.width
        first = before and (layer > 0 or not config.embedding_norm)
        self.attention_norm = norm_of(config.norm, width) if first else None
        self.attention = Attention(config, layer)
        self.attention_post_norm = norm_of(config.norm, width) if after else None
        own = before and config.parallel != "shared"
        self.mlp_norm = norm_of(config.norm, width) if own else None
        self.experts = None if experts is None else Mixture(width, experts, config.activation)
        self.mlp = None if experts is not None else MLP(
            width, config.hidden, config.activation, config.gated, config.fused_gate,
            config.mlp_bias,
        )  # fmt: skip
        self.mlp_post_norm = norm_of(config.norm, width) if after else None

    def forward(self, x: Tensor, context: Context) -> Tensor:
        seen = x if self.attention_norm is None else self.attention_norm(x)
        attended = self._sum(x, self.attention(seen, context), self.attention_post_norm)
        if self.config.parallel:
            seen = seen if self.mlp_norm is None else self.mlp_norm(x)
        else:
            seen = attended if self.mlp_norm is None else self.mlp_norm(attended)
        return self._sum(attended, self._inner(seen), self.mlp_post_norm)

    def _inner(self, x: Tensor) -> Tensor:
        inner = self.experts or self.mlp
        assert inner is not None
        result: Tensor = inner(x)
        return result

    def _sum(self, x: Tensor, y: Tensor, norm: Module | None) -> Tensor:
        """x + y, y scaled, with the norm of one of them or of their sum."""
        of_sum, scale = self.config.norms_of_sums, self.config.residual_scale
        y = y if norm is None or of_sum else norm(y)
        y = x + (y if scale == 1 else y * scale)
        result: Tensor = norm(y) if norm is not None and of_sum else y
        return result


class GeneralDecoder(Decoder):
    """The decoder that a config describes."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.embedding = Embedding(config.vocabulary, config.width)
        rows = config.positions
        self.positions = Embedding(rows, config.width, role="") if rows else None
        self.types = Embedding(config.types, config.width, role="") if config.types else None
        self.embedding_norm = norm_of(config.norm, config.width) if config.embedding_norm else None
        self.layers = [Layer(config, k) for k in range(config.layers)]
        self.norm = None if config.norms_of_sums else norm_of(config.norm, config.width)
        tied, bias = config.tied, config.head_bias
        self.head = None if tied else Linear(config.width, config.vocabulary, bias, role="head")

    @property
    def caches(self) -> list[CacheShape]:
        config = self.config
        return [CacheShape(config.groups, config.head_width, config.head_width)] * config.layers

    @property
    def window(self) -> int | None:
        windows = [plan.attend.window for plan in self.config.plan]
        return None if None in windows else max(w for w in windows if w is not None)

    @property
    def ropes(self) -> list[Rope | None] | None:
        return None if self.config.positions else [plan.rope for plan in self.config.plan]

    def hidden(self, tokens: Tensor, context: Context) -> Tensor:
        x = self._embedded(tokens, context)
        for layer in self.layers:
            x = layer(x, context)
        return x if self.norm is None else self.norm(x)

    def _embedded(self, tokens: Tensor, context: Context) -> Tensor:
        config = self.config
        x = context.embed(tokens, self._table)
        if self.positions is not None:
            x = x + self.positions(context.positions + config.first_position)
        if self.types is not None:  # all tokens are of the first type
            x = x + self.types.rows(x, 0, 1)
        return x if self.embedding_norm is None else self.embedding_norm(x)

    def _table(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.embedding(tokens)
        scale = self.config.embedding_scale
        return x if scale == 1 else x * scale

    def logits(self, hidden: Tensor) -> Tensor:
        config = self.config
        y = self.embedding.as_linear(hidden) if self.head is None else self.head(hidden)
        y = y if config.logit_scale == 1 else y * config.logit_scale
        return y if config.logit_cap is None else soft_cap(y, config.logit_cap)
