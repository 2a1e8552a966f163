"""An answer under way: what was counted so far, and how to end it from another thread."""

import time
from dataclasses import dataclass, field

from edgerelax.chat.engine import TokenStream
from edgerelax.chat.openai import Timings, Usage
from edgerelax.ir.diagnostics import EdgeRelaxError


class CancelledError(EdgeRelaxError):
    """Whoever asked for this answer wants no more of it."""

    default_code = "cancelled"


@dataclass(eq=False, slots=True)
class Work:
    """Tokens and seconds of all texts that a request asks for. `cancel` is for any thread."""

    prompt: int = 0
    generated: int = 0
    started: float = field(default_factory=time.perf_counter)
    first: float | None = None
    generation: float = 0.0
    steps: int = 0
    cancelled: bool = False
    _stream: TokenStream | None = None

    def cancel(self) -> None:
        """End it: reading it raises CancelledError, at the latest after the engine's next step."""
        self.cancelled = True
        stream = self._stream
        if stream is not None:
            stream.close()

    def watch(self, stream: TokenStream | None) -> None:
        """The stream that `cancel` closes; None once it is closed."""
        self._stream = stream

    def check(self) -> None:
        """Raises CancelledError where that was wanted."""
        if self.cancelled:
            raise CancelledError("the answer was cancelled")

    def usage(self) -> Usage:
        return Usage(self.prompt, self.generated, self.prompt + self.generated)

    def timings(self) -> Timings:
        rate = self.steps / self.generation if self.steps and self.generation else None
        return Timings(self.first or 0.0, self.generation, rate)
