"""Smart Turn 3.2: QuantizeLinear and DequantizeLinear to 8 bits around every product.

A sum that rounds otherwise in its last bit can move a value by a whole step of its scale, and the
steps add up: onnxruntime differs from itself, with and without graph optimisations, by 3e-3 on
these inputs. A GPU that a CPU plays takes a minute for a call, so it runs on the CPU alone here;
`scripts/verify-models` runs it on all hosts.
"""

import numpy as np
import onnxruntime

import edgerelax.api as api
from edgerelax.checking import difference
from tests.e2e.heavy import SMART_TURN


def test_equals_onnxruntime_up_to_rounding() -> None:
    path, tolerance = SMART_TURN.source(), SMART_TURN.tolerance
    reference = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    walk = np.random.default_rng(0).standard_normal((1, 80, 800)).cumsum(axis=2) * 0.05
    last = {"input_features": np.clip(walk, -1, 1.5).astype(np.float32)}
    results = []
    with api.compile(path, variants=("cpu",), verify=True).session("cpu") as session:
        for inputs in (*SMART_TURN.inputs(), last):
            (got,) = session.run(inputs).values()
            (wanted,) = reference.run(None, inputs)
            assert difference(got, wanted) <= tolerance
            results.append(float(got[0, 0]))
    assert np.ptp(results) > 5 * tolerance
