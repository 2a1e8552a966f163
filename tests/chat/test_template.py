"""Templates give what transformers gives, and fail with what they said."""

import json
from typing import Any

import pytest

from edgerelax.chat.template import ChatTemplate
from edgerelax.ir.diagnostics import FormatError, InputError
from tests.chat.fakes import CHATML, TAGGED

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <b>brief</b> & kind."},
    {"role": "user", "content": "hello ü 漢"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"type": "function", "function": {"name": "find", "arguments": {"q": "é", "n": 3}}}]},
    {"role": "tool", "content": "[]", "name": "find"},
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
TEMPLATES = {
    "chatml": CHATML,
    "tagged": TAGGED,
    "blocks": (
        "{%- for m in messages %}\n    {%- if m.role == 'tool' %}\n        {%- continue %}\n"
        "    {%- endif %}\n    {%- if loop.index > 2 %}{% break %}{% endif %}\n"
        "{{ bos_token }}[{{ m.role | upper }}] {{ m.content | trim }}\n    {% endfor %}\nend"
    ),
    "calls": (
        "{% for m in messages %}{% if m.tool_calls is defined %}{% for c in m.tool_calls %}"
        "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
        "{% elif m.content is string %}{{ m.content }}{% endif %}{% endfor %}"
        "{{ tools | tojson(indent=2) if tools else '' }}"
    ),
    "generation": (
        "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %},{% endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
        "{% endfor %}{{ ns.n }} {{ messages[0]['content'][:2] }} {{ enable_thinking }}"
    ),
}


def made(text: str, **others: str) -> ChatTemplate:
    templates = {"default": text, **others}
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(json.dumps({"templates": templates, "special_tokens": special}).encode())


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("reply", [True, False])
def test_as_transformers_does(name: str, tools: Any, reply: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    given = [{k: v for k, v in m.items() if v is not None} for m in MESSAGES]
    (expected,), _ = render_jinja_template(
        [given], tools=tools, chat_template=TEMPLATES[name], add_generation_prompt=reply,
        bos_token="<s>", eos_token="</s>", enable_thinking=False,
    )  # fmt: skip
    settings = {"enable_thinking": False}
    assert made(TEMPLATES[name]).render(MESSAGES, tools, reply, settings) == expected


def test_text_is_not_escaped() -> None:
    assert "Be <b>brief</b> & kind." in made(CHATML).render(MESSAGES)
    assert made("{{ messages[1] | tojson }}").render(MESSAGES) == (
        '{"role": "user", "content": "hello ü 漢"}'
    )


def test_the_template_for_tools() -> None:
    both = made("plain", tool_use="tools: {{ tools | length }}")
    assert both.render(MESSAGES) == "plain"
    assert both.render(MESSAGES, TOOLS) == "tools: 1"
    assert made("only {{ tools | length }}").render(MESSAGES, TOOLS) == "only 1"


def test_the_date() -> None:
    text = made("{{ strftime_now('%Y') }}").render(MESSAGES)
    assert len(text) == 4 and text.isdigit()


FAULTS = [
    ("{{ raise_exception('roles must alternate') }}", "failed: roles must alternate"),
    ("{{ messages[99].content.nothing }}", "failed: .*no element 99|failed: .*undefined"),
    ("{{ 'a' + messages[0].missing }}", "failed"),
    ("{{ 1 / 0 }}", "failed: division by zero"),
    ("{{ ''.__class__.__mro__ }}", "unsafe|failed"),
    ("{{ messages.append(1) }}", "failed"),
    ("{% for k in range(10000000) %}x{% endfor %}", "failed: .*[Rr]ange"),
]


@pytest.mark.parametrize(("text", "fault"), FAULTS)
def test_templates_that_fail(text: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        made(text).render(MESSAGES)
    assert "the chat template failed" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{{ '>' + messages[0]['content'] }}", ">"),
        ("{% set m = messages[0] %}{% if m.content is none %}calls{% else %}{{ m.content.split() }}"
         "{% endif %}", "calls"),
        ("{{ messages[0].content | trim }}{% if messages[0].content is defined %}?{% endif %}", ""),
    ],
)  # fmt: skip
def test_answers_without_a_text(text: str, wanted: str) -> None:
    """What calls of tools leave null, templates take as missing, as none, or as empty."""
    assert made(text).render([{"role": "assistant", "content": None}]) == wanted
    with pytest.raises(InputError, match="failed"):
        made("{{ '>' + messages[0]['content'] }}").render([{"role": "user"}])


def test_wrong_templates() -> None:
    with pytest.raises(FormatError, match="the template default is wrong in line 2"):
        made("x\n{% if %}")
    with pytest.raises(FormatError, match=r"mine\.json"):
        ChatTemplate(b'{"templates": 3}', "mine.json")
    with pytest.raises(FormatError):
        ChatTemplate(b"\xff")


def test_no_template() -> None:
    with pytest.raises(InputError, match="no chat template"):
        ChatTemplate(b"{}").render(MESSAGES)
