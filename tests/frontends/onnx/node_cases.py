"""The node tests of the onnx package as cases: a model of one node, inputs, expected outputs.

`node_cases()` gives each as it is, `symbolic(case)` the same with a name in place of every dim of every
input. Cases whose inputs or outputs are no tensors are left out.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NodeCase:
    """`dims` bounds the symbols of a symbolic case, where a size is 0."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    rtol: float = 1e-3
    atol: float = 1e-7
    dims: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n.op_type for n in self.model.graph.node))

    def __str__(self) -> str:
        return self.name


@cache
def node_cases() -> tuple[NodeCase, ...]:
    """Every case about tensors."""
    return tuple(_cases())


def _cases() -> Iterator[NodeCase]:
    for case in collect_testcases(None):
        graph = case.model.graph
        for inputs, outputs in case.data_sets[:1]:
            given = dict(zip((i.name for i in graph.input), inputs, strict=False))
            expected = dict(zip((o.name for o in graph.output), outputs, strict=False))
            if all(_is_tensor(v) for v in (*given.values(), *expected.values())):
                yield NodeCase(
                    case.name.removeprefix("test_"),
                    case.model,
                    {k: np.asarray(v) for k, v in given.items()},
                    {k: np.asarray(v) for k, v in expected.items()},
                    case.rtol,
                    case.atol,
                )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


def symbolic(case: NodeCase) -> NodeCase:
    """The case with every dim of every input a symbol of its own."""
    model = deepcopy(case.model)
    dims: dict[str, tuple[int, int | None]] = {}
    for value in model.graph.input:
        shape = value.type.tensor_type.shape
        for k, dim in enumerate(shape.dim):
            dim.dim_param = f"{value.name}_d{k}"
            size = case.inputs[value.name].shape[k]
            if size == 0:
                dims[dim.dim_param] = (0, None)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return replace(case, name=f"{case.name}_symbolic", model=model, dims=dims)
