"""Language models against transformers.js in one Chromium and onnxruntime natively: --language.

All contenders of a host generate after the same prompts, in turn; a prompt comes once, so that no
cache of prompts helps. What they generate is compared.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlparse

from playwright.sync_api import BrowserContext, Error, Page
from tokenizers import Tokenizer

from scripts.benchmark.language_export import artifact, onnx_folder
from scripts.benchmark.page_of_language import OURS
from scripts.benchmark.pages import open_page
from scripts.benchmark.processes import WorkerProcess
from scripts.benchmark.rounds import ContenderError
from scripts.benchmark.statistics import median, paired_ratio
from scripts.benchmark.thread_clock import ThreadClock
from tests.browser.harness import ROOT, Browser

MODEL = ROOT / "models" / "smollm2" / "model.gguf"
RIVALS = ROOT / "rivals"
TRANSFORMERS = RIVALS / "node_modules" / "@huggingface" / "transformers"
COMPARED = 16
"""So many tokens must be the same as those of the same weights in f32."""
WARM = 4
"""Tokens that each generates before the rounds."""
PATIENCE = 600
IN_FLIGHT = (1, 2, 4, 8)
TEXT = (
    "It was a bright cold day in the market town, and the clocks of its three churches were "
    "striking eleven, none of them together. Anna counted the coins in her pocket once more. "
    "Seven was enough for bread and a ticket, but not for both the ticket and the book that she "
    "had promised her brother. She looked at the tower, at the clouds, and made up her mind. The "
    "baker, who had known her since she could walk, wrapped two loaves instead of one and would "
    "not hear of being paid for the second. On the platform the wind was stronger, and the train, "
    "when it came at last, was full of people who had been to the coast and smelled of salt."
)

Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds for the prompts of a host; `quick` is one prompt and few tokens."""

    seconds: float
    quick: bool


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of a prompt, tokens generated after it, prompts."""

    prompt: int
    generated: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Host:
    """Where contenders meet, with lengths that software adapters finish as well."""

    title: str
    backend: str
    in_page: bool
    lengths: Lengths


HOSTS = {
    "webgpu": Host("WebGPU in Chromium, against transformers.js", "webgpu", True,
                   Lengths(16, 16, 2)),
    "wasm": Host("WebAssembly in Chromium on one thread, against transformers.js", "wasm", True,
                 Lengths(64, 24, 5)),
    "cpu": Host("CPU natively on one thread, against onnxruntime and llama.cpp", "cpu", False,
                Lengths(64, 24, 5)),
    "wgpu": Host("wgpu natively, against onnxruntime and llama.cpp on a CPU thread", "wgpu", False,
                 Lengths(16, 16, 2)),
}  # fmt: skip


class Engine(Protocol):
    """A library with the model on a host, in a page or a process of its own."""

    def open(self) -> float:
        """Milliseconds of loading it. Raises ContenderError."""

    def tokens(self, prompt: Sequence[int], limit: int, in_flight: int) -> list[Data]:
        """Of each generated token `id`, `milliseconds`, and what was launched till then.

        In pages the last one also has what prompt and tokens took together: `launched`, and
        `worked`, the milliseconds of the page's main thread.
        """

    def facts(self) -> Data:
        """Memory that it took so far."""

    def close(self) -> None:
        """End the page or process."""


@dataclass(slots=True)
class PageEngine:
    """In a page of its own; `config` is for language.js."""

    browser: Browser
    config: Data
    _context: BrowserContext | None = None
    _page: Page | None = None
    _clock: ThreadClock | None = None

    def open(self) -> float:
        chromium = self.browser.page.context.browser
        assert chromium is not None
        self._context = chromium.new_context()
        self._page = self._context.new_page()
        open_page(self._page, self.browser)
        self._page.add_script_tag(url=f"{self.browser.address}/language.js")
        self._clock = ThreadClock(self._page)
        return float(self._timed("language.open", self.config)[0]["milliseconds"])

    def tokens(self, prompt: Sequence[int], limit: int, in_flight: int) -> list[Data]:
        given = {"prompt": list(prompt), "limit": limit, "inFlight": in_flight}
        self._timed("language.forget", list(prompt))
        run, worked = self._timed("language.tokens", given)
        found: list[Data] = run["tokens"]
        found[-1] |= {"worked": worked, "launched": run["launches"]}
        return found

    def facts(self) -> Data:
        found: Data = self._timed("bench.facts", None)[0]
        del found["resources"]
        return found

    def close(self) -> None:
        if self._context is not None:
            self._context.close()
        self._context = self._page = self._clock = None

    def _timed(self, function: str, argument: Any) -> tuple[Any, float]:
        if self._clock is None:
            raise ContenderError("not started")
        try:
            script = f"(a) => bench.patiently({function}(a), {PATIENCE})"
            return self._clock.timed(script, argument)
        except Error as error:
            raise ContenderError(str(error).splitlines()[0]) from error


@dataclass(slots=True)
class ProcessEngine:
    """In a process of its own; `device` is for edgerelax alone."""

    library: str
    model: Path
    device: str = ""
    _process: WorkerProcess = field(
        default_factory=lambda: WorkerProcess("scripts.benchmark.language_worker", PATIENCE)
    )

    def open(self) -> float:
        self._process.start()
        found = self._process.ask(
            do="open", library=self.library, model=str(self.model), device=self.device
        )
        return float(found["milliseconds"])

    def tokens(self, prompt: Sequence[int], limit: int, in_flight: int) -> list[Data]:
        found: list[Data] = self._process.ask(do="tokens", prompt=list(prompt), limit=limit)
        return found

    def facts(self) -> Data:
        found: Data = self._process.ask(do="facts")
        return found

    def close(self) -> None:
        self._process.close()


@dataclass(slots=True)
class Entry:
    """A way of generating: an engine and its steps in flight. `is_rival` has no say in ours."""

    name: str
    engine: Engine
    is_rival: bool
    in_flight: int = 1
    runs: list[list[Data]] = field(default_factory=list)
    failure: str | None = None


def install_rivals() -> None:
    """transformers.js, for the bench alone; nothing where it is there."""
    if not TRANSFORMERS.is_dir():
        command = ["npm", "ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=RIVALS, check=True)


def version() -> str:
    """Of transformers.js."""
    found: str = json.loads((TRANSFORMERS / "package.json").read_text())["version"]
    return found


def measure(
    hosts: Sequence[str],
    browser: Browser | None,
    effort: Effort,
    note: Callable[[str], None],
) -> Iterator[Data]:
    """All that is measured so far, after each host; `note` hears of each run."""
    ours, theirs = artifact(MODEL), onnx_folder(MODEL)
    ids = Tokenizer.from_file(str(theirs / "tokenizer.json")).encode(TEXT).ids
    found: Data = {"model": "SmolLM2-135M-Instruct", "transformers": version(), "hosts": {}}
    for name in hosts:
        host = HOSTS[name]
        if effort.quick:
            host = replace(host, lengths=Lengths(16, 6, 1))
        entries = contenders(host, ours, theirs, browser)
        found["hosts"][name] = Race(host, entries, effort.seconds, note).run(ids)
        yield found


def contenders(host: Host, ours: Path, theirs: Path, browser: Browser | None) -> list[Entry]:
    """Ours, theirs with the same weights in f32, theirs in int4; natively llama.cpp too."""
    if not host.in_page:
        files = {"f32": "model.onnx", "int4": "model_q4.onnx"}
        return [
            Entry(OURS, ProcessEngine(OURS, ours, host.backend), False),
            *(
                Entry(
                    f"onnxruntime {kind}", ProcessEngine("onnxruntime", theirs / "onnx" / f), True
                )
                for kind, f in files.items()
            ),
            Entry("llama.cpp", ProcessEngine("llama.cpp", MODEL), True),
        ]
    assert browser is not None
    _publish(browser)
    url = browser.publish(ours, "language")
    config = {"library": "edgerelax", "script": "/edgerelax.js", "backend": host.backend}
    room = host.lengths.prompt + host.lengths.generated
    own = PageEngine(browser, config | {"model": url, "room": room})
    folder = urlparse(browser.publish(theirs, "language-onnx")).path.strip("/")
    config |= {"library": "transformers", "script": "/rival/transformers.min.js", "model": folder}
    return [
        *(Entry(_flying(n), own, False, n) for n in IN_FLIGHT),
        *(
            Entry(f"transformers.js {kind}", PageEngine(browser, config | {"dtype": dtype}), True)
            for kind, dtype in (("f32", "fp32"), ("int4", "q4"))
        ),
    ]


def _flying(count: int) -> str:
    return f"edgerelax, {count} step{'s' * (count > 1)} in flight"


def _publish(browser: Browser) -> None:
    shutil.copy(Path(__file__).with_name("language.js"), browser.folder / "language.js")
    modules = RIVALS / "node_modules"
    browser.publish(TRANSFORMERS / "dist", "rival")
    browser.publish(modules / "onnxruntime-web" / "dist", "rival-ort")


@dataclass(frozen=True, slots=True)
class Race:
    """All ways to generate on a host, in turn; a new prompt only within so many seconds."""

    host: Host
    entries: Sequence[Entry]
    seconds: float
    note: Callable[[str], None]

    def run(self, ids: Sequence[int]) -> Data:
        """Loads each engine, then lets all generate after each prompt in turn."""
        lengths = self.host.lengths
        assert len(ids) >= lengths.prompt + lengths.rounds
        engines = list({id(entry.engine): entry.engine for entry in self.entries}.values())
        loading: dict[int, float] = {}
        try:
            for engine in engines:
                _load(engine, self.entries, loading)
            rounds = self._rounds(ids)
            facts = {
                id(e.engine): _attempt(e, e.engine.facts) or {}
                for e in self.entries
                if e.failure is None
            }
        finally:
            for engine in engines:
                engine.close()
        told = {
            e.name: described(e, lengths)
            | facts.get(id(e.engine), {})
            | {"load_ms": loading.get(id(e.engine))}
            for e in self.entries
        }
        return {"title": self.host.title, "lengths": [lengths.prompt, lengths.generated],
                "rounds": rounds, "contenders": compared(told)}  # fmt: skip

    def _rounds(self, ids: Sequence[int]) -> int:
        """How many prompts all were given."""
        lengths = self.host.lengths
        for entry in self.entries:
            self._generate(entry, ids[-lengths.prompt :], WARM)
            entry.runs.clear()
        begun = time.monotonic()
        for turn in range(lengths.rounds):
            if turn and time.monotonic() - begun > self.seconds:
                return turn
            for entry in self.entries[:: -1 if turn % 2 else 1]:
                self._generate(entry, ids[turn : turn + lengths.prompt], lengths.generated)
        return lengths.rounds

    def _generate(self, entry: Entry, prompt: Sequence[int], limit: int) -> None:
        if entry.failure is not None:
            return
        begun = time.monotonic()
        run = _attempt(entry, lambda: entry.engine.tokens(prompt, limit, entry.in_flight))
        if run is not None:
            entry.runs.append(run)
        took = f"{time.monotonic() - begun:.1f} s"
        self.note(f"{self.host.title}: {entry.name}, {limit} tokens: {entry.failure or took}")


def _load(engine: Engine, entries: Sequence[Entry], loading: dict[int, float]) -> None:
    """Notes how long it took, or for all ways to use the engine why it failed."""
    try:
        loading[id(engine)] = engine.open()
    except ContenderError as failure:
        for entry in entries:
            if entry.engine is engine:
                entry.failure = str(failure)


def _attempt(entry: Entry, do: Any) -> Any:
    """What it gives; None where the contender fails, which is then noted."""
    try:
        return do()
    except ContenderError as failure:
        entry.failure = str(failure)
        return None


def described(entry: Entry, lengths: Lengths) -> Data:
    """One contender's figures; times in milliseconds, medians over the prompts."""
    first = [run[0]["milliseconds"] for run in entry.runs]
    each = [t for run in entry.runs if (t := per_token(run, "milliseconds", entry)) is not None]
    prefill, decode = median(first), median(each)
    launches = median([n for run in entry.runs if (n := per_token(run, "launches", entry))])
    ends = [run[-1] for run in entry.runs]
    worked = median([end["worked"] / end["launched"] for end in ends if end.get("launched")])
    return {
        "failure": entry.failure,
        "is_rival": entry.is_rival,
        "tokens": [[token["id"] for token in run] for run in entry.runs],
        "first_ms": first,
        "token_ms": each,
        "first_median_ms": prefill,
        "prefill_per_second": lengths.prompt * 1e3 / prefill if prefill else None,
        "decode_per_second": 1e3 / decode if decode else None,
        "launches_per_token": launches,
        "thread_ms_per_step": median(
            [run[-1]["worked"] / len(run) for run in entry.runs if "worked" in run[-1]]
        ),
        "thread_us_per_launch": worked * 1e3 if worked else None,
    }


def per_token(run: Sequence[Data], figure: str, entry: Entry) -> float | None:
    """How much a counter grows with a token, while as many steps are in flight at either end."""
    last = len(run) - entry.in_flight
    if last < 1 or run[0].get(figure) is None:
        return None
    return float(run[last][figure] - run[0][figure]) / last


def compared(contenders: dict[str, Data]) -> dict[str, Data]:
    """With ratios to the first (its time over theirs) and tokens agreed with the f32 rival."""
    first = next(iter(contenders.values()))
    reference = next((c for c in contenders.values() if c["is_rival"]), None)
    for data in contenders.values():
        for figure in ("first", "token"):
            data[f"{figure}_ratio"] = paired_ratio(first[f"{figure}_ms"], data[f"{figure}_ms"])
        wanted = reference["tokens"] if reference else []
        pairs = list(zip(data["tokens"], wanted, strict=False))
        data["agreed"] = min((_agreed(a, b) for a, b in pairs), default=None)
    return contenders


def _agreed(ours: Sequence[int], theirs: Sequence[int]) -> int:
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))
    )


def failures(found: Data) -> list[str]:
    """Why our side is not right: it failed, or its first tokens are not those of the f32 rival."""
    out = []
    for name, host in found.get("hosts", {}).items():
        wanted = min(COMPARED, host["lengths"][1])
        for contender, data in host["contenders"].items():
            if data["is_rival"]:
                continue
            if data["failure"] is not None:
                out.append(f"{contender} on {name}: {data['failure']}")
            elif data["agreed"] is None:
                out.append(f"{contender} on {name}: nothing to compare its tokens with")
            elif data["agreed"] < wanted:
                out.append(f"{contender} on {name}: {data['agreed']} of {wanted} tokens agree")
    return out
