"""An artifact to damage: made once, in memory and as the files of its folder."""

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

import edgerelax.api as api
from tests.faults.models import by_onnxruntime, perceptron

INPUTS = {"x": np.random.default_rng(3).standard_normal((5, 8)).astype(np.float32)}


@cache
def compiled() -> api.Executable:
    return api.compile(perceptron())


@cache
def expected() -> np.ndarray:
    return by_onnxruntime(perceptron(), INPUTS)["y"]


@cache
def contents() -> dict[str, bytes]:
    """Every file of the folder, the manifest too."""
    with tempfile.TemporaryDirectory() as folder:
        compiled().save(folder)
        return {p.name: p.read_bytes() for p in Path(folder).iterdir()}


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder
