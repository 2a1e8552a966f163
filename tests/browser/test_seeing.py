"""Chats of edgerelax.js about images say what Python's say."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from edgerelax.chat.openai import ChatRequest, convert
from edgerelax.frontends.language.cache import PAGE
from tests.browser.harness import Browser
from tests.browser.runtime_page import runtime_page
from tests.chat.test_seeing import TOKENS, Model, image

OPEN = f"""
models.chat = await edgerelax.loadChat(argument, {{ backend: 'wasm', cacheTokens: {TOKENS} }});
"""
ASK = """
const forms = {
  blob: async (url) => (await fetch(url)).blob(),
  bitmap: async (url) => createImageBitmap(await forms.blob(url)),
  element: async (url) => {
    const found = new Image();
    found.src = url;
    await found.decode();
    return found;
  },
  canvas: async (url) => {
    const found = document.createElement('canvas'), bitmap = await forms.bitmap(url);
    [found.width, found.height] = [bitmap.width, bitmap.height];
    found.getContext('2d').drawImage(bitmap, 0, 0);
    return found;
  },
  data: async (url) => {
    const { width, height } = await forms.bitmap(url);
    return (await forms.canvas(url)).getContext('2d').getImageData(0, 0, width, height);
  },
};
const { form, content, ...how } = argument;
const parts = content.map(async (part) => form && part.type === 'image_url'
  ? { type: 'image', image: await forms[form](part.image_url.url) } : part);
const messages = [{ role: 'user', content: await Promise.all(parts) }];
try {
  return await models.chat.chat.completions.create({ messages, ...how });
} catch ({ code, message }) {
  return { code, message };
}
"""
HOW = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": True}


def content_of(*parts: str | Image.Image) -> list[dict[str, Any]]:
    def one(part: str | Image.Image) -> dict[str, Any]:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        data = io.BytesIO()
        part.save(data, "PNG")
        url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
        return {"type": "image_url", "image_url": {"url": url}}

    return list(map(one, parts))


@pytest.fixture(scope="module")
def model(seeing: tuple[Model, Path]) -> Model:
    return seeing[0]


@pytest.fixture(scope="module")
def page(browser: Browser, seeing: tuple[Model, Path]) -> Iterator[Browser]:
    with runtime_page(browser) as opened:
        opened.script(OPEN, opened.publish(seeing[1], "seeing"))
        yield opened
        opened.script("await models.chat.dispose()")


def ask(page: Browser, *parts: str | Image.Image, **how: Any) -> dict[str, Any]:
    answer: dict[str, Any] = page.script(ASK, {"content": content_of(*parts), **HOW, **how})
    return answer


def is_special(token: list[int]) -> bool:
    return len(token) > 1 and token[0] == ord("<")


def check(answer: dict[str, Any], model: Model, *parts: str | Image.Image) -> None:
    """It has the tokens that Python draws, as likely, after as long a prompt."""
    messages = [{"role": "user", "content": content_of(*parts)}]
    wanted = model.chat.chat(convert({"messages": messages, **HOW}, ChatRequest))
    assert "choices" in answer, answer
    assert answer["usage"]["prompt_tokens"] == wanted.usage.prompt_tokens
    logged = wanted.choices[0].logprobs
    assert logged is not None
    found = answer["choices"][0]["logprobs"]["content"]
    assert len(found) == HOW["max_tokens"] >= len(logged.content) > 0
    assert all(is_special(one["bytes"]) for one in found[len(logged.content) :])
    found = found[: len(logged.content)]  # Python leaves special ones at the end out
    assert [one["bytes"] for one in found] == [one.bytes for one in logged.content]
    likely = [one.logprob for one in logged.content]
    assert [one["logprob"] for one in found] == pytest.approx(likely, abs=1e-4)


def test_answers_are_those_of_python(page: Browser, model: Model) -> None:
    a, b = image(0), image(1, 9, 31)
    for parts in (("Hi ", a, " what?"), (b,), (a, "and", b, "?"), (b, a), ("no image",)):
        check(ask(page, *parts), model, *parts)


def test_images_may_come_in_every_form(page: Browser, model: Model) -> None:
    """They are the same image: its pages of the cache are found again."""
    parts = ("x" * 20, image(3), "what?")
    whole = ask(page, *parts)["usage"]["prompt_tokens"]
    for form in ("blob", "bitmap", "element", "canvas", "data"):
        answer = ask(page, *parts, form=form)
        check(answer, model, *parts)
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (whole - 1) // PAGE * PAGE


def test_pages_of_another_image_are_not_taken(page: Browser, model: Model) -> None:
    one, other = ("z" * 20, image(4), "y" * 20), ("z" * 20, image(5), "y" * 20)
    check(ask(page, *one), model, *one)
    answer = ask(page, *other)
    check(answer, model, *other)
    first = model.prompt(*other)[1][0].places.min()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == first // PAGE * PAGE > 0


def test_many_tiles_take_turns_in_few_places(page: Browser, model: Model) -> None:
    parts = tuple(image(20 + k, 48, 48) for k in range(7))
    check(ask(page, *parts), model, *parts)


def test_what_is_no_image_is_refused_and_the_chat_goes_on(page: Browser, model: Model) -> None:
    url = "data:image/png;base64,aGVsbG8="
    broken = {"type": "image_url", "image_url": {"url": url}}
    answer = page.script(ASK, {"content": [broken], **HOW})
    assert answer["code"] == "input"
    assert "messages[0].content[0].image_url.url: the data is no image" in answer["message"]
    check(ask(page, image(6)), model, image(6))
