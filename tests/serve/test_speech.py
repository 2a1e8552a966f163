"""Transcripts by the official client, in all forms, and forms that are wrong."""

import io
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import soundfile

import edgerelax
from edgerelax.serve.server import Limits
from edgerelax.speech.load import LoadedTranscriber
from tests.frontends.speech import tiny
from tests.frontends.speech.tiny import Exported
from tests.serve.conftest import PATIENCE, client_of, serving

ASKED = {"model": "artifact", "language": "en", "temperature": 0.3}


@pytest.fixture(scope="module")
def loaded(small_speech: Exported) -> Iterator[LoadedTranscriber]:
    with edgerelax.load_transcriber(small_speech.artifact, "cpu") as found:
        yield found


@pytest.fixture(scope="module")
def place(loaded: LoadedTranscriber) -> Iterator[str]:
    with serving(loaded, Limits(2, 4, 200_000)) as found:
        yield found


@pytest.fixture
def speech(place: str) -> Iterator[openai.OpenAI]:
    with client_of(place) as made:
        yield made


def wav(seconds: float = 1.5) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, tiny.sound(1, int(seconds * tiny.RATE)), tiny.RATE, format="WAV")
    return file.getvalue()


def test_forms(loaded: LoadedTranscriber, speech: openai.OpenAI) -> None:
    wanted = loaded.transcribe(wav(), language="en", temperatures=(0.3,))
    ask = speech.audio.transcriptions.create
    assert ask(file=("a.wav", wav()), **ASKED).text == wanted.text
    whole = ask(file=("a.wav", wav()), response_format="verbose_json", **ASKED)
    assert (whole.text, whole.language, whole.duration) == (wanted.text, "en", 1.5)
    spans = [(s.start, s.end, s.tokens) for s in whole.segments]
    assert spans == [(s.start, s.end, s.tokens) for s in wanted.segments]
    assert ask(file=("a.wav", wav()), response_format="text", **ASKED).strip() == wanted.text
    srt = ask(file=("a.wav", wav()), response_format="srt", **ASKED)
    assert srt.startswith("1\n00:00:0") and srt.count(" --> ") == len(wanted.segments)
    assert ask(file=("a.wav", wav()), response_format="vtt", **ASKED).startswith("WEBVTT\n\n00:")


def test_segments_as_they_come(loaded: LoadedTranscriber, speech: openai.OpenAI) -> None:
    wanted = loaded.transcribe(wav(), language="en", temperatures=(0.3,))
    events = list(speech.audio.transcriptions.create(file=("a.wav", wav()), stream=True, **ASKED))
    assert [e.type for e in events[:-1]] == ["transcript.text.delta"] * len(wanted.segments)
    assert events[-1].type == "transcript.text.done"
    assert "".join(e.delta for e in events[:-1]) == events[-1].text
    assert events[-1].text.strip() == wanted.text


@pytest.mark.filterwarnings("ignore:deprecated")
def test_translations(loaded: LoadedTranscriber, speech: openai.OpenAI) -> None:
    found = speech.audio.translations.create(file=("a.wav", wav(1)), model="", temperature=0.3)
    wanted = loaded.transcribe(wav(1), task="translate", temperatures=(0.3,))
    assert found.text == wanted.text


def test_what_is_refused(place: str, speech: openai.OpenAI) -> None:
    def post(path: str, **what: Any) -> httpx.Response:
        return httpx.post(f"{place}/v1/{path}", timeout=PATIENCE, **what)

    def refused(status: int, **form: str) -> str:
        files = {"file": ("a.wav", form.pop("file", "") or wav(1))}
        answer = post("audio/transcriptions", files=files, data=form)
        assert answer.status_code == status
        return str(answer.json()["error"]["message"])

    assert "cannot be read as sound" in refused(400, file="words")
    assert "no language 'xx'" in refused(400, language="xx")
    assert "known: json, text" in refused(400, response_format="xml")
    assert "not within 0 and 1" in refused(400, temperature="hot")
    assert "does not exist" in refused(404, model="other")
    assert "more than 200000 bytes" in refused(413, file="x" * 300_000)
    without = post("audio/transcriptions", data={"model": ""})
    assert without.status_code == 400
    other = post("audio/transcriptions", json={"model": ""})
    assert (other.status_code, "multipart" in other.text) == (400, True)
    assert post("chat/completions", json={}).status_code == 404
    assert speech.models.list().data[0].id == "artifact"
