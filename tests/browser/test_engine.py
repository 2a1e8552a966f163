"""The engine of edgerelax.js over a small language model generates what Python's does."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax
from edgerelax.chat.engine import Sampling, Token
from edgerelax.chat.paged import PagedEngine
from edgerelax.frontends.language.config import Config, Plan
from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.functions import language_module
from edgerelax.frontends.language.rope import Rope
from edgerelax.frontends.language.text import Text
from edgerelax.ir.graph import Module
from tests.browser.harness import LIBRARY, Browser
from tests.browser.language_page import without
from tests.browser.runtime_page import BACKENDS, runtime_page

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUV"
END = len(LETTERS)
VOCABULARY = END + 1
CACHE = 128
LENGTHS = (1, 15, 17, 100)

SCRIPT = """
globalThis.asked = async (engine, { prompt, count = 12, stop, abortAt, ...given }) => {
  const { inFlight, logprobs, odd, broken, bias = [], ...sampling } = given;
  const controller = new AbortController();
  const seen = [], tokens = [];
  let reused;
  const mask = (odd || broken) && (async (previous) => {
    if (broken) throw new Error('a broken mask');
    seen.push(previous ?? null);
    return new Int32Array(2).fill(0xAAAAAAAA | 0);
  });
  const stream = engine.generate(prompt, {
    temperature: 0, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1, presencePenalty: 0,
    frequencyPenalty: 0, seed: 1, ...sampling, logitBias: new Map(bias),
  }, {
    limit: count, signal: controller.signal, onPrompt: (held) => (reused = held),
    ...(inFlight && { inFlight }), ...(logprobs !== undefined && { logprobs }),
    ...(mask && { mask }),
  });
  try {
    for await (const token of stream) {
      tokens.push(token);
      if (tokens.length === abortAt) controller.abort();
      if (tokens.length === stop) break;
    }
    return { tokens, ids: tokens.map((token) => token.id), reused, seen };
  } catch (error) {
    return { code: error.code, message: error.message, ids: tokens.map((token) => token.id) };
  }
};
"""

NODE = f"""
import {{ readFile }} from 'node:fs/promises';
const [library, folder, questions] = process.argv.slice(2);
const {{ loadChat, loadEngine }} = await import(library);
const fetch = async (url) => new Response(await readFile(new URL(String(url).split('?')[0])));
{SCRIPT}
const given = JSON.parse(questions);
const engine = await loadEngine(folder, {{ fetch, cacheTokens: {CACHE} }});
const answers = [];
for (const question of given.asked) answers.push(await asked(engine, question));
const chat = await loadChat(folder, {{ fetch, cacheTokens: {CACHE} }});
const {{ choices }} = await chat.completions.create(
  {{ prompt: given.prompt, temperature: 0, max_tokens: 12 }});
const stop = new AbortController();
setImmediate(() => stop.abort()); // others have their turn before the text is whole
const aborted = await chat.completions.create(
  {{ prompt: given.prompt, temperature: 0, max_tokens: 100, signal: stop.signal }},
).then(() => 'ended', (error) => error.code);
await chat.dispose();
console.log(JSON.stringify({{ answers, text: choices[0].text, aborted }}));
"""


def small() -> Module:
    """One layer; what the engine does not call is left out."""
    config = Config(
        width=24, heads=4, groups=2, head_width=8, hidden=40, vocabulary=VOCABULARY, context=256,
        plan=(Plan(Attend(), Rope((1.0, 0.3, 0.1, 0.02))),), tied=True,
    )  # fmt: skip
    model = GeneralDecoder(config)
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(p.shape) * 0.3 for name, p in model.parameters()}
    model.load({name: value.astype(np.float32) for name, value in weights.items()})
    module = language_module(model, config, text=Text(tokenizer(), eos=(END,)))
    return without(module, "main", "read")


def tokenizer() -> bytes:
    """A token for each letter, and one that ends a text."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    end = {"id": END, "content": "<end>", "special": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    vocabulary = {letter: k for k, letter in enumerate(LETTERS)}
    return json.dumps(
        {
            "version": "1.0", "added_tokens": [{**end, **flags}], "normalizer": None,
            "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        }
    ).encode()  # fmt: skip


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(100 * seed + length).integers(0, END, length).tolist()


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine") / "model"
    edgerelax.compile(small(), variants=("cpu", "software")).save(folder)
    return folder


@pytest.fixture(scope="module")
def python(artifact: Path) -> Iterator[PagedEngine]:
    with edgerelax.load(artifact, "cpu") as session:
        language = session.artifact.manifest.language
        assert language is not None
        yield PagedEngine(session, language, CACHE)


@dataclass(frozen=True)
class Engine:
    """That of edgerelax.js in a page."""

    page: Browser
    backend: str

    def ask(self, prompt: Sequence[int], **how: Any) -> dict[str, Any]:
        question = {"prompt": list(prompt), **how}
        answer: dict[str, Any] = self.page.script("return asked(models.engine, argument)", question)
        return answer

    def ids(self, prompt: Sequence[int], **how: Any) -> list[int]:
        found: list[int] = self.ask(prompt, **how)["ids"]
        return found

    def at_once(self, asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        body = "return Promise.all(argument.map((question) => asked(models.engine, question)))"
        answers: list[dict[str, Any]] = self.page.script(body, list(asked))
        return answers


@pytest.fixture(scope="module", params=BACKENDS)
def engine(browser: Browser, artifact: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with runtime_page(browser, SCRIPT) as page:
        given = {"url": page.publish(artifact, "engine"), "backend": request.param}
        page.script(
            "const { url, backend } = argument;"
            f"models.engine = await edgerelax.loadEngine(url, {{ backend, cacheTokens: {CACHE} }})",
            given,
        )
        yield Engine(page, request.param)
        assert page.script("return gpu.errors") == []
        page.script("await models.engine.dispose()")
        assert page.script("return gpu.alive.size") == 0


def told(made: PagedEngine, prompt: Sequence[int], **how: Any) -> list[Token]:
    sampling = Sampling(**{"max_tokens": 12, "temperature": 0.0, **how})
    with made.generate(prompt, sampling) as stream:
        return list(stream)


def wanted(made: PagedEngine, prompt: Sequence[int], count: int = 12, **how: Any) -> list[int]:
    return [token.id for token in told(made, prompt, max_tokens=count, **how)]


@pytest.mark.parametrize("in_flight", (1, 2, 4))
def test_greedy_tokens_are_those_of_python(
    engine: Engine, python: PagedEngine, in_flight: int
) -> None:
    for length in LENGTHS:
        prompt = prompt_of(length, in_flight)
        found = engine.ids(prompt, count=20, inFlight=in_flight)
        assert found == wanted(python, prompt, 20), length


def test_a_turn_finds_the_pages_of_the_turn_before(engine: Engine, python: PagedEngine) -> None:
    prompt = prompt_of(40, 5)
    first = engine.ask(prompt)
    assert first["reused"] == 0
    longer = [*prompt, *first["ids"], 1, 2, 3]
    second = engine.ask(longer)
    assert second["reused"] == 48 and second["ids"] == wanted(python, longer)
    assert engine.ask(longer[:48])["reused"] == 32  # one token at least is computed anew
    other = [*prompt[:20], 7, *prompt[21:]]
    third = engine.ask(other)
    assert third["reused"] == 16 and third["ids"] == wanted(python, other)


def test_pages_of_old_texts_are_taken(engine: Engine, python: PagedEngine) -> None:
    for seed in range(6):
        prompt = prompt_of(70, seed)
        assert engine.ids(prompt, count=20) == wanted(python, prompt, 20)


def test_draws_are_the_same_for_a_seed(engine: Engine, python: PagedEngine) -> None:
    prompt, drawn = prompt_of(6), {"temperature": 1.5, "topP": 0.95, "count": 20}
    first = engine.ask(prompt, **drawn, seed=7, logprobs=3)
    for in_flight in (1, 2, 4):
        assert engine.ids(prompt, **drawn, seed=7, inFlight=in_flight) == first["ids"]
    assert engine.ids(prompt, **drawn, seed=8) != first["ids"]
    expected = told(python, prompt, max_tokens=20, temperature=1.5, top_p=0.95, seed=7, logprobs=3)
    assert [token["id"] for token in first["tokens"]] == [token.id for token in expected]
    for found, token in zip(first["tokens"], expected, strict=True):
        assert found["logprob"] == pytest.approx(token.logprob, abs=1e-4)
        assert [(t["id"], t["logprob"]) for t in found["top"]] == [
            (k, pytest.approx(logprob, abs=1e-4)) for k, logprob in token.top
        ]


def test_bias_and_penalties(engine: Engine, python: PagedEngine) -> None:
    prompt = prompt_of(9)
    assert engine.ids(prompt, count=5, bias=[[9, 100]]) == [9] * 5
    assert len(set(engine.ids(prompt, count=12, presencePenalty=1000))) == 12
    for js, py in (("repetitionPenalty", "repetition_penalty"), ("frequencyPenalty",) * 2):
        name = "frequency_penalty" if js == py else py
        found = engine.ids(prompt, count=20, inFlight=4, **{js: 1.7})
        assert found == wanted(python, prompt, 20, **{name: 1.7})
    assert engine.ids(prompt) == wanted(python, prompt)


def test_a_mask_is_told_each_token_before_the_next(engine: Engine, python: PagedEngine) -> None:
    prompt = prompt_of(8)
    found = engine.ask(prompt, odd=True, inFlight=4)
    assert len(found["ids"]) == 12 and all(token % 2 for token in found["ids"])
    assert found["seen"] == [None, *found["ids"][:-1]]
    assert engine.ids(prompt) == wanted(python, prompt)


@pytest.mark.parametrize("in_flight", (1, 4))
def test_stopped_and_aborted_texts_leave_no_trace(
    engine: Engine, python: PagedEngine, in_flight: int
) -> None:
    prompt = prompt_of(30, 9)
    expected = wanted(python, prompt, 30)
    how = {"count": 30, "inFlight": in_flight}
    assert engine.ids(prompt, stop=3, **how) == expected[:3]
    aborted = engine.ask(prompt, abortAt=4, **how)
    assert (aborted["code"], aborted["ids"]) == ("abort", expected[:4])
    assert engine.ids(prompt, **how) == expected
    longer = [*prompt, *expected[:20]]
    assert engine.ids(longer, **how) == wanted(python, longer, 30)


def test_the_cache_is_an_end(engine: Engine) -> None:
    assert len(engine.ids(prompt_of(120), count=1000)) == CACHE - 120


def test_texts_at_once_are_what_they_are_alone(engine: Engine, python: PagedEngine) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": prompt_of(length, 20 + length), "count": count}
        for length, count in ((1, 12), (3, 20), (30, 5), (17, 9))
    ]
    asked.append({**asked[1], "temperature": 1.5, "seed": 3, "logprobs": 2})
    asked.append({**asked[2], "presencePenalty": 1000, "count": 12})
    asked.append({**asked[0], "odd": True, "count": 8})
    asked.append({**asked[1], "bias": [[9, 100]], "count": 4})
    alone = [engine.ask(**question) for question in asked]
    assert alone[1]["ids"] == wanted(python, asked[1]["prompt"], 20)
    for in_flight in (1, 4):
        together = engine.at_once([{**question, "inFlight": in_flight} for question in asked])
        for found, expected in zip(together, alone, strict=True):
            assert found["ids"] == expected["ids"] and found["seen"] == expected["seen"]


def test_one_of_several_fails_alone(engine: Engine, python: PagedEngine) -> None:
    prompts = [prompt_of(length, 40) for length in (6, 20, 9)]
    how = [{"abortAt": 3}, {}, {"broken": True}]
    asked = [{"prompt": p, "count": 15, **h} for p, h in zip(prompts, how, strict=True)]
    aborted, whole, broken = engine.at_once(asked)
    assert (aborted["code"], len(aborted["ids"])) == ("abort", 3)
    assert whole["ids"] == wanted(python, prompts[1], 15)
    assert (broken["message"], broken["ids"]) == ("a broken mask", [])
    assert engine.ids(prompts[0]) == wanted(python, prompts[0])


def test_more_texts_than_rows_and_pages_lose_nothing(engine: Engine, python: PagedEngine) -> None:
    asked: list[dict[str, Any]] = [
        {"prompt": prompt_of(20 + k, 60), "count": 40, "frequencyPenalty": 0.5 * (k % 2)}
        for k in range(10)
    ]
    found = engine.at_once(asked)
    for question, answer in zip(asked, found, strict=True):
        penalty = question["frequencyPenalty"]
        expected = wanted(python, question["prompt"], 40, frequency_penalty=penalty)
        assert answer["ids"] == expected


@pytest.mark.parametrize(
    "prompt,code,words",
    [
        ([], "input", "the prompt has no tokens"),
        ([1, VOCABULARY], "input", f"token {VOCABULARY} of a vocabulary of {VOCABULARY}"),
        ([1] * CACHE, "context", f"a prompt of {CACHE} tokens; the model's context has 256 and its "
         f"cache room for {CACHE}"),
    ],
)  # fmt: skip
def test_prompts_that_cannot_be(
    engine: Engine, python: PagedEngine, prompt: list[int], code: str, words: str
) -> None:
    found = engine.ask(prompt)
    assert found["code"] == code and words in found["message"]
    assert engine.ids([1, 2]) == wanted(python, [1, 2])


def test_a_cache_that_has_no_room(engine: Engine) -> None:
    if engine.backend == "webgpu":
        pytest.skip("the pipelines come first, and take long here: runtime-js/test/gpu.test.ts")
    found = engine.page.script(
        "const { backend, url } = argument;"
        "try { await edgerelax.loadEngine(url, { backend, cacheTokens: 2 ** 26 }); }"
        "catch (error) { return [error.code, error.message]; }",
        {"backend": engine.backend, "url": f"{engine.page.address}/engine"},
    )
    assert found[0] == "memory"
    assert f"no cache for {2**26} tokens" in found[1] and "cacheTokens" in found[1]


def test_a_lost_device_is_regained(engine: Engine, python: PagedEngine) -> None:
    if engine.backend == "wasm":
        pytest.skip("there is no device")
    prompt = prompt_of(40, 3)
    engine.ids(prompt)
    engine.page.script("gpu.devices[0].destroy()")
    assert engine.ask(prompt)["code"] == "lost"
    again = engine.ask(prompt)
    assert again["reused"] == 0 and again["ids"] == wanted(python, prompt)


def test_in_node(artifact: Path, python: PagedEngine, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    prompts = [prompt_of(length) for length in LENGTHS]
    questions = [{"prompt": p, "inFlight": k} for p in prompts for k in (1, 2, 4)]
    given = json.dumps({"asked": questions, "prompt": prompts[2]})
    script = tmp_path / "engine.mjs"
    script.write_text(NODE)
    command = [node, str(script), LIBRARY.as_uri(), artifact.as_uri(), given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for question, answer in zip(questions, found["answers"], strict=True):
        assert answer["ids"] == wanted(python, question["prompt"]), question
    ids = wanted(python, prompts[2])
    ids = ids[: ids.index(END)] if END in ids else ids
    assert found["text"] == "".join(LETTERS[k] for k in ids)
    assert found["aborted"] == "abort"
