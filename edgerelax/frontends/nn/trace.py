"""From a Python function over tensors to a Module."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgerelax.frontends.nn.tensor import Tensor
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import DType
from edgerelax.ir.graph import Module
from edgerelax.sym import ExprLike


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that callers give: its dims (numbers or symbols) and dtype."""

    dims: Sequence[ExprLike]
    dtype: DType


def trace(
    forward: Callable[..., Mapping[str, Tensor]],
    inputs: Mapping[str, Input],
    name: str = "main",
    module: Module | None = None,
) -> Module:
    """A module with a graph function that does what `forward` does to its inputs, by name.

    `forward` gets a Tensor for each input and gives its outputs by name. `module` holds functions
    that are there already.
    """
    function = Function(name, module)
    given = {
        key: Tensor(function, function.input(key, spec.dims, spec.dtype))
        for key, spec in inputs.items()
    }
    for key, result in forward(**given).items():
        function.output(key, result.value)
    return function.module()
