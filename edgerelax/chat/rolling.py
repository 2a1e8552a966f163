"""Texts longer than what a model sees: their first tokens stay, the oldest of the others go.

StreamingLLM (arXiv 2309.17453): models attend to the first tokens of a text whatever these are, and
fall apart without them. Positions count what is kept, so that they never leave the model's context:
keys that stay are turned to their new positions (frontends/language/shifting.py).
"""

from dataclasses import dataclass

from edgerelax.artifact.manifest import LanguageInfo
from edgerelax.ir.diagnostics import InputError

SINKS = 4
"""First tokens that stay, if nobody says."""


@dataclass(frozen=True, slots=True)
class Rolling:
    """`window` pages of a text at most are kept, the first `sinks` of them for good.

    When they are full, a quarter of the others goes, the oldest: so keys are turned few times.
    """

    window: int
    sinks: int

    @classmethod
    def of(cls, window: int | None, sinks: int | None, language: LanguageInfo) -> "Rolling | None":
        """Of tokens: `window` is rounded down to whole pages, `sinks` up; None without a window.

        Raises InputError for numbers that leave no room, and for a model that cannot do it.
        """
        if window is None:
            if sinks is not None:
                raise InputError("sinks without a window", hint="give both, or the window alone")
            return None
        size = language.page_size or 1
        first = SINKS if sinks is None else sinks
        found = cls(window // size, -(-first // size))
        if first < 0 or window > language.context or found.window < found.sinks + 2:
            raise InputError(
                f"a window of {window} tokens with {first} sinks; it has at most the model's "
                f"context of {language.context}, in pages of {size} tokens at least two more than "
                "the sinks take"
            )
        if "shift" not in language.functions:
            raise InputError(
                "this model's keys cannot be moved to other positions: its positions are learned, "
                "or the file does not say how they are turned",
                hint="leave the window out: texts then end with the context",
            )
        return found

    @property
    def dropped(self) -> int:
        """Pages that go at once."""
        return max(1, (self.window - self.sinks) // 4)
