"""Text as it comes: whole characters, and nothing of a stop string."""

import json
import random

import pytest

from edgerelax.chat.stream import Detokenizer, StopStrings, held_back
from edgerelax.chat.tokenizer import Tokenizer
from edgerelax.ir.diagnostics import FormatError, InputError, UnsupportedError
from tests.chat.fakes import ids, sentence_pieces, tokenizer

TEXTS = ["hello wörld", "漢字 👩‍👩‍👧 ü", "a\n\n b  c", "‍", ""]


def streamed(tokens: Tokenizer, numbers: list[int], fresh: bool) -> list[str]:
    stream = Detokenizer(tokens, fresh)
    return [*map(stream.push, numbers), stream.finish()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [tokenizer, sentence_pieces])
def test_pieces_add_up(text: str, make: object) -> None:
    tokens = make()  # type: ignore[operator]
    numbers = tokens.encode(text, framed=False)
    pieces = streamed(tokens, numbers, fresh=True)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_characters_wait_to_be_whole() -> None:
    numbers = ids("漢!")
    assert len(numbers) == 4
    assert streamed(tokenizer(), numbers, fresh=True) == ["", "", "漢", "!", ""]


def test_what_never_becomes_whole() -> None:
    assert streamed(tokenizer(), ids("漢")[:2], fresh=True) == ["", "", "\ufffd"]
    torn = [*ids("漢")[:2], *ids("hello")]
    assert "".join(streamed(tokenizer(), torn, fresh=True)) == "\ufffdhello"


def test_special_tokens_are_no_text() -> None:
    numbers = ids("hello<|im_end|><tool_call>")
    assert "".join(streamed(tokenizer(), numbers, fresh=True)) == "hello<tool_call>"
    assert tokenizer().decode(numbers) == "hello<tool_call>"
    assert tokenizer().decode(numbers, special=True) == "hello<|im_end|><tool_call>"


def test_the_space_before_a_text() -> None:
    """It stands for the beginning of a text; where a text goes on it is a space."""
    tokens = sentence_pieces()
    numbers = tokens.encode("hello", framed=False)
    assert "".join(streamed(tokens, numbers, fresh=True)) == "hello"
    assert "".join(streamed(tokens, numbers, fresh=False)) == " hello"
    assert "".join(streamed(tokens, tokens.encode(" hello", False), fresh=True)) == " hello"


def test_bytes_of_tokens_against_the_library() -> None:
    for tokens in (tokenizer(), sentence_pieces()):
        for number in range(len(tokens)):
            raw = tokens.bytes_of(number)
            whole = tokens._core.decode([number, number], skip_special_tokens=False)
            expected = (raw + raw).decode(errors="replace")
            expected = expected.removeprefix(" ") if tokens.first_space else expected
            if "\ufffd" not in whole:  # the library puts several of these for one run of bytes
                assert whole == expected


class TestStops:
    def test_cut_anywhere(self) -> None:
        """However a text is cut into pieces, the same comes out."""
        whole, stops = "the end is near, the END.\nUser: x", ["the END", "\nUser:"]
        expected = whole[: whole.index("the END")]
        for seed in range(50):
            rng = random.Random(seed)
            cuts = sorted(rng.sample(range(len(whole)), rng.randint(0, 12)))
            pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
            stream = StopStrings(stops)
            out = "".join(map(stream.push, pieces)) + stream.finish()
            assert (out, stream.found) == (expected, "the END")

    def test_nothing_is_held_longer_than_needed(self) -> None:
        stream = StopStrings(["###"])
        assert [stream.push(c) for c in "a##b#"] == ["a", "", "", "##b", ""]
        assert stream.finish() == "#"
        assert stream.found is None

    def test_the_first_of_several(self) -> None:
        stream = StopStrings(["zz", "b"])
        assert stream.push("abczz") == "a"
        assert stream.found == "b"
        assert (stream.push("more"), stream.finish()) == ("", "")

    def test_none(self) -> None:
        stream = StopStrings(["", ""])
        assert (stream.push("text"), stream.finish()) == ("text", "")

    def test_held_back(self) -> None:
        assert held_back("abcab", ["abx"]) == 2
        assert held_back("abx", ["abx"]) == 0
        assert held_back("aab", ["ab", "aabc"]) == 3
        assert held_back("", ["ab"]) == held_back("ab", []) == 0


def test_what_is_no_tokenizer() -> None:
    with pytest.raises(FormatError, match=r"mine\.json: not a tokenizer"):
        Tokenizer(b"{}", "mine.json")
    spec = json.loads(tokenizer().data)
    spec["decoder"] = {
        "type": "CTC", "pad_token": "a", "word_delimiter_token": "|", "cleanup": True,
    }  # fmt: skip
    with pytest.raises(UnsupportedError, match="CTC, which is not known") as caught:
        Tokenizer(json.dumps(spec).encode())
    assert "ByteLevel" in caught.value.hint


def test_half_a_character() -> None:
    with pytest.raises(InputError, match="half of a character"):
        tokenizer().encode("a\ud800b")
