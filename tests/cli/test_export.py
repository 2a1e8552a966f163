"""`edgerelax export`: what it refuses, and how it says so."""

import json

import numpy as np
import onnx
import pytest

from edgerelax.artifact.manifest import Manifest
from edgerelax.artifact.store import Artifact
from tests.cli.command import Command
from tests.faults.models import F32, model, node


def test_report_for_programs(cli: Command) -> None:
    done = cli("export", "model.onnx", "-o", "new", "--json", "--dim", "batch=1..8")
    assert done.code == 0
    report = json.loads(done.out)
    assert report["files"].keys() == Artifact.open("new").manifest.files.keys()


def test_half_precision(cli: Command) -> None:
    """Half the weights; inputs and results keep their types."""
    weight = np.linspace(-1, 1, 16 * 8, dtype=np.float32).reshape(16, 8)
    product = node("MatMul", ["x", "w"], ["y"])
    proto = model([product], [("x", F32, ["n", 16])], [("y", F32, None)], {"w": weight})
    onnx.save(proto, cli.folder / "product.onnx")
    full, half = (export_product(cli, *options) for options in ((), ("--fp16",)))
    assert full.functions == half.functions
    stored = [{w.stored or w.dtype for w in found.weights} for found in (full, half)]
    assert stored == [{"f32"}, {"f16"}]
    assert cli("verify", "product.onnx", "new", "--tolerance", "2e-3").code == 0
    assert cli("verify", "product.onnx", "new", "--tolerance", "1e-6").code == 1


def export_product(cli: Command, *options: str) -> Manifest:
    assert cli("export", "product.onnx", "-o", "new", *options).code == 0
    return Artifact.open("new").manifest


@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("model.onnx", "model.onnx"),
        ("model.onnx/inside", "model.onnx"),
        ("/proc/nothing", "/proc/nothing: No such file"),
    ],
)
def test_unwritable_output(cli: Command, output: str, told: str) -> None:
    assert told in cli.refused("export", "model.onnx", "-o", output)


def test_a_file_of_the_artifact_is_a_folder(cli: Command) -> None:
    (cli.folder / "new" / "vm.wasm").mkdir(parents=True)
    assert "vm.wasm" in cli.refused("export", "model.onnx", "-o", "new")


def test_unwritable_dump(cli: Command) -> None:
    told = cli.refused("export", "model.onnx", "-o", "new", "--dump", "model.onnx")
    assert "model.onnx: File exists" in told


@pytest.mark.parametrize(
    ("model", "told"),
    [("none.onnx", "no such file"), ("out", "is a folder"), ("x.npy", "no ONNX model")],
)
def test_no_model(cli: Command, model: str, told: str) -> None:
    assert told in cli.refused("export", model, "-o", "new")
    assert not (cli.folder / "new").exists()


def test_a_part_of_a_folder_for_the_whole(cli: Command) -> None:
    folder = cli.folder / "hub"
    folder.mkdir()
    (folder / "model.onnx").write_bytes((cli.folder / "model.onnx").read_bytes())
    assert "it holds model.onnx" in cli.refused("export", "hub", "-o", "new")
    (folder / "config.json").write_text("{}")
    told = cli.refused("export", "hub/config.json", "-o", "new")
    assert "name the folder that config.json is in" in told
    told = cli.refused("export", "model.onnx", "--file", "model.onnx", "-o", "new")
    assert "leave it out" in told


@pytest.mark.parametrize(
    ("dim", "told"),
    [
        ("nosuch=3", "its dims: batch"),
        ("batch=8..1", "is no size"),
        ("batch=1..8:16", "is no size"),
        ("batch=1..8:0", "is no size"),
        (f"batch={2**63}", "is no size"),
        (f"batch={2**63}..", "is no size"),
        ("batch=x", "not understood"),
        ("batch=1.5", "not understood"),
        ("batch=-1", "not understood"),
        ("batch=", "not understood"),
        ("batch=..", "not understood"),
        ("batch=:4", "not understood"),
        ("=3", "not understood"),
        ("batch", "not understood"),
    ],
)
def test_wrong_dims(cli: Command, dim: str, told: str) -> None:
    assert told in cli.refused("export", "model.onnx", "-o", "new", "--dim", dim)


def test_a_bound_alone(cli: Command) -> None:
    assert cli("export", "model.onnx", "-o", "new", "--dim", "batch=..8").code == 0


def test_a_dim_twice(cli: Command) -> None:
    told = cli.refused("export", "model.onnx", "-o", "new", "--dim", "batch=1", "--dim", "batch=2")
    assert "'batch' was given before" in told


def test_a_bound_beyond_all_sizes_is_none(cli: Command) -> None:
    assert cli("export", "model.onnx", "-o", "new", "--dim", f"batch=1..{2**70}").code == 0


@pytest.mark.parametrize("words", [("--target", "gpu"), ("--without", "nosuch")])
def test_wrong_words(cli: Command, words: tuple[str, str]) -> None:
    told = cli.refused("export", "model.onnx", "-o", "new", *words)
    assert words[1] in told


def test_markup_in_names_is_text(cli: Command) -> None:
    (cli.folder / "model.onnx").rename(cli.folder / "[red].onnx")
    done = cli("export", "[red].onnx", "-o", "[bold]")
    assert done.code == 0
    assert done.err.startswith("[bold]: ")
    assert "from [red].onnx" in cli("inspect", "[bold]").out
