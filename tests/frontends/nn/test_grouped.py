"""Weights of few bits: the blocks of a GGUF file, taken apart, stand for the same numbers."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

import edgerelax
from edgerelax.frontends import nn
from edgerelax.frontends.gguf.formats import KEPT, stored
from edgerelax.frontends.nn.grouped import Grouped
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32, I64
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol

N = symbol("n")
RNG = np.random.default_rng(0)
SCALES = {
    GGMLQuantizationType.Q4_K: (0, 2),
    GGMLQuantizationType.Q6_K: (208,),
}
"""Where the f16 numbers of a block are, for types that gguf cannot write."""


def blocks(kind: GGMLQuantizationType, rows: int, columns: int) -> np.ndarray:
    """Random bytes of a matrix whose numbers are finite."""
    width, size = gguf.GGML_QUANT_SIZES[kind]
    if kind not in SCALES:
        return gguf.quantize(RNG.standard_normal((rows, columns)).astype(np.float32), kind)
    raw = RNG.integers(0, 256, (rows, columns // width, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scale = RNG.uniform(-0.1, 0.1, (rows, columns // width, 1)).astype(np.float16)
        raw[:, :, at : at + 2] = scale.view(np.uint8)
    return raw.reshape(rows, -1)


def product(weight: np.ndarray | Grouped) -> Module:
    """y = x Wᵀ and the rows of W that `ids` names."""
    rows, columns = weight.shape
    linear, table = nn.Linear(columns, rows), nn.Embedding(rows, columns)
    linear.load({"weight": weight})
    table.load({"weight": weight})
    inputs = {"x": nn.Input((N, columns), F32), "ids": nn.Input((N,), I64)}
    return nn.trace(lambda x, ids: {"y": linear(x), "rows": table(ids)}, inputs)


@pytest.mark.parametrize("kind", KEPT, ids=lambda k: k.name)
def test_a_kept_type_stands_for_its_numbers(kind: GGMLQuantizationType) -> None:
    rows, columns = 7, 512
    raw = blocks(kind, rows, columns)
    wanted = gguf.dequantize(raw, kind)
    weight = stored(raw, kind, (rows, columns))
    assert isinstance(weight, Grouped)
    assert weight.bits == (4 if "4" in kind.name else 8)
    module = product(weight)
    for n in (0, 1, 5):
        x, ids = RNG.standard_normal((n, columns)).astype(np.float32), np.arange(n) % rows
        found = evaluate(module, {"x": x, "ids": ids})
        np.testing.assert_array_equal(found["rows"], wanted[ids])
        np.testing.assert_allclose(found["y"], x @ wanted.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q6_K])
@pytest.mark.parametrize("device", ["cpu", "wgpu"])
def test_products_read_codes(kind: GGMLQuantizationType, device: str) -> None:
    """One kernel for each use: the matrix itself is never stored."""
    raw = blocks(kind, 9, 256)
    wanted = gguf.dequantize(raw, kind)
    executable = edgerelax.compile(product(stored(raw, kind, (9, 256))), verify=True)
    assert set(executable.report.launches.values()) == {2}
    session = executable.session(device)
    for n in (1, 4, 0, 17):
        x, ids = RNG.standard_normal((n, 256)).astype(np.float32), np.arange(n) % 9
        found = session.run({"x": x, "ids": ids})
        np.testing.assert_allclose(found["rows"], wanted[ids], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["y"], x @ wanted.T, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize(
    "kind", [GGMLQuantizationType.F16, GGMLQuantizationType.BF16, GGMLQuantizationType.TQ2_0]
)
def test_other_types_become_numbers(kind: GGMLQuantizationType) -> None:
    raw = gguf.quantize(RNG.standard_normal((3, 256)).astype(np.float32), kind)
    found = stored(raw, kind, (3, 256))
    np.testing.assert_array_equal(found, gguf.dequantize(raw, kind))


def test_planes_must_fit_the_matrix() -> None:
    codes, scales = np.zeros((2, 64), np.uint8), np.ones((2, 3), np.float16)
    with pytest.raises(InputError, match=r"scales \[2, 3\] of a matrix \[2, 64\]"):
        Grouped((2, 64), codes, (scales,))
    with pytest.raises(InputError, match=r"codes \[2, 64\]"):
        Grouped((2, 100), codes, (np.ones((2, 2), np.float16),))
