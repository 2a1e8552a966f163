"""SmolLM2-135M-Instruct: what its texts are checked on, and what plain numpy says of them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader

from tests.frontends.language.reference import Sizes, logits, read

Array = npt.NDArray[Any]
MODEL = Path(__file__).resolve().parents[2] / "models" / "smollm2" / "model.gguf"
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Once upon a time, in a village by the sea,",
    "Water boils at",
    "日本の首都は",
)
TOKENS = 64
PASSAGE = (
    "It was a bright cold day in the market town, and the clocks of its three churches were "
    "striking eleven, none of them together. Anna counted the coins in her pocket once more. "
    "Seven was enough for bread and a ticket, but not for both the ticket and the book that she "
    "had promised her brother. She looked at the tower, at the clouds, and made up her mind."
)


@cache
def _weights() -> tuple[dict[str, Array], Sizes]:
    return read(GGUFReader(str(MODEL)))


@cache
def _logits(tokens: tuple[int, ...]) -> Array:
    return logits(*_weights(), np.array([tokens]))[0]


def reference(tokens: Sequence[int]) -> Array:
    """The reference's logits f32[length, vocabulary]."""
    return _logits(tuple(tokens))


def likeliest(prompt: Sequence[int], text: Sequence[int]) -> list[int]:
    """In the place of each token of a text the reference's likeliest after all before it.

    It is the text itself if and only if the reference writes that greedily.
    """
    found: list[int] = reference([*prompt, *text])[len(prompt) - 1 : -1].argmax(axis=-1).tolist()
    return found


def perplexity(scores: Array, tokens: Sequence[int]) -> float:
    """exp of the mean of -log p over all tokens but the first, by logits [length, vocabulary]."""
    before, after = scores[:-1].astype(np.float64), np.asarray(tokens[1:])
    largest = before.max(axis=-1, keepdims=True)
    total = np.log(np.exp(before - largest).sum(axis=-1)) + largest[:, 0]
    return float(np.exp(np.mean(total - before[np.arange(len(after)), after])))
