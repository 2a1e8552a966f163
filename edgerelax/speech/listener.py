"""The functions of a speech model's artifact, for one text at a time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgerelax.artifact.manifest import LanguageInfo, Manifest, SymbolInfo
from edgerelax.chat.paged import bucket
from edgerelax.hosts.session import Session
from edgerelax.ir.diagnostics import InputError
from edgerelax.speech.audio import Samples

ROW = np.zeros(1, np.int32)


class Listener:
    """Hears a window of audio and draws the tokens of a text about it.

    Raises InputError for the artifact of a model that does not hear.
    """

    def __init__(self, session: Session, language: LanguageInfo) -> None:
        if language.page_size is None or "encode" not in language.functions:
            raise InputError("this language model does not hear", hint="export a speech model")
        self.context, self.vocabulary = language.context, language.vocabulary
        self._session, self._names, self._size = session, language.functions, language.page_size
        self._most = -(-language.context // language.page_size)
        self._samples = _samples_of(session.artifact.manifest, self._names["encode"])
        session.allocate({"slots": self._most * self._size, "rows": 1})

    @property
    def window(self) -> int | None:
        """How many samples `hear` takes at most; None: all of the model's window."""
        hi, multiple = self._samples.hi, self._samples.multiple_of
        return None if hi is None else hi // multiple * multiple

    def hear(self, audio: Samples) -> None:
        """Take a window's audio, or less; the text begins anew."""
        least, multiple = self._samples.lo, self._samples.multiple_of
        size = -(-max(len(audio), least) // multiple) * multiple
        self._run("encode", audio=np.pad(audio, (0, size - len(audio)))[None])

    def take(self, tokens: Sequence[int], at: int) -> None:
        """Take tokens of the text, the first of them at a position that is not after the end."""
        count = len(tokens)
        places = np.arange(at, at + count, dtype=np.int32)[None]
        pages = np.arange(bucket(-(-(at + count) // self._size), self._most), dtype=np.int32)
        given = np.array([tokens], np.int32)
        last = np.array([count - 1], np.int32)
        self._run(
            "step", tokens=given, positions=places, slots=places, pages=pages[None], last=last
        )

    def logits(self) -> NDArray[np.float32]:
        """Those after the last token that was taken."""
        return np.asarray(self._run("read")["logits"][0], np.float32)

    def draw(
        self, allowed: NDArray[np.uint32], temperature: float, seed: int, step: int
    ) -> tuple[int, float]:
        """The next token, and the logarithm of its probability among those that are allowed."""
        found = self._run(
            "timed",
            numbers=np.array([[temperature, 1, 0, 1, 0, 0]], np.float32),
            integers=np.array([[0, seed]], np.int32),
            steps=np.array([step], np.int32),
            allowed=allowed[None],
        )
        return int(found["token"][0]), float(found["logprob"][0])

    def _run(self, role: str, **inputs: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
        return self._session.run({**inputs, "rows": ROW}, self._names[role])


def _samples_of(manifest: Manifest, function: str) -> SymbolInfo:
    """What sizes of audio an artifact's function was made for."""
    given = next(f for f in manifest.functions if f.name == function).inputs
    shape = next(tensor for tensor in given if tensor.name == "audio").shape or [1, 0]
    size = shape[1]
    return SymbolInfo(lo=size, hi=size) if isinstance(size, int) else manifest.symbols[size]
