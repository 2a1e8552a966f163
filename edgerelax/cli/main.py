"""Entry point of `edgerelax`: the commands, and one place where errors become messages."""

import sys
from typing import NoReturn

import typer
from rich.console import Console

from edgerelax.cli.chat import chat
from edgerelax.cli.export import export
from edgerelax.cli.inspect import inspect
from edgerelax.cli.run import run
from edgerelax.cli.serve import serve
from edgerelax.cli.transcribe import transcribe
from edgerelax.cli.verify import verify
from edgerelax.ir.diagnostics import EdgeRelaxError
from edgerelax.version import VERSION

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Compile a machine-learning model once, with symbolic shapes, and run it anywhere.",
)
app.command()(chat)
app.command()(export)
app.command()(inspect)
app.command()(run)
app.command()(serve)
app.command()(transcribe)
app.command()(verify)


@app.command()
def version() -> None:
    """Print the version."""
    print(VERSION)


def main() -> None:
    """Run the command line.

    A user's error, or the system's, is a message and exit code 1, never a traceback.
    """
    try:
        app()
    except EdgeRelaxError as error:
        _fail(error.code, str(error))
    except OSError as error:
        _fail("file", _told(error))


def _fail(code: str, message: str) -> NoReturn:
    Console(stderr=True, highlight=False).print(f"[red]error[/red] ({code}):", end=" ")
    print(message, file=sys.stderr)
    sys.exit(1)


def _told(error: OSError) -> str:
    """Which file, and what the system says of it."""
    files = [str(f) for f in (error.filename, error.filename2) if f is not None]
    return ": ".join(
        [" to ".join(files), error.strerror] if files and error.strerror else [str(error)]
    )


if __name__ == "__main__":
    main()
