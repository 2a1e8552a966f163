"""The second half of scripts/demo: export, run on every host, compare, print a table."""

import functools
import http.server
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from edgerelax import api
from edgerelax.checking import difference
from tests.browser.harness import ROOT, Browser, chromium
from tests.e2e.models import HEADLINE, REAL, Inputs, run_reference, shape_text

SITE = ROOT / "dist" / "site"
MODELS = SITE / "models"
CHAT = ROOT / "models" / "smollm2" / "model.gguf"
console = Console(highlight=False, width=110)


@dataclass(frozen=True)
class Row:
    """One model on one host at one combination of sizes."""

    model: str
    shapes: str
    host: str
    milliseconds: float
    difference: float


def main(arguments: list[str]) -> int:
    """1 where an output differs from onnxruntime's, 2 where the arguments are unknown."""
    if set(arguments) - {"--serve", "--all"}:
        print("usage: scripts/demo [--all] [--serve]")
        return 2
    names = tuple(REAL) if "--all" in arguments else HEADLINE
    build_site(names)
    rows: list[Row] = []
    for name in names:
        rows += run_natively(name)
    with chromium(SITE / "check") as browser:
        for name in names:
            rows += run_in_browser(browser, name)
    show(rows)
    if "--serve" in arguments:
        serve()
    return 0 if all(row.difference <= 1e-3 for row in rows) else 1


def build_site(names: tuple[str, ...]) -> None:
    """The web app, and each model exported beside it; the chat's too."""
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(ROOT / "webapp" / "dist", SITE)
    (SITE / "check").mkdir()
    sources = {name: REAL[name].path for name in names} | {CHAT.parent.name: CHAT}
    for name, source in sources.items():
        start = time.perf_counter()
        executable = api.compile(source)
        executable.save(MODELS / name)
        launches = executable.report.launches
        console.print(
            f"exported {name}: {time.perf_counter() - start:.1f} s, "
            f"{launches['gpu']} launches, {weights(name) / 1e6:.1f} MB of weights"
        )
    tokenizer = MODELS / "minilm-tokenizer"
    tokenizer.mkdir()
    shutil.copy(ROOT / "models" / "minilm-tokenizer" / "tokenizer.json", tokenizer)


def weights(name: str) -> int:
    """Bytes of an artifact's weights."""
    return sum(f.stat().st_size for f in (MODELS / name).glob("weights-*"))


def run_natively(name: str) -> Iterator[Row]:
    """A model at all its sizes on the CPU and through wgpu."""
    for device in ("cpu", "wgpu"):
        with api.load(MODELS / name, device) as session:
            for inputs in REAL[name].inputs():
                outputs = session.run(inputs)
                start = time.perf_counter()
                session.run(inputs)
                spent = (time.perf_counter() - start) * 1e3
                yield row(name, inputs, f"native {device}", spent, outputs)


def run_in_browser(browser: Browser, name: str) -> Iterator[Row]:
    """A model at all its sizes on WebAssembly and WebGPU."""
    url = browser.publish(MODELS / name, name)
    for backend in ("wasm", "webgpu"):
        browser.open(name, url, backend=backend)
        for inputs in REAL[name].inputs():
            outputs, _ = browser.run(name, inputs)
            _, spent = browser.run(name, inputs)
            yield row(name, inputs, f"Chromium {backend}", spent, outputs)
        browser.script("await models[argument].dispose()", name)


def row(
    name: str, inputs: Inputs, host: str, spent: float, outputs: Mapping[str, np.ndarray]
) -> Row:
    """One line of the table: what came out and how long it took, in milliseconds."""
    wanted = run_reference(name, inputs)
    gap = max(difference(outputs[output], value) for output, value in wanted.items())
    return Row(name, shape_text(inputs), host, spent, gap)


def show(rows: list[Row]) -> None:
    """Print the table."""
    table = Table("model", "shapes", "host", "time", "difference", title="Against onnxruntime")
    for r in rows:
        table.add_row(r.model, r.shapes, r.host, f"{r.milliseconds:.1f} ms", f"{r.difference:.1e}")
    console.print(table)
    console.print("WebGPU ran on a software adapter here: its times say nothing about a GPU.")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Isolates its pages, so that WebAssembly may use threads in them."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


def serve() -> None:
    """The site at port 8080, until Ctrl-C."""
    handler = functools.partial(Handler, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 8080), handler)
    console.print("the demo site is at http://127.0.0.1:8080; stop with Ctrl-C")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
