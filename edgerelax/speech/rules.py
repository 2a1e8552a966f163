"""Which tokens may come next in a window's text (arXiv 2212.04356, sections 2.3 and 4.5).

Timestamps come in pairs, the end of a segment and the begin of the next, or alone at the ends of a
text; they never go back.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgerelax.frontends.speech.info import SpeechInfo


class Rules:
    """For texts with timestamps or without; `end` is the id that ends one."""

    def __init__(self, info: SpeechInfo, vocabulary: int, end: int, timestamps: bool) -> None:
        self._info, self._end, self._timed = info, end, timestamps
        self._always = np.ones(vocabulary, bool)
        self._always[info.suppress] = False
        if timestamps:
            self._always[info.no_timestamps] = False
        elif info.first_timestamp is not None:
            self._always[info.first_timestamp :] = False

    def allowed(self, text: Sequence[int]) -> NDArray[np.uint32]:
        """Bit id % 32 of word id // 32 says whether that token may follow those of the window."""
        may = self._always.copy()
        if not text:
            may[self._info.begin_suppress] = False
        if self._timed and self._info.first_timestamp is not None:
            self._keep_time(may, text, self._info.first_timestamp)
        words = np.zeros(-(-len(may) // 32) * 4, np.uint8)
        bits = np.packbits(may, bitorder="little")
        words[: len(bits)] = bits
        return words.view("<u4")

    def _keep_time(self, may: NDArray[np.bool_], text: Sequence[int], first: int) -> None:
        if not text:
            may[:first] = False
            if self._info.max_initial_timestamp is not None:
                may[first + self._info.max_initial_timestamp + 1 :] = False
            return
        last = text[-1] >= first
        paired = last and (len(text) < 2 or text[-2] >= first)
        if paired:
            may[first:] = False
        elif last:
            may[: self._end] = False
        times = [token for token in text if token >= first]
        if times:
            may[first : times[-1] + (0 if last and not paired else 1)] = False
