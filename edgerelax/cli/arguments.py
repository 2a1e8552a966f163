"""Arguments that several commands have, and reading those that are more than a text."""

import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edgerelax.frontends.dims import DimSpec
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError
from edgerelax.ir.library import Library

Device = Annotated[str, typer.Option(help="auto, wgpu or cpu.")]
Variant = Annotated[str | None, typer.Option(help="Run this variant of the artifact, by name.")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="Threads for the CPU's kernels; by default 4 to 8 as there are cores, else 1."
    ),
]
Window = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a text that are kept; texts have no end.")
]
Sinks = Annotated[int | None, typer.Option(min=0, help="First tokens that a window keeps; else 4.")]

_DIM = re.compile(r"(?P<name>.+?)=(?P<lo>\d*)(?P<range>\.\.(?P<hi>\d*))?(?::(?P<multiple>\d+))?")


def parse_dims(texts: Sequence[str]) -> dict[str, DimSpec]:
    """Sizes and bounds of dims by name.

    `batch=4`, `batch=1..8`, `seq=1..` (no limit), `seq=..8` (from 0), `width=32..960:32` (a
    multiple of 32).
    """
    out: dict[str, DimSpec] = {}
    for text in texts:
        match = _DIM.fullmatch(text)
        if match is None or not (match["lo"] or match["hi"]):
            raise InputError(
                f"--dim {text}: not understood",
                hint="write NAME=4, NAME=1..8, NAME=1.., NAME=..8 or NAME=32..960:32",
            )
        if match["name"] in out:
            raise InputError(f"--dim {text}: '{match['name']}' was given before")
        lo = int(match["lo"] or 0)
        if match["range"] is None and match["multiple"] is None:
            out[match["name"]] = lo
        else:
            hi = int(match["hi"]) if match["hi"] else None
            out[match["name"]] = (lo, hi, int(match["multiple"] or 1))
    return out


def read_libraries(files: Sequence[Path]) -> list[Library]:
    """Every `Library` that has a name in one of these Python files, which are run."""
    out: list[Library] = []
    for file in files:
        try:
            names = runpy.run_path(str(file))
        except OSError as error:
            raise InputError(f"--library {file}: {error.strerror or error}") from None
        except EdgeRelaxError:
            raise
        except Exception as error:  # whatever the file raises is to be told in a line
            raise InputError(f"--library {file}: {type(error).__name__}: {error}") from error
        found = [value for value in names.values() if isinstance(value, Library)]
        if not found:
            raise InputError(f"--library {file}: it has no Library", hint="see docs/libraries.md")
        out += found
    return out
