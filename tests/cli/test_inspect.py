"""`edgerelax inspect` and the entry point."""

import json

import pytest

from edgerelax.artifact.store import Artifact
from edgerelax.version import VERSION
from tests.cli.command import Command


def test_manifest_for_programs(cli: Command) -> None:
    manifest = json.loads(cli("inspect", "out", "--json").out)
    assert [f["name"] for f in manifest["functions"]] == ["main"]


def test_every_kernel_is_listed_whole_and_can_be_printed(cli: Command) -> None:
    listed = cli("inspect", "out").out.split()
    kernels = [k.name for p in Artifact.open("out").manifest.programs for k in p.gpu_kernels]
    assert kernels
    for name in kernels:
        assert name in listed
        assert "@compute" in cli("inspect", "out", "--kernel", name).out


def test_a_kernel_that_is_none(cli: Command) -> None:
    assert "near: matmul_relu" in cli.refused("inspect", "out", "--kernel", "relu")
    assert "near: matmul_relu" in cli.refused("inspect", "out", "--kernel", "matmul_rleu")
    assert "it has matmul_relu" in cli.refused("inspect", "out", "--kernel", "zzz")


def test_a_program_that_is_none(cli: Command) -> None:
    told = cli.refused("inspect", "out", "--program", "tpu")
    assert "gpu" in told
    assert "cpu" in told


@pytest.mark.parametrize("artifact", ["nothing", "model.onnx", "."])
def test_no_artifact(cli: Command, artifact: str) -> None:
    assert "no artifact here" in cli.refused("inspect", artifact)


def test_a_manifest_that_is_none(cli: Command) -> None:
    (cli.folder / "out" / "manifest.json").write_text("{")
    assert "manifest.json" in cli.refused("inspect", "out")


def test_version(cli: Command) -> None:
    assert cli("version").out == f"{VERSION}\n"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nosuch",),
        ("export", "model.onnx"),
        ("export", "model.onnx", "-o", "new", "--nosuch"),
        ("run", "out", "--repeat", "0"),
        ("run", "out", "--repeat", "x"),
        ("verify", "model.onnx", "out", "--samples", "0"),
        ("verify", "model.onnx", "out", "--tolerance", "-1"),
        ("verify", "model.onnx", "out", "--tolerance", "nan"),
        ("verify", "model.onnx", "out", "--seed", "-1"),
        ("inspect",),
    ],
)
def test_wrong_flags_end_with_2(cli: Command, words: tuple[str, ...]) -> None:
    assert cli(*words).code == 2
