"""What a decoder-only language model is made of, whatever file it came from."""

from dataclasses import dataclass, field
from typing import Literal

from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.rope import Rope
from edgerelax.ir.diagnostics import InputError


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over features: RMS norm, whose weight may be stored less `offset`, or layer norm."""

    epsilon: float = 1e-5
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = True
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer's experts: `chosen` of `count` for each token, by a softmax over all.

    `normalised` says that the shares of the chosen ones are made to sum up to 1. A shared expert of
    `shared` hidden features (0: none) sees every token, its share by a sigmoid of its own.
    """

    count: int
    chosen: int
    hidden: int
    normalised: bool = True
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What layers of one model may differ in. `rope` None: no positions; `experts` None: an MLP."""

    attend: Attend = field(default_factory=Attend)
    rope: Rope | None = None
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes and choices of a decoder.

    `groups` is the number of key and value heads; `hidden` an MLP's inner width; `context` the
    greatest length that it serves; `plan` has an entry for each layer.

    `norms_before` and `norms_after`: whether attention and MLP have norms before them, and after
    them, ahead of the residual sum, or of the sum itself with `norms_of_sums`, which makes the last
    norm of all superfluous. `embedding_norm`: embeddings have one, and the first layer's attention
    none before it. `parallel`: both see the layer's input, through norms of their
    `own` or a `shared` one. `qk_norm`: norms of queries and keys, over a `head` with one weight for
    all, over each head with its `own`, or over `all` heads at once. `gated`: down(act(gate) · up).
    `fused_*`: the projections are one weight. `positions`: so many rows of a learned embedding of
    positions, which is added from `first_position` on, and so is the first of `types` rows of
    token types. `*_scale` multiply embeddings, vectors of images that stand in for them, what
    attention and MLPs add, and logits; logits are softly capped at ± `logit_cap`.
    """

    width: int
    heads: int
    groups: int
    head_width: int
    hidden: int
    vocabulary: int
    context: int
    plan: tuple[Plan, ...]
    norm: Norm = Norm()
    norms_before: bool = True
    norms_after: bool = False
    norms_of_sums: bool = False
    embedding_norm: bool = False
    parallel: Literal["", "own", "shared"] = ""
    qk_norm: Literal["", "head", "own", "all"] = ""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    fused_qkv: bool = False
    fused_gate: bool = False
    gated: bool = True
    activation: str = "silu"
    positions: int = 0
    first_position: int = 0
    types: int = 0
    tied: bool = False
    embedding_scale: float = 1.0
    image_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None

    def __post_init__(self) -> None:
        sizes = ("layers", "width", "heads", "groups", "head_width", "hidden", "vocabulary")
        for name in (*sizes, "context"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: a model needs at least 1")
        if self.heads % self.groups:
            raise InputError(f"{self.heads} heads cannot share {self.groups} keys and values")

    @property
    def layers(self) -> int:
        return len(self.plan)
