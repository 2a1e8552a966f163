"""Loading from damaged folders and in poor surroundings: always an error with a code, never a hang.

Numbers are those of the list of faults that users of other browser runtimes hit.
"""

import functools
import hashlib
import http.server
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.browser.conftest import Publish
from tests.browser.harness import LIBRARY, Browser, error_of
from tests.browser.runtime_page import BACKENDS, check, packed, runtime_page, unpacked
from tests.browser.small_models import SMALL

Small = Callable[[str], Path]
X = {"x": np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 16)}
LOAD = "await edgerelax.load(argument.url, { backend: argument.backend })"


def damaged(
    page: Browser, small: Small, tmp_path: Path, change: Callable[[Path], None], backend: str
) -> dict[str, str]:
    """The error of loading a copy of a model after a change to its folder."""
    folder = tmp_path / "model"
    shutil.copytree(small("dense"), folder)
    change(folder)
    url = page.publish(folder, tmp_path.name)
    found = error_of(page, LOAD, {"url": url, "backend": backend})
    assert page.script("return gpu.alive.size") == 0
    return found


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    later = path.stat().st_mtime + 2  # the server tells versions apart by whole seconds
    change(manifest)
    path.write_text(json.dumps(manifest))
    os.utime(path, (later, later))


def rewrite(folder: Path, name: str, data: bytes) -> None:
    """Replace a file, and its size and hash in the manifest."""
    (folder / name).write_bytes(data)
    info = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit_manifest(folder, lambda manifest: manifest["files"].update({name: info}))


WEIGHTS = "weights-00002-of-00003.safetensors"  # what all variants read
FILES = {
    "wasm": ["vm.wasm", "kernels-cpu-relaxed.wasm", "program-cpu-relaxed_cpu.bin", WEIGHTS],
    "webgpu": ["vm.wasm", "kernels-software.wgsl", "program-software.bin", WEIGHTS],
}
EACH_FILE = [(backend, name) for backend, names in FILES.items() for name in names]


@pytest.mark.parametrize(("backend", "name"), EACH_FILE)
def test_missing_files(
    page: Browser, small: Small, tmp_path: Path, backend: str, name: str
) -> None:
    error = damaged(page, small, tmp_path, lambda f: (f / name).unlink(), backend)
    assert error["code"] == "network"
    assert name in error["message"] and "404" in error["message"]


@pytest.mark.parametrize(("backend", "name"), EACH_FILE)
def test_truncated_files(
    page: Browser, small: Small, tmp_path: Path, backend: str, name: str
) -> None:
    def cut(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2])

    error = damaged(page, small, tmp_path, cut, backend)
    assert error["code"] == "integrity" and name in error["message"]


@pytest.mark.parametrize(("backend", "name"), EACH_FILE)
def test_changed_files(
    page: Browser, small: Small, tmp_path: Path, backend: str, name: str
) -> None:
    def flip(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    error = damaged(page, small, tmp_path, flip, backend)
    assert error["code"] == "integrity" and name in error["message"]


@pytest.mark.parametrize(
    ("backend", "name", "data", "code"),
    [
        ("wasm", "vm.wasm", b"no wasm", "format"),
        ("wasm", "vm.wasm", b"\0asm\1\0\0\0", "format"),
        ("wasm", "kernels-cpu-relaxed.wasm", b"no wasm", "format"),
        ("wasm", "kernels-cpu-relaxed.wasm", b"\0asm\1\0\0\0", "format"),
        ("wasm", "program-cpu-relaxed_cpu.bin", b"no program", "format"),
        ("wasm", "program-cpu-relaxed_cpu.bin", b"", "format"),
        ("webgpu", "program-software.bin", b"\0" * 400, "format"),
        ("webgpu", "kernels-software.wgsl", b"fn main() {" * 1000, "device"),
    ],
)
def test_files_of_another_kind(
    page: Browser, small: Small, tmp_path: Path, backend: str, name: str, data: bytes, code: str
) -> None:
    error = damaged(page, small, tmp_path, lambda f: rewrite(f, name, data), backend)
    assert error["code"] == code, error
    page.script("gpu.errors.length = 0")  # the refused WGSL


@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_with_flipped_bytes_never_hang_or_crash(
    page: Browser, small: Small, tmp_path: Path, backend: str
) -> None:
    """The hash is made to fit, so that the decoder itself must cope."""
    name = "program-cpu-relaxed_cpu.bin" if backend == "wasm" else "program-software.bin"
    original = (small("dense") / name).read_bytes()
    rng = np.random.default_rng(0)
    folder = tmp_path / "model"
    shutil.copytree(small("dense"), folder)
    url = page.publish(folder, tmp_path.name)
    for _ in range(25):
        data = bytearray(original)
        for at in rng.integers(0, len(data), 3):
            data[at] ^= 1 << rng.integers(0, 8)
        rewrite(folder, name, bytes(data))
        found = page.script(
            """let model;
            try {
              model = await edgerelax.load(argument.url, { backend: argument.backend });
              await Promise.race([
                model.run(unpack(argument.x)),
                new Promise((_, no) => setTimeout(no, 60000, new Error('it hangs'))),
              ]);
              return 'ok';
            } catch (error) { return error.code ?? String(error); }
            finally { await model?.dispose(); }""",
            {"url": url, "backend": backend, "x": packed(X)},
        )
        assert found in ("ok", "format", "input", "vm", "limit", "memory", "device"), found
    page.script("gpu.errors.length = 0")


def test_newer_versions_and_other_pages(page: Browser, small: Small, tmp_path: Path) -> None:
    def newer(folder: Path) -> None:
        edit_manifest(folder, lambda manifest: manifest.update(version=99))

    error = damaged(page, small, tmp_path, newer, "wasm")
    assert error["code"] == "format"
    assert "99" in error["message"] and "update edgerelax.js" in error["message"]
    (page.folder / "page").mkdir()
    (page.folder / "page" / "manifest.json").write_text("<!doctype html>")
    error = error_of(page, LOAD, {"url": f"{page.address}/page", "backend": "wasm"})
    assert error["code"] == "format" and "artifact folder" in error["message"]
    error = error_of(page, LOAD, {"url": f"{page.address}/nothing", "backend": "wasm"})
    assert error["code"] == "network"
    error = error_of(page, LOAD, {"url": "http://127.0.0.1:9/", "backend": "wasm"})
    assert error["code"] == "network"


def test_an_artifact_that_asks_for_too_much(page: Browser, small: Small, tmp_path: Path) -> None:
    def greedy(folder: Path) -> None:
        needs = {"features": [], "limits": {"maxBufferSize": 2**52}}
        edit_manifest(
            folder, lambda manifest: [p.update(needs=needs) for p in manifest["programs"]]
        )

    error = damaged(page, small, tmp_path, greedy, "webgpu")
    assert error["code"] == "limit" and "maxBufferSize" in error["message"]


POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; "
    "require-trusted-types-for 'script'"
)
PROBE = """
import { load } from './edgerelax.js';
window.probe = async (backend) => {
  const model = await load('model', { backend });
  const { y } = await model.run({ x: new Float32Array(48).fill(0.5) });
  await model.dispose();
  return [model.backend, ...y.shape, y.data.every(Number.isFinite)];
};
document.title = 'ready';
"""


class _Strict(http.server.SimpleHTTPRequestHandler):
    """Static files as they are, under a content policy."""

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def strict_server(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Strict, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/deep/folder/"
    finally:
        server.shutdown()
        server.server_close()


def test_36_a_plain_server_with_a_strict_policy(
    browser: Browser, small: Small, tmp_path: Path
) -> None:
    folder = tmp_path / "deep" / "folder"
    shutil.copytree(small("dense"), folder / "model")
    shutil.copy(LIBRARY, folder / "edgerelax.js")
    (folder / "probe.js").write_text(PROBE)
    (folder / "index.html").write_text('<script type="module" src="probe.js"></script>')
    with strict_server(tmp_path) as address:
        context = browser.visit()
        page = context.new_page()
        logged: list[str] = []
        page.on("console", lambda message: logged.append(message.text))
        page.goto(address)
        page.wait_for_function("document.title === 'ready'")
        for backend in BACKENDS:
            assert page.evaluate("(b) => probe(b)", backend) == [backend, 3, 24, True]
        context.close()
    assert [text for text in logged if "Policy" in text] == []


NO_WEBGPU = """
delete Navigator.prototype.gpu;
for (const name of Object.getOwnPropertyNames(globalThis)) {
  if (name.startsWith('GPU')) delete globalThis[name];
}
"""
REFUSED = (
    "GPU.prototype.requestAdapter = async () => { throw new DOMException('no', 'SecurityError'); };"
)
NO_ADAPTER = "GPU.prototype.requestAdapter = async () => null;"


@pytest.mark.parametrize(
    "script", [NO_WEBGPU, REFUSED, NO_ADAPTER], ids=["none", "refused", "null"]
)
def test_45_without_webgpu(browser: Browser, published: Publish, script: str) -> None:
    with runtime_page(browser, script) as page:
        for options in ({}, {"backend": "auto"}, {"backend": "wasm"}):
            assert page.open("dense", published("dense"), **options) == "wasm"
            check(page.run("dense", X)[0], SMALL["dense"].expected(X))
        url = published("dense")
        error = error_of(page, LOAD, {"url": url, "backend": "webgpu"})
        assert error["code"] == "no-webgpu" and "wasm" in error["message"]
        assert page.script("return (await edgerelax.capabilities()).webgpu") is False
        page.script("await models.dense.reload(); await models.dense.dispose()")


def test_45_a_cpu_that_plays_gpu_is_not_chosen(page: Browser, published: Publish) -> None:
    assert page.script("return (await edgerelax.capabilities()).software") is True
    assert page.open("dense", published("dense"), backend="auto") == "wasm"


def test_in_a_worker(page: Browser, published: Publish) -> None:
    answer = page.script(
        """const text = `import { load } from '${location.origin}/edgerelax.js';
          onmessage = async ({ data }) => {
            const found = [];
            for (const backend of ['wasm', 'webgpu']) {
              const model = await load(data.url, { backend });
              found.push(await model.run(data.x));
              await model.dispose();
            }
            postMessage(found);
          };`;
        const url = URL.createObjectURL(new Blob([text], { type: 'text/javascript' }));
        const worker = new Worker(url, { type: 'module' });
        const answer = new Promise((resolve, reject) => {
          worker.onmessage = ({ data }) => resolve(data);
          worker.onerror = (event) => reject(new Error(event.message));
        });
        worker.postMessage({ url: argument.url, x: unpack(argument.x) });
        return (await answer).map(pack);""",
        {"url": published("dense"), "x": packed(X)},
    )
    for outputs in answer:
        check(unpacked(outputs), SMALL["dense"].expected(X))


@pytest.mark.parametrize("cache", ["auto", "opfs", "none"])
def test_a_second_load_takes_files_from_the_cache(
    page: Browser, small: Small, tmp_path: Path, cache: str
) -> None:
    """No request but for the manifest, and right results, also after the page was opened anew."""
    fetched: list[str] = []
    page.page.on("request", lambda request: fetched.append(request.url))
    url = page.publish(small("dense"), tmp_path.name)
    loaded: list[set[str]] = []
    for _ in range(2):
        page.script("""window.far = 0;
          const onProgress = (p) => { if (p.phase === 'fetch') window.far = p.loaded / p.total; };
          models.dense = await edgerelax.load(argument.url, {
            backend: 'wasm', cache: argument.cache, onProgress,
            fetch: (url, init) => fetch(url, { ...init, cache: 'no-store' }),
          });""", {"url": url, "cache": cache})  # fmt: skip
        assert page.script("return far") == 1
        check(page.run("dense", X)[0], SMALL["dense"].expected(X))
        page.script("await models.dense.kept()")
        names = {found.split("?")[0].removeprefix(f"{url}/") for found in fetched}
        loaded.append({name for name in names if "://" not in name})
        page.page.reload()
        page.page.wait_for_function("window.ready")
        fetched.clear()
    assert {"manifest.json", "vm.wasm", WEIGHTS} < loaded[0]
    assert loaded[1] == (loaded[0] if cache == "none" else {"manifest.json"})
    page.script("await edgerelax.clearCache()")
    if cache != "none":
        page.open("dense", url, backend="wasm")
        assert any(WEIGHTS in found for found in fetched)
