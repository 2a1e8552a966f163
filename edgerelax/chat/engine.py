"""What generating text asks of a model: tokens one after another, from a prompt of tokens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn, and how many at most.

    `temperature` 0 takes the most likely token. `top_k` 0, `top_p` 1 and `min_p` 0 leave nothing
    out. `repetition_penalty` divides positive logits of tokens that were there before, the prompt
    included, and multiplies negative ones; `presence_penalty` and `frequency_penalty` are taken
    from the logits of generated tokens, once and per occurrence. `logit_bias` is added, by id.
    `logprobs` None asks for none, n for those of the token and of the n most likely ones.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """An image in a prompt: tiles u8[tiles, side, side, 3], in the order that the model sees them.

    `places` i32[tiles, tokens] are where in the prompt their tokens stand.
    """

    tiles: NDArray[np.uint8]
    places: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Token:
    """A generated token; natural logarithms of its probability and of the likeliest ones'.

    These are of the distribution before temperature and the cuts of `top_k` and the like.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class TokenMask(Protocol):
    """Which tokens may come next, as a grammar says."""

    def bits(self) -> NDArray[np.uint32]:
        """[vocabulary / 32, rounded up]: bit id % 32 of word id // 32 is set where id may come."""

    def accept(self, token: int) -> None:
        """Go on behind this token."""


class TokenStream(Iterator[Token], Protocol):
    """Tokens as they are made, read by one thread.

    Closing it ends the work on them, more than once does no harm; any thread may.
    """

    def close(self) -> None: ...


class Engine(Protocol):
    """A model that generates."""

    @property
    def context(self) -> int:
        """How many tokens a prompt and what is generated may have in all."""

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        mask: TokenMask | None = None,
        pictures: Sequence[Picture] = (),
    ) -> TokenStream:
        """Up to `max_tokens` tokens, fewer where the context is full.

        It doesn't know which tokens end a text: whoever reads stops and closes. With a mask, `bits`
        is asked before each token is drawn and `accept` told each token that was. `pictures`
        are what tokens of the prompt stand for.
        """


class Embedder(Protocol):
    """A model that gives a vector for a text."""

    @property
    def context(self) -> int:
        """How many tokens a text may have."""

    def embed(self, texts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Vectors of length 1: [texts, width]."""
