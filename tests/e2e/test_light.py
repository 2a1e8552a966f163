"""The classic CNNs that come with onnx.

All as they are, on the CPU, against the results that come with them; with random weights and a
symbolic batch against onnxruntime. The larger are left to the CPU alone, since a CPU that plays a
GPU takes minutes for them; `scripts/verify-models` runs them on all hosts.
"""

import numpy as np
import onnxruntime
import pytest

import edgerelax.api as api
from edgerelax.checking import difference
from tests.e2e.light import NAMES, expected, input_name, opened, path_of, ramp
from tests.e2e.models import TOLERANCE

VARIANTS = {
    "squeezenet": ("cpu", "software"),
    "shufflenet": ("cpu", "software"),
    "resnet50": ("cpu",),
    "densenet121": ("cpu",),
    "inception_v1": ("cpu",),
    "inception_v2": ("cpu",),
}
"""Not VGG-19, ZFNet and AlexNet: 230 to 550 MB of weights, and nothing that these do not have."""


@pytest.mark.parametrize("name", NAMES)
def test_gives_what_comes_with_it(name: str) -> None:
    with api.compile(path_of(name), variants=("cpu",)).session("cpu") as session:
        (given,) = session.artifact.manifest.functions[0].inputs
        (got,) = session.run({given.name: ramp()}).values()
    assert difference(got, expected(name)) <= TOLERANCE


@pytest.mark.parametrize("name", VARIANTS)
def test_with_random_weights_at_any_batch(name: str) -> None:
    model = opened(name)
    given = input_name(model)
    reference = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    executable = api.compile(model, variants=VARIANTS[name])
    rng = np.random.default_rng(1)
    for variant in VARIANTS[name]:
        with executable.session(variant=variant) as session:
            for batch in (1, 3):
                inputs = {given: rng.random((batch, 3, 224, 224), np.float32)}
                chances, scores = zip(
                    session.run(inputs).values(), reference.run(None, inputs), strict=True
                )
                assert np.ptp(scores[1]) > 0.1 * np.abs(scores[1]).max()
                for got, wanted in (chances, scores):
                    gap = difference(got, wanted)
                    assert gap <= TOLERANCE, f"{name} on {variant} at batch {batch}: {gap:.2e}"
