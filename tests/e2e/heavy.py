"""Models that take a CPU which plays a GPU minutes: scripts/verify-models runs them everywhere."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto

from tests.e2e.light import NAMES, input_name, opened, path_of
from tests.e2e.models import MODELS, TOLERANCE, Inputs


@dataclass(frozen=True)
class HeavyModel:
    """A model, and inputs for it, one dict per combination of sizes."""

    name: str
    source: Callable[[], Path | ModelProto]
    inputs: Callable[[], Iterator[Inputs]]
    tolerance: float = TOLERANCE


def bands() -> Iterator[Inputs]:
    """What Smart Turn makes of sound: 80 bands at 800 times."""
    rng = np.random.default_rng(1)
    for batch in (1, 3, 2, 5):
        given = rng.standard_normal((batch, 80, 800)) * 0.3
        yield {"input_features": given.astype(np.float32)}


def pictures(name: str) -> Iterator[Inputs]:
    """Of any number, for a light CNN."""
    rng = np.random.default_rng(1)
    given = input_name(onnx.load(path_of(name)))
    for batch in (1, 3, 2, 4):
        yield {given: rng.random((batch, 3, 224, 224), np.float32)}


def _light(name: str) -> HeavyModel:
    return HeavyModel(name, partial(opened, name), partial(pictures, name))


SMART_TURN = HeavyModel(
    "smart-turn",
    lambda: MODELS / "smart-turn" / "model.onnx",
    bands,
    tolerance=5e-3,  # as near as onnxruntime is to itself: tests/e2e/test_smart_turn.py
)
HEAVY = {m.name: m for m in (SMART_TURN, *map(_light, NAMES))}
