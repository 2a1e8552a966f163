"""Vectors of texts by a compiled model's function `embed` (frontends/language/encoder)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgerelax.artifact.manifest import LanguageInfo
from edgerelax.hosts.session import Session

BATCH = 16
"""Texts that one run takes: they are padded to the longest."""


class SessionEmbedder:
    """Embeds with a session of an artifact that has `embed`."""

    def __init__(self, session: Session, language: LanguageInfo) -> None:
        self._session, self._function = session, language.functions["embed"]
        self.context = language.context

    def embed(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Vectors of length 1, [texts, width], in the order of the texts."""
        order = sorted(range(len(texts)), key=lambda k: len(texts[k]))  # little padding
        found: dict[int, NDArray[np.float32]] = {}
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            found.update(zip(some, self._batch([texts[k] for k in some]), strict=True))
        return np.stack([found[k] for k in range(len(texts))])

    def _batch(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        lengths = np.array([len(text) for text in texts], np.int64)
        tokens = np.zeros((len(texts), int(lengths.max())), np.int64)
        for row, text in zip(tokens, texts, strict=True):
            row[: len(text)] = text
        inputs = {"tokens": tokens, "lengths": lengths}
        return np.asarray(self._session.run(inputs, self._function)["embeddings"], np.float32)
