"""Arguments of other types than public functions say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax
from edgerelax.ir.arguments import checked
from edgerelax.ir.diagnostics import InputError


@checked
def described(
    name: str | Path,
    count: int | None = None,
    *,
    share: float = 0,
    sure: bool = False,
    more: Any = 0,
) -> tuple[object, ...]:
    return name, count, share, sure, more


def test_what_fits_goes_through() -> None:
    assert described("a", np.int32(3), share=1, sure=True, more=[]) == ("a", 3, 1, True, [])
    assert described(Path("a")) == (Path("a"), None, 0, False, 0)
    with pytest.raises(TypeError, match="unexpected keyword"):
        described("a", other=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": 3}, "name: 3 is not a text or a path"),
        ({"count": "3"}, "count: '3' is not a whole number or None"),
        ({"count": True}, "count: True is not a whole number or None"),
        ({"share": "1"}, "share: '1' is not a number"),
        ({"sure": 1}, "sure: 1 is not True or False"),
    ],
)
def test_what_does_not_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        described(**{"name": "a", **given})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: edgerelax.load_chat("x", window="64"), "window: '64' is not a whole number"),
        (lambda: edgerelax.load_chat("x", texts=None), "texts: None is not a whole number"),
        (lambda: edgerelax.load_transcriber("x", threads=1.5), "threads: 1.5 is not"),
        (lambda: edgerelax.load(None), "folder: None is not a text or a path"),
        (lambda: edgerelax.load("x", device=0), "device: 0 is not a text"),
        (lambda: edgerelax.compile("x", fallback="no"), "fallback: 'no' is not True or False"),
        (lambda: edgerelax.compile("x", target=1), "target: 1 is not a text"),
    ],
)
def test_public_functions_check(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()
