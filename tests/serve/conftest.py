"""A server of the small model in a thread, and the official client of its API."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from edgerelax.chat.load import LoadedChat, load_chat
from edgerelax.serve.app import make_app
from edgerelax.serve.run import listen, server_of
from edgerelax.serve.server import Limits
from tests.waiting import wait_until

TEXTS = 4
PATIENCE = 60.0
"""Seconds for an answer, where httpx gives a server that stands still five."""


@contextmanager
def serving(
    chat: LoadedChat, limits: Limits, origins: tuple[str, ...] = (), key: str | None = None
) -> Iterator[str]:
    """Its address, while it serves."""
    with listen("127.0.0.1", 0) as door:
        server = server_of(make_app(chat, limits, origins, key), grace=0)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="package")
def chat(small_chat: Path) -> Iterator[LoadedChat]:
    with load_chat(small_chat, "cpu", cache_tokens=1024, texts=TEXTS) as loaded:
        yield loaded


@pytest.fixture(scope="package")
def address(chat: LoadedChat) -> Iterator[str]:
    with serving(chat, Limits(TEXTS, 64, 1 << 16)) as found:
        yield found


@contextmanager
def client_of(address: str) -> Iterator[openai.OpenAI]:
    """Each request has a connection of its own: the server ends those that are idle for long."""
    web = openai.DefaultHttpxClient(limits=httpx.Limits(max_keepalive_connections=0))
    url = f"{address}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=web) as made:
        yield made


@pytest.fixture
def client(address: str) -> Iterator[openai.OpenAI]:
    with client_of(address) as made:
        yield made


def wait_until_idle(chat: LoadedChat) -> None:
    """Until the engine has nothing to do; fails where it holds pages then."""
    engine = chat.paged
    assert engine is not None

    def is_idle() -> bool:
        load = engine.load
        return not (load.running or load.waiting or load.pages_used)

    wait_until(is_idle, "the engine is never idle")
