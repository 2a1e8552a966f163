r"""How text falls into words before pairs of bytes are joined: `tokenizer.ggml.pre` of GGUF.

A kind is a name for the patterns that a family of models was trained with; they are applied one
after another, each to the pieces that those before have left. `(?i:…)` stands as in the families'
own tokenizer.json, which loaders in browsers know how to rewrite.
"""

# ruff: noqa: RUF001 (characters of other scripts are what the patterns are about)

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ALIEN = r"[^\r\n\p{L}\p{N}]?"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_DIGIT = r"\p{N}"
_THREE = r"\p{N}{1,3}"
_LLAMA3 = "|".join((_SHORT, _LETTERS, _THREE, _MARKS, _SPACE))
_QWEN2 = "|".join((_SHORT, _LETTERS, _DIGIT, _MARKS, _SPACE))
_GPT4O = "|".join(
    (
        f"{_ALIEN}{_UPPER}*{_LOWER}+{_SHORT}?",
        f"{_ALIEN}{_UPPER}+{_LOWER}*{_SHORT}?",
        _THREE,
        _TAIL,
        _SPACE,
    )
)
_TEKKEN = "|".join(
    (f"{_ALIEN}{_UPPER}*{_LOWER}+", f"{_ALIEN}{_UPPER}+{_LOWER}*", _DIGIT, _TAIL, _SPACE)
)
_QWEN35 = "|".join(
    (
        _SHORT,
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
        _DIGIT,
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
        _SPACE,
    )
)
_SEED = "|".join((_SHORT, _LETTERS, _DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", _SPACE))
_BAILING = "|".join(
    (r"'(?i:[sdmt]|ll|ve|re)", _LETTERS, _DIGIT, _MARKS, r"\s*[\r\n]|\s+(?!\S)|\s+")
)
_DEEPSEEK3 = "|".join(
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        r" ?[\p{P}\p{S}]+[\r\n]*",
        _SPACE,
    )
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class Kind:
    """Patterns; whether a word that is a token is taken whole; what else the family does.

    `adds_bos` holds where the file does not say. `composed`: text is brought to Unicode's NFC.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False
    composed: bool = False


def _kinds(kind: Kind, names: str) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


KINDS: dict[str, Kind] = {
    **_kinds(
        Kind((_GPT2,)),
        "gpt-2 phi-2 mpt jais exaone4 trillion granite-docling mellum modern-bert roberta-bpe "
        "jina-es jina-de jina-v1-en jina-v2-code jina-v2-es jina-v2-de gigachat a.x-4.0",
    ),
    **_kinds(Kind((_GPT2,), composed=True), "olmo"),
    **_kinds(Kind((_DIGIT, _GPT2)), "smollm starcoder refact codeshell exaone minerva-7b mellum2"),
    **_kinds(Kind((_DIGIT, _GPT2), composed=True), "command-r"),
    **_kinds(
        Kind((_LLAMA3,), whole_words=True, adds_bos=True),
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    ),
    **_kinds(Kind((_LLAMA3,)), "dbrx smaug-bpe glm4 chatglm-bpe"),
    **_kinds(Kind((_QWEN2,), composed=True), "qwen2"),
    **_kinds(Kind((_QWEN2,)), "deepseek-r1-qwen stablelm2 hunyuan megrez solar-open grok-2 kormo"),
    **_kinds(Kind((_QWEN35,), composed=True), "qwen35"),
    **_kinds(Kind((_TEKKEN,), whole_words=True, adds_bos=True), "tekken"),
    **_kinds(Kind((_GPT4O,)), "gpt-4o llama4 kanana2 minimax-m2"),
    **_kinds(Kind((_SEED,)), "seed-coder"),
    **_kinds(Kind((_BAILING,)), "bailingmoe bailingmoe2 llada-moe"),
    **_kinds(
        Kind((_THREE, "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)), "deepseek-v3 hunyuan-dense joyai-llm"
    ),
    **_kinds(
        Kind((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT)),
        "deepseek-coder",
    ),
    **_kinds(Kind((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")), "falcon"),
    **_kinds(Kind((_BLOOM,)), "bloom poro-chat gpt3-finnish"),
    **_kinds(Kind((_BLOOM, _DIGIT)), "viking"),
}
"""By the name in the file, which is that of the family or of a model of it."""
