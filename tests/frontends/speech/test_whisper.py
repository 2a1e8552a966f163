"""Whisper against transformers: spectrograms, logits of steps; folders that are damaged."""

from pathlib import Path

import numpy as np
import pytest

from edgerelax.frontends.hf import load
from edgerelax.frontends.language.cache import PAGE
from edgerelax.frontends.nn import Input, trace
from edgerelax.frontends.speech.mel import Mel, log_mel
from edgerelax.ir.dtypes import F32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol
from tests.frontends.speech import tiny

MEL = Mel(tiny.RATE, tiny.WINDOW, 400, 160, tiny.BANDS)


def spectrogram(mel: Mel) -> Module:
    shape = symbol("batch"), symbol("samples", 0, mel.window)
    return trace(lambda audio: {"mel": log_mel(audio, mel)}, {"audio": Input(shape, F32)})


@pytest.mark.parametrize("samples", (tiny.WINDOW, 7777, 399, 1))
def test_spectrograms_equal_those_of_transformers(samples: int) -> None:
    audio = np.stack([tiny.sound(k, samples) for k in range(2)])
    found = evaluate(spectrogram(MEL), {"audio": audio})["mel"]
    np.testing.assert_allclose(found.swapaxes(1, 2), tiny.features(audio), atol=1e-4)
    silent = evaluate(spectrogram(MEL), {"audio": audio * 0})["mel"]
    np.testing.assert_allclose(silent.swapaxes(1, 2), tiny.features(audio * 0), atol=1e-4)


def test_spectrograms_of_other_sizes() -> None:
    """Frames that hops do not divide, and 128 bands as large-v3 has."""
    transformers = pytest.importorskip("transformers")
    given = {"feature_size": 128, "chunk_length": 1, "hop_length": 200, "n_fft": 512}
    made = transformers.WhisperFeatureExtractor(**given)
    audio = tiny.sound(3)
    wanted = made(audio, sampling_rate=tiny.RATE, return_tensors="np")["input_features"]
    mel = Mel(tiny.RATE, tiny.WINDOW, 512, 200, 128)
    found = evaluate(spectrogram(mel), {"audio": audio[None]})["mel"]
    np.testing.assert_allclose(found.swapaxes(1, 2), wanted, atol=2e-4)


class Steps:
    """The module's functions on the interpreter, and the states that they share."""

    def __init__(self, module: Module, batch: int) -> None:
        self.module, self.batch, self.states = module, batch, {}
        sizes = {"slots": batch * 3 * PAGE, "rows": batch + 1}
        for func in ("encode", "step"):
            for parameter in module.funcs[func].params:
                if parameter.name in module.funcs[func].attrs["states"]:
                    dims = [sizes.get(str(d), d.as_int()) for d in parameter.annotation.dims]
                    dtype = parameter.annotation.dtype.numpy
                    self.states[parameter.name] = np.zeros(dims, dtype)
        self.rows = np.arange(batch, 0, -1).astype(np.int32)
        self.pages = np.arange(batch * 3).reshape(batch, 3).astype(np.int32)
        self.taken = 0

    def run(self, func: str, **inputs: np.ndarray) -> None:
        used = self.module.funcs[func].attrs["states"]
        given = {**inputs, **{name: self.states[name] for name in used}}
        self.states |= evaluate(self.module, given, func)

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Logits after the last of new tokens [batch, length]."""
        at = np.arange(self.taken, self.taken + tokens.shape[1])
        self.taken += tokens.shape[1]
        each = np.broadcast_to(at, tokens.shape).astype(np.int32)
        slots = self.pages[:, at // PAGE] * PAGE + each % PAGE
        last = np.full(self.batch, tokens.shape[1] - 1, np.int32)
        self.run(
            "step", tokens=tokens.astype(np.int32), positions=each, slots=slots,
            pages=self.pages, last=last, rows=self.rows,
        )  # fmt: skip
        return self.states["last_logits"][self.rows]


@pytest.mark.parametrize(("batch", "samples"), ((1, tiny.WINDOW), (3, 9000)))
def test_logits_equal_those_of_transformers(batch: int, samples: int, tmp_path: Path) -> None:
    import torch

    model = tiny.write(tmp_path)
    steps = Steps(load(tmp_path), batch)
    audio = np.stack([tiny.sound(k, samples) for k in range(batch)])
    tokens = np.random.default_rng(0).integers(0, tiny.VOCABULARY, (batch, 20))
    with torch.no_grad():
        wanted = model(
            input_features=torch.from_numpy(tiny.features(audio)),
            decoder_input_ids=torch.from_numpy(tokens),
        ).logits.numpy()
    steps.run("encode", audio=audio, rows=steps.rows)
    start = 0
    for size in (1, 4, 13, 1, 1):
        found = steps.step(tokens[:, start : start + size])
        start += size
        np.testing.assert_allclose(found, wanted[:, start - 1], rtol=2e-4, atol=2e-4)
