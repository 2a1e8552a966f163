"""Tokenizers of GGUF files: as their vocabularies imply, and as the models' own were."""

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
from gguf import GGUFWriter, TokenType
from tokenizers import Tokenizer

from edgerelax.frontends.gguf.pretokenizers import KINDS
from edgerelax.frontends.gguf.reading import File
from edgerelax.frontends.gguf.tokenizer import SPACE, text_of
from edgerelax.frontends.language.text import Text
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError, UnsupportedError

ROOT = Path(__file__).parents[3]
SMOLLM2 = ROOT / "models" / "smollm2" / "model.gguf"
TEXTS = [
    "The capital of France is Paris.",
    "in 2024, 1234567 of them; 3.14159",
    "don't we'll I'M",
    "  two  spaces \n\n\t tabs\r\nend  ",
    "über naïve Ærøskøbing — “quoted”",
    "漢字とかな 한국어 العربية हिन्दी",
    "👩‍👩‍👧 🇫🇷 🙂\u200d e\u0301",
    "def f(x):\n    return x**2  # ok\n",
    "",
]


@cache
def smollm2_file() -> File:
    return File(SMOLLM2)


@cache
def smollm2() -> Text:
    text = text_of(smollm2_file())
    assert text is not None
    return text


@cache
def merges() -> dict[str, int]:
    return {m: k for k, m in enumerate(smollm2_file().value("tokenizer.ggml.merges"))}


def tokenizer(text: Text) -> Tokenizer:
    return Tokenizer.from_str(text.tokenizer.decode())


Changes = dict[str, Any]


def written(path: Path, changes: Changes, whole: Changes) -> File:
    """A file with this metadata and no tensors; None leaves a key out."""
    writer = GGUFWriter(path, "llama")
    for key, value in {**whole, **changes}.items():
        name = f"tokenizer.{key}"
        match value:
            case None:
                continue
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case str():
                writer.add_string(name, value)
            case list():
                writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return File(path)


# Bytes as GPT-2 spells them: those that print are themselves, others come after U+0100.
PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
SPELLED = {b: chr(b) for b in PRINTED}
SPELLED |= {b: chr(256 + k) for k, b in enumerate(b for b in range(256) if b not in SPELLED)}
SMALL = [*SPELLED.values(), "he", "ll", "hell", "hello", "Ġ", "ĠĠ", "12", "<s>", "</s>", "<tool>"]
SMALL = list(dict.fromkeys(SMALL))
BPE: Changes = {
    "ggml.model": "gpt2",
    "ggml.pre": "gpt-2",
    "ggml.tokens": SMALL,
    "ggml.token_type": [int(TokenType.NORMAL)] * (len(SMALL) - 3) + [3, 3, 4],
    "ggml.merges": ["h e", "l l", "he ll", "hell o", "Ġ Ġ", "1 2"],
    "ggml.bos_token_id": len(SMALL) - 3,
    "ggml.eos_token_id": len(SMALL) - 2,
    "chat_template": "{{ messages[0].content }}",
}


def ids_of(file: File, text: str, special: bool = True) -> list[str]:
    found = text_of(file)
    assert found is not None
    encoded = tokenizer(found).encode(text, add_special_tokens=special)
    return list(encoded.tokens)


@cache
def smollm2_tokenizer() -> Tokenizer:
    return tokenizer(smollm2())


class TestSmolLM2:
    def test_ids(self) -> None:
        tokens = smollm2_file().value("tokenizer.ggml.tokens")
        ours = smollm2_tokenizer()
        assert [ours.id_to_token(k) for k in range(ours.get_vocab_size())] == tokens

    @pytest.mark.parametrize("text", TEXTS)
    def test_round_trip(self, text: str) -> None:
        ours = smollm2_tokenizer()
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text

    @pytest.mark.parametrize("text", TEXTS)
    def test_merges_by_rank(self, text: str) -> None:
        """Words are joined as the file's merges say, lowest rank first, from bytes on."""
        ours = smollm2_tokenizer()
        encoded = ours.encode(text)
        words = [word for word, _ in ours.pre_tokenizer.pre_tokenize_str(text)]
        expected = [piece for word in words for piece in joined(list(word), merges())]
        assert encoded.tokens == expected

    def test_digits_stand_alone(self) -> None:
        encoded = smollm2_tokenizer().encode("1234 ٣٤")
        digits = [t for t in encoded.tokens if any(c.isdigit() for c in t)]
        assert digits == ["1", "2", "3", "4"]

    def test_special_tokens(self) -> None:
        text = smollm2()
        ours = smollm2_tokenizer()
        ids = ours.encode("<|im_start|>user\nHi<|im_end|>").ids
        assert (ids[0], ids[-1]) == (1, 2)
        assert ours.decode(ids) == "user\nHi"
        assert (text.bos, text.eos) == (1, (2, 0))
        assert text.special["eos_token"] == "<|im_end|>"
        assert "add_generation_prompt" in text.templates["default"]

    def test_nothing_is_put_before(self) -> None:
        assert smollm2_tokenizer().encode("The").tokens == ["The"]

    def test_assets(self) -> None:
        text = smollm2()
        files = text.assets()
        assert files["tokenizer.json"] == text.tokenizer
        chat = json.loads(files["chat.json"])
        assert chat["templates"] == text.templates
        assert chat["special_tokens"]["bos_token"] == "<|im_start|>"
        assert text.language() == {
            "tokenizer": "tokenizer.json", "chat": "chat.json", "bos": 1, "eos": [2, 0],
        }  # fmt: skip


def joined(pieces: list[str], ranks: dict[str, int]) -> list[str]:
    """Byte pair encoding in its plainest form."""
    while True:
        pairs = [(ranks.get(f"{a} {b}"), k) for k, (a, b) in enumerate(pairwise(pieces))]
        known = [(rank, k) for rank, k in pairs if rank is not None]
        if not known:
            return pieces
        _, at = min(known)
        pieces = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]


def framing(pre: str, says: bool | None) -> Changes:
    return {"ggml.pre": pre, "ggml.add_bos_token": says}


def test_what_a_kind_puts_before(tmp_path: Path) -> None:
    """Llama 3 puts its first token before a text unless the file says otherwise; others do not."""
    by_kind = [
        ids_of(written(tmp_path / "a.gguf", framing(pre, says), BPE), "hello")
        for pre in ("gpt-2", "llama-bpe")
        for says in (None, True, False)
    ]
    one, framed = ["hello"], ["<s>", "hello"]
    assert by_kind == [one, framed, one, framed, framed, one]
    both = {"ggml.add_bos_token": True, "ggml.add_eos_token": True}
    file = written(tmp_path / "b.gguf", both, BPE)
    assert ids_of(file, "hello") == ["<s>", "hello", "</s>"]
    assert ids_of(file, "hello", special=False) == ["hello"]


def test_tokens_of_the_user_are_text(tmp_path: Path) -> None:
    found = text_of(written(tmp_path / "a.gguf", {}, BPE))
    assert found is not None
    ours = tokenizer(found)
    encoded = ours.encode("hello<tool>hello</s>")
    assert encoded.tokens == ["hello", "<tool>", "hello", "</s>"]
    assert ours.decode(encoded.ids) == "hello<tool>hello"


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_loses_nothing(name: str, tmp_path: Path) -> None:
    """Whatever the words are, together they are the text: none of the patterns drops any."""
    found = text_of(written(tmp_path / "a.gguf", {"ggml.pre": name}, BPE))
    assert found is not None
    ours = tokenizer(found)
    for text in TEXTS:
        text = normalize("NFC", text)
        assert ours.decode(ours.encode(text, add_special_tokens=False).ids) == text


WORDS: list[tuple[str, str, list[str]]] = [
    ("gpt-2", "a 123 don't", ["a", " 123", " don", "'t"]),
    ("smollm", "a 123 don't", ["a", " ", "1", "2", "3", " don", "'t"]),
    ("llama-bpe", "a 12345 DON'T\n\n x", ["a", " ", "123", "45", " DON", "'T", "\n\n", " x"]),
    ("qwen2", "a 123 DON'T\n\n x", ["a", " ", "1", "2", "3", " DON", "'T", "\n\n", " x"]),
    ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
    ("gpt-4o", "HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
    ("falcon", "a 1234, b", ["a", " ", "123", "4", ",", " b"]),
    ("deepseek-v3", "x_y 漢字12345", ["x", "_y", " ", "漢字", "123", "45"]),
    ("viking", "a, b 12", ["a", ",", " b", " ", "1", "2"]),
]


@pytest.mark.parametrize(("name", "text", "words"), WORDS)
def test_words(name: str, text: str, words: list[str], tmp_path: Path) -> None:
    found = text_of(written(tmp_path / "a.gguf", {"ggml.pre": name}, BPE))
    assert found is not None
    pieces = tokenizer(found).pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == words


def test_words_that_are_tokens_are_taken_whole(tmp_path: Path) -> None:
    """Where the family does so, even if no merges lead there."""
    no_way = {"ggml.merges": ["h e"]}
    plain = written(tmp_path / "a.gguf", no_way, BPE)
    whole = written(tmp_path / "b.gguf", {**no_way, "ggml.pre": "llama-bpe"}, BPE)
    assert ids_of(plain, "hello", False) == ["he", "l", "l", "o"]
    assert ids_of(whole, "hello", False) == ["hello"]


def test_composed_characters(tmp_path: Path) -> None:
    file = written(tmp_path / "a.gguf", {"ggml.pre": "qwen2"}, BPE)
    assert ids_of(file, "e\u0301") == ids_of(file, "\u00e9") == ["Ã", "©"]


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
WHOLE = [SPACE, *"helowrd", "he", "ll", f"{SPACE}w", "or", "hell", "hello", f"{SPACE}hello"]
WHOLE += [f"{SPACE}wor", f"{SPACE}world", "ld", f"{SPACE}{SPACE}", "<note>"]
SPM: Changes = {
    "ggml.model": "llama",
    "ggml.tokens": PIECES + WHOLE,
    "ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(WHOLE) - 1) + [4],
    "ggml.scores": [0.0] * len(PIECES) + [-float(k) for k in range(len(WHOLE))],
    "ggml.bos_token_id": 1,
    "ggml.eos_token_id": 2,
    "ggml.unknown_token_id": 0,
}


def best_first(text: str) -> list[str]:
    """SentencePiece in its plainest form: join the pair whose whole scores best, leftmost first."""
    scores = dict(zip(WHOLE, SPM["ggml.scores"][len(PIECES) :], strict=True))
    pieces = list(text.replace(" ", SPACE))
    while True:
        pairs = [(a + b, k) for k, (a, b) in enumerate(pairwise(pieces))]
        known = [(-scores[word], k) for word, k in pairs if word in scores]
        if not known:
            break
        _, at = min(known)
        pieces = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]
    as_bytes = {p: [f"<0x{b:02X}>" for b in p.encode()] for p in pieces if p not in scores}
    return [token for piece in pieces for token in as_bytes.get(piece, [piece])]


@pytest.mark.parametrize(
    "text", ["hello world", "hello  world", "whole world held", "hé漢 lower 🙂", " hello", "x\ny"]
)
@pytest.mark.parametrize("prefixed", [True, False])
def test_sentence_pieces(text: str, prefixed: bool, tmp_path: Path) -> None:
    file = written(tmp_path / "a.gguf", {"ggml.add_space_prefix": prefixed}, SPM)
    whole = f" {text}" if prefixed else text
    assert ids_of(file, text) == ["<s>", *best_first(whole)]
    found = text_of(file)
    assert found is not None
    ours = tokenizer(found)
    assert ours.decode(ours.encode(text).ids) == text


def test_pieces_of_one_score(tmp_path: Path) -> None:
    """The first in the vocabulary is made first, as in Mistral's runs of spaces."""
    runs = [SPACE * n for n in (2, 4, 8, 3, 6)]
    changes: Changes = {
        "ggml.tokens": [*PIECES, SPACE, "x", *runs],
        "ggml.token_type": SPM["ggml.token_type"][: len(PIECES)] + [1] * (len(runs) + 2),
        "ggml.scores": [0.0] * len(PIECES) + [-1.0, -2.0] + [-1e9] * len(runs),
        "ggml.add_space_prefix": False,
    }
    file = written(tmp_path / "a.gguf", changes, SPM)
    made = {n: [len(t) for t in ids_of(file, " " * n + "x", False)[:-1]] for n in range(1, 12)}
    assert made == {
        1: [1], 2: [2], 3: [3], 4: [4], 5: [4, 1], 6: [6], 7: [4, 3], 8: [8], 9: [8, 1],
        10: [8, 2], 11: [8, 3],
    }  # fmt: skip


def test_bytes_are_not_spelled_by_the_user(tmp_path: Path) -> None:
    """Text that looks like the name of a byte is text."""
    extra = list("<0xA>1")
    tokens = PIECES + WHOLE + extra
    changes: Changes = {
        "ggml.tokens": tokens,
        "ggml.token_type": SPM["ggml.token_type"] + [1] * len(extra),
        "ggml.scores": SPM["ggml.scores"] + [-99.0] * len(extra),
        "ggml.add_space_prefix": False,
    }
    assert ids_of(written(tmp_path / "a.gguf", changes, SPM), "<0xA1>", False) == list("<0xA1>")
    found = text_of(written(tmp_path / "a.gguf", changes, SPM))
    assert found is not None
    assert tokenizer(found).encode("h<note>", add_special_tokens=False).tokens == ["h", "<note>"]


def test_word_pieces(tmp_path: Path) -> None:
    """MiniLM's own tokenizer.json, as a GGUF file spells it."""
    own = Tokenizer.from_file(str(ROOT / "models" / "minilm-tokenizer" / "tokenizer.json"))
    own.no_padding()
    own.no_truncation()
    names = own.get_vocab()
    pieces = sorted(names, key=lambda piece: names[piece])
    control = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}

    def spelled(piece: str) -> str:
        if piece in control:
            return piece
        return piece[2:] if piece.startswith("##") else SPACE + piece

    whole: Changes = {
        "ggml.model": "bert",
        "ggml.tokens": [spelled(p) for p in pieces],
        "ggml.token_type": [3 if p in control else 1 for p in pieces],
        "ggml.bos_token_id": names["[CLS]"],
        "ggml.seperator_token_id": names["[SEP]"],
        "ggml.unknown_token_id": names["[UNK]"],
    }
    found = text_of(written(tmp_path / "a.gguf", {}, whole))
    assert found is not None
    ours = tokenizer(found)
    for text in TEXTS:
        assert ours.encode(text).ids == own.encode(text).ids, text


class TestFaults:
    def fault(self, tmp_path: Path, changes: Changes, kind: type[EdgeRelaxError]) -> str:
        with pytest.raises(kind) as caught:
            text_of(written(tmp_path / "a.gguf", changes, BPE))
        return str(caught.value)

    def test_unknown_kinds(self, tmp_path: Path) -> None:
        text = self.fault(tmp_path, {"ggml.model": "rwkv"}, UnsupportedError)
        assert "'rwkv'" in text and "known are gpt2, llama, bert" in text
        text = self.fault(tmp_path, {"ggml.pre": "klingon"}, UnsupportedError)
        assert "'klingon'" in text and "llama-bpe" in text and "smollm" in text

    def test_contradictions(self, tmp_path: Path) -> None:
        faults: list[tuple[Changes, str]] = [
            ({"ggml.tokens": [*SMALL[:-1], "a"]}, "two of its tokens are 'a'"),
            ({"ggml.token_type": [1, 2]}, f"2 token types for {len(SMALL)} tokens"),
            ({"ggml.merges": ["h e", "q zz"]}, "contradicts itself"),
            ({"ggml.merges": ["he"]}, "contradicts itself"),
            ({"ggml.merges": None}, "has no tokenizer.ggml.merges"),
            ({"ggml.tokens": None}, "has no tokenizer.ggml.tokens"),
            ({"ggml.eos_token_id": 9999}, f"eos_token_id is 9999, of {len(SMALL)} tokens"),
            ({"ggml.bos_token_id": None, "ggml.add_bos_token": True}, "bos_token_id around texts"),
        ]
        for changes, fault in faults:
            assert fault in self.fault(tmp_path, changes, InputError), changes

    def test_scores_of_pieces(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="1 scores for"):
            text_of(written(tmp_path / "a.gguf", {"ggml.scores": [1.0]}, SPM))

    def test_no_vocabulary(self, tmp_path: Path) -> None:
        assert text_of(written(tmp_path / "a.gguf", {"ggml.model": "no_vocab"}, BPE)) is None
        assert text_of(written(tmp_path / "b.gguf", {"ggml.model": None}, BPE)) is None


def test_ends_and_templates(tmp_path: Path) -> None:
    tokens = [*SMALL, "<|im_end|>", "<|eot_id|>", "<|end|>", "<|return|>", "<|call|>"]
    types = [*BPE["ggml.token_type"], 3, 1, 3, 3, 3]
    changes: Changes = {
        "ggml.tokens": tokens,
        "ggml.token_type": types,
        "chat_templates": ["tool_use"],
        "chat_template.tool_use": "tools",
    }
    found = text_of(written(tmp_path / "a.gguf", changes, BPE))
    assert found is not None
    ends = [tokens[k] for k in found.eos]
    assert ends == ["</s>", "<|im_end|>", "<|return|>", "<|call|>"]
    assert found.templates == {"default": BPE["chat_template"], "tool_use": "tools"}
