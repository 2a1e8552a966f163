"""The MLP of a decoder's layer, gated or not."""

from collections.abc import Callable

from edgerelax.frontends.nn import Linear, Module, Tensor
from edgerelax.frontends.nn.functional import gelu, relu, sigmoid, silu
from edgerelax.ir.diagnostics import UnsupportedError


def _gelu_tanh(x: Tensor) -> Tensor:
    return gelu(x, approximate=True)


def _quick_gelu(x: Tensor) -> Tensor:
    return x * sigmoid(x * 1.702)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "swish": silu,
    "gelu": gelu,
    "gelu_new": _gelu_tanh,
    "gelu_fast": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": relu,
}
"""By the names of config.json."""


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name. Raises UnsupportedError for one that is not known."""
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"the activation {name} is not known", hint=f"known are {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


class MLP(Module):
    """down(act(gate(x)) · up(x)), or down(act(up(x))). `fused`: gate and up are one weight."""

    def __init__(
        self,
        width: int,
        hidden: int,
        act: str,
        gated: bool = True,
        fused: bool = False,
        bias: bool = False,
    ) -> None:
        self.hidden, self.act = hidden, activation(act)
        fused = fused and gated
        self.gate_up = Linear(width, 2 * hidden, bias) if fused else None
        self.gate = Linear(width, hidden, bias) if gated and not fused else None
        self.up = None if fused else Linear(width, hidden, bias)
        self.down = Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate_up is not None:
            gate, up = self.gate_up(x).split((self.hidden, self.hidden))
            inner = self.act(gate) * up
        elif self.up is not None and self.gate is not None:
            inner = self.act(self.gate(x)) * self.up(x)
        else:
            assert self.up is not None
            inner = self.act(self.up(x))
        result: Tensor = self.down(inner)
        return result
