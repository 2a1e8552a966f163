"""The real models where a batch, a text or a picture has size 0."""

import numpy as np
import pytest

from tests.e2e.models import Inputs, compiled, run_reference
from tests.faults.hosts import HOSTS


def _texts(batch: int, length: int) -> Inputs:
    ids = np.zeros((batch, length), np.int64)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def _pictures(batch: int, height: int, width: int) -> Inputs:
    return {"x": np.zeros((batch, 3, height, width), np.float32)}


def _windows(batch: int) -> Inputs:
    return {
        "input": np.zeros((batch, 576), np.float32),
        "state": np.zeros((2, batch, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }


ANSWERED = {
    "minilm": [_texts(0, 7), _texts(2, 0), _texts(0, 0)],
    "ppocr-det": [_pictures(0, 64, 96)],
    "ppocr-cls": [_pictures(0, 48, 192)],
}
"""What onnxruntime runs."""

EMPTY: dict[str, list[tuple[Inputs, dict[str, tuple[int, ...]]]]] = {
    "ppocr-det": [
        (_pictures(1, 0, 64), {"sigmoid_0.tmp_0": (1, 1, 0, 64)}),
        (_pictures(2, 64, 0), {"sigmoid_0.tmp_0": (2, 1, 64, 0)}),
    ],
    "ppocr-rec": [
        (_pictures(0, 48, 96), {"softmax_11.tmp_0": (0, 12, 6625)}),
        (_pictures(2, 48, 0), {"softmax_11.tmp_0": (2, 0, 6625)}),
    ],
    "silero-if": [(_windows(0), {"output": (0, 1), "stateN": (2, 0, 128)})],
}
"""What it refuses or does not survive, though sizes and results are clear: there are none."""


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", ANSWERED)
def test_equals_onnxruntime(name: str, host: str) -> None:
    with compiled(name).session(host) as session:
        for inputs in ANSWERED[name]:
            got, wanted = session.run(inputs), run_reference(name, inputs)
            assert got.keys() == wanted.keys()
            for output, value in wanted.items():
                assert got[output].dtype == value.dtype
                np.testing.assert_array_equal(got[output], value)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", EMPTY)
def test_sizes_of_empty_results(name: str, host: str) -> None:
    with compiled(name).session(host) as session:
        for inputs, wanted in EMPTY[name]:
            got = session.run(inputs)
            assert {output: value.shape for output, value in got.items()} == wanted


@pytest.mark.parametrize("host", HOSTS)
def test_full_after_empty(host: str) -> None:
    """A call with nothing leaves nothing behind."""
    full = {k: np.resize(v, (2, 5)) for k, v in _texts(1, 1).items()}
    with compiled("minilm").session(host) as session:
        first = session.run(full)
        for inputs in ANSWERED["minilm"]:
            session.run(inputs)
        again = session.run(full)
    for output, value in first.items():
        np.testing.assert_array_equal(again[output], value)
