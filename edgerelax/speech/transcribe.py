"""Audio of any length as text: window by window, each tried again where its text looks wrong.

A window's text is drawn greedily first. Text that repeats itself (it compresses well) or that the
model itself finds unlikely is drawn again at higher temperatures; where the model says that nobody
speaks, and finds its text unlikely, there is none (arXiv 2212.04356, section 4.5).
"""

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgerelax.chat.stream import Detokenizer
from edgerelax.chat.text import Text
from edgerelax.frontends.speech.info import SpeechInfo
from edgerelax.ir.diagnostics import InputError
from edgerelax.speech.audio import Audio, Samples, read_audio
from edgerelax.speech.listener import Listener
from edgerelax.speech.rules import Rules
from edgerelax.speech.segments import Part, parts_of

CALM = 0.5
"""The highest temperature whose text is told to the next window."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is wanted of a transcript, and when a window's text is taken for wrong.

    Attributes:
        language: its code; None lets the model find out by the first window.
        task: `transcribe`, or `translate` to English.
        timestamps: segments have times; windows follow one another where segments end. Without
            them a window is one segment, and windows are cut wherever they end.
        prompt: what may have been said before: names and spellings that come up.
        follow: whether each window is told the text of those before.
        temperatures: to draw a window's text at, one after another until it looks right.
        compression: how many times smaller text may become by zlib; None: any.
        logprob: least mean log-probability of a token; None: any.
        no_speech: probability of that beyond which unlikely text is none; None: text always is.
        seed: of texts that are drawn at temperatures above 0.
    """

    language: str | None = None
    task: str = "transcribe"
    timestamps: bool = True
    prompt: str = ""
    follow: bool = False
    temperatures: Sequence[float] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    compression: float | None = 2.4
    logprob: float | None = -1.0
    no_speech: float | None = 0.6
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """What was said from `start` to `end`, in seconds.

    The rest is of the whole window: the temperature it was drawn at, the mean log-probability of a
    token, how likely nobody speaks, and how many times smaller its text becomes by zlib.
    """

    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    logprob: float
    no_speech: float
    compression: float


@dataclass(frozen=True, slots=True)
class Transcript:
    """All that was said. `language` is None where the model knows one alone."""

    text: str
    segments: list[Segment]
    language: str | None
    duration: float


@dataclass(slots=True)
class _Try:
    """A window's text, drawn once."""

    temperature: float
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    compression: float = 0.0


class Transcriber:
    """A speech model's artifact at work. Threads may share one; windows are done one at a time."""

    def __init__(self, listener: Listener, text: Text, info: SpeechInfo) -> None:
        self.info, self.text = info, text
        self._listener, self._turn = listener, threading.Lock()

    @property
    def languages(self) -> list[str]:
        """The codes of all that can be asked for; none where the model knows one alone."""
        return list(self.info.languages)

    def transcribe(self, audio: Audio, rate: int | None = None, **wanted: Any) -> Transcript:
        """The text of a sound file or of samples. Arguments and errors are as `listen`'s."""
        work = self.listen(audio, rate, **wanted)
        segments = list(work)
        text = "".join(s.text for s in segments).strip()
        return Transcript(text, segments, work.language, work.duration)

    def listen(
        self,
        audio: Audio,
        rate: int | None = None,
        on_text: Callable[[str], None] | None = None,
        **wanted: Any,
    ) -> "Transcription":
        """The segments of a sound file or of samples as they are found, window by window.

        `rate` is the sampling rate of an array; None says it is the model's (`info.rate`).
        `on_text` is told the text of the window under way as it grows; it may begin anew. `wanted`
        are fields of Options. Raises InputError for audio that is none (read_audio) and for what
        the model does not know.
        """
        options = Options(**wanted)
        self._check(options)
        return Transcription(self, read_audio(audio, self.info.rate, rate), options, on_text)

    def _check(self, options: Options) -> None:
        info, wanted = self.info, options.language
        if wanted is not None and wanted not in (info.languages or {"en": 0}):
            known = ", ".join(info.languages) or "en: it knows no other"
            raise InputError(f"the model knows no language {wanted!r}", hint=f"known are {known}")
        if options.task not in (info.tasks or {"transcribe": 0}):
            known = ", ".join(info.tasks or ["transcribe"])
            raise InputError(f"the model has no task {options.task!r}", hint=f"known are {known}")
        if options.timestamps and info.first_timestamp is None:
            raise InputError("the model knows no timestamps", hint="ask for text without them")
        if not options.temperatures or not all(t >= 0 for t in options.temperatures):
            raise InputError(
                f"temperatures {list(options.temperatures)}: one at least, none below 0"
            )

    @property
    def window_size(self) -> int:
        """Samples of a window: the model's, or fewer where the artifact was made for fewer."""
        return self._listener.window or self.info.window

    # One window

    def window(
        self, audio: Samples, work: "Transcription", before: Sequence[int]
    ) -> tuple[list[int], "_Try", float]:
        """The tokens of a window's text, how it was drawn, how likely nobody speaks."""
        with self._turn:
            listener, options = self._listener, work.options
            listener.hear(audio)
            begin = [*before, self.info.start]
            listener.take(begin, 0)
            logits = listener.logits().astype(np.float64)
            no_speech = self._no_speech(logits)
            if work.language is None and self.info.languages:
                codes, ids = self.languages, list(self.info.languages.values())
                work.language = codes[int(np.argmax(logits[ids]))]
            prompt = [*begin, *self._asked(work)]
            for temperature in options.temperatures:
                found = self._text(prompt, len(begin), temperature, work)
                unlikely = options.logprob is not None and found.logprob < options.logprob
                silent = options.no_speech is not None and no_speech > options.no_speech
                if silent and unlikely:
                    return [], found, no_speech
                most = options.compression
                if not unlikely and (most is None or found.compression <= most):
                    break
            return found.tokens, found, no_speech

    def _no_speech(self, logits: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
        if self.info.no_speech is None:
            return 0.0
        shares = np.exp(logits - logits.max())
        return float(shares[self.info.no_speech] / shares.sum())

    def _asked(self, work: "Transcription") -> list[int]:
        """What follows the first token: the language, the task, whether times are wanted."""
        info, options = self.info, work.options
        asked = list(info.forced)
        if info.languages and work.language is not None:
            asked = [info.languages[work.language]]
            asked += [info.tasks[options.task]] if info.tasks else []
        silent = [] if info.no_timestamps is None or options.timestamps else [info.no_timestamps]
        return [*asked, *silent]

    def _text(
        self, prompt: Sequence[int], taken: int, temperature: float, work: "Transcription"
    ) -> _Try:
        """Draw a text after a prompt, the first tokens of which were taken."""
        listener, options = self._listener, work.options
        rules = Rules(self.info, listener.vocabulary, self.end, options.timestamps)
        begin = min(taken, len(prompt) - 1)
        listener.take(prompt[begin:], begin)
        found, total, shown = _Try(temperature), 0.0, ""
        letters = Detokenizer(self.text.tokenizer, fresh=False)
        while len(prompt) + len(found.tokens) < listener.context:
            step = len(found.tokens)
            if step:
                listener.take(found.tokens[-1:], len(prompt) + step - 1)
            allowed = rules.allowed(found.tokens)
            token, logprob = listener.draw(allowed, temperature, options.seed & 0x7FFFFFFF, step)
            total += logprob
            if token in self.text.ends:
                break
            found.tokens.append(token)
            if work.on_text is not None and self.is_text(token):
                shown += letters.push(token)
                work.on_text(shown)
        found.logprob = total / (len(found.tokens) + 1)
        found.compression = compression(self.words(found.tokens))
        return found

    @property
    def end(self) -> int:
        """The id that ends a text."""
        return self.text.ends[0]

    def is_text(self, token: int) -> bool:
        """Whether it is no timestamp."""
        return self.info.first_timestamp is None or token < self.info.first_timestamp

    def words(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without times and signs for the model."""
        return self.text.tokenizer.decode([token for token in tokens if self.is_text(token)])

    def history(self, tokens: Sequence[int]) -> list[int]:
        """What is said before a window's text of what was said so far."""
        most = self._listener.context // 2 - 1
        if not tokens or self.info.previous is None or most < 1:
            return []
        return [self.info.previous, *tokens[-most:]]


class Transcription:
    """The segments of one audio, found as they are asked for.

    `language` is what was asked for, else what the first window was taken for.
    """

    def __init__(
        self,
        owner: Transcriber,
        audio: Samples,
        options: Options,
        on_text: Callable[[str], None] | None = None,
    ) -> None:
        self.options, self.on_text = options, on_text
        self.language = options.language
        self.duration = len(audio) / owner.info.rate
        self.progress = 0.0
        """Seconds that are done."""
        self._found = self._segments(owner, audio)

    def __iter__(self) -> Iterator[Segment]:
        return self._found

    def _segments(self, owner: Transcriber, audio: Samples) -> Iterator[Segment]:
        info, options, at = owner.info, self.options, 0
        prompt = options.prompt.strip()
        said = owner.text.tokenizer.encode(f" {prompt}", framed=False) if prompt else []
        while at < len(audio):
            window = audio[at : at + owner.window_size]
            tokens, how, no_speech = owner.window(window, self, owner.history(said))
            parts, reached = parts_of(tokens, info, len(window)) if tokens else ([], len(window))
            kept = [part for part in parts if part.end > part.start and owner.words(part.tokens)]
            for part in kept:
                yield _segment(owner, part, at, how, no_speech)
            told = options.follow and how.temperature <= CALM
            said = [*said, *(t for part in kept for t in part.tokens)] if told else []
            at += reached
            self.progress = at / info.rate


def _segment(owner: Transcriber, part: Part, at: int, how: _Try, no_speech: float) -> Segment:
    start, end = ((at + place) / owner.info.rate for place in (part.start, part.end))
    return Segment(
        start,
        end,
        owner.words(part.tokens),
        part.tokens,
        how.temperature,
        how.logprob,
        no_speech,
        how.compression,
    )


def compression(text: str) -> float:
    """How many times smaller a text becomes by zlib."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))
