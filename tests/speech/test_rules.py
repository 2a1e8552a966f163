"""Which tokens may come, and segments of texts, against transformers on random texts.

cases.json has some of them for edgerelax.js too (runtime-js/test/speech).
"""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edgerelax.frontends.speech.info import SpeechInfo
from edgerelax.speech.rules import Rules
from edgerelax.speech.segments import parts_of

END, START, NO_TIMES, FIRST, VOCABULARY = 20, 21, 24, 25, 70
INFO = SpeechInfo(
    rate=16000, window=44 * 320, tick=320, start=START, no_timestamps=NO_TIMES,
    first_timestamp=FIRST, suppress=[3, START], begin_suppress=[4, END], max_initial_timestamp=9,
)  # fmt: skip


def random_text(rng: np.random.Generator) -> list[int]:
    """Words between timestamps that mostly grow, single and in pairs."""
    text: list[int] = []
    now = FIRST
    for _ in range(rng.integers(0, 7)):
        if rng.random() < 0.5:
            text += rng.integers(0, END, rng.integers(1, 3)).tolist()
        else:
            now = min(now + int(rng.integers(0, 9)), VOCABULARY - 1)
            text += [now] * int(rng.integers(1, 3))
    return text


def bits(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCABULARY].astype(bool)


def test_what_may_come_next() -> None:
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    config = pytest.importorskip("transformers").GenerationConfig(eos_token_id=END)
    config.no_timestamps_token_id, config.max_initial_timestamp_index = NO_TIMES, 9
    timed = processors.WhisperTimeStampLogitsProcessor(config, 1, False)
    steps = (
        processors.SuppressTokensAtBeginLogitsProcessor([4, END], 1),
        processors.SuppressTokensLogitsProcessor([3, START]),
        timed,
    )
    rules, rng = Rules(INFO, VOCABULARY, END, timestamps=True), np.random.default_rng(0)
    for text in ([], *(random_text(rng) for _ in range(60))):
        scores = torch.zeros(1, VOCABULARY)
        for step in steps:
            scores = step(torch.tensor([[START, *text]]), scores)
        np.testing.assert_array_equal(bits(rules.allowed(text)), torch.isfinite(scores)[0].numpy())


def test_what_may_come_in_a_text_without_times() -> None:
    may = bits(Rules(INFO, VOCABULARY, END, timestamps=False).allowed([]))
    assert not may[[3, 4, START, END]].any() and not may[FIRST:].any()
    assert may.sum() == FIRST - 4


def test_segments() -> None:
    torch = pytest.importorskip("torch")
    whisper = pytest.importorskip("transformers.models.whisper.generation_whisper")
    rng, kinds = np.random.default_rng(1), set()
    for _ in range(60):
        text = [FIRST + int(rng.integers(0, 3)), *random_text(rng)]
        wanted, frames = whisper.WhisperGenerationMixin._retrieve_segment(
            seek_sequence=torch.tensor(text), seek_outputs=[None], time_offset=torch.zeros(1),
            timestamp_begin=FIRST, seek_num_frames=torch.tensor([88]), time_precision=0.02,
            time_precision_features=0.01, input_stride=2, prev_idx=0, idx=0,
            return_token_timestamps=False, decoder_input_ids=torch.zeros(1, 1),
        )  # fmt: skip
        parts, reached = parts_of(text, INFO, INFO.window)
        times = [(float(s["start"]), float(s["end"])) for s in wanted]
        np.testing.assert_allclose([(p.start / 16000, p.end / 16000) for p in parts], times)
        assert reached == (int(frames) * 160 or INFO.window)
        kinds.add((len(parts) > 1, reached == INFO.window))
    assert len(kinds) == 4


def test_times_end_with_the_audio() -> None:
    parts, reached = parts_of([FIRST, 1, FIRST + 30, FIRST + 30, 2, FIRST + 40], INFO, 10 * 320)
    assert [(p.start, p.end) for p in parts] == [(0, 3200), (3200, 3200)]
    assert reached == 3200


def test_cases_that_pages_share() -> None:
    cases = json.loads(Path(__file__).with_name("cases.json").read_text())
    info = msgspec.convert(cases["info"], SpeechInfo)
    vocabulary, end = cases["vocabulary"], cases["end"]
    for case in cases["rules"]:
        allowed = Rules(info, vocabulary, end, case["timestamps"]).allowed(case["text"])
        wanted = [token for a, b in case["allowed"] for token in range(a, b)]
        assert np.flatnonzero(bits(allowed)).tolist() == wanted
    for case in cases["segments"]:
        parts, reached = parts_of(case["text"], info, case["length"])
        assert [[p.start, p.end, p.tokens] for p in parts] == case["parts"]
        assert reached == case["reached"]
