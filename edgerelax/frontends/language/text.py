"""What a language model's artifact carries so that texts become tokens and back (docs/chat.md)."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOKENIZER = "tokenizer.json"
CHAT = "chat.json"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Text:
    """A tokenizer.json, chat templates by name, special tokens, and the ids that frame a text.

    `templates` has `default` where there is any. `special` are texts of tokens by the names that
    templates call them, such as `bos_token`. `eos` are all ids that end a text, the usual first.
    `images` says how images become tokens, where the model sees any (docs/chat.md).
    """

    tokenizer: bytes
    templates: Mapping[str, str] = field(default_factory=dict)
    special: Mapping[str, str] = field(default_factory=dict)
    bos: int | None = None
    eos: tuple[int, ...] = ()
    images: Mapping[str, Any] | None = None

    def assets(self) -> dict[str, bytes]:
        """Files for the artifact, by name."""
        chat = {"templates": dict(self.templates), "special_tokens": dict(self.special)}
        chat |= {} if self.images is None else {"images": dict(self.images)}
        text = json.dumps(chat, ensure_ascii=False, indent=1)
        return {TOKENIZER: self.tokenizer, CHAT: text.encode()}

    def language(self) -> dict[str, Any]:
        """The fields of the manifest's `language` that are about text."""
        return {"tokenizer": TOKENIZER, "chat": CHAT, "bos": self.bos, "eos": list(self.eos)}
