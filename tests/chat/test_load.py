"""Artifacts as chats: what is there, what is not, and answers that others end."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import edgerelax
from edgerelax.artifact.manifest import MANIFEST, encode
from edgerelax.artifact.store import Artifact
from edgerelax.chat.load import LoadedChat, load_chat
from edgerelax.chat.openai import ChatRequest, CompletionRequest, EmbeddingRequest, RequestError
from edgerelax.chat.openai import convert as request
from edgerelax.chat.work import CancelledError, Work
from edgerelax.frontends.language.config import Config, Plan
from edgerelax.frontends.language.context import Attend
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.encoder import embedding_module
from edgerelax.ir.diagnostics import InputError
from tests.chat import fakes
from tests.chat.holding import held
from tests.chat.test_paged import tokens_of
from tests.frontends.language.test_cache import ROPE
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def chat(small_chat: Path) -> Iterator[LoadedChat]:
    with edgerelax.load_chat(small_chat, "cpu", cache_tokens=512, texts=2) as loaded:
        yield loaded


def test_a_folder_answers(chat: LoadedChat) -> None:
    asked = request(fakes.body(max_tokens=5, temperature=0, ignore_eos=True), ChatRequest)
    answer = chat.chat(asked)
    assert answer.model == chat.name == "small"
    assert answer.usage.completion_tokens == 5
    assert chat.chat(asked).choices == answer.choices


def test_what_a_second_turn_finds(chat: LoadedChat) -> None:
    assert chat.paged is not None
    prompt = [k % 90 for k in tokens_of(9, 100)]
    asked = request({"prompt": prompt, "max_tokens": 2}, CompletionRequest)
    before = chat.paged.load.reused
    chat.complete(asked)
    assert chat.paged.load.reused == before
    chat.complete(asked)
    assert chat.paged.load.reused == before + 96
    assert chat.paged.load.pages_used == 0


def test_an_answer_that_another_thread_ends(chat: LoadedChat) -> None:
    """Even one that waits behind others, and does not come to a token."""
    assert chat.paged is not None
    long = {"prompt": "hello", "max_tokens": 200, "ignore_eos": True}
    asked = request(long, CompletionRequest)
    begun = [chat.stream_completion(asked) for _ in range(2)]
    for stream in begun:
        next(stream)
    work, ended = Work(), threading.Event()

    def read() -> None:
        with pytest.raises(CancelledError):
            chat.complete(asked, work)
        ended.set()

    reader = threading.Thread(target=read)
    engine = chat.paged
    with held(engine):
        reader.start()
        wait_until(lambda: engine.load.waiting > 0, "nobody waits")
        work.cancel()
    reader.join(30)
    assert ended.is_set() and work.generated == 0
    for stream in begun:
        stream.close()
    load = chat.paged.load
    assert (load.running, load.waiting, load.pages_used) == (0, 0, 0)


def test_an_answer_ended_before_it_began(chat: LoadedChat) -> None:
    work = Work()
    work.cancel()
    with pytest.raises(CancelledError):
        chat.chat(request(fakes.body(), ChatRequest), work)
    assert chat.paged is not None and chat.paged.load.waiting == 0


@pytest.mark.parametrize("tokenizer", (True, False))
def test_a_model_of_no_language(tmp_path: Path, small_chat: Path, tokenizer: bool) -> None:
    folder = shutil.copytree(small_chat, tmp_path / "changed")
    manifest = Artifact.open(folder).manifest
    assert manifest.language is not None
    language = None if tokenizer else replace(manifest.language, tokenizer=None)
    (folder / MANIFEST).write_bytes(encode(replace(manifest, language=language)))
    told = "is no language model" if tokenizer else "has no tokenizer"
    with pytest.raises(InputError, match=told):
        load_chat(folder, "cpu")


def test_an_unknown_device(small_chat: Path) -> None:
    with pytest.raises(InputError, match="unknown device"):
        load_chat(small_chat, "tpu")


def test_a_model_that_gives_vectors_only(tmp_path: Path) -> None:
    count = len(fakes.tokenizer())
    config = Config(
        width=24, heads=4, groups=2, head_width=8, hidden=40, vocabulary=count, context=64,
        plan=(Plan(Attend(), ROPE),), tied=True,
    )  # fmt: skip
    model, rng = GeneralDecoder(config), np.random.default_rng(0)
    model.load({n: rng.standard_normal(p.shape).astype(np.float32) for n, p in model.parameters()})
    module = embedding_module(
        model, config, "mean", False, text=fakes.assets("{{ raise_exception('no') }}")
    )
    edgerelax.compile(module, target="cpu", variants=("cpu",)).save(tmp_path / "vectors")
    with load_chat(tmp_path / "vectors", "cpu") as chat:
        texts = ["hello", "a much longer text", "hello"] * 7
        found = chat.embed(request({"input": texts}, EmbeddingRequest))
        vectors = np.array([one.embedding for one in found.data])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(vectors[0], vectors[2], atol=1e-6)
        alone = chat.embed(request({"input": texts[1]}, EmbeddingRequest)).data[0].embedding
        np.testing.assert_allclose(vectors[1], alone, atol=1e-5)
        with pytest.raises(RequestError, match=r"(?s)gives embeddings.*/v1/embeddings") as failure:
            chat.chat(request(fakes.body(), ChatRequest))
        assert failure.value.param == "model"
        with pytest.raises(RequestError, match="the model takes 1 to 64"):
            chat.embed(request({"input": "x" * 65}, EmbeddingRequest))
