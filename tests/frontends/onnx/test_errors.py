"""Models that are damaged, hostile or beyond us: one clear error of the right kind for each."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import (
    EdgeRelaxError,
    FormatError,
    InputError,
    ShapeError,
    UnsupportedError,
)
from edgerelax.ir.evaluate import evaluate
from tests.frontends.onnx.graphs import model, node, value

X = value("x", ["n", 4])


def relu() -> onnx.ModelProto:
    return model([node("Relu", ["x"], ["y"])], [X], ["y"])


def with_external(location: str, **entries: Any) -> onnx.ModelProto:
    proto = model([node("Add", ["x", "w"], ["y"])], [X], ["y"], {"w": np.ones(4, np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(entry))
    return proto


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "none.onnx")


def test_a_folder_names_the_files_it_holds(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(InputError, match=r"model\.onnx"):
        load(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"\x00" * 64, b"PK\x03\x04 a zip", relu().SerializeToString()[:-7]],
    ids=["empty", "text", "zeros", "zip", "truncated"],
)
def test_bytes_that_are_no_model(data: bytes) -> None:
    with pytest.raises(FormatError, match="model"):
        load(data)


def test_every_prefix_and_every_flipped_byte_is_a_model_or_an_error() -> None:
    data = relu().SerializeToString()
    damaged = [data[:k] for k in range(len(data))]
    damaged += [data[:k] + bytes([data[k] ^ 255]) + data[k + 1 :] for k in range(len(data))]
    for k, changed in enumerate(damaged):
        try:
            load(changed)
        except EdgeRelaxError:
            continue
        except Exception as error:
            pytest.fail(f"case {k}: {type(error).__name__}: {error}")


def test_a_git_lfs_pointer() -> None:
    with pytest.raises(FormatError, match="Git LFS"):
        load(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


@pytest.mark.parametrize("opset", [1, 6, 99])
def test_an_opset_that_is_not_known(opset: int) -> None:
    with pytest.raises(UnsupportedError, match=rf"opset {opset}.*7 to"):
        load(model([node("Relu", ["x"], ["y"])], [X], ["y"], opset=opset))


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "a/../../w.bin", "", "w\0.bin"])
def test_external_data_stays_in_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(16))
    onnx.save(with_external(location), folder / "model.onnx")
    with pytest.raises(FormatError, match="not inside"):
        load(folder / "model.onnx")


def test_a_link_out_of_the_folder_is_followed_and_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(16))
    (folder / "w.bin").symlink_to(tmp_path / "w.bin")
    (folder / "model.onnx").write_bytes(with_external("w.bin").SerializeToString())
    with pytest.raises(FormatError, match="not inside"):
        load(folder / "model.onnx")


def test_a_model_that_is_a_link_finds_data_beside_its_name_or_its_file(tmp_path: Path) -> None:
    """As huggingface_hub has them: links with names to files that are called by their hashes."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "one" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1a").write_bytes(with_external("w.bin").SerializeToString())
    (blobs / "2b").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (snapshot / "model.onnx").symlink_to("../../../blobs/1a")
    (snapshot / "w.bin").symlink_to("../../../blobs/2b")
    found = evaluate(load(snapshot / "model.onnx"), {"x": np.ones((1, 4), np.float32)})
    np.testing.assert_array_equal(found["y"], [[1, 2, 3, 4]])
    (snapshot / "w.bin").unlink()
    with pytest.raises(FormatError, match="no external data file"):
        load(snapshot / "model.onnx")
    (blobs / "w.bin").write_bytes(np.zeros(4, np.float32).tobytes())
    found = evaluate(load(snapshot / "model.onnx"), {"x": np.ones((1, 4), np.float32)})
    np.testing.assert_array_equal(found["y"], [[1, 1, 1, 1]])


def test_external_data_that_is_missing_short_or_ill_described(tmp_path: Path) -> None:
    def attempt(proto: onnx.ModelProto) -> Any:
        (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
        return load(tmp_path / "model.onnx")

    with pytest.raises(FormatError, match=r"(?s)no external data file.*same folder"):
        attempt(with_external("w.bin"))
    (tmp_path / "w.bin").write_bytes(bytes(20))
    with pytest.raises(FormatError, match="only 20"):
        attempt(with_external("w.bin", offset=8))
    with pytest.raises(FormatError, match="16 bytes, its entry says 12"):
        attempt(with_external("w.bin", length=12))
    with pytest.raises(FormatError, match="offset"):
        attempt(with_external("w.bin", offset="-4"))
    assert attempt(with_external("w.bin", offset=4, length=16))
    with pytest.raises(FormatError, match="give the model's path"):
        load(with_external("w.bin"))


def test_stored_tensors_of_the_wrong_size() -> None:
    proto = model([node("Add", ["x", "w"], ["y"])], [X], ["y"], {"w": np.ones(4, np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.dims[0] = 1 << 40
    with pytest.raises(FormatError, match="the file has 16"):
        load(proto)
    tensor.dims[0] = -4
    with pytest.raises(FormatError, match="negative"):
        load(proto)
    tensor.dims[0], tensor.data_type = 4, 77
    with pytest.raises(FormatError, match="element type number 77"):
        load(proto)
    tensor.data_type = TensorProto.COMPLEX64
    with pytest.raises(UnsupportedError, match="COMPLEX64"):
        load(proto)


def test_all_unsupported_nodes_are_told_at_once() -> None:
    nodes = [
        node("Mystery", ["x"], ["a"], name="first", domain="strange"),
        node("Mystery", ["a"], ["b"], name="second", domain="strange"),
        node("Relu", ["b"], ["c"]),
        node("Puzzle", ["c"], ["y"], name="third", domain="strange"),
        node("Mystery", ["x"], ["unused"], name="fourth", domain="strange"),
    ]
    with pytest.raises(UnsupportedError) as caught:
        load(model(nodes, [X], ["y"], domains={"strange": 3}))
    text = str(caught.value)
    for part in ("Mystery of strange 3", "first", "second", "Puzzle", "third"):
        assert part in text
    assert "fourth" not in text  # no output needs it


def test_an_operator_of_another_domain_is_pointed_out() -> None:
    with pytest.raises(UnsupportedError, match=r"Relu of ai\.onnx is supported"):
        load(model([node("Relu", ["x"], ["y"], domain="mine")], [X], ["y"], domains={"mine": 1}))


def test_a_domain_without_a_version() -> None:
    with pytest.raises(FormatError, match="'mine' is not among"):
        load(model([node("Relu", ["x"], ["y"], domain="mine")], [X], ["y"]))


def test_names_that_nothing_or_too_much_defines() -> None:
    with pytest.raises(FormatError, match="'nowhere'"):
        load(model([node("Relu", ["nowhere"], ["y"])], [X], ["y"]))
    with pytest.raises(FormatError, match="graph output uses 'z'"):
        load(model([node("Relu", ["x"], ["y"])], [X], ["z"]))
    twice = [node("Relu", ["x"], ["y"], name="a"), node("Neg", ["x"], ["y"], name="b")]
    with pytest.raises(FormatError, match="'y' is defined twice, by a and b"):
        load(model(twice, [X], ["y"]))
    with pytest.raises(FormatError, match="two inputs"):
        load(model([node("Relu", ["x"], ["y"])], [X, X], ["y"]))


def test_a_cycle() -> None:
    nodes = [
        node("Add", ["x", "b"], ["a"], name="one"),
        node("Relu", ["a"], ["b"], name="two"),
    ]
    with pytest.raises(FormatError, match="2 nodes depend on their own results: one, two"):
        load(model(nodes, [X], ["a"]))


def test_shapes_that_contradict_each_other_name_the_node() -> None:
    nodes = [node("MatMul", ["x", "w"], ["y"], name="/mlp/fc1")]
    with pytest.raises(ShapeError, match="/mlp/fc1"):
        load(model(nodes, [X], ["y"], {"w": np.ones((5, 3), np.float32)}))


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (node("Concat", ["x", "x"], ["y"]), "axis is missing"),
        (node("Concat", ["x", "x"], ["y"], axis=1.5), "of type FLOAT"),
        (node("Relu", ["x", "x"], ["y"]), "2 inputs where it has 1"),
        (node("Add", ["x"], ["y"]), "1 inputs where it has 2"),
        (node("Add", ["x", ""], ["y"]), "input 1 is missing"),
        (node("Cast", ["x"], ["y"], to=999), "element type"),
        (node("Concat", ["x", "x"], ["y"], axis=7), "axis 7"),
        (node("Transpose", ["x"], ["y"], perm=[0, 0]), "perm"),
    ],
)
def test_malformed_nodes(bad: onnx.NodeProto, match: str) -> None:
    with pytest.raises(EdgeRelaxError, match=match):
        load(model([bad], [X], ["y"]))


def test_inputs_that_are_not_tensors_or_have_no_rank() -> None:
    sequence = onnx.ValueInfoProto(name="s")
    sequence.type.sequence_type.elem_type.tensor_type.elem_type = 1
    with pytest.raises(UnsupportedError, match="'s' is a sequence"):
        load(model([node("SequenceLength", ["s"], ["y"])], [sequence], ["y"]))
    with pytest.raises(UnsupportedError, match="'x' has no shape"):
        load(model([node("Relu", ["x"], ["y"])], [value("x", None)], ["y"]))


def test_a_function_that_calls_itself() -> None:
    body = [node("F", ["a"], ["b"], domain="f")]
    function = helper.make_function("f", "F", ["a"], ["b"], body, [helper.make_opsetid("f", 1)])
    proto = model(
        [node("F", ["x"], ["y"], domain="f")], [X], ["y"], functions=[function], domains={"f": 1}
    )
    with pytest.raises(FormatError, match="more than 64 deep"):
        load(proto)


def test_a_loop_that_never_ends() -> None:
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Identity", ["v"], ["w"])],
        "body",
        [value("i", [], 7), value("go", [], 9), value("v", ["n", 4])],
        [onnx.ValueInfoProto(name="go_on"), onnx.ValueInfoProto(name="w")],
    )
    proto = model(
        [node("Loop", ["", "yes", "x"], ["y"], body=body)], [X], ["y"], {"yes": np.array(True)}
    )
    with pytest.raises(UnsupportedError, match="nothing ends it"):
        load(proto)


def test_wanted_dims_that_the_model_lacks() -> None:
    with pytest.raises(InputError, match=r"no dim 'm'[\s\S]*its dims: n"):
        load(relu(), dims={"m": 3})
    for spec in (-1, (3, 2), (1, 2, 0), "many", True):
        with pytest.raises(InputError, match="is no size"):
            load(relu(), dims={"n": spec})  # type: ignore[dict-item]
