"""SmolLM2-135M-Instruct from its GGUF file: the same logits and the same text as plain numpy."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

import edgerelax
from edgerelax.artifact.manifest import LanguageInfo
from edgerelax.chat.engine import Sampling
from edgerelax.chat.paged import PagedEngine
from edgerelax.chat.text import Text
from edgerelax.hosts.session import Session
from tests.frontends.language.reference import logits, read

MODEL = Path(__file__).resolve().parents[2] / "models" / "smollm2" / "model.gguf"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "Water boils at",
    "日本の首都は",
)
TOKENS = 64
PASSAGE = (
    "It was a bright cold day in the market town, and the clocks of its three churches were "
    "striking eleven, none of them together. Anna counted the coins in her pocket once more. "
    "Seven was enough for bread and a ticket, but not for both the ticket and the book that she "
    "had promised her brother. She looked at the tower, at the clouds, and made up her mind."
)
Reference = tuple[dict[str, np.ndarray], object]


@pytest.fixture(scope="module")
def session(smollm2: Path) -> Iterator[Session]:
    with edgerelax.load(smollm2, "cpu") as opened:
        yield opened


@pytest.fixture(scope="module")
def text(session: Session) -> Text:
    return Text.of(session.artifact)


@pytest.fixture(scope="module")
def reference() -> Reference:
    return read(GGUFReader(str(MODEL)))


def language(session: Session) -> LanguageInfo:
    found = session.artifact.manifest.language
    assert found is not None
    return found


def generated(session: Session, prompt: Sequence[int], count: int) -> list[int]:
    engine = PagedEngine(session, language(session), tokens=256, texts=1)
    with engine.generate(prompt, Sampling(max_tokens=count, temperature=0.0)) as stream:
        return [token.id for token in stream]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_references(
    session: Session, text: Text, reference: Reference, prompt: str
) -> None:
    """Token by token: each is the reference's most likely one after all before it."""
    ids = text.tokenizer.encode(prompt)
    found = generated(session, ids, TOKENS)
    wanted = logits(*reference, np.array([[*ids, *found]]))[0, len(ids) - 1 : -1]
    assert found == wanted.argmax(axis=-1).tolist()
    if prompt == PROMPTS[0]:
        assert text.tokenizer.decode(found).startswith(" Paris.")


def test_logits_and_perplexity_are_the_references(
    session: Session, text: Text, reference: Reference
) -> None:
    tokens = np.array([text.tokenizer.encode(PASSAGE)])
    found, wanted = session.run({"tokens": tokens})["logits"], logits(*reference, tokens)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-3)
    assert perplexity(found, tokens) == pytest.approx(perplexity(wanted, tokens), rel=1e-4)


def perplexity(scores: np.ndarray, tokens: np.ndarray) -> float:
    """exp of the mean of -log p over all tokens but the first."""
    before, after = scores[0, :-1].astype(np.float64), tokens[0, 1:]
    largest = before.max(axis=-1, keepdims=True)
    total = np.log(np.exp(before - largest).sum(axis=-1)) + largest[:, 0]
    return float(np.exp(np.mean(total - before[np.arange(len(after)), after])))


def test_what_it_takes(session: Session) -> None:
    """Weights stay quantised, layers share their kernels."""
    manifest = session.artifact.manifest
    stored = sum(w.stored_bytes for w in manifest.weights)
    assert stored < 1.4 * MODEL.stat().st_size  # the embedding is stored in two orders
    assert len(manifest.programs[0].cpu_kernels) < 80
