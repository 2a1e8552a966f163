"""Texts that are longer than the context: the first tokens stay, the oldest of the others go."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax
from edgerelax.artifact.manifest import LanguageInfo
from edgerelax.chat.engine import Sampling
from edgerelax.chat.paged import PagedEngine
from edgerelax.chat.rolling import Rolling
from edgerelax.frontends.hf.load import decoder_of
from edgerelax.frontends.language.cache import PAGE
from edgerelax.frontends.language.functions import language_module
from edgerelax.hosts.session import Session
from edgerelax.ir.diagnostics import InputError
from tests.frontends.language.cases import CASES, CONTEXT, VOCABULARY, randomise
from tests.frontends.language.test_cache import only

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

(CASE,) = [case for case in CASES if case.name == "llama-llama3"]
WINDOW, SINKS = 4 * PAGE, 5  # pages of which one stays and one goes at a time
COUNT = 90


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(CASE.config()).float().eval()
    randomise(made)
    return made


@pytest.fixture(scope="module")
def session(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder: Path = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    decoder = decoder_of(folder)
    module = language_module(decoder, decoder.config)
    module = only(module, "step", "greedy", "sample", "shift")
    with edgerelax.compile(module, target="cpu", variants=("cpu",)).session("cpu") as opened:
        yield opened


def language(session: Session) -> LanguageInfo:
    found = session.artifact.manifest.language
    assert found is not None
    return found


def engine(session: Session, tokens: int | None = None, texts: int = 2) -> PagedEngine:
    return PagedEngine(session, language(session), tokens, texts, WINDOW, SINKS)


class Reference:
    """transformers' model over a cache whose keys are cut and turned back here, token by token."""

    def __init__(self, model: Any) -> None:
        self.model, self.length = model, 0
        self.cache = transformers.DynamicCache()

    def take(self, token: int) -> np.ndarray:
        """Logarithms of probabilities after a token."""
        if self.length == WINDOW:
            self.drop(PAGE, PAGE)
        with torch.no_grad():
            found = self.model(
                torch.tensor([[token]]),
                past_key_values=self.cache,
                position_ids=torch.tensor([[self.length]]),
            )
        self.length += 1
        return torch.log_softmax(found.logits[0, -1], dim=-1).numpy()

    def drop(self, first: int, count: int) -> None:
        turns = self.model.model.rotary_emb.inv_freq.double().numpy() * count
        for layer in self.cache.layers:
            keys, values = (x.double().numpy() for x in (layer.keys, layer.values))
            left = keys[:, :, first + count :]
            half = left.shape[-1] // 2
            a, b = left[..., :half], left[..., half:]
            back = (a * np.cos(turns) + b * np.sin(turns), b * np.cos(turns) - a * np.sin(turns))
            kept = np.concatenate((keys[:, :, :first], np.concatenate(back, -1)), 2)
            layer.keys = torch.from_numpy(kept).float()
            layer.values = torch.from_numpy(
                np.delete(values, slice(first, first + count), 2)
            ).float()
        self.length -= count


def prompt_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def generated(made: PagedEngine, prompt: Sequence[int], count: int) -> list[tuple[int, float]]:
    sampling = Sampling(max_tokens=count, temperature=0.0, logprobs=0)
    with made.generate(prompt, sampling) as stream:
        return [(t.id, t.logprob or 0.0) for t in stream]


@pytest.mark.parametrize("length", (3, WINDOW, CONTEXT + 50))
def test_a_text_past_the_context(model: Any, session: Session, length: int) -> None:
    """Prompts and answers are longer than the context, which has as many tokens as the window."""
    prompt, reference = prompt_of(length, length), Reference(model)
    for token in prompt[:-1]:
        reference.take(token)
    last = prompt[-1]
    found = generated(engine(session), prompt, COUNT)
    assert len(found) == COUNT
    for token, logprob in found:
        wanted = reference.take(last)
        assert [logprob, logprob] == pytest.approx([wanted[token], wanted.max()], abs=2e-4)
        last = token


def test_texts_at_once_share_what_they_begin_with(session: Session) -> None:
    """Pages of two texts are not turned under the other's hands; a later text finds the first's."""
    start = prompt_of(1, 2 * PAGE + 3)
    alone = [generated(engine(session), [*start, k], COUNT) for k in range(2)]
    made = engine(session, tokens=5 * WINDOW)
    sampling = Sampling(max_tokens=COUNT, temperature=0.0, logprobs=0)
    streams = [made.generate([*start, k], sampling) for k in range(2)]
    pairs = list(zip(*streams, strict=True))
    for k, wanted in enumerate(alone):
        assert [p[k].id for p in pairs] == [token for token, _ in wanted]
    assert made.load.reused == 0  # both began before either was done
    assert [t for t, _ in generated(made, [*start, 0], 20)] == [t for t, _ in alone[0][:20]]
    assert made.load.reused == 2 * PAGE
    assert made.pool.available == made.pool.count


def test_a_text_that_gives_way_begins_again(session: Session) -> None:
    """In a cache of one window two texts take turns; each is what it is alone."""
    prompts = [prompt_of(k, 30) for k in (7, 8)]
    alone = [[t for t, _ in generated(engine(session), p, 60)] for p in prompts]
    made = engine(session, tokens=WINDOW + PAGE)
    sampling = Sampling(max_tokens=60, temperature=0.0)
    streams = [made.generate(p, sampling) for p in prompts]
    found = [[t.id for t in stream] for stream in streams]
    assert found == alone


def test_windows_that_cannot_be(session: Session) -> None:
    info = language(session)
    for window, sinks in ((2 * PAGE, 4), (CONTEXT + 1, 4), (WINDOW, -1), (WINDOW, 2 * PAGE + 1)):
        with pytest.raises(InputError, match=f"window of {window} tokens with {sinks} sinks"):
            PagedEngine(session, info, window=window, sinks=sinks)
    with pytest.raises(InputError, match="sinks without a window"):
        PagedEngine(session, info, sinks=4)
    with pytest.raises(InputError, match="cache has room for 48"):
        PagedEngine(session, info, 3 * PAGE, window=WINDOW)
    fixed = LanguageInfo("x", 10, 128, {"step": "step"}, page_size=PAGE)
    with pytest.raises(InputError, match="cannot be moved"):
        Rolling.of(64, None, fixed)
    assert Rolling.of(100, None, LanguageInfo("x", 10, 128, {"shift": "s"}, PAGE)) == Rolling(6, 1)
