"""Real models with `fp16`: half the weights, results near onnxruntime's in f32, equal answers."""

import functools

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.checking import difference
from tests.e2e.models import REAL, run_reference, shape_text

TOLERANCE = {"minilm": 3e-3, "ppocr-rec": 4e-2}
"""Greatest difference over the greatest number of an output."""


@functools.cache
def halved(name: str) -> api.Executable:
    variants = ("cpu-relaxed", "cpu", "software")
    return api.compile(REAL[name].path, variants=variants, fp16=True, verify=True)


@pytest.mark.parametrize("device", ["cpu", "wgpu"])
@pytest.mark.parametrize("name", TOLERANCE)
def test_near_onnxruntime(name: str, device: str) -> None:
    with halved(name).session(device) as session:
        for inputs in REAL[name].inputs():
            got, wanted = session.run(inputs), run_reference(name, inputs)
            for output, value in wanted.items():
                assert got[output].dtype == value.dtype
                gap = difference(got[output], value)
                assert gap <= TOLERANCE[name], f"{output} at {shape_text(inputs)}: {gap:.2e}"
                if name == "ppocr-rec":
                    decoded = (a.argmax(axis=-1) for a in (got[output], value))
                    np.testing.assert_array_equal(*decoded)


@pytest.mark.parametrize("name", TOLERANCE)
def test_weights_take_half(name: str) -> None:
    weights = halved(name).artifact.manifest.weights
    short = sum(w.stored_bytes for w in weights if "f16" in (w.dtype, w.stored))
    assert short > 0.9 * sum(w.stored_bytes for w in weights)
