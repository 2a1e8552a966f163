"""The time that a page's main thread computes, which no waiting is in, nor what others do."""

from statistics import median
from typing import Any

from playwright.sync_api import CDPSession, Page

EMPTY = 9  # calls of nothing, to know what asking costs


class ThreadClock:
    """The main thread of a page, by the browser's clock of that thread (`ThreadTime` of CDP)."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._asking = 0.0
        self._asking = median(self.timed("async (a) => a", None)[1] for _ in range(EMPTY))

    def timed(self, script: str, argument: Any) -> tuple[Any, float]:
        """What a function of the page gives, and the milliseconds that the thread worked for it."""
        before = self._milliseconds()
        found = self._page.evaluate(script, argument)
        return found, max(self._milliseconds() - before - self._asking, 0.0)

    def _milliseconds(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        (seconds,) = (m["value"] for m in metrics if m["name"] == "ThreadTime")
        return float(seconds) * 1e3
