"""A window's text as segments with times."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from edgerelax.frontends.speech.info import SpeechInfo


@dataclass(frozen=True, slots=True)
class Part:
    """What was said from `start` to `end`, in samples of the window, as tokens."""

    start: int
    end: int
    tokens: list[int]


def parts_of(tokens: Sequence[int], info: SpeechInfo, length: int) -> tuple[list[Part], int]:
    """The parts of a window of so many samples, and how far the audio is transcribed by them.

    Two timestamps in a row end a part. What follows the last such pair is said again in the next
    window, which begins there, unless one timestamp alone ends the text: nobody speaks after it.
    """
    first = info.first_timestamp
    if first is None:
        return [Part(0, length, list(tokens))], length
    is_time = [token >= first for token in tokens]
    ends = [k + 1 for k, both in enumerate(pairwise(is_time)) if all(both)]

    def at(token: int) -> int:
        return min((token - first) * info.tick, length)

    if not ends:
        last = next((token for token in reversed(tokens) if token >= first), first)
        return [Part(0, at(last) if last > first else length, list(tokens))], length
    closed = is_time[-2:] == [False, True]
    cuts = [0, *ends, *([len(tokens)] if closed else [])]
    found = [list(tokens[a:b]) for a, b in pairwise(cuts)]
    parts = [Part(at(part[0]), at(part[-1]), part) for part in found]
    reached = length if closed else parts[-1].end
    return parts, reached or length  # a text that goes nowhere is not tried for ever
