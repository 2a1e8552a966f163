"""The node tests of the onnx package, with sizes as given and with every input dim a symbol."""

import pytest

from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import ShapeError, UnsupportedError
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.verify import verify
from tests.frontends.onnx.node_cases import (
    ABSENT,
    NodeCase,
    check_outputs,
    node_cases,
    refusal,
    symbolic_cases,
)

CASES = (*node_cases(), *(c for c in symbolic_cases() if "_expanded" not in c.name))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_node(case: NodeCase) -> None:
    if refusal(case) is not None:
        wanted = ShapeError if case.name.startswith(ABSENT) else UnsupportedError
        with pytest.raises(wanted):
            evaluate(load(case.model, dims=case.dims), case.inputs)
        return
    module = load(case.model, dims=case.dims)
    verify(module)
    check_outputs(case, evaluate(module, case.inputs))
