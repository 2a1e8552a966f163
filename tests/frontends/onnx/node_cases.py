"""The node tests of the onnx package as cases: a model of one node, inputs, expected outputs.

`node_cases()` gives each as it is, `symbolic(case)` the same with a name in place of every dim of
every input. Cases whose inputs or outputs are no tensors are left out. Operands that must be known
when a model is compiled (axes, scales, numbers of steps) are constants instead of inputs.
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx.backend.test.case.node import collect_testcases

KNOWN_OPERANDS: dict[str, tuple[int, ...]] = {
    "Squeeze": (1,), "Unsqueeze": (1,), "CumSum": (1,), "CumProd": (1,), "Pad": (3,), "Slice": (3,),
    "Resize": (1, 2), "Upsample": (1,), "Dropout": (1, 2), "Loop": (0, 1), "DFT": (1, 2),
    "STFT": (1, 3), "Range": (0, 1, 2), "MelWeightMatrix": (0, 1, 2, 3, 4), "CenterCropPad": (1,),
    "AffineGrid": (1,), "Col2Im": (1, 2),
    **{f"Reduce{kind}": (1,) for kind in (
        "Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare",
    )},
}  # fmt: skip
"""By operator, which operands the cases make constants."""

COUNTED_OPERANDS: dict[str, tuple[int, ...]] = {
    "Reshape": (1,), "Expand": (1,), "Slice": (1, 2, 4), "Pad": (1,), "Split": (1,), "Tile": (1,),
    "TopK": (1,), "MaxUnpool": (2,), "Resize": (3,), "ConstantOfShape": (0,), "GatherND": (1,),
    "ScatterND": (1,), "DFT": (0,), "STFT": (0, 2),
}  # fmt: skip
"""By operator, which operands decide the result's rank by their last dim: it stays a number."""

TEXT = ("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit")
RANDOM = ("Bernoulli", "RandomUniformLike")
TRAINING = ("Adagrad", "Adam", "Momentum")
CLASSIC = ("Binarizer", "LabelEncoder", "TfIdfVectorizer", "TreeEnsemble")
MISSING = ("BitCast", "DeformConv", "Det", "NonMaxSuppression")
UNSUPPORTED_OPS = frozenset((*TEXT, *RANDOM, *TRAINING, *CLASSIC, *MISSING))

# Importing these needs a length that in the symbolic case only a run tells.
UNSUPPORTED_SYMBOLIC_OPS = frozenset(("CausalConvWithState", "LinearAttention", "Scan"))

UNSUPPORTED_CASES = {
    "affine_grid_2d_align_corners_expanded": "a rank that depends on data",
    "affine_grid_2d_expanded": "a rank that depends on data",
    "affine_grid_3d_align_corners_expanded": "a rank that depends on data",
    "affine_grid_3d_expanded_symbolic": "a rank that depends on data",
    "batchnorm_epsilon_training_mode": "training",
    "batchnorm_example_training_mode": "training",
    "equal_string": "text",
    "equal_string_broadcast": "text",
    "not_2d": "opset 1",
    "not_3d": "opset 1",
    "not_4d": "opset 1",
    "range_bfloat16_type_positive_delta_expanded": "a loop as long as data says",
    "range_float16_type_positive_delta_expanded": "a loop as long as data says",
    "range_float_type_positive_delta_expanded": "a loop as long as data says",
    "range_int32_type_negative_delta_expanded": "a loop as long as data says",
    "scan_sum": "opset 8",
    "training_dropout": "random numbers",
    "training_dropout_default": "random numbers",
    "training_dropout_default_mask": "random numbers",
    "training_dropout_mask": "random numbers",
    "unique_sorted_with_axis": "an axis",
    "unique_sorted_with_axis_3d": "an axis",
    "unique_sorted_with_negative_axis": "an axis",
}
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
                whole = NodeCase(
                    case.name.removeprefix("test_"),
                    case.model,
                    {k: np.asarray(v) for k, v in given.items()},
                    {k: np.asarray(v) for k, v in expected.items()},
                    case.rtol,
                    case.atol,
                )
                yield _with_constants(whole)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


def _with_constants(case: NodeCase) -> NodeCase:
    """The case with the operands of KNOWN_OPERANDS as initializers."""
    names = {
        node.input[k]
        for node in case.model.graph.node
        for k in KNOWN_OPERANDS.get(node.op_type, ())
        if k < len(node.input) and node.input[k] in case.inputs
    }
    if not names:
        return case
    model = deepcopy(case.model)
    kept = [i for i in model.graph.input if i.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for name in sorted(names):
        model.graph.initializer.append(onnx.numpy_helper.from_array(case.inputs[name], name))
    inputs = {k: v for k, v in case.inputs.items() if k not in names}
    return replace(case, model=model, inputs=inputs)


def symbolic(case: NodeCase) -> NodeCase:
    """The case with every dim of every input a symbol of its own."""
    model = deepcopy(case.model)
    counted = {
        node.input[k]
        for node in model.graph.node
        for k in COUNTED_OPERANDS.get(node.op_type, ())
        if k < len(node.input)
    }
    dims: dict[str, tuple[int, int | None]] = {}
    for value in model.graph.input:
        shape = value.type.tensor_type.shape.dim
        for k, dim in enumerate(shape):
            size = case.inputs[value.name].shape[k]
            if value.name in counted and k == len(shape) - 1:
                dim.dim_value = size
                continue
            dim.dim_param = f"{value.name}_d{k}"
            if size == 0:
                dims[dim.dim_param] = (0, None)
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return replace(case, name=f"{case.name}_symbolic", model=model, dims=dims)


def is_supported(case: NodeCase) -> bool:
    """Whether the importer takes the case; if not, it raises UnsupportedError."""
    plain = case.name.removesuffix("_symbolic")
    if plain != case.name and not UNSUPPORTED_SYMBOLIC_OPS.isdisjoint(case.ops):
        return False
    if plain in UNSUPPORTED_CASES or case.name in UNSUPPORTED_CASES:
        return False
    return UNSUPPORTED_OPS.isdisjoint(case.ops)
