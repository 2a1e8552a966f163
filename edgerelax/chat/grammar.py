"""Which tokens may come next where an answer keeps to a schema or grammar: llguidance's masks."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from edgerelax.chat.tokenizer import Tokenizer
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError

_BETWEEN = r"[\x20\x0A\x0D\x09]{1,32}"
"""White space between JSON's parts. Bounded: small models can go on with it for ever."""


class Grammar:
    """The tokens that may come next, as `engine.TokenMask` has it."""

    def __init__(self, matcher: LLMatcher, words: int) -> None:
        self._matcher, self._words = matcher, words

    def bits(self) -> NDArray[np.uint32]:
        """[vocabulary / 32, rounded up]: a bit for each token that may come next.

        Raises InputError where none may.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        if self._matcher.is_error():
            raise InputError(f"the grammar leads to where nothing can follow: {self._fault}")
        return bits[: self._words]

    def accept(self, token: int) -> None:
        """Go on behind this token. Raises EdgeRelaxError for one that may not come."""
        self._matcher.consume_token(token)
        if self._matcher.is_error():
            raise EdgeRelaxError(f"the grammar can't go on: {self._fault}")

    @property
    def _fault(self) -> str:
        """What the library says, without its state."""
        return self._matcher.get_error().partition("\n")[0]


class Grammars:
    """Grammars over a model's tokens. `vocabulary` is how many logits it has, `ends` its ends."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: int, ends: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._words = (vocabulary + 31) // 32
        count = max(vocabulary, len(tokenizer))
        if not ends:
            raise InputError("without a token that ends a text no grammar can be kept to")
        try:
            self._tokens = LLTokenizer(tokenizer.data.decode(), n_vocab=count, eos_token=list(ends))
        except ValueError as error:
            raise InputError(f"no grammar can be kept to with this tokenizer: {error}") from error

    def schema(self, schema: Mapping[str, Any]) -> Grammar:
        """JSON that a schema describes. Raises InputError for a schema that can't be kept to."""
        return self._grammar(LLMatcher.grammar_from_json_schema(json.dumps(_bounded(schema))))

    def rules(self, grammar: str) -> Grammar:
        """What the rule `root` of a grammar in GBNF gives. Raises InputError for a wrong one."""
        try:
            rules = gbnf_to_lark(grammar)
        except Exception as error:  # the library raises no narrower class for all of its faults
            raise InputError(f"the grammar is wrong: {error}") from error
        return self._grammar(LLMatcher.grammar_from_lark(rules))

    def between(self, before: str, schema: Mapping[str, Any], after: str, space: str) -> Grammar:
        """JSON that a schema describes, between two marks with space before and behind it."""
        inner = f"%json {json.dumps(_bounded(schema))}"
        parts = [self._mark(before), json.dumps(space), inner, json.dumps(space), self._mark(after)]
        given = " ".join(part for part in parts if part != '""')
        return self._grammar(LLMatcher.grammar_from_lark(f"start: {given}"))

    def _mark(self, text: str) -> str:
        """As a token where it is one by itself: the library then knows it by no other way."""
        token = self._tokenizer.id_of(text)
        if token is not None and self._tokens.is_special_token(token):
            return f"<[{token}]>"
        return json.dumps(text)

    def _grammar(self, grammar: str) -> Grammar:
        wrong, said = LLMatcher.validate_grammar_with_warnings(grammar, self._tokens)
        if wrong:
            raise InputError(f"it can't be kept to: {'; '.join(said)}")
        made = Grammar(LLMatcher(self._tokens, grammar, log_level=0), self._words)
        made.bits()  # a grammar of no text at all is told here
        return made


def _bounded(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {**schema, "x-guidance": {"whitespace_pattern": _BETWEEN}}
