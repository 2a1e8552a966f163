"""One tiny speech model for all tests, exported for the CPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import edgerelax
from tests.frontends.speech import tiny


@dataclass(frozen=True)
class Exported:
    """transformers' model, and the artifact of its folder."""

    model: Any
    folder: Path
    artifact: Path


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("speech")
    model = tiny.write(folder / "model")
    executable = edgerelax.compile(folder / "model", target="cpu", variants=("cpu",), verify=True)
    fused = executable.report.passes["fuse_attention"]["done"]
    assert fused == {"attention fused": 6}  # two layers: the encoder's, the text's, across
    planned = executable.report.passes["cpu-plan_memory"]["done"]
    assert planned["state updated in place"] == 16  # every one that a function changes
    executable.save(folder / "artifact")
    return Exported(model, folder / "model", folder / "artifact")
