"""Where requests wait: what ends them, and who is told."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgerelax.chat.work import CancelledError, Work
from edgerelax.serve.desk import Desk
from edgerelax.serve.errors import status_error
from edgerelax.serve.metrics import Metrics


def test_a_desk_that_closes_tells_who_still_waits() -> None:
    begun = threading.Event()

    def answer(work: Work) -> Iterator[bytes]:
        yield b"first"
        begun.set()
        while not work.cancelled:
            threading.Event().wait(0.001)
        work.check()

    async def play() -> None:
        desk = Desk(1, 0, lambda: Metrics(lambda: None, lambda: 0))
        parts = desk.parts(answer)
        assert await anext(parts) == b"first"
        await asyncio.to_thread(begun.wait)
        await asyncio.to_thread(desk.close)
        with pytest.raises(CancelledError) as told:
            await anext(parts)
        assert status_error(told.value).status == 503

    with ThreadPoolExecutor(1) as alone:  # other tests' browsers have a loop in this thread
        alone.submit(lambda: asyncio.run(asyncio.wait_for(play(), 60))).result()
