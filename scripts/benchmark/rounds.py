"""Interleaved measuring: who competes, and in what order samples are taken."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

SAMPLE_SECONDS = 0.03  # of calls in one sample, so that a clock of 0.1 ms is fine enough
MOST_CALLS = 100
LEAST_ROUNDS = 3
SETTLE_SECONDS = 0.5  # of calls at a size, so that what is compiled in the background is there
LEAST_SETTLING = 3


class ContenderError(Exception):
    """A contender could not load or run the model; the message says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Calls in a row at one size: the mean of their milliseconds; the largest difference.

    `thread_milliseconds`: what the page's main thread worked for a call.
    """

    milliseconds: float
    gap: float
    launches: float | None = None
    thread_milliseconds: float | None = None


class Contender(Protocol):
    """A library with a model on a host, in a page or a process of its own."""

    name: str

    def start(self) -> Sample:
        """Load and run the first case, nothing being warm. Raises ContenderError."""

    def again(self) -> Sample:
        """Load anew beside what is loaded and run the first case. Raises ContenderError."""

    def sample(self, case: int, calls: int) -> Sample:
        """Run a case some times in a row. Raises ContenderError."""

    def facts(self) -> dict[str, Any]:
        """What it took so far: memory, files."""

    def close(self) -> None:
        """End the page or process."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure: fresh starts and warm rounds at most, seconds for either at most.

    Whatever the time, there is one start and there are LEAST_ROUNDS rounds.
    """

    starts: int
    rounds: int
    seconds: float


@dataclass(slots=True)
class NewShape:
    """Milliseconds of the first call at a size after each start, and of the calls that followed."""

    first: list[float] = field(default_factory=list)
    later: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Record:
    """All samples of one contender. `failure` says why there are no more.

    `fresh_shapes` were called after a start, when kernels may not have run yet; `new_shapes` in a
    model that was loaded again, whose kernels had all been compiled for the one before.
    """

    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    warm: list[Sample] = field(default_factory=list)
    fresh_shapes: dict[int, NewShape] = field(default_factory=dict)
    new_shapes: dict[int, NewShape] = field(default_factory=dict)
    gap: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    failure: str | None = None

    def note(self, sample: Sample) -> float:
        """Keep the difference, give the milliseconds."""
        self.gap = max(self.gap, sample.gap)
        return sample.milliseconds


class Race:
    """Measures contenders against each other: first runs, warm rounds, new shapes."""

    def __init__(self, contenders: Sequence[Contender], effort: Effort) -> None:
        self.contenders, self.effort = contenders, effort
        self.records: dict[str, Record] = {c.name: Record() for c in contenders}

    def run(self, cases: int, warm: int) -> Mapping[str, Record]:
        """Race over `cases` sizes, the warm rounds at case `warm`."""
        try:
            self._starts(cases)
            self._warm_rounds(warm)
            for contender in self._running():
                self.records[contender.name].facts = contender.facts()
            if cases > 1:
                self._shapes_again(cases)
        finally:
            for contender in self.contenders:
                contender.close()
        return self.records

    def _running(self, turn: int = 0) -> list[Contender]:
        """Those that did not fail, in an order that turns round every other time."""
        alive = [c for c in self.contenders if self.records[c.name].failure is None]
        return alive[::-1] if turn % 2 else alive

    def _try(
        self, contender: Contender, case: int | None, calls: int = 1, again: bool = False
    ) -> Sample | None:
        record = self.records[contender.name]
        start = contender.again if again else contender.start
        try:
            sample = start() if case is None else contender.sample(case, calls)
        except ContenderError as failure:
            record.failure = str(failure)
            return None
        record.note(sample)
        return sample

    def _starts(self, cases: int) -> None:
        """Fresh starts; after each the first case settles, then the others are called in order."""
        begun = time.monotonic()
        for turn in range(self.effort.starts):
            if turn and time.monotonic() - begun > self.effort.seconds:
                return
            for contender in self._running(turn):
                sample = self._try(contender, None)
                if sample is not None:
                    self.records[contender.name].first.append(sample.milliseconds)
            for contender in self._running(turn) if cases > 1 else ():
                second = self._settle(contender, 0)
                if second is not None:
                    self.records[contender.name].second.append(second)
            for case in range(1, cases):
                for contender in self._running(case + turn):
                    self._new_shape(contender, case, self.records[contender.name].fresh_shapes)

    def _shapes_again(self, cases: int) -> None:
        """All cases settle; then a model loaded again meets each for the first time."""
        for contender in self._running():
            for case in range(cases):
                self._settle(contender, case)
            self._try(contender, None, again=True)
        for contender in self._running():
            self._settle(contender, 0)
        for case in range(1, cases):
            for contender in self._running(case):
                self._new_shape(contender, case, self.records[contender.name].new_shapes)

    def _settle(self, contender: Contender, case: int) -> float | None:
        """Milliseconds of one call; as many more follow as fill SETTLE_SECONDS at that pace."""
        sample = self._try(contender, case)
        if sample is None:
            return None
        pace = sample.milliseconds
        self._try(contender, case, calls_for(pace, SETTLE_SECONDS, LEAST_SETTLING))
        return pace

    def _new_shape(self, contender: Contender, case: int, into: dict[int, NewShape]) -> None:
        """A usual call, then the first at a case, then three more.

        Right behind another's calls first calls on several threads took longer.
        """
        self._try(contender, 0)
        samples = [self._try(contender, case) for _ in range(4)]
        times = [s.milliseconds for s in samples if s is not None]
        if len(times) == len(samples):
            found = into.setdefault(case, NewShape())
            found.first.append(times[0])
            found.later.extend(times[1:])

    def _warm_rounds(self, case: int) -> None:
        calls: dict[str, int] = {}
        for contender in self._running():
            samples = [self._try(contender, case) for _ in range(2)]
            known = [s.milliseconds for s in samples if s is not None]
            calls[contender.name] = calls_for(min(known, default=1.0))
        start = time.monotonic()
        for turn in range(self.effort.rounds):
            late = time.monotonic() - start > self.effort.seconds
            if late and turn >= min(LEAST_ROUNDS, self.effort.rounds):
                return
            for contender in self._running(turn):
                sample = self._try(contender, case, calls[contender.name])
                if sample is not None:
                    self.records[contender.name].warm.append(sample)


def calls_for(milliseconds: float, seconds: float = SAMPLE_SECONDS, least: int = 1) -> int:
    """How many calls of that length make a sample long enough for the clock, or fill `seconds`."""
    return max(least, min(MOST_CALLS, math.ceil(seconds * 1e3 / max(milliseconds, 0.01))))
