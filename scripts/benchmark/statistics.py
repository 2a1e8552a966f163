"""Medians, spreads and ratios of interleaved samples."""

import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np


def median(values: Sequence[float]) -> float | None:
    """The middle value; None of nothing."""
    return statistics.median(values) if values else None


def spread(values: Sequence[float]) -> float | None:
    """The distance of the quartiles as a share of the median; None of fewer than two values."""
    if len(values) < 2:
        return None
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float((high - low) / middle) if middle else None


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The median over rounds of ours / theirs.

    Both samples of a round were taken next to each other, so that a slow spell of the machine hits
    both. None where nothing was measured.
    """
    pairs = [a / b for a, b in zip(ours, theirs, strict=False) if b > 0]
    return median(pairs)


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of the values that are there; None if there are none."""
    known = [v for v in values if v is not None]
    if not known or min(known) <= 0:
        return None
    return math.exp(statistics.fmean(map(math.log, known)))
