"""Threads of the WebAssembly backend: in isolated pages, their workers, Node; one elsewhere."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax import pipeline
from edgerelax.hosts.vm import Vm
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ops import OPS
from edgerelax.sym import symbol
from tests.browser.harness import LIBRARY, Browser
from tests.browser.runtime_page import check, packed, runtime_page, unpacked

WEIGHTS = 0.1 * np.random.default_rng(5).standard_normal((128, 96)).astype(np.float32)

# Runs until others have taken part, which they do once their workers have come up.
HELPED = """globalThis.helped = async (model, x) => {
  for (const end = performance.now() + 60_000; performance.now() < end; ) {
    const before = model.stats().helpedPieces;
    const outputs = await model.run(x);
    if (model.stats().helpedPieces > before) return outputs;
    await new Promise((done) => setTimeout(done, 10));
  }
  throw new Error('nobody helped');
};
"""


def _model() -> api.Executable:
    """y = tanh(x w) for 1 to 600 rows: work for one thread or several."""
    f = Function("main")
    x = f.input("x", (symbol("n", 1, 600), 128), F32)
    f.output("y", f.call(OPS["tanh"], f.call(OPS["matmul"], x, f.constant("w", WEIGHTS))))
    return api.compile(f.module(), target="cpu")


def _rows(count: int) -> dict[str, np.ndarray]:
    x = np.random.default_rng(count).standard_normal((count, 128)).astype(np.float32)
    return {"x": x}


def _expected(x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"y": np.tanh(x["x"] @ WEIGHTS)}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _model().save(tmp_path_factory.mktemp("threads") / "model")


@pytest.fixture(scope="module")
def trapping(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, its kernels made to trap on all stacks but the caller's."""
    stack = Vm().call("stackSave")
    inner = pipeline.assemble
    with pytest.MonkeyPatch.context() as patch:

        def assemble(text: str, relaxed: bool = False) -> bytes:
            imported = '(import "env" "stackSave" (func $stack (result i32)))\n  (elem'
            trap = f"(if (i32.gt_u (call $stack) (i32.const {stack})) (then unreachable))\n"
            first = "(local.set $workgroup (local.get $begin))"
            assert first in text
            text = text.replace("(elem", imported, 1).replace(first, trap + first)
            return inner(text, relaxed)

        patch.setattr(pipeline, "assemble", assemble)
        made = _model()
    return made.save(tmp_path_factory.mktemp("threads") / "trapping")


@pytest.fixture
def isolated(browser: Browser) -> Iterator[Browser]:
    with runtime_page(browser, HELPED, query="/?isolated") as page:
        assert page.script("return crossOriginIsolated")
        yield page


def test_results_do_not_depend_on_threads(isolated: Browser, artifact: Path) -> None:
    url = isolated.publish(artifact, "threads")
    sizes = (1, 2, 63, 257, 600)
    answers = isolated.script(
        """const answers = [];
        for (const threads of [1, 2, 3, 4, undefined]) {
          const model = await edgerelax.load(argument.url, { backend: 'wasm', threads });
          const inputs = argument.inputs.map(unpack);
          if (threads > 1) await helped(model, inputs.at(-1));
          const outputs = [];
          for (const x of inputs) outputs.push(pack(await model.run(x)));
          answers.push({ outputs, threads: model.stats().threads });
          await model.dispose();
        }
        return answers;""",
        {"url": url, "inputs": [packed(_rows(n)) for n in sizes]},
    )
    assert [a["threads"] for a in answers[:4]] == [1, 2, 3, 4]
    assert 1 <= answers[4]["threads"] <= 4
    for k, n in enumerate(sizes):
        first = unpacked(answers[0]["outputs"][k])
        check(first, _expected(_rows(n)))
        for answer in answers[1:]:
            np.testing.assert_array_equal(unpacked(answer["outputs"][k])["y"], first["y"])


def _await_workers(browser: Browser, count: int) -> None:
    for _ in range(1200):
        if len(browser.page.workers) == count:
            return
        browser.page.wait_for_timeout(50)
    raise AssertionError(f"{len(browser.page.workers)} workers, not {count}")


def test_workers_end_with_their_model(isolated: Browser, artifact: Path) -> None:
    url = isolated.publish(artifact, "threads")
    inputs = {"url": url, "x": packed(_rows(600))}
    isolated.script(
        """window.kept = await edgerelax.load(argument.url, { backend: 'wasm', threads: 3 });
        await helped(kept, unpack(argument.x));
        await kept.reload();
        await helped(kept, unpack(argument.x));""",
        inputs,
    )
    _await_workers(isolated, 2)
    codes = isolated.script(
        """const runs = [kept.run(unpack(argument.x)), kept.run(unpack(argument.x))];
        const disposal = kept.dispose();
        const late = kept.run(unpack(argument.x));
        const settled = await Promise.allSettled([...runs, late]);
        await disposal;
        await kept.dispose();
        return codes(settled);""",
        inputs,
    )
    assert codes == ["disposed"] * 3
    _await_workers(isolated, 0)


def test_an_aborted_load_leaves_no_workers(isolated: Browser, artifact: Path) -> None:
    url = isolated.publish(artifact, "threads")
    code = isolated.script(
        """const controller = new AbortController();
        const onProgress = ({ item }) => { if (item.startsWith('weights')) controller.abort(); };
        const { signal } = controller;
        return code(edgerelax.load(argument, { backend: 'wasm', threads: 3, signal, onProgress }));
        """,
        url,
    )
    assert code == "abort"
    _await_workers(isolated, 0)


def test_a_trap_in_a_helper_fails_the_run_only(isolated: Browser, trapping: Path) -> None:
    url = isolated.publish(trapping, "trapping")
    few = _rows(1)
    answer = isolated.script(
        """const model = await edgerelax.load(argument.url, { backend: 'wasm', threads: 3 });
        const messages = [], end = performance.now() + 60_000;
        while (messages.length < 4 && performance.now() < end) {
          const error = await model.run(unpack(argument.many)).catch((reason) => reason);
          if (error.code) {
            messages.push(`${error.code}: ${error.message}`);
            messages.push(pack(await model.run(unpack(argument.few))));
          }
          await new Promise((done) => setTimeout(done, 5));
        }
        await model.dispose();
        return messages;""",
        {"url": url, "many": packed(_rows(600)), "few": packed(few)},
    )
    assert len(answer) == 4
    for k in (0, 2):
        assert answer[k].startswith("vm: cpu kernel ") and "trapped in a helper" in answer[k]
        check(unpacked(answer[k + 1]), _expected(few))


def test_in_a_worker_of_the_page(isolated: Browser, artifact: Path) -> None:
    """There the caller may block, and its helpers are workers of a worker."""
    url = isolated.publish(artifact, "threads")
    x = _rows(600)
    answer = isolated.script(
        """const text = `${argument.helped}
          import { load } from '${location.origin}/edgerelax.js';
          onmessage = async ({ data: { url, x } }) => {
            const model = await load(url, { backend: 'wasm', threads: 2 });
            const outputs = await helped(model, x);
            await model.dispose();
            postMessage(outputs);
          };`;
        const address = URL.createObjectURL(new Blob([text], { type: 'text/javascript' }));
        const worker = new Worker(address, { type: 'module' });
        const outputs = await new Promise((done, fail) => {
          worker.onmessage = ({ data }) => done(data);
          worker.onerror = (event) => fail(new Error(event.message));
          worker.postMessage({ url: argument.url, x: unpack(argument.x) });
        });
        worker.terminate();
        return pack(outputs);""",
        {"url": url, "x": packed(x), "helped": HELPED},
    )
    check(unpacked(answer), _expected(x))


def test_one_thread_where_memory_cannot_be_shared(page: Browser, artifact: Path) -> None:
    page.script(
        "models.one = await edgerelax.load(argument, { backend: 'wasm', threads: 4 })",
        page.publish(artifact, "threads"),
    )
    check(page.run("one", _rows(600))[0], _expected(_rows(600)))
    assert page.script("return models.one.stats().threads") == 1
    assert page.page.workers == []


NODE = """
import { readFile } from 'node:fs/promises';
const [library, folder, inputs] = process.argv.slice(2);
const { load } = await import(library);
const fetch = async (url) => new Response(await readFile(new URL(url.split('?')[0])));
const rows = JSON.parse(await readFile(inputs));
const answers = [];
HELPED
for (const threads of [1, 3]) {
  const model = await load(folder, { threads, fetch });
  const x = { x: { data: Float32Array.from(rows.flat()), shape: [rows.length, rows[0].length] } };
  const { y } = await (threads > 1 ? helped(model, x) : model.run(x));
  answers.push({ threads: model.stats().threads, y: [...y.data] });
}
console.log(JSON.stringify(answers)); // nothing was disposed of: the process must end all the same
"""


def test_in_node(artifact: Path, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    x = _rows(100)
    script, inputs = tmp_path / "run.mjs", tmp_path / "inputs.json"
    script.write_text(NODE.replace("HELPED", HELPED))
    inputs.write_text(json.dumps(x["x"].tolist()))
    command = [node, str(script), LIBRARY.as_uri(), artifact.as_uri(), str(inputs)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    one, three = json.loads(done.stdout)
    assert (one["threads"], three["threads"]) == (1, 3)
    assert one["y"] == three["y"]
    expected = _expected(x)["y"]
    np.testing.assert_allclose(np.reshape(one["y"], expected.shape), expected, atol=2e-5)
