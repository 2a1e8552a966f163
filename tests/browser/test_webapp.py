"""The demo site as a visitor meets it, on a plain static server with its own content policy."""

import io
import re
import shutil
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Locator, Page, expect

from tests.browser.harness import Browser
from tests.e2e.models import FONT, MODELS, compiled, reference

NAMES = ("minilm", "ppocr-det", "ppocr-cls", "ppocr-rec", "silero")
RATE = 16_000


@pytest.fixture(scope="session")
def site(browser: Browser, webapp: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The built site beside its models; gives its address."""
    folder = browser.folder / "webapp"
    shutil.copytree(webapp, folder)
    (folder / "models").mkdir()
    for name in NAMES:
        artifact = tmp_path_factory.getbasetemp() / f"artifact-{name}"
        if not artifact.exists():
            compiled(name).save(artifact)
        browser.publish(artifact, f"webapp/models/{name}")
    browser.publish(MODELS / "minilm-tokenizer", "webapp/models/minilm-tokenizer")
    return f"{browser.address}/webapp/"


@pytest.fixture
def page(browser: Browser, site: str) -> Iterator[Page]:
    """The site on a page of its own; what it logs as an error fails the test."""
    context = browser.visit(viewport={"width": 1280, "height": 900})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    opened.goto(site)
    expect(opened.locator("#offer")).not_to_be_empty()
    yield opened
    context.close()
    assert errors == [], errors


def finished(page: Page, tool: str) -> Locator:
    """The tool's section once a run is over and went well."""
    section = page.locator(f"#{tool}")
    expect(section).not_to_have_attribute("aria-busy", "true")
    expect(section.locator(".failure")).to_be_hidden()
    return section


def failure(page: Page, tool: str) -> str:
    section = page.locator(f"#{tool}")
    expect(section.locator(".failure")).to_be_visible()
    return section.locator(".failure").inner_text()


def give(page: Page, tool: str, name: str, kind: str, data: bytes) -> None:
    chosen = page.locator(f"#{tool} input[type=file]")
    chosen.set_input_files({"name": name, "mimeType": kind, "buffer": data})


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


def written(lines: dict[str, tuple[int, int]], size: tuple[int, int]) -> Image.Image:
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    for text, place in lines.items():
        draw.text(place, text, "black", ImageFont.truetype(FONT, 34))
    return image


def sound(samples: np.ndarray, rate: int = RATE) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def voice(seconds: float, pitch: float = 130.0) -> np.ndarray:
    """Harmonics under three formants, four syllables a second."""
    time = np.arange(int(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(pitch * (1 + 0.1 * np.sin(2 * np.pi * 1.3 * time))) / RATE
    vowels = np.array([[730, 1090, 2440], [300, 870, 2240], [270, 2290, 3010], [530, 1840, 2480]])
    formants = vowels[(time * 4).astype(int) % len(vowels)]
    signal = np.zeros_like(time)
    for harmonic in range(1, 28):
        gaps = (harmonic * pitch - formants) / np.array([80, 100, 140])
        signal += (1 / (1 + gaps**2)).sum(1) * np.sin(harmonic * phase) / harmonic**0.5
    rhythm = np.clip(1.6 * np.sin(np.pi * (time * 4 % 1)), 0, 1)
    return signal * rhythm * 0.15


def test_reads_a_picture(page: Page) -> None:
    texts = {
        "Nothing leaves this page": (40, 30),
        "Platform 42": (40, 110),
        "Zurich 18:25": (420, 110),
    }
    give(page, "text", "sign.png", "image/png", png(written(texts, (720, 200))))
    section = finished(page, "text")
    assert section.locator(".lines .text").all_inner_texts() == list(texts)
    assert section.locator(".picture polygon").count() == len(texts)
    assert section.locator("[data-fact=backend]").inner_text() == "WebAssembly"
    assert section.locator("[data-fact=time]").inner_text().endswith("s")
    assert int(section.locator("[data-fact=kernels]").inner_text()) > 10
    assert section.locator("[data-fact=download]").inner_text().endswith("MB")
    assert section.locator("[data-fact=memory]").inner_text().endswith("MB")


def test_reads_what_is_upside_down_and_finds_nothing_on_a_blank_page(page: Page) -> None:
    turned = written({"Upside down": (60, 40)}, (400, 120)).rotate(180)
    give(page, "text", "turned.png", "image/png", png(turned))
    assert finished(page, "text").locator(".lines .text").all_inner_texts() == ["Upside down"]
    give(page, "text", "blank.png", "image/png", png(Image.new("RGB", (64, 64), "white")))
    expect(finished(page, "text").locator(".empty")).to_be_visible()


def test_near_sentences_come_out_nearer(page: Page) -> None:
    section = page.locator("#sentences")
    section.locator("#sentence").fill("How much does the ticket cost?")
    others = ("My cat is black.", "What is the price of a ticket?", "Tickets for the train")
    section.locator("#others").fill("\n".join([others[0], "", others[1], others[2]]))
    section.get_by_role("button", name="Compare").click()
    expect(section.locator(".bars li")).to_have_count(3)
    finished(page, "sentences")
    order = section.locator(".bars .text").all_inner_texts()
    assert order == [others[1], others[2], others[0]]
    values = [
        float(m.get_attribute("aria-valuenow") or "") for m in section.get_by_role("meter").all()
    ]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.8 and values[2] < 0.3


def test_nothing_to_compare_is_said(page: Page) -> None:
    page.locator("#others").fill("  \n ")
    page.get_by_role("button", name="Compare").click()
    assert "at least one below" in failure(page, "sentences")


def speech_by_reference(samples: np.ndarray) -> np.ndarray:
    count = -(-len(samples) // 512)
    padded = np.zeros(64 + 512 * count, np.float32)
    padded[64 : 64 + len(samples)] = samples
    frames = np.stack([padded[k * 512 : k * 512 + 576] for k in range(count)])
    state = np.zeros((1, 1, 128), np.float32)
    found: np.ndarray = reference("silero").run(None, {"input": frames, "h": state, "c": state})[0]
    return found


def test_finds_speech(page: Page) -> None:
    rng = np.random.default_rng(0)
    samples = rng.standard_normal(7 * RATE) * 0.002
    for start, end in ((1.0, 2.5), (4.0, 6.0)):
        samples[int(start * RATE) : int(end * RATE)] += voice(end - start)
    probabilities = speech_by_reference(samples.astype(np.float32))
    assert probabilities[35:75].min() > 0.5 and probabilities[85:120].max() < 0.3
    give(page, "speech", "talk.wav", "audio/wav", sound(samples))
    section = finished(page, "speech")
    found = section.locator(".segments button").all_inner_texts()
    times = [[float(t) for t in re.findall(r":(\d+\.\d)", text)] for text in found]
    assert np.allclose(times, [[1.0, 2.5], [4.0, 6.0]], atol=0.2), found
    assert "0:03." in (section.locator(".wave title").text_content() or "").split(", ")[1]
    section.locator(".segments button").last.click()
    player = section.locator("audio")
    assert player.evaluate("a => a.currentTime") > 3.8


def test_another_rate_and_stereo_are_converted(page: Page) -> None:
    give(page, "speech", "tone.wav", "audio/wav", sound(np.zeros(44_100), 44_100))
    section = finished(page, "speech")
    assert section.locator(".empty").inner_text() == "No speech in 0:01.0."


@pytest.mark.parametrize("tool", ["text", "sentences", "speech"])
def test_one_click_shows_a_result(page: Page, tool: str) -> None:
    page.locator(f"#{tool} button.primary").click()
    expect(page.locator(f"#{tool} .facts")).to_be_visible()
    results = finished(page, tool).locator(".result li")
    assert results.count() >= 2


def test_the_backend_can_be_switched(page: Page) -> None:
    section = page.locator("#speech")
    section.locator("button.primary").click()
    expect(section.locator("[data-fact=backend]")).to_have_text("WebAssembly")
    before = section.locator(".segments").inner_text()
    section.locator(".backend").get_by_text("WebGPU", exact=True).click()
    expect(section.locator("[data-fact=backend]")).to_have_text("WebGPU")
    assert finished(page, "speech").locator(".segments").inner_text() == before
    assert int(section.locator("[data-fact=kernels]").inner_text()) > 0


@pytest.mark.parametrize(
    ("tool", "name", "kind", "words"),
    [
        ("text", "x.png", "image/png", "no picture that the browser can open"),
        ("speech", "x.wav", "audio/wav", "no sound that the browser can decode"),
    ],
)
def test_what_is_no_picture_or_sound(
    page: Page, tool: str, name: str, kind: str, words: str
) -> None:
    give(page, tool, name, kind, b"not what the name says")
    assert words in failure(page, tool)
    page.locator("#speech button.primary").click()
    expect(page.locator("#speech .segments li")).to_have_count(2)


def test_a_dropped_file_is_taken(page: Page) -> None:
    page.evaluate(
        """() => {
          const data = new DataTransfer();
          data.items.add(new File(['no sound'], 'x.wav', { type: 'audio/wav' }));
          const target = document.querySelector('#speech .drop');
          target.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true }));
        }"""
    )
    assert "no sound that the browser can decode" in failure(page, "speech")


def test_a_forbidden_microphone_is_said(page: Page) -> None:
    page.get_by_role("button", name="Record", exact=True).click()
    assert "The microphone could not be used" in failure(page, "speech")
    expect(page.get_by_role("button", name="Record", exact=True)).to_be_enabled()


def test_missing_models_are_said_in_words_and_a_second_try_works(
    browser: Browser, site: str
) -> None:
    context = browser.visit()
    page = context.new_page()
    context.route("**/silero/weights*", lambda route: route.fulfill(status=404))
    page.goto(site)
    page.locator("#speech button.primary").click()
    said = failure(page, "speech")
    assert "could not be fetched" in said and "404" in said
    context.unroute("**/silero/weights*")
    page.locator("#speech button.primary").click()
    expect(page.locator("#speech .facts")).to_be_visible()
    finished(page, "speech")
    context.close()


def test_a_download_can_be_cancelled(browser: Browser, site: str) -> None:
    context = browser.visit()
    page = context.new_page()
    context.route("**/minilm/weights*", lambda route: None)  # never answered
    page.goto(site)
    section = page.locator("#sentences")
    section.get_by_role("button", name="Compare").click()
    expect(section.locator("progress")).to_be_visible()
    expect(section.locator("[role=status]")).to_contain_text("Downloading")
    section.get_by_role("button", name="Cancel").click()
    finished(page, "sentences")
    expect(section.locator("progress")).to_be_hidden()
    context.close()


@pytest.mark.parametrize(
    ("width", "height", "scheme"),
    [(390, 844, "light"), (1280, 900, "dark"), (360, 640, "dark"), (1280, 900, "light")],
)
def test_fits_the_screen(
    browser: Browser, site: str, tmp_path: Path, width: int, height: int, scheme: str
) -> None:
    context = browser.visit(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto(site)
    page.locator("#sentences button.primary").click()
    page.locator("#speech button.primary").click()
    for tool in ("sentences", "speech"):
        expect(page.locator(f"#{tool} .facts")).to_be_visible()
    page.screenshot(path=tmp_path / f"{width}-{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    darkness = sum(int(part) for part in colour[4:-1].split(","))
    assert (darkness < 200) == (scheme == "dark")
    for target in page.locator("button:visible, .button:visible, .backend label").all():
        box = target.bounding_box()
        assert box is not None and box["height"] >= 32, target.inner_text()
    context.close()


def test_everything_has_a_name_and_the_keyboard_reaches_it(page: Page) -> None:
    names = page.evaluate("""() =>
      [...document.querySelectorAll('button, input, textarea, progress')].map((e) =>
        [e.tagName, e.ariaLabel ?? (e.labels?.[0] ?? e).textContent.trim()])""")
    assert all(name for _, name in names), names
    assert page.locator("h1").count() == 1 and page.locator("html").get_attribute("lang") == "en"
    reached = set()
    for _ in range(24):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("""() => {
          const e = document.activeElement;
          return `${e.closest('section')?.id ?? 'page'} ${e.type ?? e.tagName}`;
        }""")
        )
    for needed in ("text button", "text file", "sentences textarea", "speech file", "speech radio"):
        assert needed in reached, reached
