"""Transcripts by edgerelax.js are those of Python."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import edgerelax
from edgerelax.speech.load import LoadedTranscriber
from tests.browser.harness import Browser, error_of, pack, unpack
from tests.browser.runtime_page import runtime_page
from tests.frontends.speech import tiny
from tests.frontends.speech.tiny import Exported

NAMES = {"no_speech": "noSpeech"}
PLAIN: dict[str, Any] = {
    "temperatures": (0.0,), "logprob": None, "compression": None, "no_speech": None,
}  # fmt: skip
HEAR = """
const { audio, rate, options } = argument;
const { samples } = unpack({ samples: audio });
const work = models.ear.listen(samples.data, { rate, ...options });
const segments = [];
for await (const segment of work) segments.push(segment);
return { segments, language: work.language, duration: work.duration, progress: work.progress };
"""
DECODE = """
const { file, audio, rate, wanted } = argument;
const bytes = file && Uint8Array.from(atob(file), (letter) => letter.charCodeAt(0));
const samples = audio && unpack({ audio }).audio.data;
const given = bytes ? new Blob([bytes]) : new AudioBuffer({ length: samples.length,
  sampleRate: rate, numberOfChannels: 2 });
if (!bytes) for (const k of [0, 1]) given.copyToChannel(samples.map((x) => x * (k + 0.5)), k);
const data = await edgerelax.decodeAudio(given, wanted);
return pack({ found: { data, shape: [data.length], dtype: 'f32' } }).found;
"""


@pytest.fixture(scope="module")
def python(small_speech: Exported) -> Iterator[LoadedTranscriber]:
    with edgerelax.load_transcriber(small_speech.artifact, "cpu") as opened:
        yield opened


@pytest.fixture(scope="module")
def page(browser: Browser, small_speech: Exported) -> Iterator[Browser]:
    with runtime_page(browser) as opened:
        url = opened.publish(small_speech.artifact, "speech")
        opened.script("models.ear = await edgerelax.loadTranscriber(argument)", url)
        yield opened
        opened.script("await models.ear.dispose()")


def hear(page: Browser, audio: np.ndarray, **options: Any) -> dict[str, Any]:
    named = {NAMES.get(name, name): value for name, value in options.items()}
    heard: dict[str, Any] = page.script(HEAR, {"audio": pack(audio), "options": named})
    return heard


@pytest.mark.parametrize(
    "options",
    [
        PLAIN,
        PLAIN | {"language": "de", "task": "translate", "timestamps": False, "prompt": " Hm "},
        PLAIN | {"language": "en", "prompt": "Hm", "follow": True},
        {"temperatures": (0.0, 0.4, 0.9), "seed": 3},
        {"no_speech": -1.0},
    ],
    ids=("plain", "untimed", "followed", "fallback", "silent"),
)
def test_segments(page: Browser, python: LoadedTranscriber, options: dict[str, Any]) -> None:
    audio = np.concatenate([tiny.sound(k) for k in range(2)] + [tiny.sound(2, 5000)])
    work = python.listen(audio, **options)
    expected = list(work)
    heard = hear(page, audio, **options)
    assert (heard["language"], heard["duration"]) == (work.language, work.duration)
    assert heard["progress"] == work.progress == work.duration
    assert len(heard["segments"]) == len(expected)
    assert bool(expected) == ("no_speech" not in options or options["no_speech"] is None)
    for found, wanted in zip(heard["segments"], expected, strict=True):
        for name in ("start", "end", "text", "tokens", "temperature"):
            assert found[name] == getattr(wanted, name), name
        for name in ("logprob", "no_speech", "compression"):
            rel = 1e-2 if name == "compression" else 1e-3  # zlibs differ by a byte
            assert found[NAMES.get(name, name)] == pytest.approx(getattr(wanted, name), rel=rel)


def test_a_whole_transcript_and_text_as_it_grows(page: Browser, python: LoadedTranscriber) -> None:
    audio = tiny.sound(5)
    options = {"language": "en", "timestamps": False, "temperatures": (0.0,), "noSpeech": None}
    found = page.script(
        "const shown = [], { audio, options } = argument;"
        "const onText = (text) => shown.push(text);"
        "const { data } = unpack({ audio }).audio;"
        "return { ...await models.ear.transcribe(data, { ...options, onText }), shown };",
        {"audio": pack(audio), "options": options},
    )
    wanted = python.transcribe(audio, language="en", timestamps=False, **PLAIN)
    assert (found["text"], found["duration"]) == (wanted.text, 1)
    assert len(found["shown"]) == len(wanted.segments[0].tokens)
    assert found["text"].startswith(found["shown"][-1].strip())


def test_files_and_rates(page: Browser, tmp_path: Path) -> None:
    """Two channels at 48 kHz become their mean at 16 kHz; what that cannot hold is left out."""
    at = np.arange(24000) / 48000
    low, high = (np.sin(2 * np.pi * f * at).astype("f4") / 2 for f in (440, 11000))
    file = io.BytesIO()
    soundfile.write(file, np.stack([1.5 * low, 0.5 * low], axis=1), 48000, "FLOAT", format="WAV")
    wanted = low[::3]
    given: dict[str, Any] = {"wanted": 16000, "rate": 48000}
    files = {"file": base64.b64encode(file.getvalue()).decode()}, {"audio": pack(low)}
    for one in files:
        found = unpack(page.script(DECODE, given | one))
        assert len(found) == pytest.approx(8000, abs=2)
        np.testing.assert_allclose(found[200:7800], wanted[200:7800], atol=2e-3)
    found = unpack(page.script(DECODE, given | {"audio": pack(high)}))
    assert np.abs(found[200:7800]).max() < 0.05


@pytest.mark.parametrize(
    ("audio", "options", "words"),
    [
        ("new Float32Array(0)", {}, "the audio is empty"),
        ("Float32Array.of(0, NaN)", {}, "not finite"),
        ("new Float32Array(9)", {"rate": 0}, "a sampling rate of 0 Hz"),
        ("[0, 0]", {}, "audio is samples in a Float32Array"),
        ("new Blob(['text'])", {}, "cannot be read as sound"),
        ("new Blob(['text'])", {"rate": 8000}, "files say their own"),
        ("new Float32Array(9)", {"language": "fr"}, 'no language "fr"; known are '),
        ("new Float32Array(9)", {"task": "sing"}, 'no task "sing"'),
        ("new Float32Array(9)", {"temperatures": []}, "temperatures is empty"),
        ("new Float32Array(9)", {"tempo": 3}, "tempo is no option here"),
    ],
)
def test_what_is_asked_for_in_vain(
    page: Browser, audio: str, options: dict[str, Any], words: str
) -> None:
    found = error_of(page, f"await models.ear.transcribe({audio}, argument)", options)
    assert found["code"] == "input" and words in found["message"]


def test_an_abort_leaves_others_alone(page: Browser, python: LoadedTranscriber) -> None:
    audio = np.concatenate([tiny.sound(k) for k in range(3)])
    given = {"audio": pack(audio), "options": {"temperatures": (0.0,)}}
    body = (
        "const { data } = unpack({ audio: argument.audio }).audio;"
        "const abort = new AbortController();"
        "const { signal } = abort, onText = () => abort.abort();"
        "const stopped = { ...argument.options, signal, onText };"
        "const work = [models.ear.transcribe(data, stopped),"
        "  models.ear.transcribe(data, argument.options)];"
        "const [one, other] = await Promise.allSettled(work);"
        "return { code: one.reason?.code, text: other.value?.text };"
    )
    wanted = python.transcribe(audio, temperatures=(0.0,)).text
    assert wanted
    assert page.script(body, given) == {"code": "abort", "text": wanted}


def test_other_models_and_a_model_that_is_gone(
    browser: Browser, small_chat: Path, small_speech: Exported
) -> None:
    with runtime_page(browser) as page:
        chat, speech = (
            page.publish(small_chat, "small-chat"),
            page.publish(small_speech.artifact, "ear"),
        )
        found = error_of(page, "await edgerelax.loadTranscriber(argument)", chat)
        assert found["code"] == "format" and "use loadChat or loadEngine" in found["message"]
        found = error_of(page, "await edgerelax.loadChat(argument)", speech)
        assert found["code"] == "format" and "use loadTranscriber" in found["message"]
        body = (
            "const ear = await edgerelax.loadTranscriber(argument);"
            "const onText = () => ear.dispose();"
            "await ear.transcribe(new Float32Array(16000), { onText });"
        )
        assert error_of(page, body, speech)["code"] == "disposed"
