"""The HTTP interface: an ASGI application around a model."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec
from msgspec.json import encode
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgerelax.chat.generate import Chat
from edgerelax.chat.load import LoadedChat
from edgerelax.chat.openai import ChatRequest, CompletionRequest, EmbeddingRequest, read
from edgerelax.serve.server import Limits, Server, nothing_here
from edgerelax.serve.speech import SpeechServer
from edgerelax.speech.load import LoadedTranscriber

Asked = TypeVar("Asked", ChatRequest, CompletionRequest, EmbeddingRequest)


def make_app(
    model: Chat | LoadedTranscriber,
    limits: Limits | None = None,
    origins: Sequence[str] = (),
    key: str | None = None,
) -> Starlette:
    """An ASGI application. `origins` are pages of other hosts that may ask; `key` all must send."""
    made = SpeechServer if isinstance(model, LoadedTranscriber) else ChatServer
    server: Server = made(model, limits or Limits(), key)  # type: ignore[arg-type]
    cors = Middleware(
        CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
    )
    return Starlette(
        routes=server.routes(),
        middleware=[cors] if origins else [],
        exception_handlers={404: nothing_here, 405: nothing_here},
        lifespan=server.lifespan,
    )


class ChatServer(Server):
    """Answers requests about a language model."""

    def __init__(self, chat: Chat, limits: Limits, key: str | None) -> None:
        paged = chat.paged if isinstance(chat, LoadedChat) else None
        super().__init__(chat.name, limits, key, lambda: None if paged is None else paged.load)
        self._chat = chat

    def routes(self) -> list[Route]:
        handlers = {
            "/v1/chat/completions": self.chats,
            "/v1/completions": self.completions,
            "/v1/embeddings": self.embeddings,
        }
        own = [Route(p, self.guarded(h), methods=["POST"]) for p, h in handlers.items()]
        return [*own, *super().routes()]

    async def chats(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        asked = await self._read(request, ChatRequest)
        if asked.stream:
            return await self._events(request, lambda w: _lines(self._chat.stream_chat(asked, w)))
        return await self._whole(request, lambda work: encode(self._chat.chat(asked, work)))

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions"""
        asked = await self._read(request, CompletionRequest)
        if asked.stream:
            return await self._events(
                request, lambda work: _lines(self._chat.stream_completion(asked, work))
            )
        return await self._whole(request, lambda work: encode(self._chat.complete(asked, work)))

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings"""
        asked = await self._read(request, EmbeddingRequest)
        return await self._whole(request, lambda _: encode(self._chat.embed(asked)))

    async def _read(self, request: Request, kind: type[Asked]) -> Asked:
        asked = read(await self._body(request), kind)
        self._check_model(asked.model)
        return asked


def _lines(chunks: Iterator[msgspec.Struct]) -> Iterator[bytes]:
    for chunk in chunks:
        yield b"data: " + encode(chunk) + b"\n\n"
