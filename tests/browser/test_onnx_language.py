"""A decoder as optimum exports it writes on every host what transformers finds likeliest.

Its embedding gives the logits too; its layer sees a window, so that texts may be longer than the
cache: pages that no token will see go.
"""

from pathlib import Path
from typing import Any

import pytest

import edgerelax
from edgerelax.chat.engine import Sampling
from edgerelax.chat.paged import PagedEngine
from edgerelax.frontends.onnx.folders import load_optimum
from tests.browser.harness import Browser
from tests.browser.language_page import CACHE_TOKENS, without, writer
from tests.browser.runtime_page import BACKENDS
from tests.frontends.onnx.optimum import decoder, export, folder

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

WINDOW, TOKENS = 9, 12
LONG = {"max_position_embeddings": 2 * CACHE_TOKENS}
CHANGES = {
    **LONG,
    "vocab_size": 67,
    "num_hidden_layers": 1,
    "sliding_window": WINDOW,
    "tie_word_embeddings": True,
}
PROMPTS = ([5], [k % 59 for k in range(CACHE_TOKENS + 5)])
CLOSE = 1e-3  # logits of which either may be the greater


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The model of transformers, and the folder of its artifact."""
    place = tmp_path_factory.mktemp("onnx_language")
    model = decoder("mistral", "eager", CHANGES)
    proto = export(model, place / "model.onnx", True)
    source = folder(place / "source", proto, kind="mistral", **LONG)
    module = without(load_optimum(source), "main", "read")
    edgerelax.compile(module, variants=("cpu", "software")).save(place / "artifact")
    return model, place / "artifact"


def check(model: Any, prompt: list[int], found: list[int]) -> None:
    assert len(found) == TOKENS
    with torch.no_grad():
        logits = model(torch.tensor([prompt + found])).logits[0, len(prompt) - 1 : -1]
    behind = logits.max(1).values - logits[torch.arange(TOKENS), torch.tensor(found)]
    assert behind.max() < CLOSE


@pytest.mark.parametrize("host", ["cpu", "wgpu"])
def test_in_python(made: tuple[Any, Path], host: str) -> None:
    model, artifact = made
    with edgerelax.load(artifact, host) as session:
        language = session.artifact.manifest.language
        assert language is not None and language.window == WINDOW
        engine = PagedEngine(session, language, CACHE_TOKENS)
        for prompt in PROMPTS:
            with engine.generate(prompt, Sampling(max_tokens=TOKENS, temperature=0.0)) as stream:
                check(model, prompt, [token.id for token in stream])


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_a_page(made: tuple[Any, Path], browser: Browser, backend: str) -> None:
    model, artifact = made
    url = browser.publish(artifact, "onnx_language")
    with writer(browser, url, backend) as page:
        for prompt in PROMPTS:
            check(model, prompt, page.write(prompt, TOKENS))
