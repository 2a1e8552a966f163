"""Towers that see images in patches (ViT, arXiv 2010.11929), and what a text model makes of them.

CLIP's tower (arXiv 2103.00020) has a class token and a norm before the layers, SigLIP's
(arXiv 2303.15343) neither. LLaVA (arXiv 2304.08485, 2310.03744) gives features of patches to the
text model through an MLP; Idefics 3 and SmolVLM (arXiv 2408.12637, 2504.05299) join neighbouring
patches first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgerelax.frontends.language.config import Config, Norm, Plan
from edgerelax.frontends.language.context import Attend, Context
from edgerelax.frontends.language.decoder import Layer
from edgerelax.frontends.language.mlp import activation
from edgerelax.frontends.nn import Embedding, LayerNorm, Linear, Module, Parameter, Tensor
from edgerelax.frontends.nn.functional import attention, concat, positions
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes and choices of a tower that sees square images of `side` pixels.

    Pixels past the last whole patch are not seen. `places` are numbers of the rows of positions
    that patches have, row by row, of `trained` rows (the class token's aside). `taken` are numbers
    of hidden states, 0 that before the first layer, which become features, one after the other; the
    last norm belongs to the last layer's. The features have no class token where `without_class`.
    """

    width: int
    heads: int
    hidden: int
    layers: int
    side: int
    patch: int
    trained: int
    places: tuple[int, ...]
    taken: tuple[int, ...]
    channels: int = 3
    activation: str = "gelu"
    epsilon: float = 1e-6
    class_token: bool = False
    without_class: bool = False
    patch_bias: bool = True
    first_norm: bool = False
    last_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("width", "heads", "hidden", "layers", "side", "patch", "channels"):
            if getattr(self, name) < 1:
                raise InputError(f"a vision tower's {name} is {getattr(self, name)}")
        if self.side < self.patch:
            raise InputError(f"a patch of {self.patch} pixels does not fit an image of {self.side}")
        if self.width % self.heads:
            raise InputError(f"{self.heads} heads cannot share a width of {self.width}")

    @property
    def across(self) -> int:
        """Whole patches in a row of an image."""
        return self.side // self.patch

    @property
    def features(self) -> int:
        """Features of an image."""
        return self.across**2 + (self.class_token and not self.without_class)


class _All(Context):
    """Patches, each of which sees all."""

    def __init__(self, x: Tensor) -> None:
        length = x.dims[1]
        self.positions = positions(x, length).reshape(1, length)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attend) -> Tensor:
        return attention(q, k, v, None, how.scale, how.cap)


class Tower(Module):
    """Pixels f32[images, side, side, channels] → features [images, features, taken · width]."""

    def __init__(self, config: VisionConfig) -> None:
        self.config = config
        width, norm = config.width, Norm(config.epsilon, "layer")
        layers = Config(
            width=width,
            heads=config.heads,
            groups=config.heads,
            head_width=width // config.heads,
            hidden=config.hidden,
            vocabulary=1,  # it has no table of tokens
            context=config.across**2 + config.class_token,
            plan=(Plan(),) * max(config.taken),
            norm=norm,
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            gated=False,
            activation=config.activation,
        )
        self.patches = Linear(config.channels * config.patch**2, width, config.patch_bias)
        self.class_token = Parameter(width) if config.class_token else None
        self.positions = Embedding(config.trained + config.class_token, width, role="")
        self.first_norm = LayerNorm(width, config.epsilon) if config.first_norm else None
        self.layers = [Layer(layers, k) for k in range(layers.layers)]
        with_last = config.last_norm and config.layers in config.taken
        self.last_norm = LayerNorm(width, config.epsilon) if with_last else None

    def forward(self, pixels: Tensor) -> Tensor:
        config = self.config
        x = self._embedded(pixels)
        states = [x if self.first_norm is None else self.first_norm(x)]
        context = _All(x)
        for layer in self.layers:
            states.append(layer(states[-1], context))
        if self.last_norm is not None:
            states[-1] = self.last_norm(states[-1])
        taken = [states[k] for k in config.taken]
        features = taken[0] if len(taken) == 1 else concat(taken)
        if self.class_token is None or not config.without_class:
            return features
        return features.split((1, config.across**2), axis=1)[1]

    def _embedded(self, pixels: Tensor) -> Tensor:
        """A vector for each patch, the class token's before them, with their positions."""
        config, across, patch = self.config, self.config.across, self.config.patch
        images, width = pixels.dims[0], config.width
        seen = across * patch
        if seen != config.side:
            pixels = pixels.split((seen,), axis=1)[0].split((seen,), axis=2)[0]
        parts = pixels.reshape(images, across, patch, across, patch, config.channels)
        rows = parts.permute(0, 1, 3, 5, 2, 4)
        x: Tensor = self.patches(rows.reshape(images, across**2, config.channels * patch**2))
        if self.class_token is not None:
            first = Tensor(x.builder, self.class_token.emit(x.builder)).reshape(1, 1, width)
            x = concat((first.expand(images, 1, width), x), axis=1)
        return x + self._positions(x)

    def _positions(self, like: Tensor) -> Tensor:
        first = [0] if self.class_token is not None else []
        rows = [*first, *(len(first) + place for place in self.config.places)]
        if rows == list(range(self.config.trained + len(first))):
            return self.positions.rows(like, 0, len(rows))
        table = like.builder.constant("places", np.array(rows, np.int64))
        found: Tensor = self.positions(Tensor(like.builder, table))
        return found


class Connector(Module):
    """From a tower's features to vectors that stand among a text model's."""

    def count(self, across: int, features: int) -> int:
        """Vectors of an image with so many patches across, and so many features."""
        return features


class Perceptron(Connector):
    """An MLP for each feature."""

    def __init__(self, inputs: int, outputs: int, act: str, bias: bool = True) -> None:
        self.first, self.second = Linear(inputs, outputs, bias), Linear(outputs, outputs, bias)
        self.act = activation(act)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.act(self.first(x)))
        return y


class Shuffle(Connector):
    """Squares of `factor` · `factor` patches become one vector, by a product."""

    def __init__(self, inputs: int, outputs: int, factor: int) -> None:
        self.factor = factor
        self.project = Linear(inputs * factor**2, outputs)

    def count(self, across: int, features: int) -> int:
        if across % self.factor:
            raise InputError(f"{across} patches across cannot be joined by {self.factor}")
        return features // self.factor**2

    def forward(self, x: Tensor) -> Tensor:
        images, patches, width = x.dims
        factor, across = self.factor, round((patches.as_int() or 0) ** 0.5) // self.factor
        parts = x.reshape(images, across, factor, across, factor, width)
        joined = parts.permute(0, 1, 3, 2, 4, 5).reshape(images, across**2, width * factor**2)
        y: Tensor = self.project(joined)
        return y


class Vision(Module):
    """Pixels u8[images, side, side, channels] → vectors f32[images, `count`, width].

    A channel's numbers are multiplied by its `scale` and then moved by its `shift`; what comes out
    is multiplied by `of_result`.
    """

    def __init__(
        self,
        tower: Tower,
        connector: Connector,
        width: int,
        scale: Sequence[float],
        shift: Sequence[float],
        of_result: float = 1.0,
    ) -> None:
        config = tower.config
        self.tower, self.connector, self.width = tower, connector, width
        self.side, self.channels = config.side, config.channels
        self.count = connector.count(config.across, config.features)
        self._scale, self._shift = (np.array(part, np.float32) for part in (scale, shift))
        self._of_result = of_result

    def forward(self, pixels: Tensor) -> Tensor:
        scale, shift = (
            Tensor(pixels.builder, pixels.builder.constant(name, part))
            for name, part in (("scale", self._scale), ("shift", self._shift))
        )
        y: Tensor = self.connector(self.tower(pixels.cast(F32) * scale + shift))
        return y if self._of_result == 1 else y * self._of_result


def bucketed_places(trained: int, across: int) -> tuple[int, ...]:
    """Rows of a table for `trained` patches across that images with `across` patches take.

    Positions are parts of the image's side, in f32, and the row the last whose own part is not
    after it, as transformers has it for Idefics 3. With as many patches as rows each has its own
    but where rounding says otherwise (transformers' rounding of bounds differs by processor).
    """
    step = np.float32(1) / np.float32(across)
    parts = np.minimum(np.arange(across, dtype=np.float32) * step, np.float32(1 - 1e-6))
    bounds = np.arange(1 / trained, 1.0, 1 / trained).astype(np.float32)
    rows = np.searchsorted(bounds, parts, side="right")
    return tuple(int(r) * trained + int(c) for r in rows for c in rows)
