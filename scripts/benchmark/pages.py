"""Contenders in Chromium: each in a fresh context of one browser, with a cache of its own."""

import gzip
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from playwright.sync_api import BrowserContext, Error, Page, Route

from scripts.benchmark.rounds import ContenderError, Sample
from scripts.benchmark.thread_clock import ThreadClock
from tests.browser.harness import ROOT, Browser, chromium

HERE = Path(__file__).resolve().parent
ORT = ROOT / "node_modules" / "onnxruntime-web" / "dist"
ISOLATED = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
}
ORT_SCRIPTS = {"webgpu": "ort.webgpu.min.mjs", "wasm": "ort.wasm.min.mjs"}


@contextmanager
def browser(site: Path) -> Iterator[Browser]:
    """Chromium on a site that holds our library, onnxruntime-web and the measuring page."""
    if not ORT.is_dir():
        raise RuntimeError("onnxruntime-web is not installed: run scripts/setup")
    for name in ("page.html", "page.js", "profile.js"):
        shutil.copy(HERE / name, site / name)
    (site / "ort").symlink_to(ORT, target_is_directory=True)
    with chromium(site) as opened:
        yield opened


@dataclass(slots=True)
class PageContender:
    """A library with a model on a backend. `model` is the URL of a folder or an ONNX file."""

    name: str
    browser: Browser
    library: str
    backend: str
    model: str
    cases: str
    threads: int = 1
    scripts: tuple[str, ...] = ()  # beside page.js, after it
    _context: BrowserContext | None = None
    _page: Page | None = None
    _clock: ThreadClock | None = None

    def start(self) -> Sample:
        """A fresh context; the time starts before the library's script is fetched."""
        self.close()
        chromium = self.browser.page.context.browser
        assert chromium is not None
        self._context = chromium.new_context()
        self._page = self._context.new_page()
        open_page(self._page, self.browser)
        if self.threads > 1:
            _isolate_workers(self._page)
        for script in self.scripts:
            self._page.add_script_tag(url=f"{self.browser.address}/{script}")
        self._clock = ThreadClock(self._page)
        script = f"ort/{ORT_SCRIPTS[self.backend]}"
        config = {
            "library": self.library,
            "backend": self.backend,
            "script": "/edgerelax.js" if self.library == "edgerelax" else f"/{script}",
            "model": self.model,
            "cases": self.cases,
            "threads": self.threads,
        }
        found = self._evaluate("start", config)
        return Sample(found["milliseconds"], _gap(found))

    def again(self) -> Sample:
        """In the same page, so that its browser has the code of the model compiled."""
        found = self._evaluate("again", None)
        return Sample(found["milliseconds"], _gap(found))

    def sample(self, case: int, calls: int) -> Sample:
        given = {"number": case, "calls": calls}
        found, worked = self._timed("sample", given)
        gap = _gap(self._evaluate("compare", case))
        return Sample(found["milliseconds"], gap, found["launches"], worked / calls)

    def facts(self) -> dict[str, Any]:
        """Bytes fetched (raw and gzipped) without weights, wasm memory, the peak of GPU buffers."""
        found: dict[str, Any] = self._evaluate("facts", None)
        files = self._files(found.pop("resources"))
        found["download"] = {
            "files": [str(file.relative_to(self.browser.folder)) for file in files],
            "bytes": sum(file.stat().st_size for file in files),
            "gzip_bytes": sum(gzipped(file) for file in files),
        }
        return found

    def profiled(self, case: int, calls: int) -> list[dict[str, Any]]:
        """Milliseconds and launches of each kernel in one run; needs profile.js."""
        found: list[dict[str, Any]] = self._evaluate("profiled", {"number": case, "calls": calls})
        return found

    def close(self) -> None:
        if self._context is not None:
            self._context.close()
        self._context = self._page = self._clock = None

    def _files(self, urls: list[str]) -> list[Path]:
        """What the library fetched beside the page, the cases and the weights."""
        own = {
            "page.html",
            "page.js",
            "profile.js",
            f"{self.cases[1:]}.json",
            f"{self.cases[1:]}.bin",
        }
        names = sorted({urlparse(url).path[1:] for url in urls if url.startswith("http")})
        return [
            self.browser.folder / name
            for name in names
            if name not in own and "/weights-" not in name and not name.endswith(".onnx")
        ]

    def _evaluate(self, function: str, argument: Any) -> Any:
        return self._timed(function, argument)[0]

    def _timed(self, function: str, argument: Any) -> tuple[Any, float]:
        """With the milliseconds that the main thread worked for it."""
        if self._clock is None:
            raise ContenderError("not started")
        try:
            return self._clock.timed(f"(a) => bench.patiently(bench.{function}(a))", argument)
        except Error as error:
            raise ContenderError(str(error).splitlines()[0]) from error


def open_page(page: Page, browser: Browser) -> None:
    """Open the measuring page, isolated from other origins: its clock ticks every 5 µs, not 100.

    The headers are added here, so that the server stays a plain one; nothing that the page fetches
    later passes through here.
    """
    address = f"{browser.address}/page.html"
    headers = {"Content-Type": "text/html", **ISOLATED}
    page.route(address, lambda route: route.fulfill(path=HERE / "page.html", headers=headers))
    page.goto(address)
    page.unroute(address)
    if not page.evaluate("crossOriginIsolated"):
        raise RuntimeError("the measuring page is not isolated: its clock is too coarse")


def _isolate_workers(page: Page) -> None:
    """Give the modules of onnxruntime-web the headers without which they are no workers here."""

    def fulfill(route: Route) -> None:
        headers = {"Content-Type": "text/javascript", **ISOLATED}
        route.fulfill(path=ORT / Path(urlparse(route.request.url).path).name, headers=headers)

    page.context.route("**/ort/*.mjs", fulfill)


@cache
def gzipped(file: Path) -> int:
    """Bytes of a file as a server would send it."""
    return len(gzip.compress(file.read_bytes(), 9))


def adapter(browser: Browser) -> str:
    """What WebGPU runs on in that browser."""
    chromium = browser.page.context.browser
    assert chromium is not None
    page = chromium.new_page()
    try:
        open_page(page, browser)
        return str(page.evaluate("bench.adapter()"))
    finally:
        page.close()


def _gap(found: Mapping[str, Any]) -> float:
    return float("inf") if found["gap"] == "infinite" else float(found["gap"])
