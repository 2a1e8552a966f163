"""Sound files and arrays as samples of one channel at one rate."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from edgerelax.ir.diagnostics import InputError
from edgerelax.speech.audio import read_audio

RATE = 16000


def tone(rate: int, seconds: float = 0.5) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)).astype("f4")


@pytest.mark.parametrize("kind", ("PCM_16", "PCM_24", "FLOAT"))
def test_a_wav_file(tmp_path: Path, kind: str) -> None:
    soundfile.write(tmp_path / "a.wav", tone(RATE), RATE, kind)
    np.testing.assert_allclose(read_audio(tmp_path / "a.wav", RATE), tone(RATE), atol=1e-4)


def test_channels_and_rates(tmp_path: Path) -> None:
    """Two channels at 44.1 kHz: their mean at 16 kHz."""
    both = np.stack([1.5 * tone(44100), 0.5 * tone(44100)], axis=1)
    soundfile.write(tmp_path / "a.flac", both, 44100)
    found = read_audio(str(tmp_path / "a.flac"), RATE)
    assert len(found) == RATE // 2
    np.testing.assert_allclose(found[500:-500], tone(RATE)[500:-500], atol=2e-3)
    slow = read_audio(tone(8000), RATE, 8000)
    np.testing.assert_allclose(slow[500:-500], tone(RATE)[500:-500], atol=2e-3)
    assert len(read_audio(np.ones(1, np.float32), RATE, 48000)) == 1


@pytest.mark.parametrize("dtype", (np.int16, np.int32, np.uint8, np.float64))
def test_samples_of_other_types(dtype: type) -> None:
    whole = np.dtype(dtype).kind in "iu"
    half = 2.0 ** (8 * np.dtype(dtype).itemsize - 1)
    middle = half if np.dtype(dtype).kind == "u" else 0
    given = (tone(RATE) * half + middle if whole else tone(RATE)).astype(dtype)
    np.testing.assert_allclose(read_audio(given, RATE), tone(RATE), atol=1.01 / 128)


def test_audio_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="empty: it has no samples"):
        read_audio(np.zeros(0, np.float32), RATE)
    with pytest.raises(InputError, match="not finite"):
        read_audio(np.array([0, np.nan]), RATE)
    with pytest.raises(InputError, match=r"dims \[2, 5\], not \[samples\]"):
        read_audio(np.zeros((2, 5), np.float32), RATE)
    with pytest.raises(InputError, match="audio of complex64"):
        read_audio(np.zeros(5, np.complex64), RATE)
    with pytest.raises(InputError, match="rate of 0 Hz"):
        read_audio(np.zeros(5, np.float32), RATE, 0)
    with pytest.raises(FileNotFoundError):
        read_audio(tmp_path / "none.wav", RATE)
    with pytest.raises(InputError, match=r"(?s)list is no audio.*numpy array"):
        read_audio([0.0, 0.1], RATE)  # type: ignore[arg-type]
    (tmp_path / "text.wav").write_text("not a sound")
    with pytest.raises(InputError, match=r"text\.wav cannot be read as sound: Format"):
        read_audio(tmp_path / "text.wav", RATE)
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), RATE)
    with pytest.raises(InputError, match="empty"):
        read_audio(tmp_path / "empty.wav", RATE)
    with pytest.raises(InputError, match="says its own"):
        read_audio(tmp_path / "empty.wav", RATE, RATE)
