"""Where requests wait: what ends them, and who is told."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

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


@pytest.mark.parametrize(("parts", "cancelled"), ((1, 0.0), (2, 1.0)))
def test_who_closes_an_answer_behind_its_last_part_did_not_cancel_it(
    parts: int, cancelled: float
) -> None:
    metrics = Metrics(lambda: None, lambda: 0)

    def answer(work: Work) -> Iterator[bytes]:
        for _ in range(parts):
            yield b"part"
            while not work.cancelled:
                threading.Event().wait(0.001)

    async def play() -> None:
        desk = Desk(1, 0, lambda: metrics)
        async with aclosing(desk.parts(answer)) as given:
            assert await anext(given) == b"part"
        while desk.in_progress:
            await asyncio.sleep(0.001)

    with ThreadPoolExecutor(1) as alone:
        alone.submit(lambda: asyncio.run(asyncio.wait_for(play(), 60))).result()
    assert f"edgerelax_cancelled_total {cancelled}" in metrics.text().decode()
