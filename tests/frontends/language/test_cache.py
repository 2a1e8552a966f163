"""Steps over a cache in pages give what whole sequences give, however they come."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

import edgerelax
from edgerelax.frontends.language.cache import PAGE
from edgerelax.frontends.language.config import Config, Plan
from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.functions import language_module
from edgerelax.frontends.language.rope import Rope
from edgerelax.frontends.language.storage import Kind
from edgerelax.frontends.language.text import Text
from edgerelax.hosts.session import Session
from edgerelax.ir.graph import Module

VOCABULARY = 50
OUTSIDE = 1 << 30  # a slot of no cache
ROPE = Rope((1.0, 0.3, 0.1, 0.02))


def tiny(
    vocabulary: int = VOCABULARY,
    context: int = 256,
    text: Text | None = None,
    cache: Kind = "f32",
    windows: tuple[int | None, int] = (None, 9),
) -> Module:
    """Two layers, one of which sees a window only; four heads on two keys and values."""
    first, second = windows
    plan = (Plan(Attend(window=first), ROPE), Plan(Attend(window=second, cap=20.0), ROPE))
    config = Config(
        width=24, heads=4, groups=2, head_width=8, hidden=40, vocabulary=vocabulary,
        context=context, plan=plan, tied=True,
    )  # fmt: skip
    model = GeneralDecoder(config)
    rng = np.random.default_rng(0)
    model.load(
        {
            name: rng.standard_normal(p.shape).astype(np.float32) * 0.3
            for name, p in model.parameters()
        }
    )
    return language_module(model, config, text=text, cache=cache)


def only(module: Module, *names: str) -> Module:
    """A language model's module with fewer functions, which compile sooner."""
    language = module.attrs["language"]
    functions = {role: name for role, name in language["functions"].items() if name in names}
    attrs = {**module.attrs, "language": {**language, "functions": functions}}
    return replace(module, funcs={name: module.funcs[name] for name in names}, attrs=attrs)


@pytest.fixture(scope="module", params=("cpu", "wgpu"))
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    target = "cpu" if request.param == "cpu" else "webgpu"
    executable = edgerelax.compile(tiny(), target=target, verify=True)
    report = executable.report.passes
    assert report["fuse_attention"]["done"]["attention fused"] == 4
    planned = report[f"{'cpu' if target == 'cpu' else 'gpu'}-plan_memory"]["done"]
    assert planned["state updated in place"] == 15  # of them 4 by `shift`
    with executable.session(request.param) as opened:
        yield opened


class Sequences:
    """What a host keeps: for each sequence its pages and its length."""

    def __init__(self, session: Session, pages: Sequence[Sequence[int]]) -> None:
        self.session, self.pages = session, [list(p) for p in pages]
        self.lengths = [0] * len(pages)

    def step(self, *tokens: Sequence[int]) -> np.ndarray:
        """Take new tokens of every sequence, at least one; shorter lists are padded."""
        width, count = max(map(len, tokens)), max(map(len, self.pages))
        given = np.zeros((len(tokens), width), np.int32)
        at, slots = np.zeros_like(given), np.full_like(given, OUTSIDE)
        pages = np.zeros((len(tokens), count), np.int32)
        for k, own in enumerate(tokens):
            places = range(self.lengths[k], self.lengths[k] + len(own))
            given[k, : len(own)], at[k, : len(own)] = own, places
            slots[k, : len(own)] = [self.pages[k][p // PAGE] * PAGE + p % PAGE for p in places]
            pages[k, : len(self.pages[k])] = self.pages[k]
            self.lengths[k] += len(own)
        last = np.array([len(own) - 1 for own in tokens], np.int32)
        rows = np.arange(len(tokens), dtype=np.int32)
        inputs = {"tokens": given, "positions": at, "slots": slots, "pages": pages, "last": last}
        assert self.session.run({**inputs, "rows": rows}, "step") == {}
        return self.session.run({"rows": rows}, "read")["logits"]


def whole(session: Session, tokens: Sequence[int]) -> np.ndarray:
    return session.run({"tokens": np.array([tokens], np.int64)})["logits"][0]


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)


def tokens_of(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


@pytest.mark.parametrize("sizes", ((37,), (1,) * 18, (5, 1, 16, 15), (16, 16, 1)))
def test_chunks(session: Session, sizes: Sequence[int]) -> None:
    """A sequence in pages that do not follow one another, in chunks and token by token."""
    session.allocate({"slots": 6 * PAGE, "rows": 3})
    tokens = tokens_of(1, sum(sizes))
    wanted, host, start = whole(session, tokens), Sequences(session, [[4, 0, 2]]), 0
    for size in sizes:
        found = host.step(tokens[start : start + size])
        start += size
        close(found[0], wanted[start - 1])


def test_several_sequences_in_one_step(session: Session) -> None:
    """Of different lengths, one of them padded."""
    session.allocate({"slots": 8 * PAGE, "rows": 3})
    a, b, c = tokens_of(2, 30), tokens_of(3, 9), tokens_of(4, 20)
    host = Sequences(session, [[1, 5], [3], [7, 0]])
    found = host.step(a[:20], b[:3], c[:17])
    for row, (tokens, end) in zip(found, ((a, 20), (b, 3), (c, 17)), strict=True):
        close(row, whole(session, tokens)[end - 1])
    for k in range(3):
        found = host.step([a[20 + k]], [b[3 + k]], [c[17 + k]])
        for row, (tokens, end) in zip(found, ((a, 21 + k), (b, 4 + k), (c, 18 + k)), strict=True):
            close(row, whole(session, tokens)[end - 1])


def test_a_fork_shares_pages_and_going_back_costs_nothing(session: Session) -> None:
    """Two sequences that begin alike share whole pages; one goes back and takes another turn."""
    session.allocate({"slots": 8 * PAGE, "rows": 3})
    start, one, two = tokens_of(5, PAGE), tokens_of(6, 4), tokens_of(7, 4)
    first = Sequences(session, [[2, 6]])
    first.step(start + one)
    fork = Sequences(session, [[2, 6], [2, 3]])
    fork.lengths = [PAGE + len(one), PAGE]
    found = fork.step([11], two)
    close(found[0], whole(session, [*start, *one, 11])[-1])
    close(found[1], whole(session, start + two)[-1])
    fork.lengths = [PAGE + 1, PAGE + len(two)]  # three tokens of the first are taken back
    found = fork.step([9], [8])
    close(found[0], whole(session, [*start, one[0], 9])[-1])
    close(found[1], whole(session, [*start, *two, 8])[-1])
