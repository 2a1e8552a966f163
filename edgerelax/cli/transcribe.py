"""`edgerelax transcribe`: a sound file as text."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from edgerelax.cli.arguments import Device, Threads, Variant
from edgerelax.speech.load import load_transcriber
from edgerelax.speech.subtitles import clock, srt, vtt
from edgerelax.speech.transcribe import Segment, Transcription


class Form(StrEnum):
    """How a transcript is printed."""

    TEXT = "text"
    SRT = "srt"
    VTT = "vtt"
    JSON = "json"


def transcribe(
    artifact: Annotated[Path, typer.Argument(help="An artifact folder of a speech model.")],
    audio: Annotated[Path, typer.Argument(help="A sound file: WAV, FLAC, Ogg, MP3.")],
    language: Annotated[
        str | None, typer.Option(help="Its code, as en; else the model finds out.")
    ] = None,
    task: Annotated[str, typer.Option(help="transcribe, or translate to English.")] = "transcribe",
    timestamps: Annotated[
        bool, typer.Option(help="Find times, and cut windows where segments end.")
    ] = True,
    prompt: Annotated[str, typer.Option(help="Names and spellings that come up.")] = "",
    follow: Annotated[bool, typer.Option(help="Tell each window what was said before.")] = False,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="Only this one, however the text looks.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same text for the same seed.")] = 0,
    form: Annotated[Form, typer.Option("--format", help="How to print it.")] = Form.TEXT,
    device: Device = "auto",
    variant: Variant = None,
    threads: Threads = None,
) -> None:
    """Turn speech into text, segment by segment."""
    wanted: dict[str, Any] = {"language": language, "task": task, "timestamps": timestamps}
    wanted |= {"prompt": prompt, "follow": follow, "seed": seed}
    if temperature is not None:
        wanted["temperatures"] = (temperature,)
    with load_transcriber(artifact, device, variant=variant, threads=threads) as loaded:
        work = loaded.listen(audio, **wanted)
        if form is Form.JSON:
            print(json.dumps(_report(work), ensure_ascii=False, indent=1))
            return
        for line in _lines(work, form, timestamps):
            print(line, flush=True)


def _report(work: Transcription) -> dict[str, Any]:
    segments = list(work)
    return {
        "text": "".join(s.text for s in segments).strip(),
        "language": work.language,
        "duration": work.duration,
        "segments": [asdict(s) for s in segments],
    }


def _lines(segments: Iterable[Segment], form: Form, timestamps: bool) -> Iterable[str]:
    if form is Form.SRT:
        yield from srt(segments)
    elif form is Form.VTT:
        yield from vtt(segments)
    else:
        for segment in segments:
            span = f"[{clock(segment.start)} --> {clock(segment.end)}] " if timestamps else ""
            yield span + segment.text.strip()
