"""Transcripts by an artifact on the CPU against transformers, and what is asked for in vain."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax
from edgerelax.artifact.store import Artifact
from edgerelax.ir.diagnostics import InputError
from edgerelax.speech.load import LoadedTranscriber, info_of
from tests.frontends.speech import tiny
from tests.frontends.speech.tiny import Exported

PLAIN: dict[str, Any] = {
    "temperatures": (0.0,), "logprob": None, "compression": None, "no_speech": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded(small_speech: Exported) -> Iterator[LoadedTranscriber]:
    with edgerelax.load_transcriber(small_speech.artifact, "cpu") as opened:
        yield opened


def greedy(
    model: Any, audio: np.ndarray, prompt: Sequence[int], text: Sequence[int], timestamps: bool
) -> list[int]:
    """By transformers' model and its processors: what follows the prompt and each part of a text.

    A text is what greedy steps give if and only if this is that text.
    """
    import torch
    from transformers.generation import logits_process as processors

    begin = len(prompt)
    hidden = tiny.SUPPRESSED + ([] if timestamps else list(range(tiny.FIRST, tiny.VOCABULARY)))
    steps = [
        processors.SuppressTokensAtBeginLogitsProcessor([7, tiny.END], begin),
        processors.SuppressTokensLogitsProcessor(hidden),
    ]
    if timestamps:
        config = model.generation_config
        steps.append(processors.WhisperTimeStampLogitsProcessor(config, begin_index=begin))
    features, tokens = (
        torch.from_numpy(tiny.features(audio[None])),
        torch.tensor([[*prompt, *text]]),
    )
    with torch.no_grad():
        logits = model(input_features=features, decoder_input_ids=tokens).logits
    found = []
    for k in range(begin, min(tokens.shape[1] + 1, tiny.CONTEXT)):
        scores = logits[:, k - 1]
        for step in steps:
            scores = step(tokens[:, :k], scores)
        found.append(int(scores.argmax()))
    return found[:-1] if found[-1] == tiny.END else found


@pytest.mark.parametrize("timestamps", (True, False), ids=("timed", "untimed"))
def test_greedy_text_is_that_of_transformers(
    loaded: LoadedTranscriber, small_speech: Exported, timestamps: bool
) -> None:
    prompt = [tiny.START, tiny.GERMAN, tiny.TRANSLATE, *([] if timestamps else [tiny.NO_TIMES])]
    texts = []
    for seed, samples in ((0, tiny.WINDOW), (1, 9999), (2, 1)):
        audio = tiny.sound(seed, samples)
        asked = {"language": "de", "task": "translate", "timestamps": timestamps}
        work = loaded.listen(audio, **asked, **PLAIN)
        found, how, _ = loaded.window(audio, work, [])
        assert found == greedy(small_speech.model, audio, prompt, found, timestamps)
        assert len(set(found)) > 3 and how.logprob < 0
        texts.append(found)
    assert texts[0] != texts[1] != texts[2]


def test_the_language_is_that_of_transformers(
    loaded: LoadedTranscriber, small_speech: Exported
) -> None:
    import torch

    seen = set()
    for seed in range(4):
        audio = tiny.sound(seed)
        features = torch.from_numpy(tiny.features(audio[None]))
        (token,) = small_speech.model.detect_language(features).tolist()
        code = {tiny.GERMAN: "de", tiny.ENGLISH: "en"}[token]
        assert loaded.transcribe(audio, **PLAIN).language == code
        seen.add(code)
    assert seen == {"de", "en"}
    assert loaded.transcribe(tiny.sound(0), language="de", **PLAIN).language == "de"


def test_a_long_one_goes_on_where_segments_end(loaded: LoadedTranscriber) -> None:
    audio = np.concatenate([tiny.sound(k) for k in range(3)])
    work = loaded.listen(audio, language="en", **PLAIN)
    segments = list(work)
    assert work.duration == work.progress == 3
    assert len(segments) > 3
    assert all(s.start < s.end <= 3 for s in segments)
    assert all(a.end <= b.start + 1e-9 for a, b in pairwise(segments))
    untimed = loaded.transcribe(audio, language="en", timestamps=False, **PLAIN)
    assert [(s.start, s.end) for s in untimed.segments] == [(0, 1), (1, 2), (2, 3)]
    assert untimed.text == "".join(s.text for s in untimed.segments).strip()


def test_text_as_it_grows(loaded: LoadedTranscriber) -> None:
    shown: list[str] = []
    audio = tiny.sound(5)
    work = loaded.listen(audio, on_text=shown.append, language="en", timestamps=False, **PLAIN)
    (segment,) = work
    assert all(b.startswith(a) for a, b in pairwise(shown))
    assert segment.text.startswith(shown[-1])
    assert len(shown) == len(segment.tokens)


def test_unlikely_text_is_drawn_again(loaded: LoadedTranscriber) -> None:
    """At all temperatures in turn, as this model's text is never likely; the same for a seed."""
    audio = tiny.sound(6)
    found = loaded.transcribe(audio, language="en", temperatures=(0.0, 0.4, 0.9), seed=3)
    assert {s.temperature for s in found.segments} == {0.9}
    again = loaded.transcribe(audio, language="en", temperatures=(0.0, 0.4, 0.9), seed=3)
    large = loaded.transcribe(audio, language="en", temperatures=(0.4,), seed=3 + (1 << 80))
    assert large.text == loaded.transcribe(audio, language="en", temperatures=(0.4,), seed=3).text
    other = loaded.transcribe(audio, language="en", temperatures=(0.9,), seed=4)
    assert again.segments == found.segments != other.segments
    calm = loaded.transcribe(
        audio, language="en", temperatures=(0.0, 0.9), logprob=-9.0, compression=None
    )
    assert {s.temperature for s in calm.segments} == {0.0}


def test_where_nobody_speaks(loaded: LoadedTranscriber) -> None:
    audio = tiny.sound(7)
    work = loaded.listen(audio, language="en", no_speech=-1.0)
    assert list(work) == [] and work.progress == 1
    assert loaded.transcribe(audio, language="en", no_speech=-1.0, logprob=None).segments


def test_what_was_said_before(loaded: LoadedTranscriber) -> None:
    """A prompt is told to the first window, the text so far to each if that is wanted."""
    told: list[list[int]] = []
    take = loaded._listener.take

    def spied(tokens: Sequence[int], at: int) -> None:
        told.extend([list(tokens)] if at == 0 else [])
        take(tokens, at)

    loaded._listener.take = spied  # type: ignore[method-assign]
    try:
        audio = np.concatenate([tiny.sound(k) for k in range(2)])
        asked = {"language": "en", "timestamps": False, **PLAIN}
        first, _ = loaded.transcribe(audio, prompt="Hm", **asked).segments
        own = [token for k, token in enumerate(first.tokens) if k >= 0]
        loaded.transcribe(audio, prompt="Hm", follow=True, **asked)
    finally:
        loaded._listener.take = take  # type: ignore[method-assign]
    prompt = loaded.text.tokenizer.encode(" Hm", framed=False)
    assert told[:3] == [[tiny.PREVIOUS, *prompt, tiny.START], [tiny.START], told[0]]
    most = tiny.CONTEXT // 2 - 1
    assert told[3][0] == tiny.PREVIOUS and len(told[3]) == most + 2
    assert own != told[3][1:-1] or len(own) == most


def test_what_is_not_known(loaded: LoadedTranscriber) -> None:
    audio = tiny.sound(0)
    with pytest.raises(InputError, match=r"no language 'fr'[\s\S]*known are (de, en|en, de)"):
        loaded.transcribe(audio, language="fr")
    with pytest.raises(InputError, match="no task 'sing'"):
        loaded.transcribe(audio, task="sing")
    for temperatures in ((), (-1.0,), (0.0, float("nan"))):
        with pytest.raises(InputError, match="temperatures"):
            loaded.transcribe(audio, language="en", temperatures=temperatures)
    with pytest.raises(TypeError, match="tempo"):
        loaded.transcribe(audio, tempo=3)


def test_artifacts_of_other_models(small_chat: Path, small_speech: Exported) -> None:
    with pytest.raises(InputError, match="no speech model"):
        edgerelax.load_transcriber(small_chat, "cpu")
    with pytest.raises(InputError, match="of a speech model"):
        edgerelax.load_chat(small_speech.artifact, "cpu")


def test_what_an_artifact_says(small_speech: Exported) -> None:
    artifact = Artifact.open(small_speech.artifact)
    info, language = info_of(artifact), artifact.manifest.language
    assert language is not None and language.architecture == "whisper"
    assert (language.vocabulary, language.context) == (tiny.VOCABULARY, tiny.CONTEXT)
    assert (info.rate, info.window, info.tick) == (16000, tiny.WINDOW, 320)
    assert info.languages == {"en": tiny.ENGLISH, "de": tiny.GERMAN}
    assert (info.no_timestamps, info.first_timestamp) == (tiny.NO_TIMES, tiny.FIRST)
    assert (info.no_speech, info.previous) == (tiny.NO_SPEECH, tiny.PREVIOUS)
