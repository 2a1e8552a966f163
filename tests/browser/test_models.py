"""The same artifacts in Chromium, on WebGPU (SwiftShader) and on WebAssembly.

Against onnxruntime.
"""

from pathlib import Path

import pytest

from edgerelax.checking import difference
from tests.browser.harness import Browser
from tests.e2e.models import REAL, TOLERANCE, compiled, run_reference, shape_text


@pytest.mark.parametrize("backend", ["wasm", "webgpu"])
@pytest.mark.parametrize("name", REAL)
def test_equals_onnxruntime(
    browser: Browser, name: str, backend: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder: Path = tmp_path_factory.getbasetemp() / f"artifact-{name}"
    if not folder.exists():
        compiled(name).save(folder)
    model = f"{name}-{backend}"
    url = browser.publish(folder, name)
    assert browser.open(model, url, backend=backend) == backend
    try:
        for inputs in REAL[name].inputs():
            got, _ = browser.run(model, inputs)
            for output, value in run_reference(name, inputs).items():
                gap = difference(got[output], value)
                assert gap <= TOLERANCE, f"{name} {output} at {shape_text(inputs)}: {gap:.2e}"
        stats = browser.script("return models[argument].stats()", model)
        assert stats["listMisses"] > 0
    finally:
        browser.script("await models[argument].dispose(); delete models[argument]", model)
