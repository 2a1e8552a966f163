"""One artifact of one small model; every test has a folder of its own with both."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

import edgerelax.api as api
from tests.cli.command import Command, X, perceptron


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    onnx.save(perceptron(), folder / "model.onnx")
    api.compile(folder / "model.onnx").save(folder / "out")
    np.save(folder / "x.npy", X)
    return folder


@pytest.fixture
def cli(
    exported: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Command:
    folder = tmp_path / "here"
    shutil.copytree(exported, folder)
    monkeypatch.chdir(folder)
    return Command(folder, capsys)
