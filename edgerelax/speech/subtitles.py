"""Segments as subtitles."""

from collections.abc import Iterable, Iterator

from edgerelax.speech.transcribe import Segment


def srt(segments: Iterable[Segment]) -> Iterator[str]:
    """SubRip's blocks, each with the empty line that ends it."""
    for number, segment in enumerate(segments, start=1):
        start, end = (clock(seconds, ",") for seconds in (segment.start, segment.end))
        yield f"{number}\n{start} --> {end}\n{segment.text.strip()}\n"


def vtt(segments: Iterable[Segment]) -> Iterator[str]:
    """WebVTT's header and cues, each with the empty line that ends it."""
    yield "WEBVTT\n"
    for segment in segments:
        yield f"{clock(segment.start)} --> {clock(segment.end)}\n{segment.text.strip()}\n"


def clock(seconds: float, point: str = ".") -> str:
    """Hours, minutes, seconds and thousandths."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}{point}{thousandths:03}"
