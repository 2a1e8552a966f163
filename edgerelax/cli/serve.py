"""`edgerelax serve`: a language model's artifact over HTTP, as OpenAI's API has it."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from edgerelax.artifact.store import Artifact
from edgerelax.chat.load import TEXTS, LoadedChat, load_chat
from edgerelax.cli.arguments import Device, Sinks, Threads, Variant, Window
from edgerelax.frontends.speech.info import SPEECH
from edgerelax.ir.diagnostics import InputError
from edgerelax.speech.load import LoadedTranscriber, load_transcriber

KEY = "EDGERELAX_API_KEY"


def serve(
    artifact: Annotated[
        Path, typer.Argument(help="An artifact folder of a language or speech model.")
    ],
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 is everywhere.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    device: Device = "auto",
    variant: Variant = None,
    threads: Threads = None,
    name: Annotated[str | None, typer.Option(help="The model's name; else the folder's.")] = None,
    cache_tokens: Annotated[
        int | None, typer.Option(min=1, help="Room of the cache, of all texts together.")
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="Answers written at once.")] = TEXTS,
    window: Window = None,
    sinks: Sinks = None,
    max_queue: Annotated[
        int, typer.Option(min=0, help="Requests that wait; one more is answered 429.")
    ] = 64,
    max_body: Annotated[int, typer.Option(min=1, help="KB that a request may have.")] = 8192,
    cors: Annotated[
        list[str] | None, typer.Option(help="An origin whose pages may ask; * is all.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar=KEY, help="What clients must send.", show_default=False)
    ] = None,
    grace: Annotated[
        int, typer.Option(min=0, help="Seconds that answers have when the server is ended.")
    ] = 30,
) -> None:
    """Serve a language model or a speech model over HTTP (docs/serve.md)."""
    try:
        from edgerelax.serve.app import make_app
        from edgerelax.serve.run import listen, server_of
        from edgerelax.serve.server import Limits
    except ModuleNotFoundError as error:
        raise InputError(
            f"serving takes the package {error.name}, which is not installed",
            hint="pip install 'edgerelax[serve]'",
        ) from error
    load: Callable[..., LoadedChat | LoadedTranscriber] = load_transcriber
    if SPEECH not in Artifact.open(artifact).manifest.assets:
        load = partial(
            load_chat, cache_tokens=cache_tokens, texts=texts, window=window, sinks=sinks
        )
    with (
        listen(host, port) as door,
        load(artifact, device, variant=variant, threads=threads, name=name) as model,
    ):
        limits = Limits(texts, max_queue, max_body * 1024)
        app = make_app(model, limits, cors or (), api_key)
        where = f"[{host}]" if ":" in host else host
        print(
            f"{model.name} at http://{where}:{door.getsockname()[1]}/v1 on "
            f"{model.session.device_name}, variant {model.session.variant}, process {os.getpid()}",
            file=sys.stderr,
            flush=True,
        )
        server_of(app, grace).run(sockets=[door])
