"""Greedy texts of a language model in a page, by the engine of edgerelax.js."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from edgerelax.ir.graph import Module
from tests.browser.harness import Browser

CACHE_TOKENS = 320
_OPEN = f"""
const {{ url, backend }} = argument;
models.writer = await edgerelax.loadEngine(url, {{ backend, cacheTokens: {CACHE_TOKENS} }});
return models.writer.backend;
"""
_WRITE = """
const { prompt, limit } = argument;
const sampling = {
  temperature: 0, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1, presencePenalty: 0,
  frequencyPenalty: 0, seed: 0, logitBias: new Map(),
};
const ids = [];
const { signal } = new AbortController();
const options = { limit, signal, onPrompt: () => undefined };
for await (const { id } of models.writer.generate(prompt, sampling, options)) ids.push(id);
return ids;
"""


def without(module: Module, *names: str) -> Module:
    """A language module without some of its functions, to compile less."""
    used = {name: f for name, f in module.funcs.items() if name not in names}
    language = {**module.attrs["language"], "functions": {name: name for name in used}}
    return replace(module, funcs=used, attrs={**module.attrs, "language": language})


@dataclass(frozen=True)
class Writer:
    """A language model that is loaded in a page."""

    browser: Browser

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        """So many tokens after a prompt."""
        ids: list[int] = self.browser.script(_WRITE, {"prompt": list(prompt), "limit": count})
        return ids


@contextmanager
def writer(browser: Browser, url: str, backend: str) -> Iterator[Writer]:
    """The model at an address, on one backend."""
    assert browser.script(_OPEN, {"url": url, "backend": backend}) == backend
    try:
        yield Writer(browser)
    finally:
        browser.script("await models.writer.dispose()")
