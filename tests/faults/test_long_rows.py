"""Rows longer than the turns after which llvmpipe ends the loops of an invocation."""

import numpy as np
import pytest

import edgerelax
from edgerelax import nn
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.dtypes import F32
from edgerelax.sym import symbol


@pytest.mark.parametrize("length", (65_537, 150_001))
def test_sums_softmax_and_argmax(length: int) -> None:
    def forward(x: nn.Tensor) -> dict[str, nn.Tensor]:
        return {
            "sum": apply("reduce_sum", x, axes=(1,), keepdims=False),
            "share": apply("softmax", x, axis=1),
            "place": apply("argmax", x, axis=1, keepdims=False),
        }

    module = nn.trace(forward, {"x": nn.Input((symbol("n"), length), F32)})
    executable = edgerelax.compile(module, target="webgpu", variants=("software",), fallback=False)
    x = np.random.default_rng(0).random((2, length)).astype(np.float32)
    x[1, -1] = 2  # the greatest stands last
    with executable.session("wgpu", variant="software") as session:
        found = session.run({"x": x})
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found["sum"], x.astype(np.float64).sum(1), rtol=1e-5)
    np.testing.assert_allclose(found["share"], powers / powers.sum(1, keepdims=True), rtol=1e-4)
    np.testing.assert_array_equal(found["place"], x.argmax(1))
