"""Artifacts that several packages of tests read."""

from pathlib import Path

import pytest

import edgerelax
from tests.chat import fakes


@pytest.fixture(scope="session")
def small_chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chat with a random model that knows the tokens of `fakes.tokenizer`, for the CPU."""
    from tests.frontends.language.test_cache import tiny

    module = tiny(len(fakes.tokenizer()), 1024, fakes.assets())
    folder = tmp_path_factory.mktemp("chat") / "small"
    edgerelax.compile(module, target="cpu", variants=("cpu",)).save(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct for the CPU."""
    model = Path(__file__).resolve().parent.parent / "models" / "smollm2" / "model.gguf"
    assert model.is_file(), f"{model} is missing: run scripts/fetch-models"
    folder = tmp_path_factory.mktemp("chat") / "smollm2"
    edgerelax.compile(model, target="cpu", variants=("cpu",)).save(folder)
    return folder
