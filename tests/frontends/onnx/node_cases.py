"""The node tests of the onnx package as cases: a model of one node, inputs, expected outputs.

`node_cases()` gives each as it is, `symbolic_cases()` the same with a name in place of every dim
of every input. `refusal(case)` says which cases are not supported, and why. Operands that must be
known when a model is compiled (axes, scales, numbers of steps) are constants instead of inputs.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

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

UNSUPPORTED_OPS: dict[str, str] = {
    **dict.fromkeys(
        ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer"),
        "text",
    ),
    **dict.fromkeys(("Bernoulli", "RandomUniformLike"), "random numbers"),
    **dict.fromkeys(("Adagrad", "Adam", "Momentum"), "training"),
    **dict.fromkeys(("Binarizer", "LabelEncoder", "TreeEnsemble"), "classic machine learning"),
    **dict.fromkeys(("BitCast", "Det"), "not written yet"),
    "ImageDecoder": "decodes files",
}  # fmt: skip
"""By operator, why a case of it is refused."""

UNSUPPORTED_SYMBOLIC_OPS = {"CausalConvWithState": "the standard says it by means of sizes"}
"""The same, where every dim is a symbol."""

SEQUENCES = (
    "identity_opt",
    "identity_sequence",
    "if_opt",
    "if_seq",
    "loop13_seq",
    "loop16_seq_none",
    "optional_get_element_optional_sequence",
    "optional_get_element_sequence",
    "sequence_insert_at_back",
    "sequence_insert_at_front",
    "sequence_map_add_1_sequence_1_tensor",
    "sequence_map_add_1_sequence_1_tensor_expanded",
    "sequence_map_add_2_sequences",
    "sequence_map_add_2_sequences_expanded",
    "sequence_map_extract_shapes",
    "sequence_map_extract_shapes_expanded",
    "sequence_map_identity_1_sequence",
    "sequence_map_identity_1_sequence_1_tensor",
    "sequence_map_identity_1_sequence_1_tensor_expanded",
    "sequence_map_identity_1_sequence_expanded",
    "sequence_map_identity_2_sequences",
    "sequence_map_identity_2_sequences_expanded",
    "split_to_sequence_1",
    "split_to_sequence_2",
    "split_to_sequence_nokeepdims",
)
"""Cases whose inputs or outputs are sequences or optional values."""

ABSENT = "optional_has_element_empty_optional_input"
"""A case without its input; it compiles, but an input must be given."""

UNSUPPORTED_CASES = {
    **dict.fromkeys(SEQUENCES, "a sequence or an optional value at the border"),
    ABSENT: "an input that is absent",
    "affine_grid_2d_align_corners_expanded": "a rank that depends on data",
    "affine_grid_2d_expanded": "a rank that depends on data",
    "affine_grid_3d_align_corners_expanded": "a rank that depends on data",
    "affine_grid_3d_expanded_symbolic": "a rank that depends on data",
    "batchnorm_epsilon_training_mode": "training",
    "batchnorm_example_training_mode": "training",
    "center_crop_pad_crop_and_pad_expanded_symbolic": "pads that depend on data",
    "center_crop_pad_crop_axes_chw_expanded_symbolic": "pads that depend on data",
    "center_crop_pad_crop_axes_hwc_expanded_symbolic": "pads that depend on data",
    "center_crop_pad_crop_expanded_symbolic": "pads that depend on data",
    "center_crop_pad_crop_negative_axes_hwc_expanded_symbolic": "pads that depend on data",
    "center_crop_pad_pad_expanded_symbolic": "pads that depend on data",
    "equal_string": "text",
    "equal_string_broadcast": "text",
    "not_2d": "opset 1",
    "not_3d": "opset 1",
    "not_4d": "opset 1",
    "scan_sum": "opset 8",
    "training_dropout": "random numbers",
    "training_dropout_default": "random numbers",
    "training_dropout_default_mask": "random numbers",
    "training_dropout_mask": "random numbers",
}
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2}
"""By dtype of an output, the relative error that it may have at least."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class NodeCase:
    """`dims` bounds the symbols of a symbolic case, where a size is 0."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Any]
    outputs: dict[str, Any]
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
    """Every case of the package."""
    return tuple(_with_constants(_whole(case)) for case in collect_testcases(None))


@cache
def symbolic_cases() -> tuple[NodeCase, ...]:
    """Every case with symbolic dims."""
    return tuple(symbolic(case) for case in node_cases())


def _whole(case: TestCase) -> NodeCase:
    """The case with its first data set; none has more."""
    graph = case.model.graph
    inputs, outputs = case.data_sets[0]
    return NodeCase(
        case.name.removeprefix("test_"),
        case.model,
        {i.name: _array(v) for i, v in zip(graph.input, inputs, strict=False)},
        {o.name: _array(v) for o, v in zip(graph.output, outputs, strict=False)},
        case.rtol,
        case.atol,
    )


def _array(value: Any) -> Any:
    """A tensor as an array; sequences and absent values stay what they are."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


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


def refusal(case: NodeCase) -> str | None:
    """Why the case is refused (by the importer, but for ABSENT); None: it must pass."""
    plain = case.name.removesuffix("_symbolic")
    named = UNSUPPORTED_CASES.get(plain) or UNSUPPORTED_CASES.get(case.name)
    table = UNSUPPORTED_OPS if plain == case.name else UNSUPPORTED_OPS | UNSUPPORTED_SYMBOLIC_OPS
    return named or next((table[op] for op in case.ops if op in table), None)


def check_outputs(case: NodeCase, found: Mapping[str, Array]) -> None:
    """Fail where outputs differ from the expected ones by more than their precision allows."""
    for name, want in case.outputs.items():
        assert (found[name].dtype, found[name].shape) == (want.dtype, want.shape)
        if want.dtype == object:
            assert np.array_equal(found[name], want)
            continue
        rtol = max(case.rtol, TOLERANCE.get(str(want.dtype), 0))
        a, b = (
            v.astype(np.float64) if v.dtype.kind not in "iub" else v for v in (found[name], want)
        )
        largest = float(np.max(np.abs(b[np.isfinite(b)]), initial=1))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6 * largest)
