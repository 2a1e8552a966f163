"""A page that counts what the library makes on a GPU, with the small models beside it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tests.browser.harness import Browser, pack, unpack

BACKENDS = ("wasm", "webgpu")

COUNTING = """
window.gpu = { devices: [], alive: new Map(), groups: 0, pipelines: 0, buffers: 0, errors: [],
  texts: [] };
if (window.GPUAdapter) {
  const wrap = (type, name, after) => {
    const inner = type.prototype[name];
    type.prototype[name] = function (...given) {
      const made = inner.apply(this, given);
      after(made, this);
      return made;
    };
  };
  wrap(GPUAdapter, 'requestDevice', (made) => made.then((device) => {
    gpu.devices.push(device);
    device.addEventListener('uncapturederror', (e) => gpu.errors.push(e.error.message));
  }, () => undefined));
  wrap(GPUDevice, 'createBuffer', (made) => { gpu.buffers++; gpu.alive.set(made, made.size); });
  wrap(GPUDevice, 'createBindGroup', () => gpu.groups++);
  const compile = GPUDevice.prototype.createShaderModule;
  GPUDevice.prototype.createShaderModule = function (given) {
    gpu.texts.push(given.code);
    return compile.call(this, given);
  };
  wrap(GPUDevice, 'createComputePipelineAsync', () => gpu.pipelines++);
  wrap(GPUBuffer, 'destroy', (_, buffer) => gpu.alive.delete(buffer));
}
window.codes = (results) => results.map((r) => r.status === 'rejected' ? r.reason.code : 'ok');
window.code = async (work) => {
  try { await work; return 'ok'; } catch (error) { return error.code ?? String(error); }
};
"""


@contextmanager
def runtime_page(browser: Browser, *scripts: str, query: str = "") -> Iterator[Browser]:
    """A fresh page of the same browser; `scripts` run before anything else in it."""
    context = browser.visit()
    for script in (*scripts, COUNTING):
        context.add_init_script(script)
    page = context.new_page()
    page.goto(browser.address + query)
    page.wait_for_function("window.ready")
    try:
        yield Browser(page, browser.address, browser.folder)
    finally:
        context.close()


def packed(inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: pack(array) for name, array in inputs.items()}


def unpacked(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: unpack(value) for name, value in outputs.items()}


def check(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert outputs.keys() == expected.keys()
    for name, value in expected.items():
        assert outputs[name].shape == value.shape and outputs[name].dtype == value.dtype
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=2e-6, err_msg=name)
