"""Where requests wait: so many at once, so many behind them, each in a thread of its own.

Threads read streams and so drive the engine's batch; the event loop only passes on what they write.
Nothing they have to say is lost or waits for a slow client.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from edgerelax.chat.work import CancelledError, Work
from edgerelax.serve.errors import queue_full
from edgerelax.serve.metrics import Metrics

Answer = Callable[[Work], Iterator[bytes]]
"""Makes an answer in parts. What is wrong with the request is raised before the first."""


class Desk:
    """Takes `texts` requests at once and lets `waiting` more wait."""

    def __init__(self, texts: int, waiting: int, metrics: Callable[[], Metrics]) -> None:
        self._texts, self._waiting, self._metrics = texts, waiting, metrics
        self._threads = ThreadPoolExecutor(texts + waiting, "edgerelax-answer")
        self._works: set[Work] = set()
        self._mean = 1.0

    @property
    def in_progress(self) -> int:
        """Requests that are worked on, or wait."""
        return len(self._works)

    async def parts(self, answer: Answer) -> AsyncGenerator[bytes]:
        """An answer's parts as they come. Closing this ends the work on it.

        Raises what making it raised, and StatusError where too many wait; use it on one event loop.
        """
        if len(self._works) >= self._texts + self._waiting:
            raise queue_full(self._waiting, self._seconds())
        loop, work = asyncio.get_running_loop(), Work()
        said: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue()

        def tell(item: bytes | BaseException | None) -> None:
            loop.call_soon_threadsafe(said.put_nowait, item)

        self._works.add(work)
        done = loop.run_in_executor(self._threads, _write, answer, work, tell)
        done.add_done_callback(lambda done: self._end(work, done.cancelled() or done.result()))
        try:
            while (item := await said.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            if not done.done():
                work.cancel()

    def close(self) -> None:
        """End all that is under way, and wait until it has ended."""
        for work in list(self._works):
            work.cancel()
        self._threads.shutdown()

    def _end(self, work: Work, cancelled: bool) -> None:
        seconds = time.perf_counter() - work.started
        self._works.discard(work)
        self._mean += 0.1 * (seconds - self._mean)
        self._metrics().ended(work, seconds, cancelled)

    def _seconds(self) -> int:
        """About how long it takes until one of those that wait begins."""
        return min(60, max(1, math.ceil(self._mean / self._texts)))


def _write(
    answer: Answer, work: Work, tell: Callable[[bytes | BaseException | None], None]
) -> bool:
    """Whether it was cancelled: before its end, for who has the last part may close the answer."""
    try:
        work.check()
        for part in answer(work):
            work.check()
            tell(part)
    except Exception as error:  # cancelled ones as well: the server may be closing
        tell(error)
        return isinstance(error, CancelledError)
    tell(None)
    return False
