"""A tokenizer of bytes and a few words, and engines that write what they are told to."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Core

from edgerelax.chat.engine import Picture, Sampling, Token, TokenMask
from edgerelax.chat.generate import Chat
from edgerelax.chat.template import ChatTemplate
from edgerelax.chat.text import Text
from edgerelax.chat.tokenizer import Tokenizer
from edgerelax.frontends.language.text import Text as Assets

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|end|>")
USERS = ("<tool_call>", "</tool_call>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAGGED = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "Answer in <tool_call></tool_call>.<|im_end|>\n{% endif %}" + CHATML
)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(tokenizer_json())


def tokenizer_json(*more: str) -> bytes:
    """A tokenizer.json with further special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ã", "¼")]
    words = [a + b for a, b in merges]
    vocabulary = {word: k for k, word in enumerate([*letters, *words, *SPECIAL, *USERS, *more])}
    core = Core(models.BPE(vocabulary, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([*SPECIAL, *more])
    core.add_tokens([AddedToken(word, special=False) for word in USERS])
    return core.to_str().encode()


@cache
def sentence_pieces() -> Tokenizer:
    """As Llama 2's: ▁ for spaces, one before a text, bytes by name."""
    from tokenizers import normalizers

    from edgerelax.frontends.gguf.tokenizer import SPACE

    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    names += [SPACE, *"helowrd", "he", "ll"]
    core = Core(
        models.BPE(
            {name: k for k, name in enumerate(names)},
            [("h", "e"), ("l", "l")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(core.to_str().encode())


def ids(text: str) -> list[int]:
    return tokenizer().encode(text, framed=False)


END = tokenizer().id_of("<|im_end|>")
assert END is not None


class Written(Iterator[Token]):
    """A stream that notes that it was closed."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._tokens = iter(tokens)
        self.closed = False

    def __next__(self) -> Token:
        assert not self.closed, "it was read after it had been closed"
        return next(self._tokens)

    def close(self) -> None:
        self.closed = True


@dataclass
class Scripted:
    """Writes the scripts, one for each call, and notes what it was asked."""

    scripts: Sequence[Sequence[int]]
    context: int = 4096
    asked: list[tuple[list[int], Sampling]] = field(default_factory=list)
    streams: list[Written] = field(default_factory=list)
    pictures: list[list[Picture]] = field(default_factory=list)

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        mask: TokenMask | None = None,
        pictures: Sequence[Picture] = (),
    ) -> Written:
        self.pictures.append(list(pictures))
        script = self.scripts[len(self.asked) % len(self.scripts)][: sampling.max_tokens]
        self.asked.append((list(prompt), sampling))
        self.streams.append(Written(self._tokens(script, sampling, mask)))
        return self.streams[-1]

    def _tokens(
        self, script: Sequence[int], sampling: Sampling, mask: TokenMask | None
    ) -> Iterator[Token]:
        for number, token in enumerate(script):
            if mask is not None:
                assert allowed(mask.bits())[token], f"{tokenizer().name(token)!r} may not come"
                mask.accept(token)
            if sampling.logprobs is None:
                yield Token(token)
            else:
                top = [(token, -0.5 - number), (0, -3.0)]
                yield Token(token, -0.5 - number, tuple(top[: sampling.logprobs]))


@dataclass
class Wild:
    """Draws any token that the mask allows: what comes out is the grammar's doing alone."""

    seed: int
    context: int = 4096

    def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        mask: TokenMask | None = None,
        pictures: Sequence[Picture] = (),
    ) -> Written:
        assert mask is not None
        return Written(self._tokens(sampling, mask))

    def _tokens(self, sampling: Sampling, mask: TokenMask) -> Iterator[Token]:
        random = np.random.default_rng(self.seed)
        for _ in range(sampling.max_tokens):
            token = int(random.choice(np.flatnonzero(allowed(mask.bits()))))
            mask.accept(token)
            yield Token(token)


def allowed(bits: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """[vocabulary]"""
    return np.unpackbits(bits.view(np.uint8), bitorder="little").astype(bool)


def text(template: str = CHATML) -> Text:
    templates = {"templates": {"default": template}, "special_tokens": {}}
    assert END is not None
    chat = ChatTemplate(json.dumps(templates).encode())
    return Text(tokenizer(), chat, (END,), len(tokenizer()))


def chat(*scripts: str | Sequence[int], template: str = CHATML, context: int = 4096) -> Chat:
    """A chat whose engine writes these texts, special tokens by name."""
    written = [ids(script) if isinstance(script, str) else script for script in scripts]
    return Chat(text(template), Scripted(written, context), "fake")


def engine_of(made: Chat) -> Scripted:
    assert isinstance(made.engine, Scripted)
    return made.engine


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], **fields}


def assets(template: str = TAGGED) -> Assets:
    """What an artifact of a model with these tokens carries."""
    assert END is not None
    return Assets(tokenizer().data, {"default": template}, eos=(END,))
