"""What a server counts, as Prometheus reads it."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from edgerelax.chat.paged import Load
from edgerelax.chat.work import Work

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)


class Metrics:
    """`load` says what the engine does at this moment; None where nothing generates."""

    def __init__(self, load: Callable[[], Load | None], in_progress: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "edgerelax_requests", "Answered requests.", ("path", "status"), registry=self._registry
        )
        self._cancelled = Counter(
            "edgerelax_cancelled", "Requests whose client had gone.", registry=self._registry
        )
        self._tokens = Counter(
            "edgerelax_tokens", "Tokens, by what they are.", ("kind",), registry=self._registry
        )
        self._first, self._whole = (
            Histogram(f"edgerelax_{name}_seconds", what, buckets=SECONDS, registry=self._registry)
            for name, what in (
                ("time_to_first_token", "From a request to its first token."),
                ("request", "From a request to the end of its answer."),
            )
        )
        for kind in ("prompt", "generated"):
            self._tokens.labels(kind)
        self._registry.register(_Now(load, in_progress))

    def answered(self, path: str, status: int) -> None:
        """A request got its status."""
        self._requests.labels(path, str(status)).inc()

    def ended(self, work: Work, seconds: float, cancelled: bool) -> None:
        """The work on a request is over: it came to its end, failed, or was cancelled."""
        self._tokens.labels("prompt").inc(work.prompt)
        self._tokens.labels("generated").inc(work.generated)
        self._whole.observe(seconds)
        if work.first is not None:
            self._first.observe(work.first)
        if cancelled:
            self._cancelled.inc()

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return generate_latest(self._registry)


class _Now(Collector):
    """Figures of the moment at which they are asked for."""

    def __init__(self, load: Callable[[], Load | None], in_progress: Callable[[], int]) -> None:
        self._load, self._in_progress = load, in_progress

    def collect(self) -> Iterator[Metric]:
        yield _gauge("requests_in_progress", "Requests that are worked on.", self._in_progress())
        load = self._load()
        if load is None:
            return
        yield _gauge("texts_running", "Texts that are being generated.", load.running)
        yield _gauge("queue_length", "Texts that wait for their turn.", load.waiting)
        yield _gauge("cache_pages_used", "Pages of the cache that texts hold.", load.pages_used)
        yield _gauge("cache_pages", "Pages that the cache has.", load.pages)
        yield CounterMetricFamily(
            "edgerelax_reused_tokens", "Prompt tokens found in the cache.", value=load.reused
        )


def _gauge(name: str, what: str, value: int) -> Metric:
    return GaugeMetricFamily(f"edgerelax_{name}", what, value=value)
