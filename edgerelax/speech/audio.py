"""Audio as a model takes it: one channel, f32 within ±1, at the model's rate."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerelax.ir.diagnostics import InputError, UnsupportedError

Samples = NDArray[np.float32]
Audio = str | Path | bytes | NDArray[Any]
"""A sound file, by name or as it is, or the samples of one channel."""

INSTALL = "pip install edgerelax[speech]"


def read_audio(audio: Audio, wanted: int, rate: int | None = None) -> Samples:
    """The samples of an array or a file, at `wanted` samples a second.

    `rate` is an array's; None says that it is the wanted one. Integers become numbers within ±1; a
    file's channels become their mean. Raises InputError for audio that is empty, has several
    channels in an array or numbers that are not finite, for a file that is none of sound, and where
    what reads files or changes rates is not installed.
    """
    if isinstance(audio, np.ndarray):
        samples, given = _one_channel(audio), wanted if rate is None else rate
    elif not isinstance(audio, str | Path | bytes):
        raise InputError(
            f"{type(audio).__name__} is no audio", hint="give a file, its bytes or a numpy array"
        )
    else:
        if rate is not None:
            raise InputError("a file says its own sampling rate", hint="give none")
        samples, given = _read(audio)
    if given < 1:
        raise InputError(f"a sampling rate of {given} Hz")
    if not samples.size:
        raise InputError("the audio is empty: it has no samples")
    if not np.isfinite(samples).all():
        raise InputError("the audio has samples that are not finite")
    return samples if given == wanted else _resampled(samples, given, wanted)


def _one_channel(audio: NDArray[Any]) -> Samples:
    if audio.ndim != 1:
        raise InputError(
            f"audio of dims {list(audio.shape)}, not [samples]",
            hint="give one channel: the mean of several, say",
        )
    if audio.dtype.kind == "f":
        return np.asarray(audio, np.float32)
    if audio.dtype.kind not in "iu":
        raise InputError(f"audio of {audio.dtype}: floats or integers are samples")
    bits = 8 * audio.dtype.itemsize - 1
    middle = 0 if audio.dtype.kind == "i" else 2.0**bits
    return np.asarray((audio.astype(np.float64) - middle) / 2.0**bits, np.float32)


def _read(audio: str | Path | bytes) -> tuple[Samples, int]:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # the latter where its own library is missing
        raise UnsupportedError(
            f"sound files are read by soundfile: {error}", hint=INSTALL
        ) from None
    name = "the audio" if isinstance(audio, bytes) else Path(audio).name
    with io.BytesIO(audio) if isinstance(audio, bytes) else Path(audio).open("rb") as file:
        try:
            samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            said = getattr(error, "error_string", str(error))
            raise InputError(
                f"{name} cannot be read as sound: {said}",
                hint="known are WAV, FLAC, Ogg and MP3; ffmpeg makes them of others",
            ) from error
    return np.asarray(samples.mean(axis=1), np.float32), int(rate)


def _resampled(samples: Samples, given: int, wanted: int) -> Samples:
    try:
        import soxr
    except ImportError:
        raise UnsupportedError(
            f"audio of {given} Hz becomes {wanted} Hz by soxr, which is not installed", hint=INSTALL
        ) from None
    found = np.asarray(soxr.resample(samples, given, wanted), np.float32)
    return found if found.size else np.zeros(1, np.float32)
