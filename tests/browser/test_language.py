"""SmolLM2-135M-Instruct in Chromium on WebAssembly writes what plain numpy does.

WebGPU on SwiftShader takes minutes for it: scripts/verify-models --language.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgerelax.artifact.store import Artifact
from edgerelax.chat.text import Text
from tests.browser.harness import Browser
from tests.browser.language_page import Writer, writer
from tests.e2e.smollm2 import PROMPTS, TOKENS, likeliest


@pytest.fixture(scope="module")
def text(smollm2: Path) -> Text:
    return Text.of(Artifact.open(smollm2))


@pytest.fixture(scope="module")
def model(browser: Browser, smollm2: Path) -> Iterator[Writer]:
    with writer(browser, browser.publish(smollm2, "smollm2"), "wasm") as opened:
        yield opened


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_references(model: Writer, text: Text, prompt: str) -> None:
    ids = text.tokenizer.encode(prompt)
    found = model.write(ids, TOKENS)
    assert len(found) == TOKENS
    assert found == likeliest(ids, found)
