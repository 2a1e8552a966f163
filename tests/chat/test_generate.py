"""From requests to answers, with an engine that writes what the test says."""

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from edgerelax.chat.generate import Chat
from edgerelax.chat.openai import (
    ChatChunk,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    RequestError,
    convert,
)
from edgerelax.chat.template import ChatTemplate
from edgerelax.chat.text import Text
from edgerelax.chat.tokenizer import Tokenizer
from tests.chat.fakes import (
    CHATML,
    END,
    TAGGED,
    Scripted,
    Wild,
    body,
    chat,
    engine_of,
    ids,
    text,
    tokenizer,
    tokenizer_json,
)

FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "description": None,
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object",
       "properties": {}, "additionalProperties": False}}}  # fmt: skip
LOGGED = json.loads(Path(__file__).with_name("logprobs.json").read_text(encoding="utf-8"))
CALL = '<tool_call>\n{"name": "find", "arguments": {"n": 3}}\n</tool_call>'


def ask(made: Chat, **fields: Any) -> Any:
    return made.chat(convert(body(**fields), ChatRequest))


def stream(made: Chat, **fields: Any) -> list[ChatChunk]:
    return list(made.stream_chat(convert(body(**fields), ChatRequest)))


def complete(made: Chat, prompt: Any, **fields: Any) -> Any:
    return made.complete(convert({"prompt": prompt, **fields}, CompletionRequest))


def embed(made: Chat, given: Any, **fields: Any) -> Any:
    return made.embed(convert({"input": given, **fields}, EmbeddingRequest))


class TestChat:
    def test_an_answer(self) -> None:
        made = chat("hello wörld 漢<|im_end|>never")
        answer = ask(made)
        (choice,) = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("hello wörld 漢", "stop")
        (asked,) = engine_of(made).asked
        prompt = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        assert asked[0] == ids(prompt)
        assert answer.usage.prompt_tokens == len(ids(prompt))
        assert answer.usage.completion_tokens == len(ids("hello wörld 漢<|im_end|>"))
        assert answer.usage.total_tokens == sum(
            (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        )
        assert answer.timings.first_token > 0 and answer.timings.tokens_per_second > 0
        assert answer.model == "fake" and answer.id.startswith("chatcmpl-")
        assert engine_of(made).streams[0].closed

    def test_a_stream(self) -> None:
        chunks = stream(chat("hello 漢<|im_end|>"), stream_options={"include_usage": True})
        assert chunks[0].choices[0].delta.role == "assistant"
        deltas = [c.choices[0].delta.content for c in chunks[1:-2]]
        assert deltas == ["hello", " ", "漢"]
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 6
        assert len({c.id for c in chunks}) == 1
        lines = [json.loads(msgspec.json.encode(c)) for c in chunks]
        assert lines[1]["choices"] == [
            {"index": 0, "delta": {"content": "hello"}, "finish_reason": None, "logprobs": None}
        ]
        assert lines[1]["usage"] is None and lines[1]["object"] == "chat.completion.chunk"

    def test_without_usage(self) -> None:
        chunks = stream(chat("hello<|im_end|>"))
        assert all(c.choices for c in chunks)
        assert "usage" not in json.loads(msgspec.json.encode(chunks[-1]))

    @pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
    def test_length(self, name: str) -> None:
        made = chat("hello hello hello")
        answer = ask(made, **{name: 2})
        assert answer.choices[0].message.content == "hello "
        assert answer.choices[0].finish_reason == "length"
        assert engine_of(made).asked[0][1].max_tokens == 2
        assert answer.usage.completion_tokens == 2

    def test_a_full_context(self) -> None:
        """The engine ends where there is no more room; so it is said."""
        prompt = len(ids("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"))
        made = chat("hello" * 50, context=prompt + 3)
        answer = ask(made, max_tokens=1000)
        assert answer.choices[0].message.content == "hello" * 3
        assert answer.choices[0].finish_reason == "length"
        with pytest.raises(
            RequestError, match=rf"{prompt} tokens, and the model takes 5"
        ) as caught:
            ask(chat("hello", context=5))
        assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")

    def test_an_engine_that_ends_early(self) -> None:
        answer = ask(chat("hello"), max_tokens=100)
        assert answer.choices[0].finish_reason == "length"

    @pytest.mark.parametrize("stop", ["w\u00f6r", ["zzz", "w\u00f6r"], [" wörld"]])
    def test_stop_strings(self, stop: Any) -> None:
        made = chat("hello wörld and more<|im_end|>")
        answer = ask(made, stop=stop)
        assert answer.choices[0].message.content.rstrip() == "hello"
        assert answer.choices[0].finish_reason == "stop"
        assert engine_of(made).streams[0].closed

    def test_the_beginning_of_a_stop_string(self) -> None:
        """Text again where the answer ends before the string is whole."""
        assert ask(chat("hello w<|im_end|>"), stop="world").choices[0].message.content == "hello w"
        answer = ask(chat("hello wo"), stop="world", max_tokens=3)
        assert answer.choices[0].message.content == "hello wo"

    def test_ends_that_are_ignored(self) -> None:
        answer = ask(chat("he<|im_end|>ll"), ignore_eos=True, max_tokens=3)
        assert answer.choices[0].message.content == "hell"

    def test_several_answers(self) -> None:
        made = chat("hello<|im_end|>", "he<|im_end|>", "ll<|im_end|>")
        answer = ask(made, n=3, seed=5)
        assert [c.message.content for c in answer.choices] == ["hello", "he", "ll"]
        assert [c.index for c in answer.choices] == [0, 1, 2]
        assert [asked.seed for _, asked in engine_of(made).asked] == [5, 6, 7]
        assert answer.usage.completion_tokens == 6

    def test_closed_early(self) -> None:
        made = chat("hello" * 100)
        chunks = made.stream_chat(convert(body(), ChatRequest))
        assert [next(chunks).choices[0].delta.content for _ in range(3)] == ["", "hello", "hello"]
        assert not engine_of(made).streams[0].closed
        chunks.close()
        assert engine_of(made).streams[0].closed
        assert ask(made, max_tokens=1).choices[0].message.content == "hello"

    def test_an_engine_that_fails(self) -> None:
        """What was written stands, the stream is closed, and the next request is answered."""
        made = chat([*ids("hello"), "no token"], ids("he"))  # type: ignore[list-item]
        chunks = made.stream_chat(convert(body(), ChatRequest))
        assert [next(chunks).choices[0].delta.content for _ in range(2)] == ["", "hello"]
        with pytest.raises(TypeError):
            next(chunks)
        assert engine_of(made).streams[0].closed
        assert ask(made, max_tokens=1).choices[0].message.content == "he"

    def test_sampling(self) -> None:
        made = chat("hello<|im_end|>")
        ask(made, temperature=0.3, top_p=0.8, top_k=7, min_p=0.1, repetition_penalty=1.2,
            presence_penalty=0.5, frequency_penalty=-0.5, seed=3, logit_bias={"2": 5})  # fmt: skip
        ((_, sampling),) = engine_of(made).asked
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.3, 0.8, 7)
        assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0.1, 1.2, 3)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
        assert sampling.logit_bias == {2: 5} and sampling.logprobs is None
        ask(made)
        (_, plain) = engine_of(made).asked[1]
        assert (plain.temperature, plain.top_p, plain.top_k) == (1, 1, 0)
        assert plain.max_tokens == 4096 - len(engine_of(made).asked[1][0])

    def test_messages(self) -> None:
        made = chat("<|im_end|>")
        messages = [
            {"role": "developer", "content": "be kind"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "y"}],
            },
        ]
        assert ask(made, messages=messages).choices[0].message.content == ""
        ((prompt, _),) = engine_of(made).asked
        assert tokenizer().decode(prompt, special=True) == (
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhey<|im_end|>\n"
            "<|im_start|>assistant\n"
        )

    def test_arguments_of_earlier_calls_are_objects(self) -> None:
        template = "{% for m in messages %}{{ m.tool_calls[0].function.arguments.n }}{% endfor %}"
        made = chat("<|im_end|>", template=template)
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"n": 4}'}}
        messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        ask(made, messages=messages)
        assert engine_of(made).asked[0][0] == ids("4")
        for wrong in ("{n", "[" * 50_000):
            call["function"]["arguments"] = wrong  # type: ignore[index]
            with pytest.raises(RequestError) as caught:
                ask(made, messages=messages)
            assert caught.value.param == "messages[0].tool_calls[0].function.arguments"

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"top_logprobs": 2}, "top_logprobs"),
            ({"logit_bias": {"hello": 1}}, "logit_bias"),
            ({"logit_bias": {"99999": 1}}, "logit_bias"),
            ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"tools": [FIND], "tool_choice": {"function": {"name": "x"}}}, "tool_choice"),
            ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
            ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
             "response_format.json_schema.schema"),
            ({"response_format": {"type": "grammar"}}, "response_format.grammar"),
            ({"response_format": {"type": "grammar", "grammar": "x"}}, "response_format"),
            ({"response_format": {"type": "json_object"}, "tools": [FIND]}, "response_format"),
            ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
             "response_format"),
        ],
    )  # fmt: skip
    def test_what_contradicts_itself(self, fields: dict[str, Any], param: str) -> None:
        """Refused before anything is generated, and at once: not with the first chunk."""
        made = chat("hello<|im_end|>")
        with pytest.raises(RequestError) as caught:
            made.stream_chat(convert(body(**fields), ChatRequest))
        assert caught.value.param == param
        assert engine_of(made).asked == []

    def test_a_template_that_fails(self) -> None:
        """The request is to blame, and the next one is answered."""
        template = "{% if messages | length > 1 %}{{ raise_exception('one only') }}{% endif %}x"
        made = chat("hello<|im_end|>", template=template)
        two = [{"role": "user", "content": "a"}] * 2
        with pytest.raises(RequestError, match="messages: the chat template failed: one only"):
            ask(made, messages=two)
        assert ask(made).choices[0].message.content == "hello"


class TestLogprobs:
    def test_of_a_chat(self) -> None:
        answer = ask(chat("hello漢<|im_end|>"), logprobs=True, top_logprobs=2)
        content = answer.choices[0].logprobs.content
        assert b"".join(bytes(one.bytes) for one in content).decode() == "hello漢"
        assert [one.logprob for one in content] == [-0.5, -1.5, -2.5, -3.5]
        assert content[0].token == "hello"
        assert [t.logprob for t in content[0].top_logprobs] == [-0.5, -3.0]

    @pytest.mark.parametrize("case", LOGGED, ids=lambda case: case["name"])
    def test_are_of_the_answers_tokens(self, case: dict[str, Any]) -> None:
        script = [token for piece in case["written"] for token in ids(piece)]
        fields: Any = {"logprobs": True, "stop": case["stop"]}
        whole = ask(chat(script), **fields).choices[0]
        assert whole.message.content == case["content"]
        assert [one.token for one in whole.logprobs.content] == case["tokens"]
        plain = complete(chat(script), "he", logprobs=0, stop=case["stop"])
        assert plain.choices[0].logprobs.tokens == case["tokens"]

    def test_none_but_asked_for(self) -> None:
        assert ask(chat("hello<|im_end|>")).choices[0].logprobs is None
        answer = ask(chat("hello<|im_end|>"), logprobs=True)
        assert answer.choices[0].logprobs.content[0].top_logprobs == []

    def test_of_a_completion(self) -> None:
        answer = complete(chat("hello漢 w<|im_end|>"), "he", logprobs=1)
        found = answer.choices[0].logprobs
        assert found.text_offset == [0, 5, 5, 5, 6]
        assert found.tokens[0] == "hello" and found.tokens[-1] == " w"
        assert found.token_logprobs[1] == -1.5
        assert found.top_logprobs[0] == {"hello": -0.5}


class TestTools:
    def test_a_call(self) -> None:
        made = chat(f"Wait.\n{CALL}<|im_end|>", template=TAGGED)
        answer = ask(made, tools=[FIND, NOW])
        (choice,) = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("Wait.\n", "tool_calls")
        (call,) = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("find", {"n": 3})
        assert call.id.startswith("call_") and call.type == "function"
        plain = json.loads(msgspec.json.encode(answer))["choices"][0]["message"]["tool_calls"][0]
        assert sorted(plain) == ["function", "id", "type"]
        prompt = tokenizer().decode(engine_of(made).asked[0][0], special=True)
        assert '{"type": "function", "function": {"name": "find", "parameters"' in prompt

    def test_in_a_stream(self) -> None:
        made = chat(f"{CALL}\n{CALL}<|im_end|>", template=TAGGED)
        chunks = stream(made, tools=[FIND])
        calls = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()]
        assert [call.index for call in calls] == [0, 1]
        assert len({call.id for call in calls}) == 2
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert not any(chunk.choices[0].delta.content for chunk in chunks)

    def test_one_call_at_most(self) -> None:
        made = chat(f"{CALL}\n{CALL}<|im_end|>", template=TAGGED)
        answer = ask(made, tools=[FIND], parallel_tool_calls=False)
        assert len(answer.choices[0].message.tool_calls) == 1
        assert answer.usage.completion_tokens == len(ids(CALL))

    def test_the_other_form(self) -> None:
        script = '{"name": "find", "parameters": {"n": 3}}<|im_end|>'
        answer = ask(chat(script), tools=[FIND])
        assert answer.choices[0].message.content is None
        assert answer.choices[0].message.tool_calls[0].function.arguments == '{"n": 3}'

    @pytest.mark.parametrize("fields", [{}, {"tools": [FIND], "tool_choice": "none"}])
    def test_text_where_there_are_no_tools(self, fields: dict[str, Any]) -> None:
        made = chat(f"{CALL}<|im_end|>", template=TAGGED)
        answer = ask(made, **fields)
        assert answer.choices[0].message.content == CALL
        assert answer.choices[0].finish_reason == "stop"
        assert "find" not in tokenizer().decode(engine_of(made).asked[0][0])

    @pytest.mark.parametrize("template", ["tagged", "bare"])
    @pytest.mark.parametrize("seed", range(4))
    def test_calls_that_have_to_be(self, template: str, seed: int) -> None:
        """A model that knows nothing calls one of the tools, with arguments that fit."""
        made = Chat(text(TAGGED) if template == "tagged" else text(), Wild(seed))
        for choice, names in (
            ("required", {"find", "now"}),
            ({"type": "function", "function": {"name": "find"}}, {"find"}),
        ):
            answer = ask(made, tools=[FIND, NOW], tool_choice=choice)
            (called,) = answer.choices[0].message.tool_calls
            assert called.function.name in names
            arguments = json.loads(called.function.arguments)
            assert arguments == {} if called.function.name == "now" else 0 <= arguments["n"] <= 9
            assert answer.choices[0].finish_reason == "tool_calls"

    @pytest.mark.parametrize("marks", [("<|tool_call|>", "<|/tool_call|>"), ("[TOOL_CALLS]",)])
    def test_marks_that_are_special_tokens(self, marks: tuple[str, ...]) -> None:
        """They are found where tools were given, forced or not, and are no text."""
        known = Tokenizer(tokenizer_json(*marks))
        chat_file = {"templates": {"default": f"{CHATML}{' '.join(marks)}"}, "special_tokens": {}}
        template = ChatTemplate(json.dumps(chat_file).encode())
        made = Text(known, template, (END or 0,), len(known))
        said = (
            f'Wait. {marks[0]}[{{"name": "now", "arguments": {{}}}}]{"".join(marks[1:])}<|im_end|>'
        )
        choice = ask(Chat(made, Scripted([known.encode(said)])), tools=[FIND, NOW]).choices[0]
        assert choice.message.content == "Wait. "
        assert [call.function.name for call in choice.message.tool_calls] == ["now"]
        plain = ask(Chat(made, Scripted([known.encode(said)]))).choices[0].message.content
        assert plain == 'Wait. [{"name": "now", "arguments": {}}]'
        for seed in range(3):
            asked = ask(Chat(made, Wild(seed)), tools=[FIND], tool_choice="required").choices[0]
            for call in asked.message.tool_calls:
                assert 0 <= json.loads(call.function.arguments)["n"] <= 9


class TestJson:
    @pytest.mark.parametrize("seed", range(4))
    def test_a_schema(self, seed: int) -> None:
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": NOW_OR_THEN}}
        answer = ask(Chat(text(), Wild(seed)), response_format=wanted)
        assert json.loads(answer.choices[0].message.content)["when"] in ("now", "then")
        assert answer.choices[0].finish_reason == "stop"

    def test_any_object(self) -> None:
        made = chat('{"a": [1, "ü"]}<|im_end|>')
        answer = ask(made, response_format={"type": "json_object"})
        assert json.loads(answer.choices[0].message.content) == {"a": [1, "ü"]}
        with pytest.raises(AssertionError, match="may not come"):
            ask(chat("hello"), response_format={"type": "json_object"})

    def test_each_answer_has_its_own(self) -> None:
        made = chat('{"a": 1}<|im_end|>', '{"b": 2}<|im_end|>')
        answer = ask(made, n=2, response_format={"type": "json_object"})
        assert [c.message.content for c in answer.choices] == ['{"a": 1}', '{"b": 2}']

    @pytest.mark.parametrize("seed", range(4))
    def test_a_grammar(self, seed: int) -> None:
        wanted = {"type": "grammar", "grammar": 'root ::= ("hello" | "ü") " " [0-9]'}
        made = Chat(text(), Wild(seed))
        answer = ask(made, response_format=wanted).choices[0].message.content
        completed = complete(made, "he", response_format=wanted).choices[0].text
        for written in (answer, completed):
            word, number = written.split(" ")
            assert word in ("hello", "ü") and number in "0123456789"

    def test_text(self) -> None:
        answer = ask(chat("hello<|im_end|>"), response_format={"type": "text"})
        assert answer.choices[0].message.content == "hello"


NOW_OR_THEN = {
    "type": "object",
    "properties": {"when": {"enum": ["now", "then"]}},
    "required": ["when"],
    "additionalProperties": False,
}


class TestCompletions:
    def test_one(self) -> None:
        made = chat("hello wörld<|im_end|>")
        answer = complete(made, "he")
        assert answer.choices[0].text == "hello wörld" and answer.object == "text_completion"
        assert answer.choices[0].finish_reason == "stop"
        assert engine_of(made).asked[0][0] == ids("he")
        assert engine_of(made).asked[0][1].max_tokens == 16
        assert answer.usage.prompt_tokens == 1

    def test_several_prompts_and_answers(self) -> None:
        made = chat("a<|im_end|>", "b<|im_end|>", "c<|im_end|>", "d<|im_end|>")
        answer = complete(made, [ids("he"), [0, 1]], n=2, echo=True)
        texts = [c.text for c in answer.choices]
        echoed = tokenizer().decode([0, 1])
        assert texts == ["hea", "heb", f"{echoed}c", f"{echoed}d"]
        assert [asked for asked, _ in engine_of(made).asked] == [ids("he")] * 2 + [[0, 1]] * 2
        assert answer.usage.prompt_tokens == 3

    def test_a_stream(self) -> None:
        made = chat("hello w<|im_end|>")
        request = convert({"prompt": "he", "stream": True}, CompletionRequest)
        chunks = list(made.stream_completion(request))
        assert [c.choices[0].text for c in chunks] == ["hello", " w", ""]
        assert [c.choices[0].finish_reason for c in chunks] == [None, None, "stop"]

    @pytest.mark.parametrize(
        ("prompt", "fields", "said"),
        [
            ("", {}, "no tokens"),
            ([[]], {}, "no tokens"),
            ([99999], {}, "token 99999"),
            ("he" * 5000, {}, "5000 tokens, and the model takes 4096"),
            ("he", {"echo": True, "logprobs": 1}, "logprobs are not to be had"),
        ],
    )
    def test_faults(self, prompt: Any, fields: dict[str, Any], said: str) -> None:
        made = chat("a")
        with pytest.raises(RequestError, match=said):
            complete(made, prompt, **fields)
        assert engine_of(made).asked == []


@dataclass
class Embeds:
    """Vectors that say how many tokens there were."""

    context: int = 8
    seen: list[list[int]] = field(default_factory=list)

    def embed(self, texts: Any) -> Any:
        self.seen += [list(t) for t in texts]
        return np.array([[0.6, 0.0, 0.8 * (-1) ** len(t)] for t in texts], np.float32)


class TestEmbeddings:
    def test_vectors(self) -> None:
        embeds = Embeds()
        made = Chat(text(), Scripted([[]]), "e", embeds)
        answer = embed(made, ["hello", "he ll"])
        assert [d.index for d in answer.data] == [0, 1]
        np.testing.assert_allclose(answer.data[0].embedding, [0.6, 0, -0.8], rtol=1e-6)
        assert embeds.seen == [ids("hello"), ids("he ll")]
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == 4
        coded = embed(made, "hello", encoding_format="base64").data[0].embedding
        np.testing.assert_array_equal(
            np.frombuffer(base64.b64decode(coded), "<f4"), np.float32([0.6, 0, -0.8])
        )

    def test_dimensions(self) -> None:
        made = Chat(text(), Scripted([[]]), "e", Embeds())
        assert embed(made, [1, 2], dimensions=2).data[0].embedding == [1.0, 0.0]
        assert len(embed(made, [1, 2], dimensions=3).data[0].embedding) == 3
        with pytest.raises(RequestError, match="dimensions: 4, the model gives 3"):
            embed(made, "he", dimensions=4)

    def test_faults(self) -> None:
        made = Chat(text(), Scripted([[]]), "e", Embeds())
        with pytest.raises(RequestError, match="9 tokens; the model takes 1 to 8"):
            embed(made, [0] * 9)
        with pytest.raises(RequestError, match="0 tokens"):
            embed(made, "")
        with pytest.raises(RequestError, match="token 1000000, of"):
            embed(made, [10**6])
        with pytest.raises(RequestError, match="fake gives no embeddings"):
            embed(chat("a"), "x")


def test_the_end_is_one_of_the_models() -> None:
    assert text().ends == (END,)
