"""Whatever a model draws among the tokens that may come, the text is what the grammar says."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

from edgerelax.chat.grammar import Grammar, Grammars
from edgerelax.chat.tokenizer import Tokenizer
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError
from tests.chat.fakes import END, allowed, ids, sentence_pieces, tokenizer

PLAIN = tokenizer()
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["hello", "ü"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["kind", "n"],
    "additionalProperties": False,
}


@cache
def grammars() -> Grammars:
    assert END is not None
    return Grammars(tokenizer(), len(tokenizer()), [END])


def drawn(grammar: Grammar, seed: int, by: Tokenizer = PLAIN, end: int | None = END) -> str:
    random = np.random.default_rng(seed)
    tokens: list[int] = []
    for _ in range(2000):
        token = int(random.choice(np.flatnonzero(allowed(grammar.bits()))))
        grammar.accept(token)
        if token == end:
            return by.decode(tokens)
        tokens.append(token)
    raise AssertionError(f"it has no end: {by.decode(tokens)!r}")


@pytest.mark.parametrize("seed", range(10))
def test_a_schema(seed: int) -> None:
    value = json.loads(drawn(grammars().schema(SCHEMA), seed))
    assert value["kind"] in ("hello", "ü") and 0 <= value["n"] <= 99
    assert set(value) <= {"kind", "n", "list"}
    assert all(isinstance(item, bool) for item in value.get("list", ()))


@pytest.mark.parametrize(("before", "after"), [("<tool_call>", "</tool_call>"), ('a "b" \\', "ü")])
@pytest.mark.parametrize("seed", range(4))
def test_between_marks(before: str, after: str, seed: int) -> None:
    """Whether they are tokens or not."""
    lines = drawn(grammars().between(before, SCHEMA, after, "\n"), seed).split("\n")
    assert (lines[0], lines[-1]) == (before, after)
    assert json.loads("\n".join(lines[1:-1]))["kind"] in ("hello", "ü")


@pytest.mark.parametrize("seed", range(3))
def test_pieces_of_sentences(seed: int) -> None:
    """Tokens that are bytes by name and words that begin with ▁."""
    tokens = sentence_pieces()
    end = tokens.id_of("</s>")
    assert end is not None
    grammar = Grammars(tokens, len(tokens), [end]).schema({"enum": ["hello w", "ü"]})
    assert drawn(grammar, seed, tokens, end) in ('"hello w"', '"ü"')


def test_tokenizers_without_grammars() -> None:
    words = json.loads(sentence_pieces().data)
    words["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    with pytest.raises(InputError, match="with this tokenizer"):
        Grammars(Tokenizer(json.dumps(words).encode()), len(sentence_pieces()), [2])
    with pytest.raises(InputError, match="without a token that ends"):
        Grammars(tokenizer(), len(tokenizer()), [])


def test_masks_follow_the_text() -> None:
    grammar = grammars().schema({"const": "hello"})
    for token in [*ids('"hello"'), END]:
        assert token is not None
        assert allowed(grammar.bits())[token]
        grammar.accept(token)


def test_a_vocabulary_with_more_logits_than_tokens() -> None:
    assert END is not None
    wide = Grammars(tokenizer(), len(tokenizer()) + 100, [END]).schema(SCHEMA)
    bits = wide.bits()
    assert bits.shape == ((len(tokenizer()) + 100 + 31) // 32,)
    assert not allowed(bits)[len(tokenizer()) :].any()


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "objekt"}, "Invalid type: objekt"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        ({"not": {"type": "string"}}, "not"),
        ({"type": "object", "properties": 3}, "properties must be an object"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "nothing can follow"),
    ],
)
def test_schemas_that_cannot_be_kept_to(schema: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        grammars().schema(schema)


@pytest.mark.parametrize("grammar", ["", "x", "root = y", "root ::= (", "root ::= missing"])
def test_wrong_grammars(grammar: str) -> None:
    with pytest.raises(InputError, match=r"grammar is wrong|can't be kept to"):
        grammars().rules(grammar)


def test_a_token_that_may_not_come() -> None:
    grammar = grammars().schema(SCHEMA)
    with pytest.raises(EdgeRelaxError, match="grammar"):
        grammar.accept(ids("hello")[0])
