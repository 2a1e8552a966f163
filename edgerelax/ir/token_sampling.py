"""The templates `sample_tokens` and `greedy_tokens`: a token per row of logits.

With x the logits of a row, NaN counting as -inf, and m their maximum, tokens weigh
e = exp((x - m) / temperature), in f32. Those are kept that pass all of

* top-k: e is not less than the k-th largest e (0 or less: all);
* top-p: what the tokens of greater e hold together is less than p of what top-k kept (1 or more:
  all; the most likely token always stays);
* min-p: e ≥ min-p, which is relative to the most likely token (0 or less: all).

Equals stay or go together, so that no order of tokens matters. Of the kept ones the winner of a
race is drawn: token i arrives after -log(1 - u) / e, where u comes from `uniforms`; the first one
is i with a probability of e over the sum of what is kept. At temperature 0 (or less) the most
likely token is taken, of equals the smallest id.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

TEMPERATURE, TOP_P, MIN_P = range(3)
TOP_K, SEED = range(2)

GOLDEN = 0x9E3779B9
MIX = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
LAST_SHIFT = 16
BELOW_ONE = 1 - 2.0**-24


def mix(x: Array) -> Array:
    """A bijection of u32 whose every output bit hangs on every input bit (MurmurHash3's last)."""
    for shift, factor in MIX:
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return np.asarray(x ^ (x >> np.uint32(LAST_SHIFT)))


def uniforms(seeds: Array, steps: Array, count: int) -> Array:
    """f32[rows, count] in (0, 1) from a seed and a step counter for each row, and the token's id.

    A hash of the three, no state: two keys of 32 bits come of seed and step, and one hash keyed by
    both of them of each id. Rows of one seed and one step have the same numbers.
    """
    seed, step = (np.asarray(a).astype(np.uint32)[:, None] for a in (seeds, steps))
    ids = np.arange(count, dtype=np.uint32)
    with np.errstate(over="ignore"):
        first, second = mix(step + mix(seed)), mix(seed + mix(step ^ np.uint32(GOLDEN)))
        bits = mix(mix(ids + first) ^ second)
    number = (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)
    return np.asarray(np.minimum(number, np.float32(BELOW_ONE)))


def greedy_tokens(x: Array) -> Array:
    """The most likely tokens i32[b] by logits f32[b, v]; of equals, and of none, the first."""
    return np.asarray(finite(x).argmax(axis=1), np.int32)


def sample_tokens(
    x: Array, numbers: Array, integers: Array, steps: Array, raw: Array | None = None
) -> tuple[Array, Array]:
    """Tokens i32[b], and their log-probabilities f32[b] by `raw`, or by x where that is not given.

    x and raw are logits f32[b, v]. Columns of numbers f32[b, 3 or more] are temperature, top-p and
    min-p; of integers i32[b, 2] top-k and seed; steps is i32[b]. The log-probabilities are those
    of a softmax of all tokens at temperature 1. Where no logit of x is more than -inf the token is
    0; where raw is -inf or NaN at the token, the log-probability is -inf.
    """
    tokens = np.zeros(len(x), np.int32)
    draws = uniforms(integers[:, SEED], steps, x.shape[1])
    for row, logits in enumerate(x):
        e = _weights(logits, numbers[row, TEMPERATURE])
        e[e < _least(e, numbers[row], integers[row, TOP_K])] = 0
        if numbers[row, TEMPERATURE] > 0:
            e = e / -np.log1p(-draws[row].astype(np.float64))
        tokens[row] = np.argmax(e)
    return tokens, log_probabilities(x if raw is None else raw, tokens)


def _weights(logits: Array, temperature: float) -> Array:
    x = finite(logits)
    off = (x - x.max()).astype(np.float64)
    if temperature > 0:
        with np.errstate(over="ignore"):
            off = off / temperature
        e = np.exp(off)
    else:
        e = (off == 0).astype(np.float64)
    return np.where(x > -LARGEST, e, 0).astype(np.float32)


def _least(e: Array, numbers: Array, top_k: int) -> float:
    """The least weight that is kept."""
    top_p, min_p = numbers[TOP_P], numbers[MIN_P]
    falling = np.sort(e)[::-1]
    least = falling[min(top_k, len(e)) - 1] if top_k > 0 else falling[-1]
    if top_p < 1:
        kept = falling[falling >= least].astype(np.float64)
        before = np.concatenate(([0.0], np.cumsum(kept)[:-1]))
        among = before[np.searchsorted(-kept, -kept)]  # what is greater than it, not its equals
        least = kept[(among < max(0.0, top_p) * kept.sum()) | (kept == kept[0])].min()
    return float(max(least, min(min_p, 1.0)))


LARGEST = float(np.finfo(np.float32).max)


def finite(logits: Array) -> Array:
    """Infinities as the largest numbers, NaN as -inf."""
    numbers = np.nan_to_num(logits, nan=-LARGEST, posinf=LARGEST, neginf=-LARGEST)
    return np.asarray(numbers, np.float32)


def log_probabilities(logits: Array, tokens: Array) -> Array:
    """log softmax of each row at one token: f32[b]. -inf where the token cannot be."""
    x = finite(logits).astype(np.float64)
    off = x - x.max(axis=1, keepdims=True)
    total = np.where(x > -LARGEST, np.exp(off), 0).sum(axis=1)
    picked = np.take_along_axis(x, tokens[:, None].astype(np.int64), axis=1)[:, 0]
    with np.errstate(divide="ignore"):
        found = np.take_along_axis(off, tokens[:, None].astype(np.int64), 1)[:, 0] - np.log(total)
    return np.where(picked > -LARGEST, found, -np.inf).astype(np.float32)
