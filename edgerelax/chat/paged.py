"""An engine over a compiled model whose keys and values are in pages: several texts in one step.

Whoever reads a stream drives all texts on: one round takes a chunk of prompts, one step for all
texts that go on from a drawn token, and one draw for each way of drawing. Others that read in the
meantime wait for that round. A text that finds no page takes those of the newest other one, which
begins again when there is room; nothing is lost by it.
"""

import threading
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from edgerelax.artifact.manifest import LanguageInfo
from edgerelax.chat.closing import Closing
from edgerelax.chat.engine import Picture, Sampling, Token, TokenMask
from edgerelax.chat.pages import CacheFullError, PagePool
from edgerelax.chat.rolling import Rolling
from edgerelax.chat.sequence import Sequence, likeliest
from edgerelax.chat.sights import Eyes, Sights
from edgerelax.frontends.language.sampling import PROMPT
from edgerelax.hosts.session import Session
from edgerelax.ir.diagnostics import InputError

CHUNK = 256
"""Tokens of prompts that one round takes."""
DEFAULT_TOKENS = 4096
"""Tokens that the cache has room for, if nobody says more and the model's context is longer."""
ENDLESS = 1 << 31
"""The context of texts that drop what is old."""

Ints = NDArray[np.int32]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Load:
    """Texts in the batch and before it, pages held and in all, prompt tokens found in the cache."""

    running: int
    waiting: int
    pages_used: int
    pages: int
    reused: int


class PagedEngine:
    """Generates with the functions of a language model's artifact (frontends/language/functions).

    `tokens` are what the cache has room for, of all texts together; `texts` how many go on at once,
    others wait. With a `window` texts have no end: a text keeps as many tokens, of which the first
    `sinks` stay (rolling.py). Raises InputError for a model that keeps no pages, or cannot roll.
    """

    def __init__(
        self,
        session: Session,
        language: LanguageInfo,
        tokens: int | None = None,
        texts: int = 8,
        window: int | None = None,
        sinks: int | None = None,
    ) -> None:
        if language.page_size is None or "step" not in language.functions:
            raise InputError(
                "this language model keeps nothing between calls, it cannot generate",
                hint="export it again with this version of edgerelax",
            )
        size, self._window = language.page_size, language.window
        self.rolling = Rolling.of(window, sinks, language)
        self._span = self._span_of(language, size)
        bounded = self.rolling is not None or self._window is not None
        wanted = max(DEFAULT_TOKENS, self._span) if bounded else DEFAULT_TOKENS
        room = min(language.context, wanted) if tokens is None else tokens
        self.pool = PagePool(-(-room // size), size)
        self.context = self._context_of(language)
        self.vocabulary, self._names = language.vocabulary, language.functions
        self._session, self._limit = session, language.context
        self.texts = texts
        self._rows = list(reversed(range(texts)))
        self._waiting: list[Sequence] = []
        self._active: list[Sequence] = []
        self._turn = threading.Condition()
        self._busy = False
        self._reused = 0
        self._eyes = Eyes.of(session, language, CHUNK, texts)
        seen = {} if self._eyes is None else self._eyes.sizes
        session.allocate({"slots": self.pool.count * size, "rows": texts, **seen})

    def _span_of(self, language: LanguageInfo, size: int) -> int:
        """How many tokens of a text pages are held for, at most."""
        if self.rolling is not None:
            return self.rolling.window * size
        if self._window is None:
            return language.context
        return min(language.context, self._window + CHUNK + 2 * size)

    def _context_of(self, language: LanguageInfo) -> int:
        room = self.pool.count * self.pool.size
        if self.rolling is not None and room < self._span:
            raise InputError(
                f"a window of {self._span} tokens; the cache has room for {room}",
                hint="give the cache more room, or make the window smaller",
            )
        if self.rolling is not None:
            return ENDLESS
        return language.context if room >= self._span else min(language.context, room)

    def generate(
        self,
        prompt: Tokens[int],
        sampling: Sampling,
        mask: TokenMask | None = None,
        pictures: Tokens[Picture] = (),
    ) -> "Stream":
        """As Engine.generate. Raises InputError for a prompt that the cache has no room for."""
        if not prompt:
            raise InputError("an empty prompt: there is nothing to go on from")
        bad = next((t for t in prompt if not 0 <= t < self.vocabulary), None)
        if bad is not None:
            raise InputError(f"token {bad} of a vocabulary of {self.vocabulary}")
        if len(prompt) >= self.context:
            held = self.pool.count * self.pool.size
            raise InputError(
                f"a prompt of {len(prompt)} tokens; the model's context has {self._limit}, its "
                f"cache room for {held}, the prompt and what is generated together",
                hint="shorten it, or give the cache more room",
            )
        if pictures and self._eyes is None:
            raise InputError("this model sees no images")
        sequence = Sequence(list(prompt), sampling, mask, Sights(pictures))
        with self._turn:
            self._waiting.append(sequence)
        return Stream(self, sequence)

    @property
    def load(self) -> Load:
        """What goes on at this moment, and since the engine was made."""
        with self._turn:
            used = self.pool.count - self.pool.available
            counts = len(self._active), len(self._waiting)
            return Load(*counts, used, self.pool.count, self._reused)

    def next_token(self, sequence: Sequence) -> Token | None:
        """The text's next token; None at its end. Raises what its computation raised."""
        with self._turn:
            while not sequence.ready:
                if sequence.failure is not None:
                    raise sequence.failure
                if sequence.ended:
                    return None
                if self._busy:
                    self._turn.wait()
                    continue
                self._busy = True
                self._turn.release()
                try:
                    self._round()
                finally:
                    self._turn.acquire()
                    self._busy = False
                    self._turn.notify_all()
            return sequence.ready.popleft()

    def end(self, sequence: Sequence) -> None:
        """Stop working on a text; what it holds is given up before the next round."""
        with self._turn:
            sequence.ended = True
            if not self._busy:
                self._reap()

    # A round, by one thread at a time

    def _round(self) -> None:
        try:
            with self._turn:
                self._reap()
                self._admit()
            self._prefill()
            self._step_all()
            self._draw_all()
        except BaseException as failure:
            with self._turn:
                for sequence in self._active or self._waiting:
                    sequence.failure = failure
                self._reap()

    def _reap(self) -> None:
        """Take back what ended texts hold."""
        for known in (self._active, self._waiting):
            for sequence in [s for s in known if s.ended or s.failure is not None]:
                known.remove(sequence)
                sequence.leave(self.pool)
                if sequence.row is not None:
                    self._rows.append(sequence.row)

    def _admit(self) -> None:
        """Begin texts that wait while there are rows, and pages for what they have."""
        while self._waiting and (self._rows or self._waiting[0].row is not None):
            sequence = self._waiting[0]
            sequence.begin(self.pool, self._span if self.rolling else None)
            most = min(len(sequence.tokens) + 1, self._span)
            need = self.pool.pages_for(most) - len(sequence.pages)
            if need > self.pool.available and self._active:
                sequence.leave(self.pool)
                return
            if sequence.row is None:
                sequence.row = self._rows.pop()
            self._reused += sequence.cached
            self._active.append(self._waiting.pop(0))

    def _reserve(self, sequence: Sequence, count: int) -> None:
        """Pages for a text's next tokens, from the newest other texts if need be."""
        self._making_room(sequence, lambda: sequence.reserve(self.pool, count))

    def _making_room(self, sequence: Sequence, take: Callable[[], T]) -> T:
        """What takes pages for a text, again after another text has given up its own."""
        while True:
            try:
                return take()
            except CacheFullError:
                others = [s for s in self._active if s is not sequence and s.pages]
                if not others:
                    raise
                newest = others[-1]
                self._suspend(newest)

    def _roll(self, sequence: Sequence) -> int:
        """How many tokens have a place yet, after the oldest have gone if there was none."""
        if self.rolling is None:
            return sequence.pending
        if sequence.length == self._span:
            self._drop(sequence, self.rolling)
        return self._span - sequence.length

    def _drop(self, sequence: Sequence, rolling: Rolling) -> None:
        """Let a text go on without its oldest pages but the sinks; others take their positions.

        They are written anew, elsewhere if they are another text's too or can be found by this one.
        """
        pool, first = self.pool, rolling.sinks + rolling.dropped
        kept = sequence.pages[first:]
        pool.release(sequence.pages[rolling.sinks : first])
        del sequence.pages[rolling.sinks : first]
        for k, page in enumerate(kept, rolling.sinks):
            if pool.is_shared(page) or (pool.is_kept(page) and pool.available):
                sequence.pages[k] = self._making_room(sequence, pool.take)
                pool.release([page])
            else:
                pool.forget(page)
        moved = rolling.dropped * pool.size
        source, target = (np.array(p, np.int32) for p in (kept, sequence.pages[rolling.sinks :]))
        self._run("shift", source=source, target=target, by=np.full_like(source, -moved))
        sequence.dropped += moved

    def _suspend(self, sequence: Sequence) -> None:
        sequence.leave(self.pool)
        with self._turn:
            self._active.remove(sequence)
            self._waiting.insert(0, sequence)

    def _prefill(self) -> None:
        """Up to a chunk, of texts that have more than a drawn token to take, the oldest first."""
        left = CHUNK
        for sequence in [s for s in self._active if s.pending > 1]:
            if sequence not in self._active:
                continue  # it gave way to another
            if left == 0:
                return
            count = min(sequence.pending, left, self._roll(sequence))
            self._reserve(sequence, count)
            self._step([sequence], count)
            left -= count

    def _step_all(self) -> None:
        """One step for all that go on from one token, the oldest first."""
        for sequence in [s for s in self._active if s.pending == 1]:
            if sequence in self._active:
                self._roll(sequence)
                self._reserve(sequence, 1)
        going = [s for s in self._active if s.pending == 1]
        if going:
            self._step(going, 1)

    def _step(self, going: list[Sequence], count: int) -> None:
        size, held = self.pool.size, max(len(s.pages) for s in going)
        most = bucket(held, -(-self._limit // size))
        shape = (len(going), count)
        tokens, at, slots = (np.empty(shape, np.int32) for _ in range(3))
        pages = np.zeros((len(going), most), np.int32)
        if self._eyes is not None:
            self._eyes.see([t for s in going for t in s.sights.of(s.cached, s.cached + count)])
        for k, s in enumerate(going):
            tokens[k] = s.tokens[s.cached : s.cached + count]
            if self._eyes is not None:
                s.sights.put(tokens[k], s.cached, self._eyes)
            at[k] = np.arange(s.length, s.length + count)
            slots[k] = s.slots(size, count)
            pages[k, : len(s.pages)] = s.pages
        last = np.full(len(going), count - 1, np.int32)
        self._run(
            "step", tokens=tokens, positions=at, slots=slots, pages=pages, last=last,
            rows=_rows(going),
        )  # fmt: skip
        for s in going:
            s.advance(self.pool, count)
            if self._window is not None and self.rolling is None:
                s.pass_by(self.pool, self._window)
            s.fresh = s.pending == 0

    def _draw_all(self) -> None:
        """A token for every text whose logits are there, at once for all that draw alike."""
        fresh = [s for s in self._active if s.fresh and not s.ended]
        adjusted = [s for s in fresh if s.is_adjusted]
        greedy = [s for s in fresh if s.is_greedy and not s.is_adjusted]
        plain = [s for s in fresh if not s.is_greedy and not s.is_adjusted]
        if greedy:
            found = self._run("greedy", rows=_rows(greedy))
            for s, token in zip(greedy, found["token"], strict=True):
                s.add(Token(int(token)))
        if plain:
            self._drawn(plain, "sample", {})
        allowed = {s: self._allowed(s) for s in adjusted}
        adjusted = [s for s in adjusted if s.failure is None]
        if adjusted:
            masks = np.stack([allowed[s] for s in adjusted])
            self._drawn(adjusted, "adjusted", {**self._adjusting(adjusted), "allowed": masks})
        for s in fresh:
            s.ended |= s.generated >= s.sampling.max_tokens or len(s.tokens) >= self.context

    def _drawn(
        self, going: list[Sequence], name: str, more: dict[str, NDArray[np.generic]]
    ) -> None:
        rows = _rows(going)
        numbers = np.array([s.numbers() for s in going], np.float32)
        integers = np.array([(s.sampling.top_k, s.seed) for s in going], np.int32)
        steps = np.array([s.generated for s in going], np.int32)
        wanted = max(s.sampling.logprobs or 0 for s in going)
        top = self._run("top", rows=rows) if wanted else None
        found = self._run(name, rows=rows, numbers=numbers, integers=integers, steps=steps, **more)
        for k, s in enumerate(going):
            count, token = s.sampling.logprobs, int(found["token"][k])
            logprob = None if count is None else float(found["logprob"][k])
            best = likeliest(top["ids"][k], top["logprobs"][k], count) if top and count else ()
            s.add(Token(token, logprob, best))
            self._accept(s, token)

    def _allowed(self, sequence: Sequence) -> NDArray[np.uint32]:
        """The bits of what may come next. A mask that fails fails its own text, and no other."""
        words = np.full(-(-self.vocabulary // 32), 0xFFFFFFFF, np.uint32)
        if sequence.mask is not None:
            try:
                words[:] = sequence.mask.bits()
            except Exception as failure:
                sequence.failure = failure
        return words

    def _accept(self, sequence: Sequence, token: int) -> None:
        if sequence.mask is not None:
            try:
                sequence.mask.accept(token)
            except Exception as failure:
                sequence.failure = failure

    def _adjusting(self, going: list[Sequence]) -> dict[str, NDArray[np.generic]]:
        """The biases that `adjusted` takes; counts are set where they are not."""
        for s in going:
            if not s.counted:
                self._count(s)
        most = max(len(s.sampling.logit_bias) for s in going)
        ids = np.full((len(going), most), self.vocabulary, np.int32)
        bias = np.zeros((len(going), most), np.float32)
        for k, s in enumerate(going):
            own = s.sampling.logit_bias
            ids[k, : len(own)], bias[k, : len(own)] = list(own), list(own.values())
        return {"bias_ids": ids, "bias": bias}

    def _count(self, sequence: Sequence) -> None:
        """Set the counts of a text's row: of its prompt, and of what is generated so far."""
        self._run("clear", rows=_rows([sequence]))
        split = len(sequence.tokens) - sequence.generated
        ids, amounts = np.unique(sequence.tokens[split:], return_counts=True)
        counts = dict(zip(ids.tolist(), amounts.tolist(), strict=True))
        for token in set(sequence.tokens[:split]):
            counts[token] = counts.get(token, 0) + PROMPT
        rows = np.full(len(counts), sequence.row, np.int32)
        tokens, numbers = (np.array(list(part), np.int32) for part in (counts, counts.values()))
        self._run("count", rows=rows, tokens=tokens, amounts=numbers)
        sequence.counted = True

    def _run(self, role: str, **inputs: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
        return self._session.run(inputs, self._names[role])


class Stream(Closing):
    """A text's tokens as they are made. Closing it ends the work on it."""

    def __init__(self, engine: PagedEngine, sequence: Sequence) -> None:
        self._engine, self._sequence = engine, sequence

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Token:
        token = self._engine.next_token(self._sequence)
        if token is None:
            raise StopIteration
        return token

    def close(self) -> None:
        self._engine.end(self._sequence)


def bucket(count: int, most: int) -> int:
    """So many pages or a few more, at most `most`, so that few numbers of pages come up."""
    step = 1
    while step * 8 < count:
        step *= 2
    return min(-(-count // step) * step, most)


def _rows(going: list[Sequence]) -> Ints:
    return np.array([s.row for s in going], np.int32)
