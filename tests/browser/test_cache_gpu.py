"""Caches of f16 and int8, windows with sinks, and images on Chromium's WebGPU: Python's tokens."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgerelax
from edgerelax.frontends.language.storage import Kind
from tests.browser.harness import Browser
from tests.browser.runtime_page import runtime_page
from tests.browser.test_rolling import Text, in_python
from tests.browser.test_seeing import ask, check
from tests.chat.test_seeing import TOKENS, Model, image
from tests.frontends.language.test_cache import VOCABULARY, only, tiny

USED = ("step", "greedy", "sample", "adjusted", "top", "count", "clear", "shift")
WINDOW = {"window": 64, "sinks": 5}
WRITE = """
const { url, options, texts } = argument;
const sampling = {
  temperature: 0, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1, presencePenalty: 0,
  frequencyPenalty: 0, seed: 1, logitBias: new Map(),
};
const read = async (engine, { prompt, count }) => {
  const { signal } = new AbortController();
  const how = { limit: count, signal, onPrompt: () => undefined };
  const ids = [];
  for await (const { id } of engine.generate(prompt, sampling, how)) ids.push(id);
  return ids;
};
const engine = await edgerelax.loadEngine(url, { backend: 'webgpu', ...options });
try {
  return await Promise.all(texts.map((text) => read(engine, text)));
} finally {
  await engine.dispose();
}
"""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Browser]:
    with runtime_page(browser) as opened:
        yield opened
        assert opened.script("return gpu.errors") == []
        assert opened.script("return gpu.alive.size") == 0


def text_of(length: int, count: int) -> Text:
    prompt = np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()
    return {"prompt": prompt, "count": count}


@pytest.mark.parametrize("kind", ("f16", "int8"))
def test_a_cache_in_fewer_bits_with_a_window(page: Browser, kind: Kind, tmp_path: Path) -> None:
    """Texts together, one of which is longer than the window."""
    module = only(tiny(cache=kind, windows=(60, 20)), *USED)
    edgerelax.compile(module, variants=("cpu", "software")).save(tmp_path / "model")
    texts = [text_of(64, 24), text_of(17, 12)]
    wanted = in_python(tmp_path / "model", texts, **WINDOW)
    assert wanted != in_python(tmp_path / "model", texts)
    given = {"url": page.publish(tmp_path / "model", f"cache-{kind}"), "texts": texts}
    options = {"cacheTokens": 256, **WINDOW}
    assert page.script(WRITE, {**given, "options": options}) == wanted


def test_images_are_seen(page: Browser, seeing: tuple[Model, Path]) -> None:
    """Greedy tokens, as likely as Python's, of two images with words around them."""
    model, folder = seeing
    given = {"url": page.publish(folder, "seeing"), "tokens": TOKENS}
    page.script(
        "const { url, tokens } = argument; models.chat ="
        " await edgerelax.loadChat(url, { backend: 'webgpu', cacheTokens: tokens });",
        given,
    )
    try:
        parts = ("Hi ", image(0), " and ", image(1, 9, 31), "?")
        check(ask(page, *parts), model, *parts)
    finally:
        page.script("await models.chat.dispose()")
