"""A conversation: what was said so far, and what is said next."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgerelax.chat.generate import Chat
from edgerelax.chat.openai import ChatRequest, Usage, convert
from edgerelax.chat.work import CancelledError, Work


@dataclass(slots=True)
class Conversation:
    """Turns with a model. `settings` are fields of a request: temperature, max_tokens, ….

    A turn that fails or is given up before its first word leaves no trace; one that is stopped
    keeps what was written.
    """

    chat: Chat
    system: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    turns: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, text: str, work: Work, images: Sequence[Any] = ()) -> Generator[str, None, Usage]:
        """The answer as it is written; it ends early where `work` is cancelled.

        `images` come before the text: images of pillow or numpy, or paths of files.
        Returns the counts of tokens. Raises RequestError for a turn that does not fit.
        """
        said: dict[str, Any] = {"role": "user", "content": text}
        if images:
            parts = [{"type": "image", "image": image} for image in images]
            said["content"] = [*parts, {"type": "text", "text": text}]
        start = [] if self.system is None else [{"role": "system", "content": self.system}]
        asked = convert({**self.settings, "messages": [*start, *self.turns, said]}, ChatRequest)
        answer = ""
        try:
            for chunk in self.chat.stream_chat(asked, work):
                for choice in chunk.choices:
                    if isinstance(choice.delta.content, str) and choice.delta.content:
                        answer += choice.delta.content
                        yield choice.delta.content
        except CancelledError:
            pass
        if answer or not work.cancelled:
            self.turns += [said, {"role": "assistant", "content": answer}]
        return work.usage()

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()
