"""Library functions of edgerelax.js, run by Node on the CPU."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax.api as api
from tests.browser.harness import LIBRARY, serve
from tests.libraries.test_hosts import expected, network, with_dense

SCRIPT = """
const [library, url] = process.argv.slice(1);
const { load } = await import(library);
let rows = [];
const dense = ({ inputs: [x, w, b], outputs: [y] }) => {
  const [n, inner] = x.shape, columns = w.shape[1];
  if (n === 7) throw new Error('seven');
  rows.push(n);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < columns; j++) {
      let sum = b.data[j];
      for (let k = 0; k < inner; k++) sum += x.data[i * inner + k] * w.data[k * columns + j];
      y.data[i * columns + j] = Math.max(sum, 0);
    }
};
const told = async (f) => {
  try { await f(); return 'nothing'; } catch (e) { return `${e.code}: ${e.message}`; }
};
const missing = await told(() => load(url, { backend: 'wasm' }));
const model = await load(url, { backend: 'wasm', libraries: { 'my.dense': dense } });
const results = [], failed = [];
for (const n of [5, 1, 7, 40, 0, 7, 5]) {
  const data = Float32Array.from({ length: 8 * n }, (_, k) => Math.sin(k));
  const input = { x: { data, shape: [n, 8] } };
  if (n === 7) failed.push(await told(() => model.run(input)));
  else results.push({ n, y: Array.from((await model.run(input)).y.data) });
}
await model.dispose();
console.log(JSON.stringify({ missing, rows, results, failed }));
"""


def test_a_function_in_javascript(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not LIBRARY.is_file():
        pytest.skip("no node, or runtime-js is not built")
    folder = api.compile(network(), target="cpu", libraries=[with_dense(None)]).save(
        tmp_path / "artifact"
    )
    with serve(folder) as address:
        command = [node, "--input-type=module", "-e", SCRIPT, "--", str(LIBRARY), f"{address}/"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["missing"].startswith("library: ") and "my.dense" in found["missing"]
    assert found["rows"] == [5, 1, 40, 5]
    assert len(found["failed"]) == 2
    assert all(f.startswith("library: ") and "seven" in f for f in found["failed"])
    for result in found["results"]:
        n = result["n"]
        x = np.sin(np.arange(8 * n)).astype(np.float32).reshape(n, 8)
        y = np.float32(result["y"]).reshape(n, 12)
        np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
