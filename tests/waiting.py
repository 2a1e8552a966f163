"""Waiting for what another thread or process does sooner or later."""

import time
from collections.abc import Callable


def wait_until(reached: Callable[[], bool], what: str) -> None:
    """Fails with `what` where it takes a minute."""
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end, what
        time.sleep(0.005)
