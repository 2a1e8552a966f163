"""The engine over a small model on the CPU: what it generates is what whole sequences say."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import edgerelax
from edgerelax.artifact.manifest import LanguageInfo
from edgerelax.chat.engine import Sampling
from edgerelax.chat.paged import CHUNK, PagedEngine, bucket
from edgerelax.chat.pages import START, CacheFullError, PagePool, text_digest
from edgerelax.frontends.language.cache import PAGE
from edgerelax.hosts.session import Session
from edgerelax.ir.diagnostics import InputError
from tests.frontends.language.test_cache import VOCABULARY, only, tiny, tokens_of

GREEDY = Sampling(max_tokens=12, temperature=0.0)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with edgerelax.compile(tiny(), target="cpu", variants=("cpu",)).session("cpu") as opened:
        yield opened


def engine(session: Session, tokens: int = 128, texts: int = 3) -> PagedEngine:
    return PagedEngine(session, language(session), tokens, texts)


def language(session: Session) -> LanguageInfo:
    found = session.artifact.manifest.language
    assert found is not None
    return found


def ids(made: PagedEngine, prompt: Sequence[int], sampling: Sampling = GREEDY) -> list[int]:
    with made.generate(prompt, sampling) as stream:
        return [token.id for token in stream]


def wanted(session: Session, prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens by whole sequences."""
    text = list(prompt)
    for _ in range(count):
        logits = session.run({"tokens": np.array([text], np.int64)})["logits"]
        text.append(int(logits[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("length", (1, 15, 16, 17, 40))
def test_greedy_text_is_that_of_whole_sequences(session: Session, length: int) -> None:
    prompt = tokens_of(length, length)
    assert ids(engine(session), prompt) == wanted(session, prompt, 12)


def test_a_text_that_begins_like_an_earlier_one_finds_its_pages(session: Session) -> None:
    made, prompt, run = engine(session), tokens_of(1, 40), engine(session)._run
    taken: list[int] = []

    def spied(role: str, **inputs: np.ndarray) -> dict[str, np.ndarray]:
        if role == "step" and inputs["tokens"].shape[1] > 1:
            taken.append(inputs["tokens"].shape[1])
        return run(role, **inputs)

    made._run = spied  # type: ignore[method-assign]
    first = ids(made, prompt)
    assert ids(made, prompt) == first
    other = [*prompt[:33], 7, 9]
    assert ids(made, other) == wanted(session, other, 12)
    assert taken == [40, 40 - 2 * PAGE, 3]


def test_texts_at_once(session: Session) -> None:
    """More than there are rows for, read by as many threads; each gets what is its own."""
    made = engine(session, tokens=256, texts=3)
    prompts = [tokens_of(k, 5 + 9 * k) for k in range(5)]
    found: dict[int, list[int]] = {}

    def read(k: int) -> None:
        found[k] = ids(made, prompts[k])

    threads = [threading.Thread(target=read, args=(k,)) for k in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[k] for k in range(5)] == [wanted(session, p, 12) for p in prompts]
    assert made.pool.available == made.pool.count


def test_texts_that_do_not_fit_together(session: Session) -> None:
    """The newest gives way and begins again: each still gets what is its own."""
    made = engine(session, tokens=64, texts=3)
    prompts = [tokens_of(20 + k, 20) for k in range(3)]
    sampling = Sampling(max_tokens=30, temperature=0.0)
    streams = [made.generate(p, sampling) for p in prompts]
    found: list[list[int]] = [[] for _ in streams]
    for _ in range(30):
        for got, stream in zip(found, streams, strict=True):
            got.append(next(stream).id)
    assert found == [wanted(session, p, 30) for p in prompts]
    for stream in streams:
        assert next(stream, None) is None
        stream.close()
    assert ids(made, prompts[0]) == wanted(session, prompts[0], 12)
    assert made.pool.available == made.pool.count


def test_a_closed_stream_gives_up_what_it_holds(session: Session) -> None:
    made = engine(session)
    stream = made.generate(tokens_of(3, 30), GREEDY)
    next(stream)
    assert made.pool.available < made.pool.count
    stream.close()
    stream.close()
    assert made.pool.available == made.pool.count


def test_the_context_is_an_end(session: Session) -> None:
    made = engine(session, tokens=48)
    assert made.context == 48
    assert len(ids(made, tokens_of(4, 40), Sampling(max_tokens=100, temperature=0.0))) == 8


@pytest.mark.parametrize(
    "prompt,words",
    [
        ((), "an empty prompt"),
        ((1, VOCABULARY), f"token {VOCABULARY} of a vocabulary of {VOCABULARY}"),
        ((1,) * 48, "a prompt of 48 tokens; the model's context has 256, its cache room for 48"),
    ],
)
def test_prompts_that_cannot_be(session: Session, prompt: Sequence[int], words: str) -> None:
    made = engine(session, tokens=48)
    with pytest.raises(InputError, match=words):
        made.generate(prompt, GREEDY)
    assert ids(made, (1, 2)) == wanted(session, (1, 2), 12)


def test_draws_are_the_same_for_a_seed(session: Session) -> None:
    sampling = Sampling(max_tokens=20, temperature=1.5, top_p=0.95, seed=7, logprobs=3)
    made, prompt = engine(session), tokens_of(5, 6)
    with made.generate(prompt, sampling) as stream:
        first = list(stream)
    with made.generate(prompt, sampling) as stream:
        again = list(stream)
    assert [t.id for t in first] == [t.id for t in again]
    assert len({t.id for t in first}) > 3
    logits = session.run({"tokens": np.array([prompt], np.int64)})["logits"][0, -1]
    probabilities = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    assert first[0].logprob == pytest.approx(probabilities[first[0].id], abs=1e-3)
    assert [i for i, _ in first[0].top] == np.argsort(-probabilities)[:3].tolist()


def test_bias_penalties_and_masks(session: Session) -> None:
    made, prompt = engine(session), tokens_of(6, 6)
    liked = Sampling(max_tokens=5, temperature=0.0, logit_bias={9: 100.0})
    assert ids(made, prompt, liked) == [9] * 5
    once = Sampling(max_tokens=8, temperature=0.0, presence_penalty=1000.0)
    assert len(set(ids(made, prompt, once))) == 8
    never = Sampling(max_tokens=8, temperature=0.0, repetition_penalty=1e-6)
    assert set(ids(made, prompt, never)) <= {*prompt}  # positive logits of the prompt's grow
    assert ids(made, prompt) == wanted(session, prompt, 12)

    class Odd:
        def __init__(self) -> None:
            self.accepted: list[int] = []

        def bits(self) -> np.ndarray:
            return np.full(2, 0xAAAAAAAA, np.uint32)

        def accept(self, token: int) -> None:
            self.accepted.append(token)

    mask = Odd()
    with made.generate(prompt, GREEDY, mask) as stream:
        found = [token.id for token in stream]
    assert found == mask.accepted and all(token % 2 for token in found)


@pytest.mark.parametrize("where", ("bits", "accept"))
def test_a_mask_that_fails_fails_its_own_text_only(session: Session, where: str) -> None:
    class Failing:
        def bits(self) -> np.ndarray:
            if where == "bits":
                raise ValueError("no such grammar")
            return np.full(2, 0xFFFFFFFF, np.uint32)

        def accept(self, token: int) -> None:
            raise ValueError("no such grammar")

    made, prompts = engine(session), (tokens_of(1, 5), tokens_of(2, 7))
    good, bad = made.generate(prompts[0], GREEDY), made.generate(prompts[1], GREEDY, Failing())
    first = next(good).id
    with pytest.raises(ValueError, match="no such grammar"):
        list(bad)
    assert [first, *(token.id for token in good)] == wanted(session, prompts[0], 12)
    bad.close()
    good.close()
    assert made.pool.available == made.pool.count


def test_a_failure_reaches_all_and_leaves_the_engine_usable(session: Session) -> None:
    made = engine(session)
    one, two = (made.generate(tokens_of(k, 5), GREEDY) for k in (1, 2))
    next(one)
    next(two)
    run, made._run = made._run, lambda *_, **__: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        for _ in one:
            pass
    with pytest.raises(ZeroDivisionError):
        for _ in two:
            pass
    made._run = run  # type: ignore[method-assign]
    assert ids(made, (1, 2, 3)) == wanted(session, (1, 2, 3), 12)
    assert made.pool.available == made.pool.count


def test_pages() -> None:
    pool = PagePool(3, 2)
    a, b = pool.take(), pool.take()
    pool.keep(a, text_digest(START, (5, 6)))
    pool.keep(b, text_digest(text_digest(START, (5, 6)), (7, 8)))
    pool.release([a, b])
    assert pool.available == 3
    assert pool.find((5, 6, 7, 8, 9))[0] == [a, b]
    pool.take()
    with pytest.raises(CacheFullError, match="all 3 pages of 2 tokens"):
        pool.take()
    pool.release([a, b])
    taken = pool.take()  # the end of a text is forgotten before its beginning
    assert taken == b
    assert pool.find((5, 6, 7, 8))[0] == [a]


def test_numbers_of_pages_come_in_few_sizes() -> None:
    sizes = [bucket(n, 999) for n in range(1, 600)]
    assert all(n <= found <= 1.25 * n + 1 for n, found in enumerate(sizes, 1))
    assert len(set(sizes)) < 40
    assert bucket(63, 63) == 63  # a context of 1000 tokens has no 64th page


@pytest.fixture(scope="module")
def windowed() -> Iterator[Session]:
    """Both layers see a window."""
    module = only(tiny(context=1024, windows=(9, 20)), "main", "step", "greedy")
    with edgerelax.compile(module, target="cpu", variants=("cpu",)).session("cpu") as opened:
        yield opened


def test_pages_that_no_token_sees_are_given_back(windowed: Session) -> None:
    assert language(windowed).window == 20
    prompt, held = tokens_of(3, 40), []
    made = engine(windowed, tokens=256)
    with made.generate(prompt, Sampling(max_tokens=60, temperature=0.0)) as stream:
        found = []
        for token in stream:
            found.append(token.id)
            held.append(made.load.pages_used)
    assert found == wanted(windowed, prompt, 60)
    assert max(held) == 3 and min(held) == 2  # of seven that the text has
    assert made.pool.available == made.pool.count


def test_a_windowed_text_may_be_longer_than_the_cache(windowed: Session) -> None:
    """It needs room for the window, a chunk of the prompt and two pages."""
    needed, prompt = 20 + CHUNK + 2 * PAGE, tokens_of(4, 700)
    assert engine(windowed, tokens=needed - PAGE).context < needed
    made = engine(windowed, tokens=needed, texts=1)
    assert made.context == 1024
    assert ids(made, prompt) == wanted(windowed, prompt, 12)
