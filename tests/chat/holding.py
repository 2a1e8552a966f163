"""An engine that stops in the middle of its texts, for tests of what happens to one meanwhile."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from edgerelax.chat.paged import PagedEngine

BEGUN = 20
"""Tokens that every text gets before the engine stops: enough for its first words."""


def is_begun(engine: PagedEngine) -> bool:
    """Whether all texts that there is a row for have their first tokens."""
    if engine._waiting and engine._rows:
        return False
    return all(text.generated >= BEGUN for text in engine._active)


@contextmanager
def held(engine: PagedEngine) -> Iterator[None]:
    """Once all its texts have begun the engine takes no step until this ends."""
    run, free = engine._run, threading.Event()

    def stop_or_run(role: str, **inputs: Any) -> Any:
        while is_begun(engine) and not free.wait(0.005):
            pass
        return run(role, **inputs)

    with patch.object(engine, "_run", stop_or_run):
        try:
            yield
        finally:
            free.set()


def is_given_up(engine: PagedEngine) -> bool:
    """Whether whoever read its texts wants no more of them, those that are still held included."""
    return all(text.ended for text in (*engine._active, *engine._waiting))
