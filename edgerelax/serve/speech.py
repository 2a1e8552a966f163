"""Transcripts over HTTP, as OpenAI's API has them: forms with a sound file."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgerelax.chat.openai import RequestError
from edgerelax.chat.work import Work
from edgerelax.serve.server import Limits, Server
from edgerelax.speech.load import LoadedTranscriber
from edgerelax.speech.subtitles import srt, vtt
from edgerelax.speech.transcribe import Segment, Transcription

FORMS = ("json", "text", "srt", "verbose_json", "vtt")
JSON = "application/json"


class SpeechServer(Server):
    """Answers requests about a speech model."""

    def __init__(self, model: LoadedTranscriber, limits: Limits, key: str | None) -> None:
        super().__init__(model.name, limits, key, lambda: None)
        self._model = model

    def routes(self) -> list[Route]:
        handlers = {
            "/v1/audio/transcriptions": self.transcriptions,
            "/v1/audio/translations": self.translations,
        }
        own = [Route(p, self.guarded(h), methods=["POST"]) for p, h in handlers.items()]
        return [*own, *super().routes()]

    async def transcriptions(self, request: Request) -> Response:
        """POST /v1/audio/transcriptions"""
        return await self._heard(request, "transcribe")

    async def translations(self, request: Request) -> Response:
        """POST /v1/audio/translations"""
        return await self._heard(request, "translate")

    async def _heard(self, request: Request, task: str) -> Response:
        form = await self._form(request)
        self._check_model(_text(form, "model"))
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise RequestError("file: there is no sound file", node="file")
        kind = _text(form, "response_format") or "json"
        if kind not in FORMS:
            known = ", ".join(FORMS)
            raise RequestError(f"response_format: {kind!r}; known: {known}", node="response_format")
        audio, wanted = await file.read(), {**_options(form), "task": task}
        wanted["timestamps"] = self._model.info.first_timestamp is not None

        def listen(work: Work) -> Transcription:
            def check(text: str) -> None:
                work.check()  # the client may go in the middle of a window

            return self._model.listen(audio, on_text=check, **wanted)

        if _text(form, "stream") == "true":
            return await self._events(request, lambda work: _told(listen(work)))
        media = JSON if kind.endswith("json") else "text/plain; charset=utf-8"
        return await self._whole(request, lambda work: _answer(listen(work), kind, task), media)

    async def _form(self, request: Request) -> FormData:
        body = await self._body(request)

        async def parts() -> Any:
            yield body

        try:
            return await MultiPartParser(request.headers, parts()).parse()
        except (MultiPartException, KeyError) as error:
            raise RequestError(f"the body is no multipart form: {error}") from None


def _text(form: FormData, name: str) -> str:
    found = form.get(name, "")
    if not isinstance(found, str):
        raise RequestError(f"{name}: a file, not a text", node=name)
    return found


def _options(form: FormData) -> dict[str, Any]:
    """What a form wants, as fields of Options."""
    found: dict[str, Any] = {"prompt": _text(form, "prompt")}
    if language := _text(form, "language"):
        found["language"] = language
    if given := _text(form, "temperature"):
        try:
            temperature = float(given)
        except ValueError:
            temperature = -1.0
        if not 0 <= temperature <= 1:
            raise RequestError(f"temperature: {given!r} is not within 0 and 1", node="temperature")
        if temperature:  # 0 is how all begin: text that looks wrong is drawn again
            found["temperatures"] = (temperature,)
    return found


def _answer(work: Transcription, kind: str, task: str) -> bytes:
    lines: dict[str, Callable[[Transcription], Iterator[str]]] = {"srt": srt, "vtt": vtt}
    if kind in lines:
        return "\n".join(lines[kind](work)).encode()
    segments = list(work)
    text = "".join(s.text for s in segments).strip()
    if kind == "text":
        return f"{text}\n".encode()
    said: dict[str, Any] = {"text": text}
    if kind == "verbose_json":
        said |= {"task": task, "language": work.language, "duration": work.duration}
        said["segments"] = [_segment(k, s) for k, s in enumerate(segments)]
    return msgspec.json.encode(said)


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.tokens,
        "temperature": segment.temperature,
        "avg_logprob": segment.logprob,
        "compression_ratio": segment.compression,
        "no_speech_prob": segment.no_speech,
    }


def _told(work: Transcription) -> Iterator[bytes]:
    """Events: a delta for each segment, and all of the text at the end."""
    parts: list[str] = []
    for segment in work:
        delta = segment.text if parts else segment.text.lstrip()
        parts.append(delta)
        yield _event("transcript.text.delta", delta=delta)
    yield _event("transcript.text.done", text="".join(parts))


def _event(kind: str, **fields: str) -> bytes:
    return b"data: " + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"
