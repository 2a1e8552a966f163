"""Embeddings that give the logits too are stored once, however a file says that they are one."""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgerelax

WIDTH = 160
FORMS = ("transposed", "transpose stored", "Gemm", "copied", "widened")


def table_of(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, WIDTH)).astype(np.float32)


def tied(count: int, form: str) -> onnx.ModelProto:
    """Rows of a table, and halves of their products with all of its rows."""
    made, info = helper.make_node, helper.make_tensor_value_info
    data = table_of(count)
    if form == "widened":
        data = data.astype(np.float16)
    stored = [("table", data), ("half", np.array([0.5], np.float32))]
    nodes, table, other = [], "table", "table"
    if form == "widened":
        nodes.append(made("Cast", ["table"], ["wide"], to=TensorProto.FLOAT))
        table = other = "wide"
    elif form == "copied":
        other = "copy"
        stored.append((other, data))
    nodes.append(made("Gather", [table, "ids"], ["rows"]))
    if form == "Gemm":
        nodes.append(made("Gemm", ["rows", other], ["product"], transB=1))
    else:
        if form == "transpose stored":
            stored.append(("turned", data.T.copy()))
        else:
            nodes.append(made("Transpose", [other], ["turned"], perm=[1, 0]))
        nodes.append(made("MatMul", ["rows", "turned"], ["product"]))
    nodes.append(made("Mul", ["product", "half"], ["scores"]))
    graph = helper.make_graph(
        nodes,
        "tied",
        [info("ids", TensorProto.INT64, ["n"])],
        [info(name, TensorProto.FLOAT, None) for name in ("rows", "scores")],
        [numpy_helper.from_array(array, name) for name, array in stored],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compiled(count: int, form: str, *without: str) -> edgerelax.Executable:
    proto = tied(count, form)
    return edgerelax.compile(proto, variants=("gpu", "cpu"), without=without, verify=True)


def answers(executable: edgerelax.Executable, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Of one row and of all, on each host."""
    for host in ("cpu", "wgpu"):
        with executable.session(host) as session:
            for ids in (np.array([-1]), np.arange(count)):
                yield session.run({"ids": ids})


def elements(executable: edgerelax.Executable, variant: str) -> int:
    """Of the matrices that a program needs."""
    manifest = executable.artifact.manifest
    (program,) = (p for p in manifest.programs if p.name == variant)
    used = {*program.weights_on_gpu, *program.weights_on_cpu}
    shapes = [manifest.weights[k].shape for k in used]
    return sum(int(np.prod(shape)) for shape in shapes if len(shape) > 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_stored_once(form: str) -> None:
    once, data = compiled(97, form), table_of(97)
    data = data.astype(np.float16).astype(np.float32) if form == "widened" else data
    assert elements(once, "gpu") == 97 * WIDTH
    assert elements(once, "cpu") == 104 * WIDTH  # in panels of eight rows
    for found in answers(once, 97):
        rows = data[-1:] if len(found["rows"]) == 1 else data
        np.testing.assert_array_equal(found["rows"], rows)
        np.testing.assert_allclose(found["scores"], rows @ data.T / 2, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("count", [7, 31, 32, 33])
def test_sizes_beside_those_of_tiles(count: int) -> None:
    """On the CPU few rows of a table may be wanted in two layouts, for one text and for many."""
    once = compiled(count, "transposed")
    twice = compiled(count, "transposed", "tie_weights", "fold_scales")
    assert elements(once, "gpu") == elements(twice, "gpu") - count * WIDTH == count * WIDTH
    assert elements(once, "cpu") <= elements(twice, "cpu")
    for found, wanted in zip(answers(once, count), answers(twice, count), strict=True):
        np.testing.assert_array_equal(found["rows"], wanted["rows"])
        np.testing.assert_allclose(found["scores"], wanted["scores"], rtol=1e-5, atol=1e-4)
