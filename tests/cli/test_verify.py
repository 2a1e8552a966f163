"""`edgerelax verify`: what it compares, and what it says where it cannot."""

import json

import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.command import Command, perceptron


def verify(cli: Command, *words: str) -> str:
    return cli.refused("verify", "model.onnx", "out", "--device", "cpu", *words)


@pytest.mark.parametrize("reference", ["onnxruntime", "numpy"])
def test_report_for_programs(cli: Command, reference: str) -> None:
    done = cli("verify", "model.onnx", "out", "--device", "cpu", "--json", "--reference", reference)
    assert done.code == 0
    rows = json.loads(done.out)
    assert {row["output"] for row in rows} == {"file"}
    assert len({row["sizes"]["batch"] for row in rows}) > 1


def test_sizes_that_bounds_allow(cli: Command) -> None:
    for dim, sizes in [("batch=0..0", {0}), ("batch=3..5:2", {4}), ("batch=100..101", {100, 101})]:
        assert cli("export", "model.onnx", "-o", "new", "--dim", dim).code == 0
        done = cli("verify", "model.onnx", "new", "--device", "cpu", "--json", "--samples", "9")
        assert {row["sizes"]["batch"] for row in json.loads(done.out)} == sizes


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--reference", "nosuch"), "known: onnxruntime, numpy"),
        (("--device", "tpu"), "known: auto, cpu, wgpu"),
    ],
)
def test_wrong_words(cli: Command, words: tuple[str, str], told: str) -> None:
    assert told in verify(cli, *words)


@pytest.mark.parametrize(
    ("model", "told"),
    [("none.onnx", "no such file"), ("out", "is a folder"), ("x.npy", "no ONNX model")],
)
def test_no_model(cli: Command, model: str, told: str) -> None:
    assert told in cli.refused("verify", model, "out", "--device", "cpu")


def test_a_model_that_onnxruntime_does_not_load(cli: Command) -> None:
    model = perceptron()
    model.ir_version = 99
    onnx.save(model, cli.folder / "model.onnx")
    told = verify(cli)
    assert "onnxruntime cannot run model.onnx" in told
    assert "--reference numpy" in told


def test_a_model_that_onnxruntime_does_not_run(cli: Command) -> None:
    graph = perceptron().graph
    graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5]))
    graph.initializer[0].dims[:] = [3, 4]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, cli.folder / "model.onnx")
    assert "onnxruntime cannot run model.onnx" in verify(cli)


@pytest.mark.parametrize("name", ["weights-00001-of-00001.safetensors", "kernels-cpu.wasm"])
def test_an_altered_file_is_named(cli: Command, name: str) -> None:
    path = cli.folder / "out" / name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert f"{name}: its sha256" in verify(cli)
    path.write_bytes(data[:-1])
    assert f"{name}: {len(data) - 1} bytes" in verify(cli)
    path.unlink()
    assert f"{name}: missing" in verify(cli)
