"""Library functions in the browser: one that encodes a pass of its own between the program's."""

from pathlib import Path

import numpy as np

import edgerelax.api as api
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.pattern import hole, op
from edgerelax.ops import OPS
from edgerelax.sym import symbol
from tests.browser.harness import Browser, error_of

SCRIPT = """
const shapes = [];
const code = `
  @group(0) @binding(0) var<storage, read_write> x: array<f32>;
  @group(0) @binding(1) var<storage, read_write> y: array<f32>;
  @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < arrayLength(&y)) { y[id.x] = exp(x[id.x]); }
  }`;
const exp = ({ inputs, outputs, encoder, device }) => {
  const [y] = outputs;
  shapes.push(y.shape);
  const module = device.createShaderModule({ code });
  const compute = { module, entryPoint: 'main' };
  const pipeline = device.createComputePipeline({ layout: 'auto', compute });
  const entries = [...inputs, ...outputs].map(({ buffer, offset, bytes }, binding) =>
    ({ binding, resource: { buffer, offset, size: bytes } }));
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
  pass.dispatchWorkgroups(Math.ceil(y.bytes / 256));
  pass.end();
};
const options = { backend: 'webgpu', libraries: { 'my.exp': exp } };
const model = await edgerelax.load(argument.url, options);
const results = [];
for (const n of argument.sizes) {
  const data = Float32Array.from({ length: 4 * n }, (_, k) => Math.sin(k));
  results.push(Array.from((await model.run({ x: { data, shape: [n, 4] } })).y.data));
}
const { listHits } = model.stats();
await model.dispose();
return { shapes, results, listHits };
"""
SIZES = [3, 17, 0, 3, 3]


def test_on_the_gpu(browser: Browser, tmp_path: Path) -> None:
    """It is called at each run, those that are replayed included, and by no other program."""
    n = symbol("n", lo=0, hi=64)
    f = Function("main")
    x = f.input("x", (n, 4), F32)
    y = f.call(OPS["softmax"], f.call(OPS["exp"], f.call(OPS["neg"], x)), axis=-1)
    f.output("y", y)
    entry = api.Library(name="my.exp", pattern=op("exp", hole("x")), device="gpu")
    made = api.compile(f.module(), libraries=[entry], variants=("software", "cpu"))
    url = browser.publish(made.save(tmp_path / "artifact"), "with-library")
    found = browser.script(SCRIPT, {"url": url, "sizes": SIZES})
    assert found["shapes"] == [[n, 4] for n in SIZES if n]
    assert found["listHits"]
    for n, result in zip(SIZES, found["results"], strict=True):
        e = np.exp(np.exp(-np.sin(np.arange(4.0 * n)))).reshape(n, 4)
        wanted = e / e.sum(-1, keepdims=True)
        np.testing.assert_allclose(np.reshape(result, (n, 4)), wanted, rtol=1e-4, atol=1e-6)
    missing = error_of(
        browser, "await edgerelax.load(argument.url, { backend: 'webgpu' })", {"url": url}
    )
    assert missing["code"] == "library" and "my.exp" in missing["message"]
    browser.script("await (await edgerelax.load(argument, { backend: 'wasm' })).dispose()", url)
