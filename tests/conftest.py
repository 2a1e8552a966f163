"""Artifacts that several packages of tests read."""

import gc
from pathlib import Path

import pytest

import edgerelax
from tests.chat import fakes
from tests.frontends.speech.tiny import Exported, write
from tests.sharing import Run


def pytest_collection_finish() -> None:
    """What lives to the end, thousands of node cases for one, is no garbage to look for.

    Looking took a tenth of the time of compiling.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever processes of this run share."""
    Run.begin(tmp_path_factory)


@pytest.fixture(scope="session")
def small_chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat with a random model that knows the tokens of `fakes.tokenizer`, for the CPU."""
    from tests.frontends.language.test_cache import tiny

    module = tiny(len(fakes.tokenizer()), 1024, fakes.assets())
    folder = tmp_path_factory.mktemp("chat") / "small"
    edgerelax.compile(module, target="cpu", variants=("cpu",)).save(folder)
    return folder


@pytest.fixture(scope="session")
def small_speech(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A tiny Whisper of random weights, for the CPU."""
    folder = tmp_path_factory.mktemp("speech")
    model = write(folder / "model")
    executable = edgerelax.compile(folder / "model", target="cpu", variants=("cpu",), verify=True)
    fused = executable.report.passes["fuse_attention"]["done"]
    assert fused == {"attention fused": 6}  # two layers: the encoder's, the text's, across
    planned = executable.report.passes["cpu-plan_memory"]["done"]
    assert planned["state updated in place"] == 16  # every one that a function changes
    executable.save(folder / "artifact")
    return Exported(model, folder / "artifact")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct for the CPU."""
    model = Path(__file__).resolve().parent.parent / "models" / "smollm2" / "model.gguf"
    assert model.is_file(), f"{model} is missing: run scripts/fetch-models"

    def make(folder: Path) -> None:
        edgerelax.compile(model, target="cpu", variants=("cpu",)).save(folder)

    return Run.shared("smollm2", make)
