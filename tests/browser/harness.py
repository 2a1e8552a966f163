"""A real Chromium, a static server, and a page that loads artifacts with the built library."""

import base64
import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "runtime-js" / "dist" / "edgerelax.js"
FETCHED = tuple(LIBRARY.with_name(f"edgerelax-{part}.js") for part in ("text", "chat", "speech"))
"""What the library fetches for language models: for all, for chats, for speech."""
FLAGS = (
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE = 300_000.0
"""Milliseconds for a page to do what it has to do at some time."""
expect.set_options(timeout=PATIENCE)
NUMPY = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "i64": np.int64, "i32": np.int32,
    "i16": np.int16, "i8": np.int8, "u64": np.uint64, "u32": np.uint32, "u16": np.uint16,
    "u8": np.uint8, "bool": np.bool_,
}  # fmt: skip

PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><script type="module">
import * as edgerelax from '/edgerelax.js';
const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const encode = (data) => {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  let text = '';
  for (let k = 0; k < bytes.length; k += 32768) {
    text += String.fromCharCode(...bytes.subarray(k, k + 32768));
  }
  return btoa(text);
};
const arrays = {
  f32: Float32Array, f64: Float64Array, f16: Uint16Array, i64: BigInt64Array, i32: Int32Array,
  i16: Int16Array, i8: Int8Array, u64: BigUint64Array, u32: Uint32Array, u16: Uint16Array,
  u8: Uint8Array, bool: Uint8Array,
};
const models = {};
window.edgerelax = edgerelax;
window.models = models;
window.unpack = (packed) => Object.fromEntries(Object.entries(packed).map(([name, t]) =>
  [name, { data: new arrays[t.dtype](decode(t.data).buffer), shape: t.shape }]));
window.pack = (outputs) => Object.fromEntries(Object.entries(outputs).map(([name, t]) =>
  [name, { data: encode(t.data), shape: t.shape, dtype: t.dtype }]));
window.open_model = async (name, url, options) => {
  models[name] = await edgerelax.load(url, options);
  return models[name].backend;
};
window.run_model = async (name, packed) => {
  const start = performance.now();
  const outputs = await models[name].run(unpack(packed));
  return { outputs: pack(outputs), milliseconds: performance.now() - start };
};
window.ready = true;
</script>"""


class Browser:
    """A page with the library loaded; arrays go in and out as base64."""

    def __init__(self, page: Page, address: str, folder: Path) -> None:
        self.page, self.address, self.folder = page, address, folder

    def visit(self, **options: Any) -> BrowserContext:
        """Another visitor of the same browser, by options of playwright."""
        chromium = self.page.context.browser
        assert chromium is not None
        context = chromium.new_context(**options)
        context.set_default_timeout(PATIENCE)
        return context

    def publish(self, artifact: Path, name: str) -> str:
        """Serve an artifact folder under a name; gives its URL."""
        target = self.folder / name
        if not target.exists():
            target.symlink_to(artifact, target_is_directory=True)
        return f"{self.address}/{name}"

    def open(self, name: str, url: str, **options: Any) -> str:
        return str(self.page.evaluate("([n, u, o]) => open_model(n, u, o)", [name, url, options]))

    def run(
        self, name: str, inputs: Mapping[str, npt.NDArray[Any]]
    ) -> tuple[dict[str, npt.NDArray[Any]], float]:
        """Outputs by name and the milliseconds that the call took in the page."""
        packed = {k: pack(v) for k, v in inputs.items()}
        answer = self.page.evaluate("([n, x]) => run_model(n, x)", [name, packed])
        return {k: unpack(v) for k, v in answer["outputs"].items()}, answer["milliseconds"]

    def script(self, body: str, argument: Any = None) -> Any:
        """Run the body of an async function with `argument` in the page."""
        return self.page.evaluate(f"async (argument) => {{ {body} }}", argument)


def pack(array: npt.NDArray[Any]) -> dict[str, Any]:
    dtype = next(n for n, t in NUMPY.items() if np.dtype(t) == array.dtype)
    data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"data": data, "shape": list(array.shape), "dtype": dtype}


def unpack(packed: Mapping[str, Any]) -> npt.NDArray[Any]:
    data = base64.b64decode(packed["data"])
    return np.frombuffer(data, NUMPY[packed["dtype"]]).reshape(packed["shape"])


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        """Pages asked for with `?isolated` may share memory among threads."""
        if self.path.endswith("?isolated"):
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {
        ".js": "text/javascript"
    }


@contextmanager
def serve(folder: Path) -> Iterator[str]:
    """A static server on localhost; gives its address."""
    handler = functools.partial(_Handler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A fresh headless Chromium on a fresh page that serves `folder` beside the library."""
    executable = shutil.which("chromium")
    if executable is None:
        raise RuntimeError("chromium is not on the PATH: run scripts/setup")
    if not all(file.is_file() for file in (LIBRARY, *FETCHED)):
        raise RuntimeError("runtime-js is not built: run npm run build")
    (folder / "index.html").write_text(PAGE)
    for file in (LIBRARY, *FETCHED):
        shutil.copy(file, folder / file.name)
    with serve(folder) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        try:
            page = browser.new_page()
            page.set_default_timeout(2 * PATIENCE)
            page.goto(address)
            page.wait_for_function("window.ready")
            yield Browser(page, address, folder)
        finally:
            browser.close()


def error_of(browser: Browser, body: str, argument: Any = None) -> dict[str, str]:
    """Code and message of the error that a script must throw."""
    text = browser.script(
        f"try {{ {body} }} catch (e) {{"
        "  return JSON.stringify({code: e.code, message: e.message}); } return '{}';",
        argument,
    )
    found: dict[str, str] = json.loads(text)
    assert found, "no error was thrown"
    return found
