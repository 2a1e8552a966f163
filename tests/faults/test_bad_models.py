"""Models that cannot be compiled: each says what is wrong, where, and nothing else happens."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import edgerelax.api as api
from edgerelax.ir.diagnostics import (
    EdgeRelaxError,
    FormatError,
    InputError,
    ShapeError,
    UnsupportedError,
)
from tests.faults.models import F32, I64, model, node, perceptron


def refused(proto: onnx.ModelProto | bytes | Path, kind: type[EdgeRelaxError], *words: str) -> str:
    with pytest.raises(kind) as caught:
        api.compile(proto, target="cpu")
    text = str(caught.value)
    for word in words:
        assert word in text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize(
    "data", [b"hello, world", b"\x89PNG\r\n\x1a\n" + bytes(64), b"{}", bytes(100), b""], ids=repr
)
def test_not_a_model(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "thing.onnx"
    path.write_bytes(data)
    refused(path, FormatError, "thing.onnx")
    refused(data, FormatError)


def test_truncated(tmp_path: Path) -> None:
    """Cut at any place it is refused, or what is left happens to be a smaller model."""
    data = perceptron().SerializeToString()
    path = tmp_path / "cut.onnx"
    refusals = 0
    for end in range(0, len(data), 17):
        path.write_bytes(data[:end])
        try:
            api.compile(path, target="cpu")
        except (FormatError, ShapeError, UnsupportedError) as error:
            refusals += 1
            assert str(error)
    assert refusals > 40


def test_no_such_file(tmp_path: Path) -> None:
    refused(tmp_path / "missing.onnx", InputError, "missing.onnx", "no such file")
    refused(tmp_path, InputError, "is a folder")


def test_a_pointer_instead_of_the_model() -> None:
    refused(b"version https://git-lfs.github.com/spec/v1\n", FormatError, "git lfs pull")


def _external(folder: Path, location: str, length: int = 32) -> Path:
    proto = model([node("Add", ["x", "w"], ["y"])], [("x", F32, ["n", 8])], [("y", F32, None)])
    stored = numpy_helper.from_array(np.zeros(8, np.float32), "w")
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": str(length)}.items():
        stored.external_data.add(key=key, value=value)
    proto.graph.initializer.append(stored)
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "a/../../secret.bin"])
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(32))
    refused(_external(folder, location), FormatError, "w")


def test_external_data_through_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(32))
    (folder / "w.bin").symlink_to(tmp_path / "secret.bin")
    refused(_external(folder, "w.bin"), FormatError, "w")


def test_external_data_missing_or_short(tmp_path: Path) -> None:
    path = _external(tmp_path, "w.bin")
    refused(path, FormatError, "w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(31))
    refused(path, FormatError, "w.bin")
    (tmp_path / "w.bin").write_bytes(bytes(32))
    api.compile(path, target="cpu")


def test_external_data_of_a_model_without_a_folder(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(32))
    data = _external(tmp_path, "w.bin").read_bytes()
    refused(data, FormatError, "w")


def test_all_unsupported_operators_at_once() -> None:
    proto = model(
        [
            node("RandomNormalLike", ["x"], ["a"], name="noise"),
            node("Frobnicate", ["a"], ["b"], name="frob", domain="my.own"),
            node("StringSplit", ["s"], ["c", "d"], name="cut"),
            node("Identity", ["b"], ["y"]),
        ],
        [("x", F32, ["n"]), ("s", TensorProto.STRING, ["n"])],
        [("y", F32, None), ("c", TensorProto.STRING, None)],
    )
    proto.opset_import.append(helper.make_opsetid("my.own", 1))
    refused(proto, UnsupportedError, "noise", "Frobnicate", "frob", "cut")


CONTRADICTIONS = {
    "inner sizes": (
        model([node("MatMul", ["x", "w"], ["y"], name="mm")], [("x", F32, ["n", 7])],
              [("y", F32, None)], {"w": np.zeros((8, 2), np.float32)}),
        ("matmul", "mm", "7", "8"),
    ),
    "broadcast": (
        model([node("Add", ["x", "w"], ["y"])], [("x", F32, ["n", 7])], [("y", F32, None)],
              {"w": np.zeros(8, np.float32)}),
        ("add", "7", "8"),
    ),
    "concat": (
        model([node("Concat", ["x", "w"], ["y"], axis=0)], [("x", F32, ["n", 7])],
              [("y", F32, None)], {"w": np.zeros((1, 8), np.float32)}),
        ("7", "8"),
    ),
    "reshape": (
        model([node("Reshape", ["x", "s"], ["y"])], [("x", F32, [3, 7])], [("y", F32, None)],
              {"s": np.int64([4, 5])}),
        ("21", "20"),
    ),
    "axis": (
        model([node("Softmax", ["x"], ["y"], axis=3)], [("x", F32, ["n", 7])],
              [("y", F32, None)]),
        ("axis 3", "rank 2"),
    ),
    "dtypes": (
        model([node("Add", ["x", "w"], ["y"])], [("x", F32, ["n"])], [("y", F32, None)],
              {"w": np.int64([1])}),
        ("f32", "i64"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictory_shapes(name: str) -> None:
    proto, words = CONTRADICTIONS[name]
    text = refused(proto, EdgeRelaxError, *words)
    assert "from g: " in text


def test_structure() -> None:
    nothing = model([node("Relu", ["z"], ["y"])], [("x", F32, ["n"])], [("y", F32, None)])
    refused(nothing, FormatError, "'z'")
    cycle = model([node("Relu", ["b"], ["a"]), node("Relu", ["a"], ["b"])], [], [("b", F32, None)])
    refused(cycle, FormatError)
    old = model([node("Relu", ["x"], ["y"])], [("x", F32, ["n"])], [("y", F32, None)], opset=5)
    refused(old, UnsupportedError, "opset 5")
    rankless = model([node("Relu", ["x"], ["y"])], [("x", F32, None)], [("y", F32, None)])
    refused(rankless, UnsupportedError, "'x'", "no shape")


def test_dims_that_are_not_there() -> None:
    proto = perceptron()
    with pytest.raises(InputError, match="no dim 'bach'") as caught:
        api.compile(proto, dims={"bach": 3})
    assert "batch" in str(caught.value)
    for wrong in (-1, (5, 2), (1, 8, 0), "many"):
        with pytest.raises(InputError, match="batch"):
            api.compile(proto, dims={"batch": wrong})  # type: ignore[dict-item]


def test_unknown_names() -> None:
    proto = perceptron()
    with pytest.raises(InputError, match="unknown target 'cuda'; known: webgpu, cpu"):
        api.compile(proto, target="cuda")
    with pytest.raises(InputError, match="fuze"):
        api.compile(proto, without=("fuze",))
    executable = api.compile(proto)
    with pytest.raises(InputError, match="unknown device 'tpu'; known: auto, cpu, wgpu"):
        executable.session("tpu")
    with executable.session("cpu") as session, pytest.raises(InputError, match="no function 'f'"):
        session.run({}, "f")


def test_sizes_beyond_memory() -> None:
    """A size that nothing bounds and that no machine holds is refused, and the session lives."""
    proto = model(
        [node("Expand", ["x", "s"], ["y"])],
        [("x", F32, [1, 1]), ("s", I64, [2])],
        [("y", F32, None)],
    )
    with api.compile(proto, target="cpu").session("cpu") as session:
        for sizes in ((1 << 31, 1 << 31), (1 << 20, 1 << 20), (1 << 40, 1)):
            with pytest.raises(EdgeRelaxError):
                session.run({"x": np.ones((1, 1), np.float32), "s": np.int64(sizes)})
        got = session.run({"x": np.ones((1, 1), np.float32), "s": np.int64([2, 3])})
        assert got["y"].shape == (2, 3)


def test_every_refusal_says_which_node() -> None:
    shape = {"s": np.array([-1, -1])}
    reshape = node("Reshape", ["x", "s"], ["y"], name="two_unknowns")
    infos = [("x", F32, ["n", 4])], [("y", F32, None)]
    refused(model([reshape], *infos, shape), ShapeError, "more than one -1", "two_unknowns")
    boxes = node("NonMaxSuppression", ["x", "x"], ["y"], name="boxes")
    refused(model([boxes], *infos), ShapeError, "is not of rank 3", "boxes")
