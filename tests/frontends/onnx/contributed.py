"""onnxruntime's contributed operators in models of one node, held against onnxruntime itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper

from edgerelax.frontends.onnx import load
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.verify import verify
from tests.frontends.onnx.graphs import model, node, value

Array = Any
Arrays = dict[str, Array]
MICROSOFT = "com.microsoft"


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(np.float32)


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> Array:
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


def check(
    op: str,
    operands: Sequence[str],
    inputs: Mapping[str, Array],
    constants: Mapping[str, Array] | None = None,
    outputs: int = 1,
    *,
    atol: float = 1e-5,
    exact: tuple[str, ...] = (),
    domain: str = MICROSOFT,
    standard: int = 18,
    **attrs: Any,
) -> list[Array]:
    """Import with all dims symbolic but the last and those of `exact`; run and compare.

    Gives the outputs.
    """
    infos = []
    for name, array in inputs.items():
        kept = name in exact
        dims = [
            n if kept or k == array.ndim - 1 else f"{name}_{k}" for k, n in enumerate(array.shape)
        ]
        infos.append(value(name, dims, helper.np_dtype_to_tensor_dtype(array.dtype)))
    names = [f"y{k}" for k in range(outputs)]
    proto = model(
        [node(op, operands, names, domain=domain, **attrs)], infos, names, constants,
        domains={MICROSOFT: 1}, opset=standard,
    )  # fmt: skip
    module = load(proto)
    verify(module)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    expected = session.run(None, dict(inputs))
    found = evaluate(module, inputs)
    for name, want in zip(names, expected, strict=True):
        assert (found[name].dtype, found[name].shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(
            found[name].astype(np.float64), want.astype(np.float64), rtol=1e-4, atol=atol
        )
    return [found[name] for name in names]
