"""From a Python function over tensors to a Module."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    states: Mapping[str, Input] | None = None,
) -> Module:
    """A module with a graph function that does what `forward` does to its inputs, by name.

    `forward` gets a Tensor for each input and gives its outputs by name. `module` holds functions
    that are there already. `states` are tensors that live on between calls, on the device, shared
    by the functions that name them: `forward` gets them after the inputs, as the mapping `states`,
    and what it gives under a state's name is what that becomes.
    """
    function = Function(name, module)
    given: dict[str, Any] = {
        key: Tensor(function, function.input(key, spec.dims, spec.dtype))
        for key, spec in inputs.items()
    }
    if states is not None:
        given["states"] = {
            key: Tensor(function, function.state(key, spec.dims, spec.dtype))
            for key, spec in states.items()
        }
    for key, result in forward(**given).items():
        function.output(key, result.value)
    return function.module()
