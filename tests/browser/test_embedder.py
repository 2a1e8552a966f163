"""Vectors of texts by edgerelax.js are those of Python."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax
from edgerelax.chat.openai import EmbeddingRequest
from edgerelax.frontends.language.config import Config, Plan
from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.encoder import embedding_module
from edgerelax.frontends.language.rope import Rope
from tests.browser.harness import Browser, error_of
from tests.browser.runtime_page import BACKENDS, runtime_page
from tests.chat import fakes

WIDTH, CONTEXT = 24, 64
TEXTS = ["hello", "a much longer text", "Grüße 👋", "x", "hello"] * 4  # more than one batch


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = Config(
        width=WIDTH, heads=4, groups=2, head_width=8, hidden=40,
        vocabulary=len(fakes.tokenizer()), context=CONTEXT,
        plan=(Plan(Attend(), Rope((1.0, 0.3, 0.1, 0.02))),), tied=True,
    )  # fmt: skip
    model, rng = GeneralDecoder(config), np.random.default_rng(0)
    weights = {n: rng.standard_normal(p.shape) * 0.3 for n, p in model.parameters()}
    model.load({name: value.astype(np.float32) for name, value in weights.items()})
    module = embedding_module(model, config, "mean", False, text=fakes.assets())
    folder = tmp_path_factory.mktemp("embedder") / "vectors"
    edgerelax.compile(module, variants=("cpu", "software")).save(folder)
    return folder


@pytest.fixture(scope="module")
def expected(artifact: Path) -> np.ndarray:
    with edgerelax.load_chat(artifact, "cpu") as chat:
        found = chat.embed(EmbeddingRequest(input=TEXTS)).data
    return np.array([one.embedding for one in found], np.float32)


@pytest.fixture(scope="module", params=BACKENDS)
def page(browser: Browser, artifact: Path, request: pytest.FixtureRequest) -> Iterator[Browser]:
    with runtime_page(browser) as opened:
        given = {"url": opened.publish(artifact, "embedder"), "backend": request.param}
        opened.script(
            "const { url, backend } = argument;"
            "models.embedder = await edgerelax.loadEmbedder(url, { backend });",
            given,
        )
        yield opened
        assert opened.script("return gpu.errors") == []
        opened.script("await models.embedder.dispose()")
        assert opened.script("return gpu.alive.size") == 0


def create(page: Browser, **request: Any) -> dict[str, Any]:
    body = "return models.embedder.embeddings.create(argument)"
    answer: dict[str, Any] = page.script(body, request)
    return answer


def test_vectors(page: Browser, expected: np.ndarray) -> None:
    answer = create(page, input=TEXTS)
    vectors = np.array([one["embedding"] for one in answer["data"]])
    assert [one["index"] for one in answer["data"]] == list(range(len(TEXTS)))
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    count = sum(len(fakes.tokenizer().encode(text)) for text in TEXTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    assert answer["model"] == "embedder"


def test_one_text_as_tokens_in_base64_and_shortened(page: Browser, expected: np.ndarray) -> None:
    tokens = fakes.tokenizer().encode(TEXTS[1])
    (one,) = create(page, input=tokens, encoding_format="base64")["data"]
    vector = np.frombuffer(base64.b64decode(one["embedding"]), np.float32)
    np.testing.assert_allclose(vector, expected[1], atol=1e-5)
    (one,) = create(page, input=TEXTS[1], dimensions=5)["data"]
    cut = expected[1, :5] / np.linalg.norm(expected[1, :5])
    np.testing.assert_allclose(one["embedding"], cut, atol=1e-5)


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        ({}, "input", "input is missing"),
        ({"input": []}, "input", "input is empty"),
        ({"input": ["a", 1]}, "input", "input"),
        ({"input": ""}, "input", "input[0]: 0 tokens; the model takes 1 to 64"),
        ({"input": ["a", "x" * 65]}, "context", "input[1]: 65 tokens; the model takes 1 to 64"),
        ({"input": [99999]}, "input", "token 99999 of a vocabulary"),
        ({"input": "a", "dimensions": 0}, "input", "dimensions is no count above 0"),
        ({"input": "a", "dimensions": 25}, "input", "dimensions is 25, the model gives 24"),
        ({"input": "a", "encoding": "x"}, "input", "encoding is no field here"),
    ],
)
def test_requests_that_are_none(
    page: Browser, request_: dict[str, Any], code: str, words: str
) -> None:
    found = error_of(page, "await models.embedder.embeddings.create(argument)", request_)
    assert found["code"] == code and words in found["message"]


def test_a_model_that_gives_vectors_only_is_no_chat(page: Browser) -> None:
    url = f"{page.address}/embedder"
    found = error_of(page, "await edgerelax.loadChat(argument)", url)
    assert found["code"] == "format" and "use loadEmbedder" in found["message"]


def test_a_lost_device_is_regained(page: Browser, expected: np.ndarray) -> None:
    if page.script("return models.embedder.backend") == "wasm":
        pytest.skip("there is no device")
    page.script("gpu.devices[0].destroy()")
    found = error_of(page, "await models.embedder.embed(['hello'])")
    assert found["code"] == "lost"
    vector = page.script("return Array.from((await models.embedder.embed(['hello']))[0])")
    np.testing.assert_allclose(vector, expected[0], atol=1e-5)
