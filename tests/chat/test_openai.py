"""Requests from strangers: what is wrong is said by the name of the field."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.chat.openai import (
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RequestError,
    convert,
    read,
    texts_of,
)
from tests.chat.fakes import body

FULL: dict[str, Any] = body(
    model="m", stream=True, stream_options={"include_usage": True}, max_tokens=5,
    max_completion_tokens=6, temperature=0.5, top_p=0.9, top_k=40, min_p=0.05,
    repetition_penalty=1.1, presence_penalty=-1, frequency_penalty=2, logit_bias={"5": -100},
    seed=7, stop=["a", "b"], n=2, user="me", logprobs=True, top_logprobs=3,
    tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    tool_choice={"type": "function", "function": {"name": "f"}}, parallel_tool_calls=False,
    response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    chat_template_kwargs={"enable_thinking": False}, store=False, metadata={}, service_tier="auto",
)  # fmt: skip


def test_everything() -> None:
    request = read(msgspec.json.encode(FULL), ChatRequest)
    assert request.stops == ["a", "b"]
    assert request.logit_bias == {"5": -100}
    assert convert(FULL, ChatRequest) == request


def test_what_is_null_is_not_given() -> None:
    nulls = {key: None for key in FULL if key not in ("messages", "model")}
    assert convert({**body(), **nulls}, ChatRequest) == convert(
        {**body(), "stream": None}, ChatRequest
    )


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "length >= 1"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing"),
    ({"messages": [{"role": "robot"}]}, "messages[0].role", "robot"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
     "messages[0].content[0].type", "input_audio"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
     "messages[0].content[0].image_url.url", "missing"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "int"),
    ({"temprature": 1}, "temprature", "unknown field"),
    ({"temperature": "hot"}, "temperature", "got `str`"),
    ({"temperature": 2.5}, "temperature", "<= 2"),
    ({"top_p": -0.1}, "top_p", ">= 0"),
    ({"max_tokens": 0}, "max_tokens", ">= 1"),
    ({"max_tokens": 1.5}, "max_tokens", "int"),
    ({"n": 99}, "n", "<= 16"),
    ({"stop": [1]}, "stop[0]", "str"),
    ({"top_logprobs": 21}, "top_logprobs", "<= 20"),
    ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools[0].type", "retrieval"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ({"ignore_eos": None}, "ignore_eos", "bool"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "param", "said"), FAULTS)
def test_faults(change: dict[str, Any], param: str, said: str) -> None:
    for ask in (
        lambda: read(msgspec.json.encode({**body(), **change}), ChatRequest),
        lambda: convert({**body(), **change}, ChatRequest),
    ):
        with pytest.raises(RequestError) as caught:
            ask()
        assert caught.value.param == param
        assert said in caught.value.message and param in caught.value.message
        assert caught.value.code == "request"


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b"3", b"null", b'{"a": NaN}'])
def test_what_is_no_request(data: bytes) -> None:
    with pytest.raises(RequestError):
        read(data, ChatRequest)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(FULL)),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats()
        | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=4,
    ),
)
def test_any_value_anywhere(field: str, value: Any) -> None:
    try:
        convert({**FULL, field: value}, ChatRequest)
    except RequestError as error:
        assert error.param.startswith(field), error


def test_texts() -> None:
    def texts(prompt: Any) -> list[str | list[int]]:
        return texts_of(convert({"prompt": prompt}, CompletionRequest).prompt, "prompt")

    assert texts("a") == ["a"]
    assert texts(["a", "b"]) == ["a", "b"]
    assert texts([1, 2]) == [[1, 2]]
    assert texts([[1], [2, 3]]) == [[1], [2, 3]]
    for wrong in ([], [1, "a"], ["a", [1]], [[1], 2], 3, None, [-1], [[1.5]], {}):
        with pytest.raises(RequestError) as caught:
            texts(wrong)
        assert caught.value.param.startswith("prompt")
    with pytest.raises(RequestError, match="input: expected texts"):
        texts_of(convert({"input": []}, EmbeddingRequest).input, "input")
