"""Faults that users of other browser runtimes hit, by their numbers: this one must not have them.

Tests without a number are of promises of our own. Each runs on both backends where it can.
"""

import numpy as np
import pytest

from tests.browser.conftest import Publish
from tests.browser.harness import Browser
from tests.browser.runtime_page import BACKENDS, check, packed, unpacked
from tests.browser.small_models import MOST_ROWS, SMALL, Arrays
from tests.frontends.onnx.loop_models import MODELS


def rows(count: int, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed + 1000 * count)
    return {"x": rng.standard_normal((count, 16)).astype(np.float32)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_1_two_models_at_once(page: Browser, published: Publish, backend: str) -> None:
    for name in ("dense", "other"):
        page.open(name, published(name), backend=backend)
    inputs = [rows(3), rows(5)]
    answer = page.script(
        """const pair = [models.dense, models.other];
        const work = argument.flatMap((x) => pair.map((m) => m.run(unpack(x))));
        const first = await Promise.all(work);
        return [...first, await models.dense.run(unpack(argument[0]))].map(pack);""",
        [packed(x) for x in inputs],
    )
    expected = [SMALL[name].expected(x) for x in inputs for name in ("dense", "other")]
    for outputs, value in zip(answer, [*expected, expected[0]], strict=True):
        check(unpacked(outputs), value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_2_one_model_twice_at_once(page: Browser, published: Publish, backend: str) -> None:
    page.open("dense", published("dense"), backend=backend)
    inputs = [rows(n) for n in (1, 7, 64, 7, 2)]
    answer = page.script(
        "return (await Promise.all(argument.map((x) => models.dense.run(unpack(x))))).map(pack)",
        [packed(x) for x in inputs],
    )
    for outputs, x in zip(answer, inputs, strict=True):
        check(unpacked(outputs), SMALL["dense"].expected(x))


def test_3_loads_at_once(page: Browser, published: Publish) -> None:
    x = rows(4)
    answer = page.script(
        """const loads = argument.urls.flatMap((url) => ['wasm', 'webgpu'].map((backend) =>
          edgerelax.load(url, { backend })));
        const loaded = await Promise.all(loads);
        const outputs = await Promise.all(loaded.map((m) => m.run(unpack(argument.x))));
        await Promise.all(loaded.map((m) => m.dispose()));
        return outputs.map(pack);""",
        {"urls": [published("dense"), published("other")], "x": packed(x)},
    )
    for k, outputs in enumerate(answer):
        check(unpacked(outputs), SMALL[("dense", "other")[k // 2]].expected(x))
    assert page.script("return gpu.alive.size") == 0


BAD_INPUTS = """[
  {}, { y: new Float32Array(16) }, { x: new Float32Array(16), y: 1 }, { x: null }, { x: 'text' },
  { x: new Float32Array(15) }, { x: new Float32Array(65 * 16) },
  ...[[16], [1, 17], [2, 8], [-1, -16]].map((shape) => (
    { x: { data: new Float32Array(16), shape } })),
  { x: { data: new Float32Array(0), shape: [0, 16] } },
  { x: { data: new Int32Array(16), shape: [1, 16] } },
]"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_4_a_bad_input_poisons_nothing(page: Browser, published: Publish, backend: str) -> None:
    page.open("dense", published("dense"), backend=backend)
    x = rows(6)
    codes, answer = page.script(
        f"""const bad = {BAD_INPUTS};
        const good = unpack(argument);
        const work = bad.flatMap((one) => [one, good].map((x) => models.dense.run(x)));
        const settled = await Promise.allSettled(work);
        const outputs = settled.filter((r) => r.status === 'fulfilled').map((r) => pack(r.value));
        return [codes(settled), outputs];""",
        packed(x),
    )
    assert codes == ["input", "ok"] * (len(codes) // 2)
    for outputs in answer:
        check(unpacked(outputs), SMALL["dense"].expected(x))


def test_4_errors_name_what_was_given_and_what_was_expected(
    page: Browser, published: Publish
) -> None:
    page.open("dense", published("dense"), backend="wasm")
    message = "try { await models.dense.run(%s); } catch (error) { return error.message; }"
    said = page.script(message % "{ X: new Float32Array(16) }")
    assert "'X'" in said and "'x'" in said
    said = page.script(message % "{ x: new Float32Array(65 * 16) }")
    assert "65" in said and str(MOST_ROWS) in said and "x" in said


def test_5_a_lost_device_is_told_and_regained(page: Browser, published: Publish) -> None:
    page.open("dense", published("dense"), backend="webgpu")
    x = rows(3)
    before, _ = page.run("dense", x)
    assert page.script(
        """gpu.devices.at(-1).destroy();
        const first = await code(models.dense.run(unpack(argument)));
        return [first, await code(models.dense.run(unpack(argument)))];""",
        packed(x),
    ) == ["lost", "lost"]
    page.script("await models.dense.reload()")
    after, _ = page.run("dense", x)
    check(after, before)
    page.script("await models.dense.dispose()")
    assert page.script("return gpu.alive.size") == 0


def test_5_lost_in_the_middle_of_runs(page: Browser, published: Publish) -> None:
    page.open("dense", published("dense"), backend="webgpu")
    x = rows(5)
    codes = page.script(
        """const work = Array.from({ length: 6 }, () => models.dense.run(unpack(argument)));
        gpu.devices.at(-1).destroy();
        const settled = await Promise.allSettled(work);
        await models.dense.reload();
        return codes(settled);""",
        packed(x),
    )
    assert set(codes) <= {"ok", "lost"} and codes[-1] == "lost"
    check(page.run("dense", x)[0], SMALL["dense"].expected(x))


def test_5_reload_without_a_loss_and_of_a_callers_device(page: Browser, published: Publish) -> None:
    url = published("dense")
    page.open("dense", url, backend="webgpu")
    page.script("await models.dense.reload(); await models.dense.reload()")
    x = rows(2)
    check(page.run("dense", x)[0], SMALL["dense"].expected(x))
    found = page.script(
        """const adapter = await navigator.gpu.requestAdapter();
        const device = await adapter.requestDevice();
        const model = await edgerelax.load(argument.url, { device });
        await model.run(unpack(argument.x));
        device.destroy();
        await device.lost;
        const run = await code(model.run(unpack(argument.x)));
        return [model.backend, run, await code(model.reload())];""",
        {"url": url, "x": packed(x)},
    )
    assert found == ["webgpu", "lost", "lost"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_signal_of_loading_does_not_end_reloading(
    page: Browser, published: Publish, backend: str
) -> None:
    x = rows(2)
    shape = page.script(
        """const stop = new AbortController();
        const { url, backend } = argument;
        const model = await edgerelax.load(url, { backend, signal: stop.signal });
        stop.abort();
        await model.reload();
        const { shape } = Object.values(await model.run(unpack(argument.x)))[0];
        await model.dispose();
        return shape;""",
        {"url": published("dense"), "x": packed(x), "backend": backend},
    )
    assert tuple(shape) == next(iter(SMALL["dense"].expected(x).values())).shape


def test_a_callers_device_outlives_the_model(page: Browser, published: Publish) -> None:
    alive, lost = page.script(
        """const adapter = await navigator.gpu.requestAdapter();
        const device = await adapter.requestDevice();
        const model = await edgerelax.load(argument.url, { device });
        await model.run(unpack(argument.x));
        await model.dispose();
        const buffers = gpu.alive.size;
        let lost = false;
        device.lost.then(() => (lost = true));
        await device.queue.onSubmittedWorkDone();
        return [buffers, lost];""",
        {"url": published("dense"), "x": packed(rows(1))},
    )
    assert (alive, lost) == (0, False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_7_many_runs_leak_nothing(page: Browser, published: Publish, backend: str) -> None:
    page.open("dense", published("dense"), backend=backend)
    inputs = [rows(n) for n in (64, 1, 33, 8, 2)]
    stats = page.script(
        """const seen = [];
        for (let round = 0; round < 30; round++) {
          for (const x of argument) await models.dense.run(unpack(x));
          const { instructions, launches, listHits, ...constant } = models.dense.stats();
          seen.push({ ...constant, alive: gpu.alive.size });
        }
        return seen;""",
        [packed(x) for x in inputs],
    )
    assert all(one == stats[2] for one in stats[3:]), stats


@pytest.mark.parametrize("backend", BACKENDS)
def test_7_more_shapes_than_are_remembered(page: Browser, published: Publish, backend: str) -> None:
    page.open("dense", published("dense"), backend=backend)
    inputs = [rows(n) for n in range(MOST_ROWS, 0, -1)]
    stats = page.script(
        """const seen = [];
        for (let round = 0; round < 4; round++) {
          for (const x of argument) await models.dense.run(unpack(x));
          const { bufferBytes, buffers, vmBytes } = models.dense.stats();
          seen.push([bufferBytes, buffers, vmBytes, gpu.alive.size]);
        }
        return seen;""",
        [packed(x) for x in inputs],
    )
    assert all(one == stats[1] for one in stats[2:]), stats


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shape_seen_before_costs_nothing(page: Browser, published: Publish, backend: str) -> None:
    page.open("dense", published("dense"), backend=backend)
    made = "return { ...models.dense.stats(), made: [gpu.buffers, gpu.groups, gpu.pipelines] }"
    for n in (9, 4):
        page.run("dense", rows(n))
    before = page.script(made)
    for n in (9, 4):
        x = rows(n, seed=5)
        check(page.run("dense", x)[0], SMALL["dense"].expected(x))
    after = page.script(made)
    for key in (
        "made",
        "buffers",
        "bindGroups",
        "pipelines",
        "listMisses",
        "bufferBytes",
        "vmBytes",
    ):
        assert after[key] == before[key], key
    assert after["listHits"] > before["listHits"]
    assert after["instructions"] - before["instructions"] < before["instructions"]
    assert after["launches"] == 2 * before["launches"] > 0


def test_9_a_load_can_be_aborted(page: Browser, published: Publish) -> None:
    found = page.script(
        """const results = [];
        for (const phase of ['before', 'manifest', 'fetch', 'compile']) {
          const controller = new AbortController();
          const abort = (now) => now && controller.abort(new Error('enough'));
          abort(phase === 'before');
          const loading = edgerelax.load(argument, {
            backend: 'webgpu',
            signal: controller.signal,
            onProgress: (p) => abort(p.phase === phase),
            fetch: (...given) => { abort(phase === 'manifest'); return fetch(...given); },
          });
          results.push(await code(loading), gpu.alive.size);
        }
        const lost = await Promise.race([
          Promise.all(gpu.devices.map((d) => d.lost)).then((all) => all.length),
          new Promise((resolve) => setTimeout(resolve, 60000, 'a device is still there')),
        ]);
        return [results, typeof lost];""",
        published("dense"),
    )
    assert found == [["abort", 0] * 4, "number"]
    page.open("dense", published("dense"), backend="webgpu")
    page.run("dense", rows(2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_9_a_run_can_be_aborted(page: Browser, published: Publish, backend: str) -> None:
    page.open("dense", published("dense"), backend=backend)
    x = rows(3)
    codes = page.script(
        """const controller = new AbortController();
        const { signal } = controller;
        const run = (options) => models.dense.run(unpack(argument), options);
        const work = [run(), run({ signal }), run()];
        controller.abort();
        return codes(await Promise.allSettled(work));""",
        packed(x),
    )
    assert codes == ["ok", "abort", "ok"]
    check(page.run("dense", x)[0], SMALL["dense"].expected(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_34_odd_byte_sizes(page: Browser, published: Publish, backend: str) -> None:
    page.open("narrow", published("narrow"), backend=backend)
    rng = np.random.default_rng(0)
    for count in (*range(10), 3, 9, 1):
        inputs = {
            "u": rng.integers(0, 256, count).astype(np.uint8),
            "h": rng.standard_normal(count).astype(np.float16),
            "b": rng.random(count) > 0.5,
        }
        check(page.run("narrow", inputs)[0], SMALL["narrow"].expected(inputs))


@pytest.mark.parametrize("backend", BACKENDS)
def test_34_views_into_larger_buffers(page: Browser, published: Publish, backend: str) -> None:
    page.open("narrow", published("narrow"), backend=backend)
    found = page.script(
        """const bytes = Uint8Array.from({ length: 64 }, (_, k) => k);
        const { u } = await models.narrow.run({
          u: bytes.subarray(3, 8),
          h: new Uint16Array(bytes.buffer, 2, 5),
          b: [true, false, true, false, false],
        });
        return [...u.data];"""
    )
    assert found == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("backend", BACKENDS)
def test_46_half_floats_as_bits_and_as_float16array(
    page: Browser, published: Publish, backend: str
) -> None:
    page.open("narrow", published("narrow"), backend=backend)
    values = np.array([1.5, -2.25, 65504, 6e-8, 0], np.float16)
    bits, halves, numbers = page.script(
        """const values = Uint16Array.from(argument);
        const rest = { u: new Uint8Array(5), b: new Uint8Array(5) };
        const run = async (h) => (await models.narrow.run({ ...rest, h })).h;
        const halves = new Float16Array(values.buffer);
        const found = [await run(values), await run(halves), await run([...halves])];
        return found.map((h) => [h.data.constructor.name, h.dtype, [...h.data]]);""",
        values.view(np.uint16).tolist(),
    )
    expected = ["Uint16Array", "f16", (-values).view(np.uint16).tolist()]
    assert bits == halves == numbers == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_only_the_data_tells(page: Browser, published: Publish, backend: str) -> None:
    page.open("found", published("found"), backend=backend)
    rng = np.random.default_rng(0)
    inputs = [{"x": rng.standard_normal(n).astype(np.float32)} for n in (1, 40, 7, 40)]
    inputs += [{"x": np.full(5, -1, np.float32)}, {"x": np.zeros(0, np.float32)}]
    answer = page.script(
        "return (await Promise.all(argument.map((x) => models.found.run(unpack(x))))).map(pack)",
        [packed(x) for x in inputs],
    )
    for outputs, x in zip(answer, inputs, strict=True):
        check(unpacked(outputs), SMALL["found"].expected(x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "case"), [("scan", "scan"), ("until", "until, with rows")])
def test_loops(page: Browser, published: Publish, backend: str, name: str, case: str) -> None:
    page.open(name, published(name), backend=backend)
    runs = MODELS[case]().runs
    for inputs in [*runs, *reversed(runs)]:
        check(page.run(name, inputs)[0], SMALL[name].expected(inputs))


@pytest.mark.parametrize("name", ["dense", "found"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_dispose_frees_everything_also_in_the_middle_of_runs(
    page: Browser, published: Publish, backend: str, name: str
) -> None:
    x = rows(3) if name == "dense" else {"x": np.ones(9, np.float32)}
    page.open("model", published(name), backend=backend)
    codes, alive, stats, later = page.script(
        """const model = models.model;
        await model.run(unpack(argument));
        const work = [model.run(unpack(argument))];
        await Promise.resolve();
        work.push(model.run(unpack(argument)), model.run(unpack(argument)));
        const disposals = [model.dispose(), model.dispose()];
        await Promise.all(disposals);
        const settled = codes(await Promise.allSettled(work));
        const late = await Promise.allSettled([model.run(unpack(argument)), model.reload()]);
        await model.dispose();
        return [settled, gpu.alive.size, model.stats(), codes(late)];""",
        packed(x),
    )
    assert codes == ["ok", "disposed", "disposed"]
    assert later == ["disposed", "disposed"]
    assert alive == 0
    assert set(stats.values()) == {0}
