"""One text that is being generated: its tokens, its place in the cache, what waits to be read."""

import math
import secrets
from collections import deque
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from edgerelax.chat.engine import Sampling, Token, TokenMask
from edgerelax.chat.pages import START, Digest, PagePool, text_digest
from edgerelax.chat.sights import Sights


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens` are prompt and generated ones, of which the first `cached` went through the model.

    `pages` hold them, but for the `gone` first pages, which were given back because no token sees
    them any more, and for `dropped` tokens, of which the text goes on without (rolling.py).

    `row` is its row of logits, or None before it has begun. `fresh` says that these are the logits
    after its last token. `counted` says that the row's counts are of its tokens.
    `sights` are what tokens of the prompt stand for.
    """

    tokens: list[int]
    sampling: Sampling
    mask: TokenMask | None
    sights: Sights
    seed: int = field(default_factory=lambda: secrets.randbits(31))
    generated: int = 0
    cached: int = 0
    pages: list[int] = field(default_factory=list)
    gone: int = 0
    dropped: int = 0
    digest: Digest = START
    row: int | None = None
    fresh: bool = False
    counted: bool = False
    ended: bool = False
    failure: BaseException | None = None
    ready: deque[Token] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if self.sampling.seed is not None:
            self.seed = self.sampling.seed & 0x7FFFFFFF

    @property
    def pending(self) -> int:
        """Tokens that the cache does not have yet."""
        return len(self.tokens) - self.cached

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is wanted, and nothing beside it."""
        return self.sampling.temperature == 0 and self.sampling.logprobs is None

    @property
    def is_adjusted(self) -> bool:
        """Whether logits are changed before a token is drawn."""
        s = self.sampling
        penalties = (s.repetition_penalty != 1, s.presence_penalty, s.frequency_penalty)
        return bool(any(penalties) or s.logit_bias or self.mask is not None)

    @property
    def length(self) -> int:
        """The position of the next token."""
        return self.cached - self.dropped

    def begin(self, pool: PagePool, most: int | None = None) -> None:
        """Find what the cache has of its text, at most so much; one token is computed anew."""
        last = len(self.tokens) - 1
        known = self.tokens[: last if most is None else min(last, most)]
        self.pages, self.digest = pool.find(known, self.sights.marks)
        self.cached = len(self.pages) * pool.size

    def reserve(self, pool: PagePool, count: int) -> None:
        """Pages for the next tokens. Raises CacheFullError, with what it has kept."""
        for _ in range(pool.pages_for(self.length + count) - len(self.pages)):
            self.pages.append(pool.take())

    def advance(self, pool: PagePool, count: int) -> None:
        """The next tokens are in the cache; whole pages can be found by their text."""
        whole = self.cached // pool.size
        self.cached += count
        if self.dropped:
            return  # what is in later pages hangs on what was dropped
        for page in range(whole, self.cached // pool.size):
            start, stop = page * pool.size, (page + 1) * pool.size
            marks = self.sights.marks(start, stop)
            self.digest = text_digest(self.digest, self.tokens[start:stop], marks)
            pool.keep(self.pages[page], self.digest)

    def pass_by(self, pool: PagePool, window: int) -> None:
        """Give back the pages that end before the next token's window."""
        gone = max(self.gone, (self.length - window + 1) // pool.size)
        pool.release(self.pages[self.gone : gone])
        self.gone = gone

    def leave(self, pool: PagePool) -> None:
        """Give up its pages; its tokens can be computed again."""
        pool.release(self.pages[self.gone :])
        self.pages, self.cached, self.gone, self.dropped = [], 0, 0, 0
        self.digest, self.fresh = START, False

    def add(self, token: Token) -> None:
        """A token was drawn."""
        self.tokens.append(token.id)
        self.generated += 1
        self.fresh = False
        self.ready.append(token)

    def slots(self, size: int, count: int) -> list[int]:
        """Where the next tokens go in the cache."""
        places = range(self.length, self.length + count)
        return [self.pages[at // size] * size + at % size for at in places]

    def numbers(self) -> tuple[float, ...]:
        """As sampling.NUMBERS has them."""
        s = self.sampling
        return (
            s.temperature, s.top_p, s.min_p, s.repetition_penalty, s.presence_penalty,
            s.frequency_penalty,
        )  # fmt: skip


def likeliest(
    ids: Tokens[int], logprobs: Tokens[float], count: int
) -> tuple[tuple[int, float], ...]:
    """The first so many, without those that cannot come."""
    pairs = list(zip(ids, logprobs, strict=True))[:count]
    return tuple((int(i), float(p)) for i, p in pairs if not math.isinf(p))
