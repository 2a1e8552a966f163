"""`edgerelax chat`: a conversation with a language model in a terminal."""

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from edgerelax.chat.conversation import Conversation
from edgerelax.chat.load import LoadedChat, load_chat
from edgerelax.chat.openai import RequestError
from edgerelax.chat.work import Work
from edgerelax.cli.arguments import Device, Sinks, Threads, Variant, Window
from edgerelax.cli.columns import columns
from edgerelax.ir.diagnostics import InputError

HELP = (
    ("/reset", "forget what was said"),
    ("/system TEXT", "what the model shall be, from here on and from the start; alone: nothing"),
    ("/image FILE", "an image that goes with the next turn"),
    ("/stats", "tokens per second, time to the first token, use of the cache"),
    ("/exit", "end, as Ctrl-D does; Ctrl-C stops an answer"),
)


def chat(
    artifact: Annotated[Path, typer.Argument(help="An artifact folder of a language model.")],
    prompt: Annotated[
        str | None, typer.Option(help="Answer this and end; - or a pipe: what stdin has.")
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="An image that goes with what is said first.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="What the model shall be.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="0: no chance.")] = None,
    top_p: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of an answer.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same answers for the same seed.")] = None,
    device: Device = "auto",
    variant: Variant = None,
    threads: Threads = None,
    cache_tokens: Annotated[int | None, typer.Option(min=1, help="Room of the cache.")] = None,
    window: Window = None,
    sinks: Sinks = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print for programs.")] = False,
) -> None:
    """Talk with a language model."""
    given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
    settings = {name: value for name, value in given.items() if value is not None}
    once = prompt is not None or not sys.stdin.isatty()
    if as_json and not once:
        raise InputError("--json is for one answer", hint="give it a --prompt or a pipe")
    with load_chat(
        artifact,
        device,
        variant=variant,
        threads=threads,
        cache_tokens=cache_tokens,
        window=window,
        sinks=sinks,
        texts=1,
    ) as loaded:
        conversation = Conversation(loaded, system, settings)
        if once:
            text = sys.stdin.read() if prompt in (None, "-") else prompt
            _answer_once(conversation, text or "", image or (), as_json)
        else:
            Terminal(loaded, conversation, image or ()).run()


def _answer_once(
    conversation: Conversation, text: str, images: Sequence[Path], as_json: bool
) -> None:
    if not text.strip():
        raise InputError("nothing to answer: the prompt is empty")
    work, parts = Work(), []
    with _interrupts(work):
        for part in conversation.ask(text, work, images):
            parts.append(part)
            if not as_json:
                print(part, end="", flush=True)
    if as_json:
        usage, timings = work.usage(), work.timings()
        report: dict[str, Any] = {"model": conversation.chat.name, "content": "".join(parts)}
        report |= {"usage": _fields(usage), "timings": _fields(timings)}
        print(json.dumps(report, ensure_ascii=False))
    else:
        print()
    if work.cancelled:
        raise typer.Exit(130)


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


class Terminal:
    """Reads turns and commands until the end of input."""

    def __init__(
        self, loaded: LoadedChat, conversation: Conversation, images: Sequence[Path] = ()
    ) -> None:
        self._loaded, self._conversation = loaded, conversation
        self._images = list(images)
        self._console = Console(highlight=False)
        self._last: Work | None = None

    def run(self) -> None:
        """Until the user ends it."""
        session = self._loaded.session
        self._tell(f"{self._loaded.name} on {session.device_name}, variant {session.variant}")
        self._tell("/help says what else there is")
        with suppress(ImportError):
            import readline  # noqa: F401  (lines that can be edited, with a history)
        going = True
        while going:
            try:
                going = self._turn()
            except KeyboardInterrupt:  # also one that comes just behind an answer
                self._tell("\n/exit or Ctrl-D ends")

    def _turn(self) -> bool:
        """Whether others may follow."""
        try:
            text = input("> ").strip()
        except EOFError:
            print()
            return False
        if text.startswith("/"):
            name, _, rest = text.partition(" ")
            if name == "/exit":
                return False
            self._command(name, rest.strip())
        elif text:
            self._answer(text)
        return True

    def _answer(self, text: str) -> None:
        work, images = Work(), list(self._images)
        self._images.clear()
        try:
            with _interrupts(work):
                for part in self._conversation.ask(text, work, images):
                    print(part, end="", flush=True)
        except InputError as error:  # one that does not fit, say: the chat goes on
            self._console.print("[red]error[/red]:", end=" ")
            print(error)
            if isinstance(error, RequestError) and error.code == "context_length_exceeded":
                self._tell("/reset makes room")
            return
        print()
        if work.cancelled:
            self._tell("stopped")
        self._last = work

    def _command(self, name: str, rest: str) -> None:
        match name:
            case "/reset":
                self._conversation.reset()
                self._tell("forgotten")
            case "/system":
                self._conversation.system = rest or None
                self._tell("done" if rest else "none")
            case "/image":
                self._images += [Path(rest)] if rest else []
                self._tell(f"with the next turn: {', '.join(map(str, self._images)) or 'none'}")
            case "/stats":
                self._tell(self._figures())
            case "/help":
                self._tell(columns(HELP))
            case _:
                self._tell(f"unknown: {name}\n{columns(HELP)}")

    def _figures(self) -> str:
        rows: list[tuple[str, str]] = []
        if self._last is not None:
            usage, timings = self._last.usage(), self._last.timings()
            rate = timings.tokens_per_second
            rows += [
                ("prompt", f"{usage.prompt_tokens} tokens"),
                ("answer", f"{usage.completion_tokens} tokens"),
                ("first token", f"{timings.first_token:.2f} s"),
                ("then", "-" if rate is None else f"{rate:.1f} tokens/s"),
            ]
        if self._loaded.paged is not None:
            paged = self._loaded.paged
            size = paged.pool.size
            rows += [
                ("found in the cache", f"{paged.load.reused} tokens so far"),
                ("room of the cache", f"{paged.pool.count * size} tokens"),
            ]
        return columns(rows)

    def _tell(self, text: str) -> None:
        self._console.print(text, style="dim", markup=False)


@contextmanager
def _interrupts(work: Work) -> Iterator[None]:
    """Ctrl-C ends the answer, and not the program."""

    def stop(number: int, frame: FrameType | None) -> None:
        work.cancel()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
