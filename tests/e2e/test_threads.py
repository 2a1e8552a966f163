"""Threads natively: the same bits with any number of them, at every combination of sizes."""

import numpy as np
import pytest

from edgerelax.hosts.session import Session
from edgerelax.ir.diagnostics import InputError
from tests.e2e.models import REAL, compiled
from tests.waiting import wait_until

Arrays = dict[str, np.ndarray]


def check(session: Session, combinations: list[Arrays], expected: list[Arrays]) -> None:
    for inputs, outputs in zip(combinations, expected, strict=True):
        for key, value in session.run(inputs).items():
            np.testing.assert_array_equal(value, outputs[key], err_msg=key)


def is_helped(session: Session, combinations: list[Arrays], expected: list[Arrays]) -> bool:
    """Whether helpers, whose threads may come late, took part in what replays the first run."""
    before = session.stats()["helped_pieces"]
    check(session, combinations, expected)
    return session.stats()["helped_pieces"] > before


@pytest.mark.parametrize("name", ["minilm", "silero", "nsnet2"])
def test_results_do_not_depend_on_threads(name: str) -> None:
    combinations = list(REAL[name].inputs())
    with compiled(name).session("cpu", threads=1) as session:
        expected = [session.run(inputs) for inputs in combinations]
        assert session.stats()["helped_pieces"] == 0
    for threads in (2, 3, 4):
        with compiled(name).session("cpu", threads=threads) as session:
            assert session.threads == threads
            check(session, combinations, expected)
            wait_until(lambda s=session: is_helped(s, combinations, expected), "nobody helps")


def test_a_number_of_threads() -> None:
    with compiled("silero").session("cpu") as session:
        assert 1 <= session.threads <= 8
    for count in (0, 257):
        with pytest.raises(InputError, match=f"{count} threads: at least 1, at most 256"):
            compiled("silero").session("cpu", threads=count)
