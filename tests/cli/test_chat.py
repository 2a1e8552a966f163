"""`edgerelax chat`: one answer, a conversation in a terminal, what stops and what is refused."""

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgerelax.chat.conversation import Conversation
from edgerelax.cli import chat
from tests.cli.command import Command

END = b"> "
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("piped", (True, False))
def test_one_answer(
    cli: Command, small_chat: Path, piped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello" if piped else "not read"))
    words = ["chat", str(small_chat), "--device", "cpu", "--seed", "3", "--max-tokens", "9"]
    words += [] if piped else ["--prompt", "hello"]
    plain = cli(*words)
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    told = json.loads(cli(*words, "--json").out)
    assert plain.code == 0 and plain.out == told["content"] + "\n"
    assert 0 < told["usage"]["completion_tokens"] <= 9
    assert told["model"] == "small" and told["timings"]["first_token"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--prompt", " "), "the prompt is empty"),
        (("--prompt", "x" * 2000), "tokens, and the model takes 1024 in all"),
        (("--prompt", "x", "--image", "a.png"), "this model sees no images"),
        (("--prompt", "x", "--device", "tpu"), "known: auto, cpu, wgpu"),
    ],
)
def test_refusals(cli: Command, small_chat: Path, words: tuple[str, ...], told: str) -> None:
    assert told in cli.refused("chat", str(small_chat), *words)


def test_a_model_of_no_language(cli: Command) -> None:
    assert "is no language model" in cli.refused("chat", "out", "--prompt", "hello")
    assert "is no language model" in cli.refused("serve", "out", "--port", "0")


class Terminal:
    """A program in a terminal of its own: a module, and its arguments."""

    def __init__(self, module: str, *words: str) -> None:
        ours, its = pty.openpty()
        self._file, self._unread = ours, b""
        command = [sys.executable, "-m", module, *words]
        environment = {**os.environ, "TERM": "dumb", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            command, stdin=its, stdout=its, stderr=its, env=environment, start_new_session=True,
            cwd=ROOT,
        )  # fmt: skip
        os.close(its)

    def until(self, mark: bytes) -> str:
        """What it printed, up to a mark."""
        end = time.monotonic() + 60
        while mark not in self._unread:
            ready = select.select([self._file], [], [], max(0.0, end - time.monotonic()))[0]
            assert ready, self._unread
            self._unread += os.read(self._file, 4096)
        found, _, self._unread = self._unread.partition(mark)
        return found.decode(errors="replace")

    def until_it_writes(self) -> None:
        while not self._unread:
            assert select.select([self._file], [], [], 60)[0]
            self._unread = os.read(self._file, 4096)

    def send(self, line: str) -> None:
        os.write(self._file, line.encode() + b"\n")

    def say(self, line: str) -> str:
        """What it printed until it asked again."""
        self.send(line)
        return self.until(b"\n" + END)

    def close(self) -> int:
        self.send("/exit")
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._file)


@contextmanager
def chatting(module: str, artifact: Path) -> Iterator[Terminal]:
    words = ("--device", "cpu", "--max-tokens", "600", "--seed", "1")
    made = Terminal(module, "chat", str(artifact), *words)
    try:
        made.until(END)
        yield made
    finally:
        code = made.close()
    assert code == 0


def test_a_conversation(small_chat: Path) -> None:
    """Long turns fill the context: that is told, and the chat goes on after it."""
    with chatting("edgerelax.cli.main", small_chat) as terminal:
        assert "room of the cache" in terminal.say("/stats")
        terminal.say("hello")
        assert "tokens/s" in (figures := terminal.say("/stats"))
        assert "first token" in figures
        assert "unknown: /nosuch" in terminal.say("/nosuch")
        assert "done" in terminal.say("/system " + "y" * 900)
        assert "/reset makes room" in terminal.say("z" * 200)
        assert "none" in terminal.say("/system")
        assert "forgotten" in terminal.say("/reset")
        assert "error" not in terminal.say("hello")


def test_an_interrupt_stops_the_answer_only(small_chat: Path) -> None:
    with chatting("tests.cli.held", small_chat) as terminal:
        terminal.send("hello")
        terminal.until(b"hello")
        terminal.until(b"\n")
        terminal.until_it_writes()
        terminal.process.send_signal(signal.SIGINT)
        assert "stopped" in terminal.until(b"\n" + END)
        assert "first token" in terminal.say("/stats")


def test_an_interrupt_just_behind_an_answer_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["hello", "/stats", "/exit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    loaded: Any = SimpleNamespace(
        name="small", session=SimpleNamespace(device_name="a CPU", variant="cpu"), paged=None
    )
    terminal = chat.Terminal(loaded, Conversation(loaded))
    monkeypatch.setattr(terminal, "_answer", interrupted)
    terminal.run()
    assert "/exit or Ctrl-D ends" in capsys.readouterr().out
    assert next(lines, None) is None


def interrupted(text: str) -> None:
    assert text == "hello"
    raise KeyboardInterrupt
