"""The chat page as a visitor meets it, with an engine that knows a few answers in its worker."""

import gzip
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect

from tests.browser.harness import FETCHED, LIBRARY, ROOT, Browser

ANSWER = ".said.model:last-child"


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script that stands in for the page's worker."""
    script = tmp_path_factory.mktemp("worker") / "worker.js"
    entry = ROOT / "webapp" / "test" / "fake-chat-worker.ts"
    esbuild = ROOT / "node_modules" / ".bin" / "esbuild"
    flags = ["--bundle", "--format=esm", "--log-level=warning", f"--outfile={script}"]
    subprocess.run([str(esbuild), str(entry), *flags], cwd=ROOT / "webapp", check=True)
    return script.read_text()


def opened(
    browser: Browser, worker: str | None, width: int, scheme: str = "light"
) -> BrowserContext:
    """A visitor's browser; `worker` is the script that stands in for the page's own."""
    context = browser.visit(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if scheme == "dark" else "light",
        permissions=["clipboard-read", "clipboard-write"],
    )
    if worker is not None:
        script = {"body": worker, "content_type": "text/javascript"}
        context.route("**/assets/chat-worker-*.js", lambda route: route.fulfill(**script))
    return context


@pytest.fixture
def page(browser: Browser, chat_address: str, worker: str) -> Iterator[Page]:
    """A fresh visit; what the page logs as an error fails the test."""
    context = opened(browser, worker, 1280)
    visited = context.new_page()
    errors: list[str] = []
    visited.on("pageerror", lambda error: errors.append(str(error)))
    visited.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    visited.goto(chat_address)
    yield visited
    context.close()
    assert errors == [], errors


def say(page: Page, text: str) -> Locator:
    """Sends a message; gives the answer, which need not be whole yet."""
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")
    return page.locator(ANSWER)


def whole(answer: Locator) -> Locator:
    expect(answer.locator(".tools")).to_be_visible()
    return answer


def give(page: Page, event: str, *files: tuple[str, str, bytes], text: str = "") -> None:
    """Drops or pastes files: names, types and bytes; `text` comes along."""
    given = [[name, kind, list(data)] for name, kind, data in files]
    page.evaluate(
        """([event, files, text]) => {
          const data = new DataTransfer();
          for (const [name, type, bytes] of files) {
            data.items.add(new File([Uint8Array.from(bytes)], name, { type }));
          }
          if (text) data.setData('text/plain', text);
          const how = { bubbles: true, cancelable: true };
          document.querySelector('textarea').dispatchEvent(event === 'paste'
            ? new ClipboardEvent(event, { ...how, clipboardData: data })
            : new DragEvent(event, { ...how, dataTransfer: data }));
        }""",
        [event, given, text],
    )


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Waits without `wait_for_function`, which the page's content policy forbids."""
    for _ in range(1200):
        if condition():
            return
        page.wait_for_timeout(100)
    raise AssertionError("it did not come true in time")


def copied(page: Page, button: Locator) -> str:
    """What a button copies, once it has said so; it does for a moment only."""
    button.evaluate(
        """(button) => {
          window.said = [];
          const look = () => said.push(button.ariaLabel ?? button.textContent);
          const how = { attributes: true, childList: true, characterData: true, subtree: true };
          new MutationObserver(look).observe(button, how);
        }"""
    )
    button.click()
    until(page, lambda: "Copied" in page.evaluate("said"))
    return str(page.evaluate("navigator.clipboard.readText()"))


def test_a_suggestion_is_answered_with_figures(page: Page) -> None:
    page.get_by_role("button", name="capital of France").click()
    answer = whole(page.locator(ANSWER))
    assert answer.locator(".markdown").inner_text() == "The capital of France is Paris."
    assert answer.locator("strong").inner_text() == "Paris"
    figures = answer.locator(".figures").inner_text()
    assert re.fullmatch(r"[\d.]+ tokens/s · 36 tokens · first after [\d.]+ m?s", figures), figures
    assert page.locator("[data-fact=backend]").inner_text() == "WebAssembly"
    assert page.locator("[data-fact=model]").inner_text() == "smollm2"
    assert re.match(r"\d+ of 8,192 tokens", page.locator("[data-fact=context]").inner_text())
    assert "of memory" in page.locator("[data-fact=memory]").inner_text()
    expect(page.locator(".welcome")).to_be_hidden()


def test_markdown_is_shown_and_copied_and_html_is_not_run(page: Page) -> None:
    answer = whole(say(page, "Why a rainbow?"))
    assert answer.locator("h2").inner_text() == "Rain"
    assert answer.locator("ol > li").count() == 2
    assert answer.locator("td").all_inner_texts() == ["red", "700", "violet", "400"]
    assert answer.locator("pre code").inner_text().startswith("def bend(light: float)")
    link = answer.get_by_role("link", name="optics")
    assert link.get_attribute("href") == "https://example.org/"
    assert link.get_attribute("rel") == "noopener noreferrer"
    assert "<script>document.title='broken'</script>" in answer.locator(".markdown").inner_text()
    assert answer.locator("img, script").count() == 0
    assert answer.get_by_text("bad", exact=True).get_attribute("href") is None
    assert page.title() == "edgerelax: chat"
    code = copied(page, answer.locator(".code-bar button"))
    assert code.startswith("def bend") and "```" not in code
    assert copied(page, answer.locator(".tools").get_by_label("Copy")).startswith("## Rain")


def test_the_page_is_never_frozen_and_an_answer_can_be_stopped(page: Page) -> None:
    answer = say(page, "endless")
    expect(answer.locator(".markdown")).to_contain_text("on and on")
    frames = page.evaluate(
        """() => new Promise((resolve) => {
          let count = 0;
          const frame = () => ++count === 10 ? resolve(count) : requestAnimationFrame(frame);
          frame();
        })"""
    )
    assert frames == 10
    page.get_by_role("button", name="Stop").click()
    whole(answer)
    assert answer.locator(".figures").inner_text() == "Stopped"
    before = answer.locator(".markdown").inner_text()
    other = whole(say(page, "hello"))
    assert other.locator(".markdown").inner_text().startswith("hello at 0.7")
    assert page.locator(".said.model .markdown").first.inner_text() == before


def test_an_answer_can_be_made_again_with_other_settings(page: Page) -> None:
    answer = whole(say(page, "hello"))
    first = answer.locator(".markdown").inner_text()
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0.25")
    page.get_by_label("Seed").fill("42")
    page.get_by_role("button", name="Close").click()
    answer.get_by_role("button", name="Answer again").click()
    expect(page.locator(f"{ANSWER} .markdown")).to_have_text("hello at 0.25, seed 42")
    assert "hello at 0.25" not in first
    assert page.locator(".said").count() == 2
    whole(page.locator(ANSWER))
    page.reload()
    page.get_by_role("button", name="Settings").click()
    assert page.get_by_label("Seed").input_value() == "42"
    page.get_by_role("button", name="As at first").click()
    assert page.get_by_label("Seed").input_value() == ""
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_be_hidden()


def test_a_failure_is_said_and_the_chat_goes_on(page: Page) -> None:
    answer = whole(say(page, "please fail once"))
    failure = answer.locator(".failure")
    assert "The GPU was lost" in failure.inner_text() and "(a test)" in failure.inner_text()
    answer.get_by_role("button", name="Answer again").click()
    expect(page.locator(f"{ANSWER} .markdown")).to_contain_text("please fail once at")
    assert page.locator(".said").count() == 2


def test_a_new_conversation_forgets(page: Page) -> None:
    say(page, "endless")
    expect(page.locator(f"{ANSWER} .markdown")).to_contain_text("on")
    page.get_by_role("button", name="New conversation").click()
    assert page.locator(".said").count() == 0
    expect(page.locator(".welcome")).to_be_visible()
    whole(say(page, "hello"))
    assert page.locator(".said").count() == 2
    used = page.locator("[data-fact=context]").inner_text()
    assert int(used.split()[0].replace(",", "")) < 150, used


def test_lines_are_broken_and_nothing_is_not_sent(page: Page) -> None:
    box = page.get_by_label("Message")
    box.fill("  ")
    page.keyboard.press("Enter")
    assert page.locator(".said").count() == 0
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    box.fill("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("<b>two</b>")
    page.keyboard.press("Enter")
    assert page.locator(".bubble").inner_text() == "one\n<b>two</b>"
    expect(box).to_have_value("")


def test_who_reads_above_is_left_there(page: Page) -> None:
    say(page, "endless")
    main = page.locator("main")
    until(page, lambda: main.evaluate("m => m.scrollHeight > 1.5 * m.clientHeight"))
    assert main.evaluate("m => m.scrollHeight - m.scrollTop - m.clientHeight") < 60
    main.evaluate("m => m.scrollTo(0, 0)")
    jump = page.get_by_role("button", name="To the end")
    expect(jump).to_be_visible()
    height = main.evaluate("m => m.scrollHeight")
    page.evaluate("new BroadcastChannel('more').postMessage('')")
    until(page, lambda: main.evaluate("m => m.scrollHeight") > height)
    assert main.evaluate("m => m.scrollTop") == 0
    jump.click()
    expect(jump).to_be_hidden()
    page.get_by_role("button", name="Stop").click()


def test_images_are_not_offered_where_the_model_sees_none(page: Page) -> None:
    expect(page.get_by_role("button", name="Add images")).to_be_hidden()
    give(page, "drop", ("cat.png", "image/png", b"x"))
    expect(page.get_by_role("alert")).to_contain_text("This model sees no images")
    assert page.locator(".attached img").count() == 0
    whole(say(page, "hello"))
    expect(page.get_by_role("alert")).to_be_hidden()


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1280, "dark")])
def test_fits_the_screen(
    browser: Browser, chat_address: str, worker: str, width: int, scheme: str, tmp_path: Path
) -> None:
    context = opened(browser, worker, width, scheme)
    page = context.new_page()
    page.goto(chat_address)
    whole(say(page, "Why a rainbow?"))
    page.screenshot(path=tmp_path / f"{width}-{scheme}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.scrollHeight") <= 800
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in colour[4:-1].split(",")) < 200) == (scheme == "dark")
    for target in page.locator("button:visible").all():
        box = target.bounding_box()
        assert box is not None and box["height"] >= 32, target.inner_text()
    page.get_by_role("button", name="Settings").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    names = page.evaluate("""() =>
      [...document.querySelectorAll('button, input, textarea, progress')].map((e) =>
        [e.tagName, e.ariaLabel ?? (e.labels?.[0] ?? e).textContent.trim()])""")
    assert all(name for _, name in names), names
    context.close()


def test_smollm2_answers_in_the_page(browser: Browser, chat_address: str, smollm2: Path) -> None:
    browser.publish(smollm2, "chat/models/smollm2")
    context = opened(browser, None, 1280)
    page = context.new_page()
    page.goto(chat_address)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Most tokens").fill("24")
    page.get_by_role("button", name="Close").click()
    texts = []
    for question in ("What is the capital of France?", "And of Italy?"):
        answer = say(page, question)
        expect(answer.locator(".tools")).to_be_visible()
        texts.append(answer.locator(".markdown").inner_text())
    assert "Paris" in texts[0] and "Rome" in texts[1], texts
    assert "MB" in page.locator("[data-fact=memory]").inner_text()
    context.close()


def test_what_only_chat_and_speech_need_are_files_of_their_own() -> None:
    main = LIBRARY.read_text()
    assert len(gzip.compress(main.encode())) <= 40 << 10
    text, *others = FETCHED
    for file in FETCHED:
        imported = set(re.findall(r'^import .*?from "(.*?)";', file.read_text(), re.M))
        assert imported == {"./edgerelax.js"} | ({f"./{text.name}"} if file in others else set())
        assert (f'import("./{file.name}")' in main) == (file in others)
