"""`edgerelax transcribe`: what it prints in each form, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
import soundfile

from edgerelax.speech.subtitles import clock
from tests.cli.command import Command
from tests.frontends.speech import tiny
from tests.frontends.speech.tiny import Exported

PLAIN = ("--device", "cpu", "--temperature", "0", "--language", "en")


@pytest.fixture
def wav(tmp_path: Path) -> str:
    soundfile.write(tmp_path / "a.wav", tiny.sound(0), tiny.RATE)
    return str(tmp_path / "a.wav")


def test_forms(cli: Command, small_speech: Exported, wav: str) -> None:
    words = ("transcribe", str(small_speech.artifact), wav, *PLAIN)
    report = json.loads(cli(*words, "--format", "json").out)
    assert (report["language"], report["duration"]) == ("en", 1.0)
    segments = report["segments"]
    assert len(segments) > 0 and report["text"]
    texts = [s["text"].strip() for s in segments]
    spans = [(clock(s["start"]), clock(s["end"])) for s in segments]
    timed = "".join(f"[{a} --> {b}] {t}\n" for (a, b), t in zip(spans, texts, strict=True))
    assert cli(*words).out == timed
    assert cli(*words, "--format", "vtt").out.startswith(f"WEBVTT\n\n{spans[0][0]} --> ")
    srt = cli(*words, "--format", "srt").out
    assert re.match(r"1\n\d\d:\d\d:\d\d,\d{3} --> \d\d:\d\d:\d\d,\d{3}\n", srt)
    assert "-->" not in cli(*words, "--no-timestamps").out


def test_what_it_refuses(cli: Command, small_speech: Exported, wav: str) -> None:
    artifact = str(small_speech.artifact)
    assert "no language 'xx'" in cli.refused("transcribe", artifact, wav, "--language", "xx")
    assert "none.wav" in cli.refused("transcribe", artifact, "none.wav", *PLAIN)
    manifest = str(small_speech.artifact / "manifest.json")
    assert "cannot be read as sound" in cli.refused("transcribe", artifact, manifest, *PLAIN)


def test_clock() -> None:
    assert clock(0) == "00:00:00.000"
    assert clock(3725.9996, ",") == "01:02:06,000"
