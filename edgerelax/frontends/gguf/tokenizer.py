"""From the metadata of a GGUF file to a Hugging Face tokenizer.json and chat templates.

`tokenizer.ggml.model` says which algorithm joins pieces: `gpt2` pairs of bytes by rank, `llama`
pairs of characters by the score of what they become (SentencePiece), `bert` takes the longest
pieces of words. Token types and special ids: GGUF specification, gguf.TokenType.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gguf import TokenType
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from edgerelax.frontends.gguf.pretokenizers import KINDS
from edgerelax.frontends.gguf.reading import File
from edgerelax.frontends.language.text import DEFAULT, Text
from edgerelax.ir.diagnostics import InputError, UnsupportedError

SPACE = "\u2581"
ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "</s>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
"""Control tokens that end a text, or a turn of it, where the file names just one of them."""
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # sic: the key is spelled so in the specification
    "mask_token": "mask_token_id",
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a file by id, with their types and scores, and the ids with a meaning."""

    file: File
    tokens: Sequence[str]
    types: Sequence[int]
    ids: Mapping[str, int]

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.file.value(f"tokenizer.ggml.{key}", default))

    def token_id(self, key: str) -> int | None:
        """The id that a key names, if any. Raises InputError for one outside the vocabulary."""
        number = int(self.file.value(f"tokenizer.ggml.{key}", -1))
        if number in (-1, 2**32 - 1):
            return None
        if number >= len(self.tokens):
            raise InputError(
                f"{self.file.path.name}: {key} is {number}, of {len(self.tokens)} tokens"
            )
        return number

    def is_a(self, token: int, *kinds: TokenType) -> bool:
        return self.types[token] in kinds


def text_of(file: File) -> Text | None:
    """The tokenizer and templates of a file; None for one without.

    Raises UnsupportedError for an algorithm or a pre-tokenizer that is not known, InputError for
    a vocabulary that contradicts itself.
    """
    name = str(file.value("tokenizer.ggml.model", "no_vocab"))
    if name in ("no_vocab", "none"):
        return None
    if name not in _MODELS:
        raise UnsupportedError(
            f"{file.path.name} has a tokenizer of kind {name!r}",
            hint=f"known are {', '.join(_MODELS)}",
        )
    vocabulary = _vocabulary(file)
    try:
        tokenizer = _MODELS[name](vocabulary)
        _add_tokens(tokenizer, vocabulary)
    except Exception as error:
        # The library raises plain Exception, for merges of tokens that there aren't and the like.
        if isinstance(error, InputError | UnsupportedError):
            raise
        raise InputError(f"{file.path.name}: its tokenizer contradicts itself: {error}") from error
    bos = vocabulary.token_id("bos_token_id")
    return Text(
        tokenizer=tokenizer.to_str().encode(),
        templates=_templates(file),
        special=_special(vocabulary),
        bos=bos,
        eos=tuple(_ends(vocabulary)),
    )


def _vocabulary(file: File) -> Vocabulary:
    tokens = [t or f"[EMPTY_{k}]" for k, t in enumerate(file.texts("tokenizer.ggml.tokens"))]
    types = file.value("tokenizer.ggml.token_type", [int(TokenType.NORMAL)] * len(tokens))
    if len(types) != len(tokens):
        raise InputError(f"{file.path.name}: {len(types)} token types for {len(tokens)} tokens")
    ids = {token: k for k, token in enumerate(tokens)}
    if len(ids) < len(tokens):
        twice = next(t for k, t in enumerate(tokens) if ids[t] != k)
        raise InputError(f"{file.path.name}: two of its tokens are {twice!r}")
    return Vocabulary(file, tokens, types, ids)


def _byte_pairs(vocabulary: Vocabulary) -> Tokenizer:
    file = vocabulary.file
    name = str(file.value("tokenizer.ggml.pre", "default"))
    if name not in KINDS:
        raise UnsupportedError(
            f"{file.path.name} splits text into words as {name!r} does, which is not known",
            hint=f"known are {', '.join(sorted(KINDS))}",
        )
    kind = KINDS[name]
    pairs = file.value("tokenizer.ggml.merges")
    merges = [(p[: p.index(" ", 1)], p[p.index(" ", 1) + 1 :]) for p in pairs]
    model = models.BPE(dict(vocabulary.ids), merges, ignore_merges=kind.whole_words)
    tokenizer = Tokenizer(model)
    if kind.composed:
        tokenizer.normalizer = normalizers.NFC()
    prefix = vocabulary.flag("add_space_prefix", False)
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in kind.patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
    tokenizer.decoder = decoders.ByteLevel()
    _frame(tokenizer, vocabulary, kind.adds_bos, False)
    return tokenizer


def _sentence_pieces(vocabulary: Vocabulary) -> Tokenizer:
    tokens, ids = vocabulary.tokens, vocabulary.ids
    scores = vocabulary.file.value("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise InputError(
            f"{vocabulary.file.path.name}: {len(scores)} scores for {len(tokens)} tokens"
        )
    unknown = vocabulary.token_id("unknown_token_id")
    model = models.BPE(
        dict(ids),
        _merges(vocabulary, scores),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=any(kind == TokenType.BYTE for kind in vocabulary.types),
    )
    tokenizer = Tokenizer(model)
    prefixed = vocabulary.flag("add_space_prefix", True)
    spaces: list[normalizers.Normalizer] = [normalizers.Prepend(SPACE)] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*spaces, normalizers.Replace(" ", SPACE)])
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence([*back, *strip])
    _frame(tokenizer, vocabulary, True, False)
    return tokenizer


def _merges(vocabulary: Vocabulary, scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the best tokens first; of equal ones the first.

    So do the tokenizer.json files that models come with.
    """
    joined = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    usable = {t: k for t, k in vocabulary.ids.items() if vocabulary.is_a(k, *joined)}
    found: list[tuple[float, int, int, int, str, str]] = []
    for token, number in usable.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in usable and right in usable:
                ways = (usable[left], usable[right], left, right)
                found.append((-scores[number], number, *ways))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _word_pieces(vocabulary: Vocabulary) -> Tokenizer:
    """BERT's. The file marks pieces that begin a word; tokenizer.json marks those that don't."""

    def plain(number: int, token: str) -> str:
        if vocabulary.is_a(number, TokenType.CONTROL, TokenType.UNKNOWN):
            return token
        return token[1:] if token.startswith(SPACE) else f"##{token}"

    pieces = {plain(k, token): k for k, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.token_id("unknown_token_id")
    name = "[UNK]" if unknown is None else vocabulary.tokens[unknown]
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token=name))
    lower = vocabulary.flag("normalizer.lowercase", True)
    accents = vocabulary.flag("normalizer.strip_accents", lower)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    _frame(tokenizer, vocabulary, True, True)
    return tokenizer


_MODELS: dict[str, Callable[[Vocabulary], Tokenizer]] = {
    "gpt2": _byte_pairs,
    "llama": _sentence_pieces,
    "bert": _word_pieces,
}


def _frame(tokenizer: Tokenizer, vocabulary: Vocabulary, bos: bool, sep: bool) -> None:
    """What is put before and after a text, as the file says or else as the family does."""
    flags = {
        "bos_token_id": vocabulary.flag("add_bos_token", bos),
        "eos_token_id": vocabulary.flag("add_eos_token", False),
        "seperator_token_id": vocabulary.flag("add_sep_token", sep),
    }
    ids = {key: vocabulary.token_id(key) for key, wanted in flags.items() if wanted}
    missing = [key for key, number in ids.items() if number is None]
    if missing:
        raise InputError(f"{vocabulary.file.path.name}: it puts {missing[0]} around texts: no id")
    names = {key: vocabulary.tokens[number] for key, number in ids.items() if number is not None}
    before = [names[k] for k in ("bos_token_id",) if k in names]
    after = [names[k] for k in ("eos_token_id", "seperator_token_id") if k in names]
    if not names:
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*before, "$A", *after],
        pair=[*before, "$A", *after, "$B:1", *(f"{name}:1" for name in after)],
        special_tokens=[(name, vocabulary.ids[name]) for name in dict.fromkeys(names.values())],
    )


def _add_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    """Tokens that are found in a text before anything else. Those of control are no text."""
    added = [
        AddedToken(token, normalized=False, special=vocabulary.types[k] != TokenType.USER_DEFINED)
        for k, token in enumerate(vocabulary.tokens)
        if vocabulary.is_a(k, TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
    ]
    tokenizer.add_tokens(added)


def _special(vocabulary: Vocabulary) -> dict[str, str]:
    ids = {name: vocabulary.token_id(key) for name, key in SPECIAL.items()}
    return {name: vocabulary.tokens[k] for name, k in ids.items() if k is not None}


def _ends(vocabulary: Vocabulary) -> Iterator[int]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    named = [vocabulary.token_id(key) for key in keys]
    ids = {t: vocabulary.ids[t] for t in ENDS if t in vocabulary.ids}
    known = {t: k for t, k in ids.items() if vocabulary.is_a(k, TokenType.CONTROL)}
    if {"<|return|>", "<|call|>"} <= known.keys():
        known.pop("<|end|>", None)  # there it ends a part of a turn
    by_text = sorted(known.values())
    yield from dict.fromkeys([*(k for k in named if k is not None), *by_text])


def _templates(file: File) -> dict[str, str]:
    """Chat templates by name. Files name those beyond the first in a list."""
    found = {DEFAULT: str(file.value("tokenizer.chat_template", ""))}
    for name in file.value("tokenizer.chat_templates", []):
        found[str(name)] = str(file.value(f"tokenizer.chat_template.{name}"))
    return {name: text for name, text in found.items() if text}
