"""What the official client gets from a server of a small random model."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import Any

import httpx
import openai
import pytest

from edgerelax.chat.load import LoadedChat
from edgerelax.chat.openai import CompletionRequest, convert
from edgerelax.serve.server import Limits
from tests.chat.holding import BEGUN, held, is_given_up
from tests.serve.conftest import PATIENCE, serving, wait_until_idle
from tests.waiting import wait_until

MODEL = "small"
HELLO: Any = [{"role": "user", "content": "hello"}]
GREEDY: Any = {"temperature": 0, "extra_body": {"ignore_eos": True}}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"hot": {"type": "boolean"}},
            "required": ["hot"],
            "additionalProperties": False,
        },
    },
}


def test_a_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "messages": HELLO, "max_tokens": 12, **GREEDY}
    whole = client.chat.completions.create(**asked)
    assert whole.usage is not None and whole.usage.completion_tokens == 12
    assert whole.choices[0].finish_reason == "length"
    stream = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"


def test_completions_logprobs_and_stop(client: openai.OpenAI) -> None:
    asked: Any = {"model": MODEL, "prompt": "hello", "max_tokens": 12, **GREEDY}
    whole = client.completions.create(**asked, logprobs=2).choices[0]
    assert whole.logprobs is not None and whole.logprobs.token_logprobs is not None
    assert all(value is not None and value <= 0 for value in whole.logprobs.token_logprobs)
    streamed = client.completions.create(**asked, stream=True)
    assert "".join(c.choices[0].text for c in streamed) == whole.text
    stop = next(c for c in whole.text if c.isalnum() or c.isprintable())
    cut = client.completions.create(**asked, stop=stop).choices[0]
    assert cut.text == whole.text.partition(stop)[0] and cut.finish_reason == "stop"


def test_tools_and_schemas(client: openai.OpenAI) -> None:
    called = client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER], tool_choice="required", max_tokens=500, seed=1
    )
    (call,) = called.choices[0].message.tool_calls or ()
    assert call.type == "function" and call.function.name == "weather"
    assert isinstance(json.loads(call.function.arguments)["hot"], bool)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, response_format=wanted, max_tokens=500, seed=1
    )
    assert json.loads(answer.choices[0].message.content or "")["a"] in (1, 2)


@pytest.mark.parametrize(
    ("fields", "kind", "param", "code"),
    [
        ({"model": "other"}, openai.NotFoundError, "model", "model_not_found"),
        ({"temperature": 3}, openai.BadRequestError, "temperature", None),
        ({"messages": []}, openai.BadRequestError, "messages", None),
        ({"extra_body": {"nosuch": 1}}, openai.BadRequestError, "nosuch", None),
        (
            {"messages": [{"role": "user", "content": "x" * 1100}], "stream": True},
            openai.BadRequestError,
            "messages",
            "context_length_exceeded",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 70_000}]},
            openai.APIStatusError,
            None,
            "request_too_large",
        ),
    ],
)
def test_errors(
    client: openai.OpenAI, fields: Any, kind: type[openai.APIStatusError], param: str, code: str
) -> None:
    with pytest.raises(kind) as failure:
        client.chat.completions.create(**{"model": MODEL, "messages": HELLO, **fields})
    body = failure.value.body
    assert isinstance(body, dict) and (body["param"], body["code"]) == (param, code)
    assert body["message"]


def test_embeddings_of_a_model_that_has_none(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model=MODEL, input="hello")


def get(address: str, path: str) -> httpx.Response:
    return httpx.get(f"{address}/{path}", timeout=PATIENCE)


def test_models_health_and_what_is_not_there(client: openai.OpenAI, address: str) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    assert get(address, "health").json() == {"status": "ok"}
    for path in ("v1/nosuch", "v1/completions"):
        answer = get(address, path)
        assert answer.status_code in (404, 405) and answer.json()["error"]["code"] == "not_found"
    broken = httpx.post(f"{address}/v1/completions", content=b"{", timeout=PATIENCE)
    assert broken.status_code == 400 and "not JSON" in broken.json()["error"]["message"]


def test_fifty_at_once_lose_nothing(client: openai.OpenAI, chat: LoadedChat) -> None:
    """Half of them streamed; each gets what it gets when it is alone."""
    prompts = ["hello " + chr(97 + k % 26) * (1 + k // 26) for k in range(50)]
    alone = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 6}
    wanted = {
        p: chat.complete(convert({"prompt": p, **alone}, CompletionRequest)).choices[0].text
        for p in prompts[::7]
    }

    def ask(k: int) -> tuple[str, str | None]:
        asked: Any = {"model": MODEL, "prompt": prompts[k], "max_tokens": 6, **GREEDY}
        if k % 2:
            found = client.completions.create(**asked).choices[0]
            return found.text, found.finish_reason
        chunks = list(client.completions.create(**asked, stream=True))
        return "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason

    with ThreadPoolExecutor(50) as threads:
        found = list(threads.map(ask, range(50)))
    assert {reason for _, reason in found} == {"length"}
    assert {p: text for p, (text, _) in zip(prompts, found, strict=True) if p in wanted} == wanted
    wait_until_idle(chat)


def figures(address: str) -> dict[str, float]:
    lines = get(address, "metrics").text.splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def wait_until_answered(address: str) -> None:
    """Until all answers are counted: who has an answer may ask for figures before that."""
    wait_until(
        lambda: figures(address)["edgerelax_requests_in_progress"] == 0, "an answer is never over"
    )


@contextmanager
def asking(address: str, body: dict[str, Any]) -> Iterator[HTTPConnection]:
    """A client that has asked for a completion, and goes when this ends."""
    with closing(HTTPConnection(address.removeprefix("http://"))) as connection:
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
        )
        yield connection


@pytest.mark.parametrize("stream", (True, False))
def test_a_client_that_goes_frees_its_pages(address: str, chat: LoadedChat, stream: bool) -> None:
    engine = chat.paged
    assert engine is not None
    wait_until_answered(address)
    gone = figures(address)["edgerelax_cancelled_total"]
    body = {"prompt": "hello", "max_tokens": 200, "ignore_eos": True, "stream": stream}
    with held(engine):
        with asking(address, body) as connection:
            if stream:
                assert connection.getresponse().readline().startswith(b"data: ")
            wait_until(lambda: engine.load.pages_used > 0, "the text never begins")
        wait_until(lambda: is_given_up(engine), "the server goes on for nobody")
    wait_until_idle(chat)
    wait_until_answered(address)
    assert figures(address)["edgerelax_cancelled_total"] == gone + 1


def test_metrics(client: openai.OpenAI, address: str, chat: LoadedChat) -> None:
    client.completions.create(model=MODEL, prompt="hello", max_tokens=3)
    wait_until_answered(address)
    found = figures(address)
    assert found['edgerelax_tokens_total{kind="generated"}'] > 0
    assert found['edgerelax_requests_total{path="/v1/completions",status="200"}'] > 0
    assert found["edgerelax_time_to_first_token_seconds_count"] > 0
    assert found["edgerelax_cache_pages"] == 64
    assert found["edgerelax_queue_length"] == 0


def test_a_full_queue_keys_and_origins(chat: LoadedChat) -> None:
    assert chat.paged is not None
    limits, page = Limits(texts=1, waiting=1), "https://page.example"
    with serving(chat, limits, (page,), "secret") as address:
        body = {"prompt": "hello", "max_tokens": 200, "ignore_eos": True, "stream": True}
        refused = httpx.post(f"{address}/v1/completions", json=body, timeout=PATIENCE)
        assert refused.status_code == 401
        assert refused.json()["error"]["code"] == "invalid_api_key"
        assert get(address, "health").status_code == 200
        key = {"authorization": "Bearer secret", "origin": page}
        with httpx.Client(base_url=address, headers=key, timeout=PATIENCE) as client:
            one = client.stream("POST", "/v1/completions", json=body)
            two = client.stream("POST", "/v1/completions", json=body)
            with held(chat.paged), one as first, two as second:
                assert first.headers["access-control-allow-origin"] == page
                assert second.status_code == 200
                full = client.post("/v1/completions", json=body)
            assert full.status_code == 429 and int(full.headers["retry-after"]) >= 1
            assert full.json()["error"]["type"] == "rate_limit_error"
    wait_until_idle(chat)


def test_a_failure_in_the_middle_is_told(
    client: openai.OpenAI, chat: LoadedChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = chat.paged
    assert engine is not None
    run = engine._run

    def run_for_a_while(role: str, **inputs: Any) -> Any:
        if any(text.generated >= BEGUN for text in engine._active):
            raise ZeroDivisionError
        return run(role, **inputs)

    asked: Any = {"model": MODEL, "prompt": "hello", "max_tokens": 200, **GREEDY}
    monkeypatch.setattr(engine, "_run", run_for_a_while)
    parts = iter(client.completions.create(**asked, stream=True))
    assert next(parts).choices
    with pytest.raises(openai.APIError, match="the server failed"):
        list(parts)
    monkeypatch.undo()
    assert client.completions.create(**{**asked, "max_tokens": 3}).usage is not None
    wait_until_idle(chat)
