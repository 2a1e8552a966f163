"""Tables and weights in few bits with scales by blocks: against onnxruntime, and stored once."""

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import edgerelax
from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.evaluate import evaluate
from tests.frontends.onnx.contributed import MICROSOFT, Array, Arrays, check, integers, normal
from tests.frontends.onnx.graphs import model, node, value

INDICES = {"i": np.array([[0, 3, -1], [2, -5, 4]])}


def scales(*shape: int) -> Array:
    return np.abs(normal(*shape)) * 0.1 + 0.01


FORMS = [(bits, zeros) for bits in (2, 4, 8) for zeros in ("none", "some", "one", "floats")]


@pytest.mark.parametrize(("bits", "zeros"), [f for f in FORMS if f != (8, "floats")])
@pytest.mark.parametrize(("k", "block"), [(64, 32), (40, 16)])
def test_products(bits: int, zeros: str, k: int, block: int) -> None:
    n, blocks = 6, -(-k // block)
    constants = {
        "b": integers(0, 256, n, blocks, block * bits // 8, dtype="uint8"),
        "scales": scales(n, blocks), "bias": normal(n),
    }  # fmt: skip
    operands = ["x", "b", "scales", "", "", "bias"]
    wide = (n, -(-blocks * bits // 8))
    given = {
        "some": integers(0, 256, *wide, dtype="uint8"), "one": np.full(wide, 0x55, np.uint8),
        "floats": normal(n, blocks) + 3,
    }  # fmt: skip
    if zeros != "none":
        constants["zeros"], operands[3] = given[zeros], "zeros"
    check("MatMulNBits", operands, {"x": normal(2, 3, k)}, constants, N=n, K=k, bits=bits,
          block_size=block, atol=1e-4)  # fmt: skip


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("columns", "block"), [(64, 32), (40, 16), (16, 16)])
def test_rows_of_a_table(bits: int, zeros: bool, columns: int, block: int) -> None:
    blocks = -(-columns // block)
    constants = {
        "d": integers(0, 256, 5, columns * bits // 8, dtype="uint8"), "s": scales(5, blocks)
    }  # fmt: skip
    if zeros:
        constants["z"] = integers(0, 256, 5, -(-blocks * bits // 8), dtype="uint8")
    check("GatherBlockQuantized", ["d", "i", *list(constants)[1:]], INDICES, constants,
          bits=bits, block_size=block)  # fmt: skip


def test_rows_outside_and_tables_of_other_ranks() -> None:
    constants = {"d": integers(0, 256, 5, 16, dtype="uint8"), "s": scales(5, 2)}
    outside = {"i": np.array([5, -6, 1], np.int32)}
    check("GatherBlockQuantized", ["d", "i", "s"], outside, constants, block_size=16)
    cube = {"d": integers(0, 256, 5, 3, 16, dtype="uint8"), "s": scales(5, 3, 2)}
    check("GatherBlockQuantized", ["d", "i", "s"], INDICES, cube, block_size=16, quantize_axis=-1)


def compare(dtype: int, data: Array, inputs: Arrays, constants: Arrays, **attrs: Any) -> None:
    """With a table of a type that numpy lacks."""
    made = [node("GatherBlockQuantized", ["d", "i", *constants], ["y"], domain=MICROSOFT, **attrs)]
    infos = [value("i", ["m", "n"][: inputs["i"].ndim], TensorProto.INT64)]
    plain = {k: v for k, v in constants.items() if k != "z"}
    proto = model(made, infos, ["y"], plain, domains={MICROSOFT: 1}, opset=21)
    stored = {"d": data, **{k: v for k, v in constants.items() if k == "z"}}
    proto.graph.initializer.extend(
        helper.make_tensor(k, dtype, v.shape, v.flatten()) for k, v in stored.items()
    )
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, inputs)[0]
    found = evaluate(load(proto), inputs)["y"]
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["INT4", "UINT4"])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("axes", [(1, 0), (0, 1)], ids=["rows", "columns"])
def test_tables_of_four_bit_integers(dtype: str, zeros: bool, axes: tuple[int, int]) -> None:
    along, gathered = axes
    dims, blocks = ((6, 32), (6, 2)) if along else ((32, 6), (2, 6))
    low, high = (-8, 8) if dtype == "INT4" else (0, 16)
    constants = {"s": scales(*blocks)}
    if zeros:
        constants["z"] = integers(low, high, *blocks)
    compare(getattr(TensorProto, dtype), integers(low, high, *dims), {"i": np.array([0, 5, -2])},
            constants, block_size=16, quantize_axis=along, gather_axis=gathered)  # fmt: skip


@pytest.mark.parametrize(("block", "shape"), [(16, (5, 2)), (0, (5, 1)), (0, (1, 1))])
def test_tables_of_eight_bit_floats(block: int, shape: tuple[int, int]) -> None:
    data = np.asarray(normal(5, 32), ml_dtypes.float8_e4m3fn)
    compare(TensorProto.FLOAT8E4M3FN, data, INDICES, {"s": scales(*shape)}, block_size=block)


def tied(bits: int, rows: int, columns: int, block: int) -> tuple[Any, Arrays]:
    """Rows of a table by their numbers and products with all of its rows, as genai writes it."""
    blocks = columns // block
    stored = {
        "w": integers(0, 256, rows, blocks, block * bits // 8, dtype="uint8"),
        "s": scales(rows, blocks),
        "z": integers(0, 256, rows, -(-blocks * bits // 8), dtype="uint8"),
        "dims": np.array([rows, columns * bits // 8]),
    }  # fmt: skip
    packed = {"bits": bits, "block_size": block, "domain": MICROSOFT}
    nodes = [
        node("Reshape", ["w", "dims"], ["flat"]),
        node("GatherBlockQuantized", ["flat", "i", "s", "z"], ["rows"], gather_axis=0,
             quantize_axis=1, **packed),
        node("MatMulNBits", ["rows", "w", "s", "z"], ["scores"], N=rows, K=columns, **packed),
    ]  # fmt: skip
    infos = [value("i", ["n"], TensorProto.INT64)]
    return model(nodes, infos, ["rows", "scores"], stored, domains={MICROSOFT: 1}), stored


def test_a_table_that_gives_the_logits_too_is_stored_once() -> None:
    rows = 1104
    proto, stored = tied(4, rows, 128, 32)
    executable = edgerelax.compile(proto, variants=("gpu", "cpu"))
    weights = executable.artifact.manifest.weights
    for program in executable.artifact.manifest.programs:
        used = {*program.weights_on_gpu, *program.weights_on_cpu}
        assert sum(weights[k].bytes for k in used) < 1.4 * (
            stored["w"].nbytes + 2 * stored["s"].nbytes
        )
    reference = onnxruntime.InferenceSession(proto.SerializeToString())
    for ids in (np.array([rows - 1]), np.arange(0, rows, 31)):
        want = reference.run(None, {"i": ids})
        for host in ("cpu", "wgpu"):
            with executable.session(host) as session:
                found = session.run({"i": ids})
            np.testing.assert_allclose(found["rows"], want[0], rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(found["scores"], want[1], rtol=1e-3, atol=1e-3)


def test_what_is_refused() -> None:
    made = node("GatherBlockQuantized", ["d", "i", "s"], ["y"], domain=MICROSOFT, block_size=16)
    infos = [value("i", ["n"], TensorProto.INT64), value("d", [5, 16], TensorProto.UINT8)]
    proto = model([made], infos, ["y"], {"s": scales(5, 2)}, domains={MICROSOFT: 1})
    with pytest.raises(UnsupportedError, match="codes that are not constant"):
        load(proto)
