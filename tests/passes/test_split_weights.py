"""Constant matrices above the binding limit, cut into parts; the limit made small."""

import numpy as np
import onnx
import pytest

import edgerelax.api as api
from edgerelax import nn
from edgerelax.ir.dtypes import I32
from edgerelax.passes import split_weights
from edgerelax.sym import symbol
from tests.faults.hosts import HOSTS
from tests.faults.models import F32, I64, by_onnxruntime, model, node

LIMIT = 16 << 10


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_weights, "MAX_BYTES", LIMIT)


def language_like() -> onnx.ModelProto:
    """A table that is the last product's weight too, and a large product between."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal((203, 48)).astype(np.float32)
    inner = rng.standard_normal((48, 150)).astype(np.float32) * 0.1
    outer = rng.standard_normal((150, 48)).astype(np.float32) * 0.1
    nodes = [
        node("Gather", ["table", "ids"], ["x"], axis=0),
        node("MatMul", ["x", "inner"], ["wide"]),
        node("Relu", ["wide"], ["kept"]),
        node("MatMul", ["kept", "outer"], ["narrow"]),
        node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        node("MatMul", ["narrow", "turned"], ["y"]),
    ]
    constants = {"table": table, "inner": inner, "outer": outer}
    return model(nodes, [("ids", I64, ["b", "n"])], [("y", F32, None)], constants)


@pytest.mark.parametrize("host", HOSTS)
def test_same_results_from_parts_that_fit(host: str) -> None:
    proto = language_like()
    compiled = api.compile(proto, verify=True)
    report = compiled.report.passes["split_weights"]
    assert report["done"] == {"large weights cut": 4}
    manifest = compiled.artifact.manifest
    bound = [k for program in manifest.programs for k in program.weights_on_gpu]
    assert max(manifest.weights[k].bytes for k in bound) <= LIMIT
    rng = np.random.default_rng(1)
    with compiled.session(host) as session:
        for shape in ((1, 1), (2, 7), (3, 0)):
            ids = rng.integers(-203, 203, shape)
            ids.flat[:3] = (202, -203, 64)[: ids.size]
            (got,) = session.run({"ids": ids}).values()
            (wanted,) = by_onnxruntime(proto, {"ids": ids}).values()
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_table_that_is_a_weight_too_is_stored_once() -> None:
    table = nn.Embedding(203, 48)
    numbers = np.random.default_rng(0).standard_normal((203, 48)).astype(np.float32)
    table.load({"weight": numbers})
    n = symbol("n")
    module = nn.trace(lambda ids: {"y": table.as_linear(table(ids))}, {"ids": nn.Input((n,), I32)})
    compiled = api.compile(module, variants=("cpu", "gpu"), without=("strategies",))
    weights = [w for w in compiled.artifact.manifest.weights if w.bytes > 100]
    assert sum(w.bytes for w in weights) == numbers.nbytes
    assert len(weights) == 4
    ids = np.int32([0, 202, 64, 63, 128])
    (got,) = compiled.session("cpu").run({"ids": ids}).values()
    np.testing.assert_allclose(got, numbers[ids] @ numbers.T, rtol=1e-4, atol=1e-4)


def test_what_no_part_is_made_of_is_said() -> None:
    weight = np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype(np.float32)
    proto = model(
        [node("Conv", ["x", "w"], ["y"])],
        [("x", F32, ["n", 16, "h", "w2"])],
        [("y", F32, None)],
        {"w": weight},
    )
    report = api.compile(proto, variants=("cpu",)).report.passes["split_weights"]
    assert report["skipped"] == {"large weights of other operators": 1}
