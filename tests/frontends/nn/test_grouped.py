"""Weights of few bits: the blocks of a GGUF file, taken apart, stand for the same numbers."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

import edgerelax
from edgerelax.frontends import nn
from edgerelax.frontends.gguf.formats import KEPT, stored
from edgerelax.frontends.nn.grouped import Grouped
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.diagnostics import InputError, UnsupportedError
from edgerelax.ir.dtypes import F32, I64
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol

N = symbol("n")
RNG = np.random.default_rng(0)
SCALES = {
    GGMLQuantizationType.Q2_K: (80, 82),
    GGMLQuantizationType.Q3_K: (108,),
    GGMLQuantizationType.Q4_K: (0, 2),
    GGMLQuantizationType.Q5_K: (0, 2),
    GGMLQuantizationType.Q6_K: (208,),
    GGMLQuantizationType.IQ4_NL: (0,),
    GGMLQuantizationType.IQ4_XS: (0,),
    GGMLQuantizationType.TQ2_0: (64,),
}
"""Where the f16 numbers of a block are, for types whose blocks are random bytes here."""
BITS = {"Q2": 2, "Q3": 4, "Q4": 4, "Q5": 8, "Q6": 8, "Q8": 8, "IQ4": 4, "MXFP4": 4}


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
    assert weight.bits == BITS[kind.name.split("_")[0]]
    np.testing.assert_array_equal(weight.numbers(), wanted)
    module = product(weight)
    for n in (0, 1, 5):
        x, ids = RNG.standard_normal((n, columns)).astype(np.float32), np.arange(n) % rows
        found = evaluate(module, {"x": x, "ids": ids})
        np.testing.assert_array_equal(found["rows"], wanted[ids])
        np.testing.assert_allclose(found["y"], x @ wanted.T, rtol=1e-4, atol=1e-3)


def test_every_type_in_a_compiled_product() -> None:
    """One kernel for each use, in which the codes are read."""
    rows, columns = 5, 512
    raw = {kind.name: blocks(kind, rows, columns) for kind in KEPT}
    layers = {}
    for kind in KEPT:
        layers[kind.name] = nn.Linear(columns, rows)
        layers[kind.name].load({"weight": stored(raw[kind.name], kind, (rows, columns))})
    inputs = {"x": nn.Input((N, columns), F32)}
    module = nn.trace(lambda x: {name: layer(x) for name, layer in layers.items()}, inputs)
    executable = edgerelax.compile(module, variants=("cpu",))
    assert executable.report.launches["cpu"] == len(KEPT)
    session = executable.session("cpu")
    for n in (0, 1, 4):
        x = RNG.standard_normal((n, columns)).astype(np.float32)
        found = session.run({"x": x})
        for kind in KEPT:
            wanted = x @ gguf.dequantize(raw[kind.name], kind).T
            scale = np.abs(wanted).max(initial=0)
            np.testing.assert_allclose(found[kind.name], wanted, rtol=1e-4, atol=1e-5 * scale)


@pytest.mark.parametrize(
    "kind", [GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q2_K, GGMLQuantizationType.MXFP4]
)
def test_products_read_codes(kind: GGMLQuantizationType) -> None:
    """One kernel for each use: the matrix itself is never stored."""
    raw = blocks(kind, 9, 256)
    wanted = gguf.dequantize(raw, kind)
    executable = edgerelax.compile(
        product(stored(raw, kind, (9, 256))), variants=("software",), verify=True
    )
    assert set(executable.report.launches.values()) == {2}
    session = executable.session("wgpu")
    for n in (1, 4, 0):
        x, ids = RNG.standard_normal((n, 256)).astype(np.float32), np.arange(n) % 9
        found = session.run({"x": x, "ids": ids})
        np.testing.assert_allclose(found["rows"], wanted[ids], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["y"], x @ wanted.T, rtol=1e-4, atol=2e-3)


def test_experts_in_groups() -> None:
    """Leading axes stay as they are."""
    kind = GGMLQuantizationType.Q4_K
    raw = blocks(kind, 6, 256)
    weight = stored(raw, kind, (3, 2, 256))
    assert isinstance(weight, Grouped)
    wanted = gguf.dequantize(raw, kind).reshape(3, 2, 256)
    np.testing.assert_array_equal(weight.numbers(), wanted)
    table = nn.Parameter(3, 2, 256)
    table.load(weight)
    inputs = {"ids": nn.Input((N,), I64)}
    module = nn.trace(lambda ids: {"rows": apply("gather", table, ids, axis=0)}, inputs)
    ids = np.array([2, 0, 1, 2])
    np.testing.assert_array_equal(evaluate(module, {"ids": ids})["rows"], wanted[ids])


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
    scales = np.ones((2, 2), np.float16)
    with pytest.raises(InputError, match=r"codes \[2, 64\]"):
        Grouped((2, 100), codes, (scales,))
    with pytest.raises(InputError, match="a table of 4 numbers for codes of 4 bits"):
        Grouped((2, 128), codes, (scales,), table=(0, 1, 2, 3))


def test_numbers_of_an_unknown_kind() -> None:
    with pytest.raises(UnsupportedError, match="tensors of type I8 are not known"):
        stored(np.zeros((2, 32), np.int8), GGMLQuantizationType.I8, (2, 32))


def of(rows: int, kind: GGMLQuantizationType) -> np.ndarray | Grouped:
    return stored(blocks(kind, rows, 64), kind, (rows, 64))


@pytest.mark.parametrize("biased", (False, True))
def test_weights_of_one_form_are_one_product(biased: bool) -> None:
    """Their rows one after the other; of two forms each has its own."""
    kinds = GGMLQuantizationType
    one = [of(rows, kinds.Q4_1) for rows in (5, 3, 8)]
    other = [one[0], of(3, kinds.Q8_0), one[2]]
    x = RNG.standard_normal((4, 64)).astype(np.float32)
    for weights, products in ((one, 1), (other, 3)):
        layers = [nn.Linear(64, len(w.numbers()), bias=biased) for w in weights]
        for k, (layer, weight) in enumerate(zip(layers, weights, strict=True)):
            bias = {"bias": np.full(layer.weight.shape[0], k, np.float32)} if biased else {}
            layer.load({"weight": weight, **bias})

        def forward(x: nn.Tensor, layers: list[nn.Linear] = layers) -> dict[str, nn.Tensor]:
            return {f"y{k}": y for k, y in enumerate(nn.linears(x, *layers))}

        module = nn.trace(forward, {"x": nn.Input((N, 64), F32)})
        names = [
            b.value.op.name for b in module.funcs["main"].body.bindings if hasattr(b.value, "op")
        ]
        assert names.count("matmul") == products
        found = evaluate(module, {"x": x})
        for k, weight in enumerate(weights):
            wanted = x @ weight.numbers().T + (k if biased else 0)
            np.testing.assert_allclose(found[f"y{k}"], wanted, rtol=1e-4, atol=1e-4)
