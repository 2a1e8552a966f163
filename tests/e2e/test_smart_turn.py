"""Smart Turn 3.2: QuantizeLinear and DequantizeLinear to 8 bits around every product.

A sum that rounds otherwise in its last bit can move a value by a whole step of its scale, and the
steps add up: onnxruntime differs from itself, with and without graph optimisations, by 3e-3 on
these inputs. A GPU that a CPU plays takes a minute for a call, so it runs on the CPU alone.
"""

import numpy as np
import onnxruntime

import edgerelax.api as api
from edgerelax.checking import difference
from tests.e2e.models import MODELS

PATH = MODELS / "smart-turn" / "model.onnx"
TOLERANCE = 5e-3


def test_equals_onnxruntime_up_to_rounding() -> None:
    reference = onnxruntime.InferenceSession(str(PATH), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    bands = [rng.standard_normal((n, 80, 800)) * 0.3 for n in (1, 3, 2, 5)]
    walk = np.random.default_rng(0).standard_normal((1, 80, 800)).cumsum(axis=2) * 0.05
    bands.append(np.clip(walk, -1, 1.5))
    results = []
    with api.compile(PATH, variants=("cpu",), verify=True).session("cpu") as session:
        for given in bands:
            inputs = {"input_features": given.astype(np.float32)}
            (got,) = session.run(inputs).values()
            (wanted,) = reference.run(None, inputs)
            assert difference(got, wanted) <= TOLERANCE
            results.append(float(got[0, 0]))
    assert np.ptp(results) > 5 * TOLERANCE
