"""Calls of tools in what models write, however it is cut into pieces: tool_calls.json has them."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from edgerelax.chat.tools import (
    BARE,
    MARKED,
    BareCalls,
    Called,
    CallFormat,
    Reader,
    format_of,
    reader,
    schema_of,
)
from tests.chat.fakes import CHATML, TAGGED

HERMES, PHI, MISTRAL = MARKED
CASES: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("tool_calls.json").read_text(encoding="utf-8")
)
"""What the tests of runtime-js read too. Arguments that are text stand for themselves."""


def read(made: Reader, text: str, seed: int) -> tuple[str, list[Called]]:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(len(text)), min(len(text), rng.randint(0, 20))))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    parts = [part for piece in pieces for part in made.push(piece)]
    parts += made.finish()
    calls = [part for part in parts if isinstance(part, Called)]
    return "".join(part for part in parts if isinstance(part, str)), calls


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_is_read(case: dict[str, Any]) -> None:
    form = format_of(case["template"])
    for seed in range(20):
        content, calls = read(reader(form, {"look", "ring"}), case["text"], seed)
        assert content == case["content"]
        assert [call.name for call in calls] == [name for name, _ in case["calls"]]
        for call, (_, arguments) in zip(calls, case["calls"], strict=True):
            is_text = isinstance(arguments, str)
            assert (call.arguments if is_text else json.loads(call.arguments)) == arguments


def test_text_among_calls_comes_at_once() -> None:
    made = reader(HERMES, [])
    assert list(made.push("a < b <")) == ["a < b "]
    assert list(made.push("tool")) == []
    assert list(made.push("s>")) == ["<tools>"]


def test_formats() -> None:
    assert (format_of(TAGGED), format_of(CHATML)) == (HERMES, BARE)
    assert PHI.marks == ("<|tool_call|>", "<|/tool_call|>") and BARE.marks == ("<|python_tag|>",)


@pytest.mark.parametrize("form", [*MARKED, BARE])
def test_schemas(form: CallFormat) -> None:
    schema = schema_of([("find", {"type": "object", "required": ["q"]}), ("now", {})], form)
    first, second = (schema["items"] if form.is_list else schema)["anyOf"]
    assert first["properties"]["name"] == {"const": "find"}
    assert first["properties"][form.key]["required"] == ["q"]
    assert second["properties"][form.key] == {"type": "object"}
    alone = schema_of([("now", {})], form)
    assert (alone["items"] if form.is_list else alone) == second


def test_a_call_of_great_depth_is_text() -> None:
    text = "[" * 100_000
    assert read(BareCalls(BARE, {"now"}), text, 0) == (text, [])
