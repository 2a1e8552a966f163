"""What every server does, whatever it answers: keys, limits, queues, streams, errors, figures."""

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from edgerelax.chat.load import TEXTS
from edgerelax.chat.openai import Fault, ModelInfo, ModelList
from edgerelax.chat.paged import Load
from edgerelax.chat.work import Work
from edgerelax.serve.desk import Answer, Desk
from edgerelax.serve.errors import StatusError, status_error, too_large, unknown_model, wrong_key
from edgerelax.serve.metrics import Metrics

Handler = Callable[[Request], Any]
log = logging.getLogger("edgerelax.serve")
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """`texts` answers are written at once, `waiting` more requests wait; bytes of a request."""

    texts: int = TEXTS
    waiting: int = 64
    body: int = 8 << 20


class Server:
    """What answers requests about one model. `load` says what its engine does at this moment."""

    def __init__(
        self, name: str, limits: Limits, key: str | None, load: Callable[[], Load | None]
    ) -> None:
        self._name, self._limits, self._key = name, limits, key
        self._desk = Desk(limits.texts, limits.waiting, lambda: self._metrics)
        self._metrics = Metrics(load, lambda: self._desk.in_progress)
        self._info = ModelInfo(name, int(time.time()))

    def routes(self) -> list[Route]:
        """What is answered here; kinds of servers add theirs."""
        return [
            Route("/v1/models", self.guarded(self.models)),
            Route("/v1/models/{name:path}", self.guarded(self.model)),
            Route("/health", self.health),
            Route("/metrics", self.figures),
        ]

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
        if name not in ("", self._name):
            raise unknown_model(name, self._name)

    async def _body(self, request: Request) -> bytes:
        """All of it. Raises StatusError where it is longer than may be."""
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > self._limits.body:
                raise too_large(self._limits.body)
        return bytes(data)

    async def _whole(
        self, request: Request, make: Callable[[Work], bytes], media: str = "application/json"
    ) -> Response:
        """An answer in one piece, unless the client goes in the meantime."""

        def answer(work: Work) -> Iterator[bytes]:
            yield make(work)

        async with contextlib.aclosing(_watched(request, self._desk.parts(answer))) as parts:
            return Response(await anext(parts), media_type=media)

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
    if isinstance(error, _GoneError | ClientDisconnect):
        return StatusError(499, Fault("the client has gone"))
    found = status_error(error)
    if found.status == 500:
        log.error("a request failed", exc_info=error)
    return found


async def nothing_here(request: Request, error: Exception) -> Response:
    """404 and 405, as all errors are answered."""
    status = getattr(error, "status_code", 404)
    message = f"no {request.method} {request.url.path} here"
    return _refusal(StatusError(status, Fault(message, code="not_found")))
