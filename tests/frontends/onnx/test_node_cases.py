"""The node tests of the onnx package, with sizes as given and with every input dim a symbol."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.verify import verify
from tests.frontends.onnx.node_cases import NodeCase, is_supported, node_cases, symbolic

TOLERANCE = {"float16": 2e-3, "bfloat16": 2e-2}


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
