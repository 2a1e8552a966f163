"""Log-mel spectrograms of audio, computed in the program.

Frames of a window are products with windowed cosines and sines; their powers, summed under
triangles that are evenly spaced in mel (Slaney's scale: linear up to 1 kHz, logarithmic above), are
taken as logarithms, cut 80 dB below the loudest, and scaled (arXiv 2212.04356, section 2.2).
"""

from dataclasses import dataclass

import numpy as np

from edgerelax.frontends.nn import Tensor
from edgerelax.frontends.nn.functional import concat
from edgerelax.frontends.nn.module import Array
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.diagnostics import InputError

FLOOR = 1e-10
RANGE = 8.0  # tenfold steps of power below the loudest that are told apart
HIGHEST = 8000.0  # Hz
KNEE, KNEE_MEL, ABOVE = 1000.0, 15.0, np.log(6.4) / 27
"""Where Slaney's scale turns logarithmic, its mel there, the logarithm of a mel's ratio above."""


@dataclass(frozen=True, slots=True)
class Mel:
    """`rate` in Hz; `window`, `length` and `hop` in samples: of all, of a frame, between frames."""

    rate: int
    window: int
    length: int
    hop: int
    bands: int

    def __post_init__(self) -> None:
        for name in ("rate", "window", "length", "hop", "bands"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} of the audio is {getattr(self, name)}, not 1 or more")
        if self.window <= self.length:
            raise InputError(f"a window of {self.window} samples for frames of {self.length}")

    @property
    def frames(self) -> int:
        """Frames of a window."""
        return self.window // self.hop


def log_mel(audio: Tensor, mel: Mel) -> Tensor:
    """f32[batch, samples], a window at most → f32[batch, frames, bands]; what is missing is 0."""
    batch, samples = audio.dims
    whole = apply("pad", audio, None, pads=(0, mel.window - samples), axes=(1,))
    frames = _frames(whole.reshape(batch, mel.window), mel)
    waves = Tensor(audio.builder, audio.builder.constant("waves", _waves(mel)))
    real, imaginary = (frames @ waves).split((mel.length // 2 + 1,) * 2)
    power = real * real + imaginary * imaginary
    weights = Tensor(audio.builder, audio.builder.constant("mel_filters", filters(mel)))
    levels = apply("log", apply("max", power @ weights, FLOOR)) * float(1 / np.log(10))
    loudest = apply("reduce_max", levels, axes=(1, 2), keepdims=True)
    return (apply("max", levels, loudest - RANGE) + 4.0) * 0.25


def _frames(audio: Tensor, mel: Mel) -> Tensor:
    """[batch, window] → [batch, frames, length]: frames centred at every hop, ends mirrored."""
    batch, _ = audio.dims
    each = -(-mel.length // mel.hop)  # hops that a frame touches
    hops = mel.frames + each - 1
    before = mel.length // 2
    after = max(0, hops * mel.hop - mel.window - before)
    wide = apply("pad", audio, None, pads=(before, after), axes=(1,), mode="reflect")
    rows = wide.split((hops * mel.hop,), axis=1)[0].reshape(batch, hops, mel.hop)
    parts = []
    for k in range(each):
        part = apply("slice", rows, starts=(k,), ends=(k + mel.frames,), axes=(1,))
        parts.append(part.split((min(mel.hop, mel.length - k * mel.hop),))[0])
    return concat(parts)


def _waves(mel: Mel) -> Array:
    """Cosines, then sines, under a Hann window: f32[length, 2 · (length // 2 + 1)]."""
    at, bins = np.arange(mel.length)[:, None], np.arange(mel.length // 2 + 1)
    angles = (at * bins % mel.length) * (2 * np.pi / mel.length)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * at / mel.length)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    return np.asarray(waves * window, np.float32)


def filters(mel: Mel) -> Array:
    """Triangles of equal area over frequencies: f32[length // 2 + 1, bands]."""
    edges = _hertz(np.linspace(0, _mel(HIGHEST), mel.bands + 2))
    lower, centre, upper = edges[:-2], edges[1:-1], edges[2:]
    bins = np.linspace(0, mel.rate // 2, mel.length // 2 + 1)[:, None]
    rising, falling = (bins - lower) / (centre - lower), (upper - bins) / (upper - centre)
    triangles: Array = np.maximum(0, np.minimum(rising, falling)) * (2 / (upper - lower))
    return triangles.astype(np.float32)


def _mel(hertz: float) -> float:
    if hertz < KNEE:
        return hertz * KNEE_MEL / KNEE
    return float(KNEE_MEL + np.log(hertz / KNEE) / ABOVE)


def _hertz(mels: Array) -> Array:
    above = KNEE * np.exp(ABOVE * (mels - KNEE_MEL))
    return np.asarray(np.where(mels < KNEE_MEL, mels * KNEE / KNEE_MEL, above))
