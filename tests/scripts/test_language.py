"""The bench of language models: order of samples, ratios, tokens compared, its section."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from scripts.benchmark import language
from scripts.benchmark.language import Entry, Host, Lengths, Race, failures, per_token
from scripts.benchmark.page_of_language import language_section
from scripts.benchmark.rounds import ContenderError

IDS = list(range(100, 130))
LENGTHS = Lengths(8, 4, 3)
HOST = Host("Here", "cpu", False, LENGTHS)


@dataclass
class Fake:
    """Takes so many milliseconds a token, after so many for the first; counts up from the prompt's
    last token, and says one wrong token at `wrong`."""

    first: float
    each: float
    log: list[str]
    name: str
    wrong: int | None = None
    fails: bool = False
    counts: bool = True
    closed: bool = False
    prompts: list[Sequence[int]] = field(default_factory=list)

    def open(self) -> float:
        if self.fails:
            raise ContenderError("no room")
        return 5.0

    def tokens(self, prompt: Sequence[int], limit: int, in_flight: int) -> list[dict[str, Any]]:
        self.log.append(self.name)
        self.prompts.append(prompt)
        found: list[dict[str, Any]] = [
            {
                "id": -1 if k == self.wrong else prompt[-1] + 1 + k,
                "milliseconds": self.first + k * self.each,
                "launches": 50 + 30 * min(k + in_flight - 1, limit - 1) if self.counts else None,
            }
            for k in range(limit)
        ]
        found[-1] |= {"worked": 7.0, "launched": 140 if self.counts else None}
        return found

    def facts(self) -> dict[str, Any]:
        return {"resident_growth_bytes": 2e6}

    def close(self) -> None:
        self.closed = True


def contest(entries: Sequence[Entry], seconds: float = 60.0) -> dict[str, Any]:
    return Race(HOST, entries, seconds, lambda line: None).run(IDS)


def held(**given: Any) -> tuple[dict[str, Any], Fake, Fake, list[str]]:
    log: list[str] = []
    ours = Fake(40.0, 2.0, log, "ours", **given)
    theirs = Fake(80.0, 4.0, log, "theirs")
    entries = [
        Entry("ours, 1", ours, False),
        Entry("ours, 2", ours, False, 2),
        Entry("theirs", theirs, True),
    ]
    return contest(entries), ours, theirs, log


def test_rounds_alternate_and_prompts_come_once_for_all() -> None:
    found, ours, theirs, log = held()
    warm = log[:3]
    assert warm == ["ours", "ours", "theirs"]
    assert log[3:9] == ["ours", "ours", "theirs", "theirs", "ours", "ours"]
    counted = theirs.prompts[1:]
    assert counted == [IDS[k : k + 8] for k in range(3)]
    assert ours.prompts[2::2] == counted and ours.prompts[3::2] == counted
    assert ours.closed and theirs.closed and found["rounds"] == 3


def test_no_prompt_comes_after_the_time_is_over() -> None:
    heard: list[str] = []
    entries = [Entry("ours", Fake(40.0, 2.0, [], "ours"), False)]
    found = Race(HOST, entries, -1.0, heard.append).run(IDS)
    assert found["rounds"] == 1 and len(found["contenders"]["ours"]["tokens"]) == 1
    assert len(heard) == 2 and heard[1].startswith("Here: ours, 4 tokens: ")


def test_speeds_and_ratios() -> None:
    contenders = held()[0]["contenders"]
    ours, theirs = contenders["ours, 1"], contenders["theirs"]
    assert ours["prefill_per_second"] == pytest.approx(8 / 0.040)
    assert ours["decode_per_second"] == pytest.approx(500)
    assert theirs["first_ratio"] == theirs["token_ratio"] == pytest.approx(0.5)
    assert ours["load_ms"] == 5.0
    assert ours["launches_per_token"] == contenders["ours, 2"]["launches_per_token"] == 30
    assert ours["thread_us_per_launch"] == pytest.approx(7000 / 140)
    assert ours["thread_ms_per_step"] == pytest.approx(7 / 4)


def test_counters_are_read_where_as_many_steps_are_in_flight() -> None:
    run = Fake(1.0, 1.0, [], "x").tokens([1], 6, 4)
    entry = Entry("x", Fake(1.0, 1.0, [], "x"), False, 4)
    assert per_token(run, "launches", entry) == 30
    assert per_token(run[:4], "launches", entry) is None
    assert per_token(run, "instructions", entry) is None


def test_tokens_are_compared_with_the_rivals() -> None:
    right, wrong = held()[0], held(wrong=2)[0]
    assert right["contenders"]["ours, 1"]["agreed"] == 4
    assert failures({"hosts": {"cpu": right}}) == []
    assert failures({"hosts": {"cpu": wrong}}) == [
        "ours, 1 on cpu: 2 of 4 tokens agree",
        "ours, 2 on cpu: 2 of 4 tokens agree",
    ]
    alone = contest([Entry("ours", Fake(1, 1, [], "ours"), False)])
    assert failures({"hosts": {"cpu": alone}}) == [
        "ours on cpu: nothing to compare its tokens with"
    ]


def test_who_fails_leaves_the_others_alone() -> None:
    found = held(fails=True)[0]
    assert found["contenders"]["theirs"]["decode_per_second"] == pytest.approx(250)
    assert failures({"hosts": {"cpu": found}})[0] == "ours, 1 on cpu: no room"
    page = "\n".join(language_section(told(found)))
    assert "| ours, 1 | failed: no room |" in page


def test_the_section_says_what_was_found() -> None:
    page = "\n".join(language_section(told(held()[0])))
    assert "### Here" in page and "8 tokens of a prompt, 4 generated, 3 prompts." in page
    row = "| ours, 1 | 200 | 1.00 | 500 | 1.00 | 40.0 | 5.00 | 2.0 MB | 30 |"
    assert f"{row} 1.75 | - | 4 of 4 |" in page
    on_gpu = {"model": "A", "transformers": "4", "hosts": {"webgpu": held()[0]}}
    assert f"{row} 1.75 | 50.0 | 4 of 4 |" in "\n".join(language_section(on_gpu))
    assert "| theirs | 100 | 0.50 | 250 | 0.50 | 80.0 |" in page
    assert list(language_section({})) == []


def test_who_does_not_tell_launches() -> None:
    pages = contest([Entry("theirs", Fake(1, 1, [], "", counts=False), True)])
    data = pages["contenders"]["theirs"]
    assert data["launches_per_token"] is None and data["thread_us_per_launch"] is None
    page = "\n".join(language_section(told(pages)))
    (row,) = (line for line in page.splitlines() if line.startswith("| theirs |"))
    assert row.split(" | ")[8:11] == ["?", "1.75", "-"]


def told(found: dict[str, Any]) -> dict[str, Any]:
    return {"model": "A model", "transformers": "4.0", "hosts": {"cpu": found}}


def test_there_is_text_for_all_prompts() -> None:
    """Each word takes a token at least."""
    longest = max(h.lengths.prompt + h.lengths.rounds for h in language.HOSTS.values())
    assert len(language.TEXT.split()) >= longest
