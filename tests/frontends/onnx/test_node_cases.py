"""The node tests of the onnx package, with sizes as given and with every input dim a symbol."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.verify import verify
from tests.frontends.onnx.node_cases import NodeCase, node_cases, symbolic

TEXT = ("ImageDecoder", "RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit")
RANDOM = ("Bernoulli", "RandomUniformLike")
TRAINING = ("Adagrad", "Adam", "Momentum")
CLASSIC = ("Binarizer", "LabelEncoder", "TfIdfVectorizer", "TreeEnsemble")
MISSING = ("BitCast", "DeformConv", "Det", "NonMaxSuppression", "Unique")
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
}
TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2}


def is_supported(case: NodeCase) -> bool:
    plain = case.name.removesuffix("_symbolic")
    if plain != case.name and not UNSUPPORTED_SYMBOLIC_OPS.isdisjoint(case.ops):
        return False
    if plain in UNSUPPORTED_CASES or case.name in UNSUPPORTED_CASES:
        return False
    return UNSUPPORTED_OPS.isdisjoint(case.ops)


def all_cases() -> Iterator[Any]:
    for case in node_cases():
        yield pytest.param(case, id=case.name)
        if not case.name.endswith("_expanded"):
            yield pytest.param(symbolic(case), id=f"{case.name}_symbolic")


@pytest.mark.parametrize("case", all_cases())
def test_node(case: NodeCase) -> None:
    if not is_supported(case):
        with pytest.raises(UnsupportedError):
            load(case.model, dims=case.dims)
        return
    module = load(case.model, dims=case.dims)
    verify(module)
    found = evaluate(module, case.inputs)
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
