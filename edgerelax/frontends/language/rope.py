"""Rotary positions (arXiv 2104.09864) and the ways of stretching them to longer contexts.

Two kinds depend on how long the sequence is: `dynamic` turns slower the longer it grows, `longrope`
has one table up to the original context and another beyond. Keys in a cache were turned when they
came, and cannot be turned again as the sequence grows; a model that mixed both tables would compare
positions of different measures. So the length that counts is the greatest one that a module is made
for, at all lengths: `--dim length=..4096` gives the short table of a model trained to 4096.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgerelax.frontends.language.settings import Settings
from edgerelax.ir.diagnostics import InputError, UnsupportedError

WIDEST = 1 << 16  # features of a head


@dataclass(frozen=True, slots=True)
class Rope:
    """Radians that each pair of features turns by from one position to the next.

    Cosine and sine are multiplied by `factor`. Pairs are neighbours where `interleaved`, else
    features k and k + half of the turned ones.
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Lengths:
    """`trained`: the context that the model's file states; `longest`: what a module is made for."""

    trained: int
    longest: int


@dataclass(frozen=True, slots=True)
class _Base:
    """Unscaled frequencies: base ** (-2 k / width)."""

    base: float
    width: int

    @property
    def frequencies(self) -> tuple[float, ...]:
        return tuple(self.base ** (-2 * k / self.width) for k in range(self.width // 2))


Scaling = Callable[[_Base, Settings, Lengths], tuple[Sequence[float], float]]


def rope_of(how: Settings, base: float, width: int, lengths: Lengths) -> Rope:
    """What `rope_scaling` or `rope_parameters` of a config.json say.

    The first `width` features of a head turn. `how` may give `rope_type` (or `type`), the kind's
    own values, and `interleaved`.
    """
    kind = how.text("rope_type", "type", default="default")
    if kind not in SCALINGS:
        raise UnsupportedError(
            f"{how.origin}: rotary scaling {kind!r} is not known",
            hint=f"known are {', '.join(SCALINGS)}",
        )
    if width % 2:
        raise InputError(f"{how.origin}: {width} features of a head turn, but they turn in pairs")
    if not (0 < base < math.inf and 0 <= width <= WIDEST):
        raise InputError(
            f"{how.origin}: {width} features of a head turn by powers of {base:g}, not between 0 "
            f"and {WIDEST} by those of a positive number"
        )
    frequencies, factor = SCALINGS[kind](_Base(base, width), how, lengths)
    return Rope(tuple(frequencies), factor, how.flag("interleaved", default=False))


def _plain(plain: _Base, how: Settings, lengths: Lengths) -> tuple[Sequence[float], float]:
    return plain.frequencies, 1.0


def _linear(plain: _Base, how: Settings, lengths: Lengths) -> tuple[Sequence[float], float]:
    """Positions divided by a factor (arXiv 2306.15595)."""
    factor = how.number("factor")
    return [f / factor for f in plain.frequencies], 1.0


def _dynamic(plain: _Base, how: Settings, lengths: Lengths) -> tuple[Sequence[float], float]:
    """A base that grows with the length beyond the trained one (NTK-aware scaling)."""
    factor, width = how.number("factor"), plain.width
    ratio = max(lengths.longest, lengths.trained) / lengths.trained
    grown = plain.base * (factor * ratio - (factor - 1)) ** (width / (width - 2))
    return _Base(grown, width).frequencies, 1.0


def _llama3(plain: _Base, how: Settings, lengths: Lengths) -> tuple[Sequence[float], float]:
    """Slow pairs divided by a factor, fast ones kept, a ramp between (Llama 3.1)."""
    factor, original = how.number("factor"), _original(how, lengths)
    slow, fast = how.number("low_freq_factor"), how.number("high_freq_factor")

    def scaled(f: float) -> float:
        kept = (original * f / (2 * math.pi) - slow) / (fast - slow)
        kept = min(max(kept, 0.0), 1.0)
        return (1 - kept) * f / factor + kept * f

    return [scaled(f) for f in plain.frequencies], 1.0


def _yarn(plain: _Base, how: Settings, lengths: Lengths) -> tuple[Sequence[float], float]:
    """Pairs that turn often kept, those that turn little divided, a ramp between (2309.00071)."""
    original = _original(how, lengths)
    factor = how.maybe_number("factor") or lengths.trained / original

    def pair(turns: float) -> float:
        """The pair, a real number, that makes so many turns over the original context."""
        spread = math.log(original / (turns * 2 * math.pi))
        return plain.width * spread / (2 * math.log(plain.base))

    low = pair(how.maybe_number("beta_fast") or 32.0)
    high = pair(how.maybe_number("beta_slow") or 1.0)
    if how.flag("truncate", default=True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, plain.width - 1)
    span = high - low or 0.001

    def scaled(k: int, f: float) -> float:
        divided = min(max((k - low) / span, 0.0), 1.0)
        return f / factor * divided + f * (1 - divided)

    return [scaled(k, f) for k, f in enumerate(plain.frequencies)], _yarn_factor(how, factor)


def _yarn_factor(how: Settings, factor: float) -> float:
    given = how.maybe_number("attention_factor")
    if given is not None:
        return given

    def grown(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    one, all_dims = how.maybe_number("mscale"), how.maybe_number("mscale_all_dim")
    return grown(one) / grown(all_dims) if one and all_dims else grown(1.0)


def _longrope(plain: _Base, how: Settings, lengths: Lengths) -> tuple[Sequence[float], float]:
    """A factor for each pair: one list to the original context, another beyond (2402.13753)."""
    original = _original(how, lengths)
    beyond = lengths.longest > original
    name = "long_factor" if beyond else "short_factor"
    factor = how.maybe_number("factor") or lengths.trained / original
    attention = how.maybe_number("attention_factor")
    if attention is None:
        grown = factor > 1
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if grown else 1.0
    return _divided(plain, how, name), attention


def _factors(plain: _Base, how: Settings, lengths: Lengths) -> tuple[Sequence[float], float]:
    """Frequencies divided by a list of factors, as GGUF files state what Llama 3.1 does."""
    return _divided(plain, how, "factors"), 1.0


def _divided(plain: _Base, how: Settings, name: str) -> list[float]:
    factors, plain_ones = how.items(name, (int, float)), plain.frequencies
    if len(factors) != len(plain_ones):
        raise InputError(
            f"{how.origin}: {name} has {len(factors)} numbers, the heads turn "
            f"{len(plain_ones)} pairs"
        )
    return [f / by for f, by in zip(plain_ones, factors, strict=True)]


def _original(how: Settings, lengths: Lengths) -> int:
    return how.integer("original_max_position_embeddings", default=lengths.trained)


SCALINGS: dict[str, Scaling] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # its name in the first Phi-3 files
    "factors": _factors,
}
"""By `rope_type`."""
