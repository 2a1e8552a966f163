"""Images in the chat page, with a small model that sees them in the page's own worker."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from edgerelax.chat.openai import ChatRequest, convert
from tests.browser.harness import Browser
from tests.browser.test_chat_page import ANSWER, give, opened, whole
from tests.browser.test_seeing import content_of
from tests.chat.test_seeing import Model, image

SETTINGS = {"system": "", "temperature": 2, "topP": 1, "maxTokens": 6, "seed": 8}
Turn = list[str | Image.Image] | str


@pytest.fixture(scope="module", params=(1280, 360))
def width(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


@pytest.fixture
def page(
    browser: Browser, chat_address: str, seeing: tuple[Model, Path], width: int
) -> Iterator[Page]:
    """A fresh visit; what the page logs as an error fails the test."""
    browser.publish(seeing[1], "chat/models/seeing")
    context = opened(browser, None, width)
    kept = json.dumps(json.dumps(SETTINGS))
    context.add_init_script(f"localStorage.setItem('edgerelax-chat-settings', {kept})")
    context.add_init_script("navigator.clipboard.writeText = async (x) => { window.copied = x; }")
    visited = context.new_page()
    errors: list[str] = []
    visited.on("pageerror", lambda error: errors.append(str(error)))
    visited.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    visited.goto(f"{chat_address}?model=seeing")
    expect(visited.get_by_role("button", name="Add images")).to_be_visible()
    yield visited
    context.close()
    assert errors == [], errors


def png(picture: Image.Image) -> bytes:
    data = io.BytesIO()
    picture.save(data, "PNG")
    return data.getvalue()


def file(name: str, picture: Image.Image) -> tuple[str, str, bytes]:
    return name, "image/png", png(picture)


def said(page: Page) -> str:
    """What the last answer is, once it is whole."""
    answer = whole(page.locator(ANSWER))
    answer.get_by_role("button", name="Copy", exact=True).last.click()
    return str(page.evaluate("copied"))


def wanted(model: Model, *turns: Turn) -> str:
    """Python's answer to the last of these turns of the user and the model."""
    messages: list[dict[str, Any]] = []
    for k, turn in enumerate(turns):
        content = turn if isinstance(turn, str) else content_of(*turn)
        messages.append({"role": "assistant" if k % 2 else "user", "content": content})
    how = {"temperature": 2, "max_tokens": 6, "seed": 8}
    asked = convert({"messages": messages, **how}, ChatRequest)
    return model.chat.chat(asked).choices[0].message.content or ""


def test_images_go_with_their_message_whatever_is_done_with_it(
    page: Page, seeing: tuple[Model, Path]
) -> None:
    model, (a, b) = seeing[0], (image(0), image(1, 9, 31))
    thumbnails = page.get_by_role("list", name="Images to send").get_by_role("img")
    chosen = [{"name": f"{k}.png", "mimeType": "image/png", "buffer": png(x)}
              for k, x in enumerate((a, b))]  # fmt: skip
    with page.expect_file_chooser() as choosing:
        page.get_by_role("button", name="Add images").press("Enter")
    choosing.value.set_files(chosen)  # type: ignore[arg-type]
    expect(thumbnails).to_have_count(2)
    page.get_by_label("Message", exact=True).fill("what?")
    page.get_by_role("button", name="Send").click()
    first = said(page)
    assert first == wanted(model, [a, b, "what?"]) != wanted(model, [b, a, "what?"])
    shown = page.locator(".said.user .pictures img")
    assert shown.evaluate_all("all => all.map((i) => [i.alt, i.naturalWidth])") == [
        ["0.png", a.width], ["1.png", b.width]
    ]  # fmt: skip
    expect(thumbnails).to_have_count(0)

    page.locator(ANSWER).get_by_role("button", name="Answer again").click()
    assert said(page) == first and shown.count() == 2

    give(page, "paste", file("c.png", image(2)))
    expect(thumbnails).to_have_count(1)
    page.get_by_role("button", name="Send").click()  # an image without words
    assert said(page) == wanted(model, [a, b, "what?"], first, [image(2)])
    assert shown.count() == 3 and page.locator(".bubble").count() == 1

    expect(page.get_by_role("button", name="Edit")).to_have_count(1)  # of the last message
    page.get_by_role("button", name="Edit").click()
    assert page.locator(".said").count() == 2 and thumbnails.count() == 1
    page.get_by_role("button", name="Edit").click()
    assert page.locator(".said").count() == 0 and thumbnails.count() == 3
    assert page.get_by_label("Message", exact=True).input_value() == "what?"
    page.get_by_role("button", name="Remove c.png").press("Enter")
    expect(page.get_by_role("button", name="Remove 1.png")).to_be_focused()
    page.keyboard.press("Enter")
    expect(thumbnails).to_have_count(1)
    page.get_by_label("Message", exact=True).press("Enter")
    assert said(page) == wanted(model, [a, "what?"])
    assert thumbnails.count() == 0 and shown.get_attribute("alt") == "0.png"
    page.get_by_role("button", name="New conversation").click()
    assert shown.count() == 0


def test_what_is_no_image_is_said_and_the_others_are_taken(page: Page, width: int) -> None:
    alert, thumbnails = page.get_by_role("alert"), page.locator(".attached img")
    flat = Image.new("1", (8001, 8000))
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
    give(
        page,
        "drop",
        ("notes.txt", "text/plain", b"hello"),
        file("good.png", image(0)),
        ("broken.png", "image/png", b"hello"),
        file("large.png", flat),
        ("drawn.svg", "image/svg+xml", svg),
    )
    expect(thumbnails).to_have_count(1)
    words = alert.inner_text()
    for name in ("notes.txt", "broken.png", "drawn.svg"):
        assert f"“{name}” is no image that this browser can open." in words
    assert re.search("“large.png” has 8001 . 8000 pixels: 64 million are the most", words)
    assert "good.png" not in words
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollHeight") <= 800
    for target in page.locator("button:visible").all():
        box = target.bounding_box()
        assert box is not None and box["height"] >= 32, target.inner_text()

    give(page, "paste", file("cell.png", image(3)), text="a cell")  # as a table has it
    give(page, "paste", file("more.png", image(4)))
    expect(thumbnails).to_have_count(2)
    expect(alert).to_be_hidden()
    page.locator("input[type=file]").evaluate(
        """(input) => {
          const data = new DataTransfer();
          data.items.add(new File([new Uint8Array(32 * 2 ** 20 + 1)], 'heavy.png'));
          input.files = data.files;
          input.dispatchEvent(new Event('change'));
        }"""
    )
    expect(alert).to_have_text("“heavy.png” is too large: images have at most 32 MiB.")
    assert thumbnails.evaluate_all("all => all.map((i) => i.alt)") == ["good.png", "more.png"]
