"""The engine over small models that see images: greedy texts are those of transformers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import edgerelax
from edgerelax.api import Executable
from edgerelax.chat.contents import Contents
from edgerelax.chat.conversation import Conversation
from edgerelax.chat.engine import Picture, Sampling
from edgerelax.chat.load import LoadedChat
from edgerelax.chat.openai import ChatRequest, RequestError, convert
from edgerelax.chat.paged import PagedEngine
from edgerelax.chat.prepare import messages_of
from edgerelax.chat.work import Work
from edgerelax.frontends.hf import load
from edgerelax.frontends.language.cache import PAGE
from edgerelax.ir.diagnostics import InputError
from tests.chat.test_images import theirs
from tests.frontends.language.seeing_cases import CASES, Case, Reference, reference

COUNT, TOKENS = 6, 544


@dataclass
class Model:
    """An artifact that sees, and the model that it was made of."""

    artifact: Executable
    chat: LoadedChat
    case: Case
    reference: Reference

    @property
    def engine(self) -> PagedEngine:
        assert self.chat.paged is not None
        return self.chat.paged

    def prompt(self, *parts: Any) -> tuple[list[int], list[Picture]]:
        """Tokens and pictures of a turn, of texts and images."""
        content = [
            {"type": "text", "text": part} if isinstance(part, str)
            else {"type": "image", "image": part}
            for part in parts
        ]  # fmt: skip
        asked = convert({"messages": [{"role": "user", "content": content}]}, ChatRequest)
        contents = Contents(self.chat.text.template, self.chat.album)
        text = self.chat.text.template.render(messages_of(asked, contents.written))
        return contents.prompt(text, self.chat.text.tokenizer)

    def stream(self, *parts: Any, count: int = COUNT) -> Any:
        prompt, pictures = self.prompt(*parts)
        return self.engine.generate(prompt, Sampling(count, temperature=0.0), None, pictures)

    def ids(self, *parts: Any, count: int = COUNT) -> list[int]:
        with self.stream(*parts, count=count) as stream:
            return [token.id for token in stream]

    def is_greedy(self, ids: Sequence[int], *parts: Any) -> bool:
        """Whether transformers finds each of these likeliest, with its own preprocessing."""
        import torch

        images = [part for part in parts if isinstance(part, Image.Image)]
        tokens, _ = self.prompt(*parts)
        given: dict[str, Any] = {}
        if images:
            listed = images if self.case.kind == "llava" else [images]
            given = {**theirs(self.case.processor)(listed, return_tensors="pt")}
        with torch.no_grad():
            logits = self.reference.model(torch.tensor([[*tokens, *ids[:-1]]]), **given).logits
        return logits[0, len(tokens) - 1 :].argmax(-1).tolist() == list(ids)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with made("smolvlm", tmp_path_factory.mktemp("smolvlm")) as found:
        yield found


@contextmanager
def made(name: str, folder: Path, variants: tuple[str, ...] = ("cpu",)) -> Iterator[Model]:
    case = next(case for case in CASES if case.name == name)
    known = reference(case, folder)
    compiled = edgerelax.compile(load(folder), variants=variants)
    with LoadedChat(compiled.session("cpu"), name, cache_tokens=TOKENS, texts=3) as chat:
        yield Model(compiled, chat, case, known)


def image(seed: int, width: int = 40, height: int = 25) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def check_greedy(model: Model) -> None:
    a, b = image(0), image(1, 9, 31)
    for parts in (("Hi ", a, " what?"), (b,), (a, "and", b, "?"), (b, a), ("no image",)):
        assert model.is_greedy(model.ids(*parts), *parts)


def test_greedy_texts_are_those_of_transformers(model: Model) -> None:
    check_greedy(model)


def test_greedy_texts_of_llava_are_those_of_transformers(tmp_path: Path) -> None:
    with made("llava", tmp_path) as model:
        check_greedy(model)


def test_a_turn_of_a_conversation_may_have_images(model: Model, tmp_path: Path) -> None:
    image(9).save(tmp_path / "image.png")
    how = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True}
    talk = Conversation(model.chat, settings=how)
    said = list(talk.ask("what?", Work(), [tmp_path / "image.png"]))
    content = [{"type": "image", "image": image(9)}, {"type": "text", "text": "what?"}]
    asked = convert({**how, "messages": [{"role": "user", "content": content}]}, ChatRequest)
    assert said and "".join(said) == model.chat.chat(asked).choices[0].message.content
    with pytest.raises(RequestError, match="cannot be read"):
        list(talk.ask("what?", Work(), [tmp_path / "nowhere.png"]))
    assert len(talk.turns) == 2 and list(talk.ask("and now?", Work()))  # its image is still there


def test_texts_with_and_without_images_go_on_at_once(model: Model) -> None:
    asked = [("a", image(2), "b"), ("only text",), (image(3), "c")]
    streams = [model.stream(*parts) for parts in asked]
    found = [[next(stream).id for stream in streams] for _ in range(COUNT)]
    for ids, parts in zip(zip(*found, strict=True), asked, strict=True):
        assert model.is_greedy(ids, *parts)


def test_pages_of_another_image_are_not_taken(model: Model) -> None:
    """Two prompts whose tokens are the same, pixels not."""
    one, other = ("x" * 20, image(4), "y" * 20), ("x" * 20, image(5), "y" * 20)
    tokens, pictures = model.prompt(*one)
    assert tokens == model.prompt(*other)[0]
    first, before = model.ids(*one), model.engine.load.reused
    assert model.is_greedy(model.ids(*other), *other)
    assert model.engine.load.reused - before == pictures[0].places.min() // PAGE * PAGE > 0
    before = model.engine.load.reused
    assert model.ids(*one) == first and model.is_greedy(first, *one)
    assert model.engine.load.reused - before == (len(tokens) - 1) // PAGE * PAGE


def test_a_text_that_gave_way_sees_its_images_again(model: Model) -> None:
    """Together they need more pages than there are."""
    asked = [(f"{k}" * 110, image(6 + k), "?" * 20) for k in range(3)]
    streams = [model.stream(*parts, count=40) for parts in asked]
    found = [[next(stream).id for stream in streams] for _ in range(40)]
    assert sum(len(model.prompt(*parts)[0]) + 40 for parts in asked) > TOKENS
    for ids, parts in zip(zip(*found, strict=True), asked, strict=True):
        assert model.is_greedy(ids, *parts)


def test_many_tiles_take_turns_in_few_places(model: Model) -> None:
    parts = tuple(image(20 + k, 48, 48) for k in range(7))
    eyes, (_, pictures) = model.engine._eyes, model.prompt(*parts)
    assert eyes is not None
    assert sum(eyes.sizes.values()) < sum(picture.places.size for picture in pictures)
    assert model.is_greedy(model.ids(*parts), *parts)


def test_what_does_not_fit_is_refused_and_the_chat_goes_on(model: Model) -> None:
    parts = [{"type": "image", "image": image(k)} for k in range(20)]
    asked = convert({"messages": [{"role": "user", "content": parts}]}, ChatRequest)
    with pytest.raises(RequestError, match=f"{TOKENS} in all") as caught:
        model.chat.chat(asked)
    assert caught.value.code == "context_length_exceeded"
    tile = np.zeros((1, 5, 5, 3), np.uint8)
    broken = Picture(tile, np.array([[1] * 4], np.int32))
    with (
        pytest.raises(InputError, match="pixels"),
        model.engine.generate([1] * 8, Sampling(2), None, [broken]) as stream,
    ):
        next(stream)
    assert model.is_greedy(model.ids("a", image(0)), "a", image(0))
