"""Texts as tokens and back: a Hugging Face tokenizer.json by the tokenizers library.

What a token adds to a text is a run of bytes, not of characters: a character may be cut in two.
The library decodes whole lists of tokens only, so the bytes of one are worked out here from the
decoder that the file describes.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tokenizers

from edgerelax.ir.diagnostics import FormatError, InputError, UnsupportedError

_PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [b for b in range(256) if b not in set(_PRINTED)]
_BYTES = {chr(b): b for b in _PRINTED} | {chr(256 + k): b for k, b in enumerate(_OTHERS)}
"""How byte-level vocabularies spell bytes (GPT-2): those that don't print come after U+0100."""
_ONE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Step = Callable[[str | bytes], str | bytes]


class Tokenizer:
    """A tokenizer of `data`, the text of a tokenizer.json."""

    def __init__(self, data: bytes, where: str = "tokenizer.json") -> None:
        try:
            self._core = tokenizers.Tokenizer.from_str(data.decode())
            spec = json.loads(data)
        except Exception as error:  # the library raises no narrower class
            raise FormatError(f"{where}: not a tokenizer: {error}") from error
        self.data = data
        self._core.no_padding()
        self._core.no_truncation()
        self._special = {t["id"] for t in spec["added_tokens"] if t["special"]}
        decoder = list(_flat(spec["decoder"], where))
        self._steps = [_step(part) for part in decoder]
        self.first_space = any(map(_strips, decoder))
        """Whether a text on its own begins with a space that is not part of it."""
        self._known: dict[int, bytes] = {}

    def __len__(self) -> int:
        return self._core.get_vocab_size()

    def encode(self, text: str, framed: bool = True) -> list[int]:
        """Ids of a text; names of special tokens in it become these tokens.

        `framed` puts the model's first and last tokens around it, where it has any.
        """
        try:
            return list(self._core.encode(text, add_special_tokens=framed).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InputError(f"a text has half of a character: {text[:80]!r}") from error

    def is_special(self, token: int) -> bool:
        """Whether a token is a sign for the model and no text."""
        return token in self._special

    def id_of(self, name: str) -> int | None:
        """The id of a token by its name."""
        return self._core.token_to_id(name)

    def name(self, token: int) -> str:
        """How the vocabulary spells a token; empty for an id that it hasn't."""
        return self._core.id_to_token(token) or ""

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to a text; its name where it is special; nothing for unknown ids."""
        if token not in self._known:
            self._known[token] = self._bytes_of(token)
        return self._known[token]

    def _bytes_of(self, token: int) -> bytes:
        value: str | bytes = self.name(token)
        if token not in self._special:
            for step in self._steps:
                value = step(value)
        return value if isinstance(value, bytes) else value.encode()

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of tokens, as it stands after others. `special` writes out names as well."""
        kept = (t for t in tokens if special or t not in self._special)
        return b"".join(map(self.bytes_of, kept)).decode(errors="replace")


def _flat(decoder: dict[str, Any] | None, where: str) -> Iterator[dict[str, Any]]:
    """The steps of a decoder, one within another or not. Raises UnsupportedError."""
    kind = None if decoder is None else decoder["type"]
    if decoder is not None and kind == "Sequence":
        for part in decoder["decoders"]:
            yield from _flat(part, where)
    elif decoder is not None and kind in _STEPS:
        yield decoder
    else:
        raise UnsupportedError(
            f"{where}: tokens become text by {kind}, which is not known",
            hint=f"known are {', '.join(_STEPS)}",
        )


def _step(part: dict[str, Any]) -> Step:
    make = _STEPS[part["type"]]
    change = make(part)
    return lambda value: value if isinstance(value, bytes) else change(value)


def _byte_level(part: dict[str, Any]) -> Callable[[str], str | bytes]:
    def change(value: str) -> bytes:
        spelled = [_BYTES.get(c) for c in value]
        known = [b for b in spelled if b is not None]
        return bytes(known) if len(known) == len(spelled) else value.encode()

    return change


def _byte_fallback(part: dict[str, Any]) -> Callable[[str], str | bytes]:
    def change(value: str) -> str | bytes:
        found = _ONE_BYTE.fullmatch(value)
        return value if found is None else bytes([int(found[1], 16)])

    return change


def _replace(part: dict[str, Any]) -> Callable[[str], str | bytes]:
    pattern, content = part["pattern"], part["content"]
    if "String" in pattern:
        return lambda value: value.replace(pattern["String"], content)
    raise UnsupportedError(f"tokens become text by the pattern {pattern}: only strings are known")


def _metaspace(part: dict[str, Any]) -> Callable[[str], str | bytes]:
    return lambda value: value.replace(part["replacement"], " ")


def _word_piece(part: dict[str, Any]) -> Callable[[str], str | bytes]:
    prefix = part["prefix"]
    return lambda value: value.removeprefix(prefix) if value.startswith(prefix) else f" {value}"


def _as_it_is(part: dict[str, Any]) -> Callable[[str], str | bytes]:
    return lambda value: value


_STEPS: dict[str, Callable[[dict[str, Any]], Callable[[str], str | bytes]]] = {
    "ByteLevel": _byte_level,
    "ByteFallback": _byte_fallback,
    "Replace": _replace,
    "Metaspace": _metaspace,
    "WordPiece": _word_piece,
    "Fuse": _as_it_is,
    "Strip": _as_it_is,
}


def _strips(part: dict[str, Any]) -> bool:
    match part["type"]:
        case "Strip":
            return bool(part["content"] == " " and part["start"] > 0)
        case "Metaspace":
            return bool(part.get("prepend_scheme", "always") != "never")
        case "WordPiece":
            return True
    return False
