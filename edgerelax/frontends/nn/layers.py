"""Layers that most models are made of."""

from edgerelax.frontends.nn.functional import linear, rms_norm
from edgerelax.frontends.nn.module import Module, Parameter
from edgerelax.frontends.nn.tensor import Tensor, apply


class Linear(Module):
    """x Wᵀ + b: [..., inputs] → [..., outputs]; the weight is [outputs, inputs]."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False, role: str = "linear") -> None:
        self.weight = Parameter(outputs, inputs, role=role)
        self.bias = Parameter(outputs) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linears(x: Tensor, *layers: Linear) -> tuple[Tensor, ...]:
    """Several layers of one operand: one product where their weights are stored in one form.

    (Weights that are plain arrays are joined when the module is compiled.)
    """
    first, *others = (layer.weight for layer in layers)
    weight = first.joined(*others)
    if weight is None:
        return tuple(layer(x) for layer in layers)
    parts = linear(x, weight).split([layer.weight.shape[0] for layer in layers])
    return tuple(
        part if layer.bias is None else part + layer.bias
        for part, layer in zip(parts, layers, strict=True)
    )


class Embedding(Module):
    """Rows of a table: integers [...] → [..., width]."""

    def __init__(self, count: int, width: int, role: str = "embedding") -> None:
        self.weight = Parameter(count, width, role=role)

    def forward(self, ids: Tensor) -> Tensor:
        return apply("gather", self.weight, ids, axis=0)

    def rows(self, like: Tensor, start: int, stop: int) -> Tensor:
        """Some rows as they are, in the function that `like` belongs to: [stop - start, width]."""
        table = Tensor(like.builder, self.weight.emit(like.builder))
        return table.split((start, stop - start), axis=0)[1]

    def as_linear(self, x: Tensor) -> Tensor:
        """Scores of all rows: [..., width] → [..., count] (tied output embeddings)."""
        return linear(x, self.weight)


class RMSNorm(Module):
    """x / sqrt(mean(x²) + epsilon) · (weight + offset), over the last axis."""

    def __init__(self, width: int, epsilon: float = 1e-5, offset: float = 0.0) -> None:
        self.weight = Parameter(width)
        self.epsilon, self.offset = epsilon, offset

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.epsilon, self.offset)


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + epsilon) · weight + bias, over the last axis."""

    def __init__(self, width: int, epsilon: float = 1e-5, bias: bool = True) -> None:
        self.weight = Parameter(width)
        self.bias = Parameter(width) if bias else None
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return apply("layer_norm", x, self.weight, self.bias, axis=-1, epsilon=self.epsilon)


class Conv1d(Module):
    """A convolution: [batch, inputs, length] → [batch, outputs, places of the kernel].

    `padding` zeros stand at both ends. The weight is [outputs, inputs, size].
    """

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0
    ) -> None:
        self.weight = Parameter(outputs, inputs, size)
        self.bias = Parameter(outputs)
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        pads = (self.padding, self.padding)
        return apply("conv", x, self.weight, self.bias, strides=(self.stride,), pads=pads)
