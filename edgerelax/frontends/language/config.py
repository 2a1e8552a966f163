"""What a decoder-only language model is made of, whatever file it came from."""

from dataclasses import dataclass

from edgerelax.ir.diagnostics import InputError


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes and choices of a decoder.

    `groups` is the number of key and value heads. `interleaved` says that rotary pairs are
    neighbours. `context` is the greatest length the model was trained for.
    """

    layers: int
    width: int
    heads: int
    groups: int
    head_width: int
    hidden: int
    vocabulary: int
    context: int
    epsilon: float = 1e-5
    rope_base: float = 10000.0
    rope_width: int = 0
    interleaved: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "groups", "head_width", "hidden", "vocabulary"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}: a model needs at least 1")
        if self.heads % self.groups:
            raise InputError(f"{self.heads} heads cannot share {self.groups} keys and values")

    @property
    def frequencies(self) -> tuple[float, ...]:
        """Radians that each rotary pair turns by from one position to the next."""
        width = self.rope_width or self.head_width
        return tuple(self.rope_base ** (-2 * k / width) for k in range(width // 2))
