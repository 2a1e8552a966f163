"""Building models in Python, as in torch: modules with parameters, traced into a Module."""

from edgerelax.frontends.nn import functional
from edgerelax.frontends.nn.layers import Conv1d, Embedding, LayerNorm, Linear, RMSNorm, linears
from edgerelax.frontends.nn.module import Module, Parameter
from edgerelax.frontends.nn.tensor import Tensor
from edgerelax.frontends.nn.trace import Input, trace

__all__ = [
    "Conv1d",
    "Embedding",
    "Input",
    "LayerNorm",
    "Linear",
    "Module",
    "Parameter",
    "RMSNorm",
    "Tensor",
    "functional",
    "linears",
    "trace",
]
