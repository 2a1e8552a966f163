"""Embeddings that give the logits too are stored once, however a file says that they are one."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgerelax

WIDTH = 160
FORMS = ("transposed", "transpose stored", "Gemm", "copied", "widened")


def tied(count: int, form: str) -> onnx.ModelProto:
    """Rows of a table, and halves of their products with all of its rows."""
    made, info = helper.make_node, helper.make_tensor_value_info
    data = np.random.default_rng(0).standard_normal((count, WIDTH)).astype(np.float32)
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


Pair = tuple[edgerelax.Executable, edgerelax.Executable]


def once_and_twice(count: int, form: str) -> Pair:
    """Programs checked to give equal results, the second as it is without one table for both."""
    proto = tied(count, form)
    once, twice = (
        edgerelax.compile(proto, variants=("gpu", "cpu"), without=without, verify=True)
        for without in ((), ("tie_weights", "fold_scales"))
    )
    for host in ("cpu", "wgpu"):
        with once.session(host) as found, twice.session(host) as wanted:
            for ids in (np.array([-1]), np.arange(count)):
                got, want = (s.run({"ids": ids}) for s in (found, wanted))
                np.testing.assert_array_equal(got["rows"], want["rows"])
                np.testing.assert_allclose(got["scores"], want["scores"], rtol=1e-5, atol=1e-4)
    return once, twice


def elements(executable: edgerelax.Executable, variant: str) -> int:
    """Of the matrices that a program needs."""
    manifest = executable.artifact.manifest
    (program,) = (p for p in manifest.programs if p.name == variant)
    used = {*program.weights_on_gpu, *program.weights_on_cpu}
    shapes = [manifest.weights[k].shape for k in used]
    return sum(int(np.prod(shape)) for shape in shapes if len(shape) > 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_table_is_stored_once(form: str) -> None:
    once, _ = once_and_twice(97, form)
    assert elements(once, "gpu") == 97 * WIDTH
    assert elements(once, "cpu") == 104 * WIDTH  # in panels of eight rows


@pytest.mark.parametrize("count", [7, 31, 32, 33])
def test_sizes_beside_those_of_tiles(count: int) -> None:
    """One row and many may be computed by schedules that want it differently: not one more."""
    once, twice = once_and_twice(count, "transposed")
    for variant in ("gpu", "cpu"):
        assert elements(once, variant) == elements(twice, variant) - count * WIDTH
