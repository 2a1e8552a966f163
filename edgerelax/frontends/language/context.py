"""What the layers of a language model see of its sequences: where tokens stand, what came before.

A model computes hidden states of new tokens; how attention gets at earlier ones is the context's:
`Whole` has none before, a cache has (cache.py). One model serves both.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edgerelax.frontends.language.rope import Rope
from edgerelax.frontends.nn import Module, Tensor
from edgerelax.frontends.nn.functional import attention, causal_mask, positions
from edgerelax.ir.diagnostics import UnsupportedError


@dataclass(frozen=True, slots=True)
class Attend:
    """How a layer attends. `scale` None: 1 / sqrt(width). A query sees `window` keys, None: all.

    `cap` bounds scores softly: cap · tanh(score / cap). None leaves them.
    """

    scale: float | None = None
    window: int | None = None
    cap: float | None = None


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a layer keeps of a token: `groups` keys and values, and their widths."""

    groups: int
    key_width: int
    value_width: int


class Context(Protocol):
    """The sequences of a batch, at the tokens that are new.

    `positions` are where these stand: integers [batch or 1, length].
    """

    positions: Tensor

    def embed(self, tokens: Tensor, table: Callable[[Tensor], Tensor]) -> Tensor:
        """The vectors [batch, length, width] that a model sees: the table's rows, or others."""
        return table(tokens)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attend) -> Tensor:
        """Causal attention of the new tokens to themselves and to what came before.

        q is [batch, heads, length, width], k and v [batch, groups, length, width], with heads a
        multiple of groups and positions worked in; the result is as q, v's width wide.
        """

    def extended(self, layer: int, name: str, x: Tensor) -> Tensor:
        """What a layer keeps of all tokens, with x [batch, groups, length, width] of the new ones.

        `name` is keys or values. [batch, groups, keys, width]: number k is of position k, and what
        `mask` hides may be anything.
        """
        raise UnsupportedError(f"{name} of all tokens in {type(self).__name__}")

    def mask(self, window: int | None) -> Tensor:
        """Which keys a new token sees: a condition that broadcasts to [batch, 1, length, keys]."""
        raise UnsupportedError(f"a mask of all keys in {type(self).__name__}")


class Decoder(Module):
    """A language model that reads from left to right."""

    @property
    def caches(self) -> list[CacheShape]:
        """What each layer that attends keeps of a token, by the number that it attends as."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it keeps")

    @property
    def window(self) -> int | None:
        """How many keys any layer sees from a token back; None: all, or it isn't known."""
        return None

    @property
    def ropes(self) -> list[Rope | None] | None:
        """How each of `caches` has its keys turned, None where it has not.

        None of all: keys hold positions in another way, or it isn't known how.
        """
        return None

    def hidden(self, tokens: Tensor, context: Context) -> Tensor:
        """Integers [batch, length] → [batch, length, width], the last norm included."""
        raise NotImplementedError(f"{type(self).__name__} has no hidden states")

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., width] → [..., vocabulary]."""
        raise NotImplementedError(f"{type(self).__name__} has no logits")


class Whole(Context):
    """Sequences from their first token on, with nothing before."""

    def __init__(self, tokens: Tensor) -> None:
        length = tokens.dims[1]
        self._at = positions(tokens, length)
        self.positions = self._at.reshape(1, length)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attend) -> Tensor:
        mask = causal_mask(self._at, self._at, how.window)
        return attention(q, k, v, mask, how.scale, how.cap)

    def extended(self, layer: int, name: str, x: Tensor) -> Tensor:
        return x

    def mask(self, window: int | None) -> Tensor:
        (length,) = self._at.dims
        return causal_mask(self._at, self._at, window).reshape(1, 1, length, length)
