"""SmolLM2-135M-Instruct from its GGUF file: the same logits and the same text as plain numpy."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import edgerelax
from edgerelax.artifact.manifest import LanguageInfo
from edgerelax.chat.engine import Sampling
from edgerelax.chat.paged import PagedEngine
from edgerelax.chat.text import Text
from edgerelax.hosts.session import Session
from tests.e2e.smollm2 import MODEL, PASSAGE, PROMPTS, TOKENS, likeliest, perplexity, reference


@pytest.fixture(scope="module")
def session(smollm2: Path) -> Iterator[Session]:
    with edgerelax.load(smollm2, "cpu") as opened:
        yield opened


@pytest.fixture(scope="module")
def text(session: Session) -> Text:
    return Text.of(session.artifact)


def language(session: Session) -> LanguageInfo:
    found = session.artifact.manifest.language
    assert found is not None
    return found


def generated(session: Session, prompt: Sequence[int], count: int) -> list[int]:
    engine = PagedEngine(session, language(session), tokens=256, texts=1)
    with engine.generate(prompt, Sampling(max_tokens=count, temperature=0.0)) as stream:
        return [token.id for token in stream]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_references(session: Session, text: Text, prompt: str) -> None:
    """Token by token: each is the reference's most likely one after all before it."""
    ids = text.tokenizer.encode(prompt)
    found = generated(session, ids, TOKENS)
    assert len(found) == TOKENS
    assert found == likeliest(ids, found)
    if prompt == PROMPTS[0]:
        assert text.tokenizer.decode(found).startswith(" Paris.")


def test_logits_and_perplexity_are_the_references(session: Session, text: Text) -> None:
    tokens = text.tokenizer.encode(PASSAGE)
    found, wanted = session.run({"tokens": np.array([tokens])})["logits"][0], reference(tokens)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-3)
    assert perplexity(found, tokens) == pytest.approx(perplexity(wanted, tokens), rel=1e-4)


def test_what_it_takes(session: Session) -> None:
    """Weights stay quantised, layers share their kernels."""
    manifest = session.artifact.manifest
    stored = sum(w.stored_bytes for w in manifest.weights)
    assert stored < MODEL.stat().st_size  # the embedding is stored once
    assert len(manifest.programs[0].cpu_kernels) < 80
