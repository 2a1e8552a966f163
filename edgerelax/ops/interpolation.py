"""What resampling operators share: scales as exact fractions, and the cubic kernel.

`ratios_of_scales` and `ratios_of_sizes` resolve the parameters of ONNX's Resize for importers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np

from edgerelax.ir.scalar import Scalar
from edgerelax.ops.maps import Dims, exprs
from edgerelax.sym import ExprLike, as_expr, ge
from edgerelax.sym import select as choose


@dataclass(frozen=True, slots=True)
class Ratios:
    """Attributes of `resize`, one entry per resized axis: its size and its scale as a fraction."""

    sizes: Dims
    numerators: Dims
    denominators: Dims


def ratios_of_scales(dims: Sequence[ExprLike], scales: Sequence[float]) -> Ratios:
    """Sizes are `floor(dim * scale)`."""
    fractions = [simplest_fraction(s) for s in scales]
    above, below = (
        exprs([f.numerator for f in fractions]),
        exprs([f.denominator for f in fractions]),
    )
    sizes = tuple(as_expr(d) * a // b for d, a, b in zip(dims, above, below, strict=True))
    return Ratios(sizes, above, below)


def ratios_of_sizes(
    dims: Sequence[ExprLike], sizes: Sequence[ExprLike], policy: str = "stretch"
) -> Ratios:
    """Scales are size / dim; `not_larger` and `not_smaller` give all axes the least or greatest."""
    wanted, given = exprs(sizes), exprs(dims)
    if policy == "stretch":
        return Ratios(wanted, wanted, given)
    above, below = wanted[0], given[0]
    for size, dim in zip(wanted[1:], given[1:], strict=True):
        mine, theirs = above * dim, size * below
        keep = ge(theirs, mine) if policy == "not_larger" else ge(mine, theirs)
        above, below = choose(keep, above, size), choose(keep, below, dim)
    rounded = tuple((2 * above * dim + below) // (2 * below) for dim in given)
    return Ratios(rounded, (above,) * len(given), (below,) * len(given))


def simplest_fraction(number: float) -> Fraction:
    """The fraction of least denominator that rounds to this 32-bit float."""
    single = np.float32(number)
    exact = Fraction(float(single))
    below = Fraction(float(np.nextafter(single, np.float32(-np.inf))))
    above = Fraction(float(np.nextafter(single, np.float32(np.inf))))
    return _simplest_between((exact + below) / 2, (exact + above) / 2)


def _simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction of least denominator in (low, high), by continued fractions."""
    whole = floor(low)
    if whole + 1 < high:
        return Fraction(whole + 1)
    if low == whole:
        return whole + 1 / Fraction(floor(1 / (high - whole)) + 1)
    return whole + 1 / _simplest_between(1 / (high - whole), 1 / (low - whole))


def cubic_near(x: Scalar, a: float) -> Scalar:
    """Keys' cubic kernel for distances up to 1."""
    return ((a + 2) * x - (a + 3)) * x * x + 1


def cubic_far(x: Scalar, a: float) -> Scalar:
    """Keys' cubic kernel for distances from 1 to 2."""
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
