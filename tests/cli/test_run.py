"""`edgerelax run`: inputs from files, outputs to a file."""

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from edgerelax.api import compile
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import BF16
from edgerelax.ops import OPS
from edgerelax.sym import symbol
from tests.cli.command import EXPECTED, Command, X


def run(cli: Command, *words: str) -> str:
    return cli.refused("run", "out", "--device", "cpu", *words)


def test_report_for_programs(cli: Command) -> None:
    done = cli("run", "out", "--device", "cpu", "--input", "x=x.npy", "--json", "--repeat", "2")
    report = json.loads(done.out)
    assert report["outputs"] == {"file": {"dtype": "float32", "shape": [2, 3]}}
    assert report["device"] == "cpu"


@pytest.mark.parametrize("given", ["x=x.npy", "x.npz"])
def test_outputs_of_any_name(cli: Command, given: str) -> None:
    np.savez(cli.folder / "x.npz", x=X)
    assert cli("run", "out", "--device", "cpu", "--input", given, "-o", "y.npz").code == 0
    with np.load(cli.folder / "y.npz") as written:
        np.testing.assert_allclose(written["file"], EXPECTED, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("output", ["out", "model.onnx/y.npz", "nowhere/y.npz"])
def test_unwritable_outputs(cli: Command, output: str) -> None:
    told = run(cli, "--input", "x=x.npy", "-o", output)
    assert output in told


def test_dtypes_that_numpy_files_have_not(cli: Command) -> None:
    f = Function("main")
    x = f.input("x", (symbol("n"),), BF16)
    f.output("y", f.call(OPS["add"], x, x))
    compile(f.module()).save(cli.folder / "halves")
    values = np.arange(5).astype(ml_dtypes.bfloat16)
    np.save(cli.folder / "b.npy", values)
    words = ("run", "halves", "--device", "cpu", "--input", "x=b.npy", "-o", "y.npz")
    assert cli(*words).code == 0
    with np.load(cli.folder / "y.npz") as written:
        np.testing.assert_array_equal(written["y"].view(ml_dtypes.bfloat16), values + values)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "missing 'x'"),
        (("--input", "x"), "no such file"),
        (("--input", "x="), "no such file"),
        (("--input", "=x.npy"), "no such file"),
        (("--input", "x=none.npy"), "no such file"),
        (("--input", "x=out"), "is a folder"),
        (("--input", "x.npy"), "which input is it?"),
        (("--input", "y=x.npy"), "unknown input 'y'"),
        (("--input", "x=x.npy", "--input", "x=x.npy"), "'x' was given before"),
        (("--input", "x=x.npy", "--function", "nosuch"), "known: main"),
        (("--input", "x=x.npy", "--device", "tpu"), "known: auto, cpu, wgpu"),
    ],
)
def test_wrong_words(cli: Command, words: tuple[str, ...], told: str) -> None:
    assert told in run(cli, *words)


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (X.astype(np.float64), "dtype float64, expected float32"),
        (X[..., None], "rank 3"),
        (np.zeros((2, 5), np.float32), "dimension 1"),
    ],
)
def test_wrong_arrays(cli: Command, array: np.ndarray, told: str) -> None:
    np.save(cli.folder / "wrong.npy", array)
    message = run(cli, "--input", "x=wrong.npy")
    assert told in message
    assert "'x'" in message


def pickled_npy(path: Path) -> None:
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)


def pickled_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=np.array([{}], dtype=object))


def text(path: Path) -> None:
    path.write_text("1 2 3")


def cut_off(path: Path) -> None:
    np.save(path, X)
    path.write_bytes(path.read_bytes()[:-4])


def cut_off_npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, x=X)
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize("write", [pickled_npy, text, Path.touch, cut_off])
def test_files_that_are_no_arrays(cli: Command, write: Callable[[Path], None]) -> None:
    write(cli.folder / "wrong.npy")
    assert "wrong.npy: not numbers" in run(cli, "--input", "x=wrong.npy")


@pytest.mark.parametrize("write", [pickled_npz, cut_off_npz])
def test_archives_that_are_none(cli: Command, write: Callable[[Path], None]) -> None:
    write(cli.folder / "wrong.npz")
    assert "wrong.npz: not numbers" in run(cli, "--input", "wrong.npz")


def test_an_archive_for_one_input(cli: Command) -> None:
    np.savez(cli.folder / "x.npz", x=X)
    assert "write --input x.npz" in run(cli, "--input", "x=x.npz")


@pytest.mark.parametrize("artifact", ["nothing", "model.onnx", "."])
def test_no_artifact(cli: Command, artifact: str) -> None:
    assert "no artifact here" in cli.refused("run", artifact, "--input", "x=x.npy")
