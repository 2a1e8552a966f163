"""Calls of tools in what models write, however it is cut into pieces."""

import json
import random
from typing import Any

import pytest

from edgerelax.chat.tools import BareCalls, Called, TaggedCalls, form_of, reader, schema_of
from tests.chat.fakes import CHATML, TAGGED

ONE = '<tool_call>\n{"name": "find", "arguments": {"q": "é < 3"}}\n</tool_call>'
TWO = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
CALL = Called("find", '{"q": "é < 3"}')
NOW = Called("now", "{}")


def read(made: TaggedCalls | BareCalls, text: str, seed: int) -> tuple[str, list[Called]]:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(len(text)), min(len(text), rng.randint(0, 20))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    parts = [part for piece in pieces for part in made.push(piece)]
    parts += made.finish()
    calls = [part for part in parts if isinstance(part, Called)]
    return "".join(part for part in parts if isinstance(part, str)), calls


TAGS: list[tuple[str, str, list[Called]]] = [
    (ONE, "", [CALL]),
    (f"Let me look.\n{ONE}\n{TWO}\n", "Let me look.\n", [CALL, NOW]),
    (f"{TWO} and then {ONE}", " and then ", [NOW, CALL]),
    (ONE.removesuffix("</tool_call>"), "", [CALL]),
    ("just <text> with <tool_", "just <text> with <tool_", []),
    ("<tool_call>oops</tool_call> so", "<tool_call>oops</tool_call> so", []),
    ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
    ("<tool_call>{", "<tool_call>{", []),
    ("", "", []),
]


@pytest.mark.parametrize(("text", "content", "calls"), TAGS)
def test_tagged(text: str, content: str, calls: list[Called]) -> None:
    for seed in range(20):
        assert read(TaggedCalls(), text, seed) == (content, calls)


def test_tagged_text_comes_at_once() -> None:
    made = TaggedCalls()
    assert list(made.push("a < b <")) == ["a < b "]
    assert list(made.push("tool")) == []
    assert list(made.push("s>")) == ["<tools>"]


BARE: list[tuple[str, str, list[Called]]] = [
    ('{"name": "find", "parameters": {"q": "é < 3"}}', "", [CALL]),
    ('\n{"name": "now", "arguments": {}};{"name": "find", "parameters": {"q": "é < 3"}}', "",
     [NOW, CALL]),
    ('[{"name": "now"}, {"name": "now", "parameters": {}}]', "", [NOW, NOW]),
    ('{"name": "other", "parameters": {}}', '{"name": "other", "parameters": {}}', []),
    ('{"name": "now"} and more', '{"name": "now"} and more', []),
    ('{"answer": 3}', '{"answer": 3}', []),
    ('It is {"name": "now"}', 'It is {"name": "now"}', []),
    ("[1, 2", "[1, 2", []),
    ("", "", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "calls"), BARE)
def test_bare(text: str, content: str, calls: list[Called]) -> None:
    for seed in range(20):
        assert read(BareCalls({"find", "now"}), text, seed) == (content, calls)


def test_forms() -> None:
    assert (form_of(TAGGED), form_of(CHATML)) == ("tagged", "bare")
    assert isinstance(reader("tagged", []), TaggedCalls)
    assert isinstance(reader("bare", []), BareCalls)


@pytest.mark.parametrize(("form", "key"), [("tagged", "arguments"), ("bare", "parameters")])
def test_schemas(form: Any, key: str) -> None:
    schema = schema_of([("find", {"type": "object", "required": ["q"]}), ("now", {})], form)
    first, second = schema["anyOf"]
    assert first["properties"]["name"] == {"const": "find"}
    assert first["properties"][key]["required"] == ["q"]
    assert second["properties"][key] == {"type": "object"}
    assert schema_of([("now", {})], form) == second


def test_a_call_of_great_depth_is_text() -> None:
    text = "[" * 100_000
    assert read(BareCalls({"now"}), text, 0) == (text, [])
    assert json.loads(CALL.arguments) == {"q": "é < 3"}
