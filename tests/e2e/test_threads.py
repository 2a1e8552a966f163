"""Threads natively: the same bits with any number of them, at every combination of sizes."""

import numpy as np
import pytest

from edgerelax.ir.diagnostics import InputError
from tests.e2e.models import REAL, compiled


@pytest.mark.parametrize("name", ["minilm", "silero", "nsnet2"])
def test_results_do_not_depend_on_threads(name: str) -> None:
    combinations = list(REAL[name].inputs())
    with compiled(name).session("cpu", threads=1) as session:
        expected = [session.run(inputs) for inputs in combinations]
        assert session.stats()["helped_pieces"] == 0
    for threads in (2, 3, 4):
        with compiled(name).session("cpu", threads=threads) as session:
            assert session.threads == threads
            for _ in range(2):  # helpers may come late; the second run replays what was recorded
                for inputs, outputs in zip(combinations, expected, strict=True):
                    for key, value in session.run(inputs).items():
                        np.testing.assert_array_equal(value, outputs[key], err_msg=key)
            assert session.stats()["helped_pieces"] > 0


def test_a_number_of_threads() -> None:
    with compiled("silero").session("cpu") as session:
        assert 1 <= session.threads <= 8
    with pytest.raises(InputError, match="0 threads: at least 1"):
        compiled("silero").session("cpu", threads=0)
