"""The HTTP interface: an ASGI application around a chat."""

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from edgerelax.chat.generate import Chat
from edgerelax.chat.load import TEXTS, LoadedChat
from edgerelax.chat.openai import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    Fault,
    ModelInfo,
    ModelList,
    read,
)
from edgerelax.chat.work import Work
from edgerelax.serve.desk import Answer, Desk
from edgerelax.serve.errors import StatusError, status_error, too_large, unknown_model, wrong_key
from edgerelax.serve.metrics import Metrics

Asked = TypeVar("Asked", ChatRequest, CompletionRequest, EmbeddingRequest)
Handler = Callable[[Request], Any]
log = logging.getLogger("edgerelax.serve")
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """`texts` answers are written at once, `waiting` more requests wait; bytes of a request."""

    texts: int = TEXTS
    waiting: int = 64
    body: int = 8 << 20


def make_app(
    chat: Chat,
    limits: Limits | None = None,
    origins: Sequence[str] = (),
    key: str | None = None,
) -> Starlette:
    """An ASGI application. `origins` are pages of other hosts that may ask; `key` all must send."""
    server = Server(chat, limits or Limits(), key)
    routes = [
        Route("/v1/chat/completions", server.guarded(server.chats), methods=["POST"]),
        Route("/v1/completions", server.guarded(server.completions), methods=["POST"]),
        Route("/v1/embeddings", server.guarded(server.embeddings), methods=["POST"]),
        Route("/v1/models", server.guarded(server.models)),
        Route("/v1/models/{name:path}", server.guarded(server.model)),
        Route("/health", server.health),
        Route("/metrics", server.figures),
    ]
    cors = Middleware(
        CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
    )
    return Starlette(
        routes=routes,
        middleware=[cors] if origins else [],
        exception_handlers={404: _nothing_here, 405: _nothing_here},
        lifespan=server.lifespan,
    )


class Server:
    """What answers requests."""

    def __init__(self, chat: Chat, limits: Limits, key: str | None) -> None:
        self._chat, self._limits, self._key = chat, limits, key
        self._desk = Desk(limits.texts, limits.waiting, lambda: self._metrics)
        paged = chat.paged if isinstance(chat, LoadedChat) else None
        self._metrics = Metrics(
            lambda: None if paged is None else paged.load, lambda: self._desk.in_progress
        )
        self._info = ModelInfo(chat.name, int(time.time()))

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """At the end nothing is under way any more."""
        yield
        await asyncio.to_thread(self._desk.close)

    def guarded(self, handler: Handler) -> Handler:
        """The handler for requests with the key; its errors are answers, and all are counted."""

        async def answer(request: Request) -> Response:
            try:
                self._check_key(request)
                response: Response = await handler(request)
            except Exception as error:
                response = _refusal(error)
            self._metrics.answered(request.scope["route"].path, response.status_code)
            return response

        return answer

    def _check_key(self, request: Request) -> None:
        if self._key is None:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._key.encode())
        if kind.lower() != "bearer" or not right:
            raise wrong_key()

    async def chats(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        asked = await self._read(request, ChatRequest)
        if asked.stream:
            return await self._events(request, lambda w: _lines(self._chat.stream_chat(asked, w)))
        return await self._whole(request, lambda work: self._chat.chat(asked, work))

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions"""
        asked = await self._read(request, CompletionRequest)
        if asked.stream:
            return await self._events(
                request, lambda work: _lines(self._chat.stream_completion(asked, work))
            )
        return await self._whole(request, lambda work: self._chat.complete(asked, work))

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings"""
        asked = await self._read(request, EmbeddingRequest)
        return await self._whole(request, lambda _: self._chat.embed(asked))

    async def models(self, request: Request) -> Response:
        """GET /v1/models"""
        return _json(ModelList([self._info]))

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME"""
        self._check_model(request.path_params["name"])
        return _json(self._info)

    async def health(self, request: Request) -> Response:
        """GET /health"""
        return _json({"status": "ok"})

    async def figures(self, request: Request) -> Response:
        """GET /metrics"""
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _check_model(self, name: str) -> None:
        if name not in ("", self._chat.name):
            raise unknown_model(name, self._chat.name)

    async def _read(self, request: Request, kind: type[Asked]) -> Asked:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > self._limits.body:
                raise too_large(self._limits.body)
        asked = read(bytes(data), kind)
        self._check_model(asked.model)
        return asked

    async def _whole(self, request: Request, make: Callable[[Work], Any]) -> Response:
        """An answer in one piece, unless the client goes in the meantime."""

        def answer(work: Work) -> Iterator[bytes]:
            yield msgspec.json.encode(make(work))

        async with contextlib.aclosing(_watched(request, self._desk.parts(answer))) as parts:
            return Response(await anext(parts), media_type="application/json")

    async def _events(self, request: Request, answer: Answer) -> Response:
        """Server-sent events, once it is known that the request can be met."""
        parts = _watched(request, self._desk.parts(answer))
        begun = await anext(parts)

        async def events() -> AsyncGenerator[bytes]:
            async with contextlib.aclosing(parts):
                yield begun
                try:
                    async for part in parts:
                        yield part
                except Exception as error:
                    yield b"data: " + _logged(error).body + b"\n\n"
                    return
                yield DONE

        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


def _lines(chunks: Iterator[msgspec.Struct]) -> Iterator[bytes]:
    for chunk in chunks:
        yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"


class _GoneError(Exception):
    """The client has gone."""


async def _watched(request: Request, parts: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The parts, closed when this is closed and when the client goes. Raises _GoneError then."""
    gone = asyncio.create_task(_gone(request))
    part: asyncio.Task[bytes] | None = None
    try:
        while True:
            part = asyncio.create_task(_next(parts))
            await asyncio.wait((part, gone), return_when=asyncio.FIRST_COMPLETED)
            if not part.done():
                raise _GoneError
            try:
                yield part.result()
            except StopAsyncIteration:
                return
    finally:
        gone.cancel()
        if part is not None and not part.done():
            part.cancel()
            await asyncio.wait((part,))
        await parts.aclose()


async def _next(parts: AsyncGenerator[bytes]) -> bytes:
    return await anext(parts)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _refusal(error: Exception) -> Response:
    found = _logged(error)
    return Response(found.body, found.status, found.headers, "application/json")


def _logged(error: Exception) -> StatusError:
    """What the client is told; what is our fault goes to the log as well."""
    if isinstance(error, _GoneError):
        return StatusError(499, Fault("the client has gone"))
    found = status_error(error)
    if found.status == 500:
        log.error("a request failed", exc_info=error)
    return found


async def _nothing_here(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    message = f"no {request.method} {request.url.path} here"
    return _refusal(StatusError(status, Fault(message, code="not_found")))
