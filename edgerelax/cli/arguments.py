"""Reading command-line arguments: dims, inputs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.frontends.onnx.symbols import DimSpec
from edgerelax.ir.diagnostics import InputError

_DIM = re.compile(r"(?P<name>.+?)=(?P<lo>\d+)(?P<range>\.\.(?P<hi>\d*))?(?::(?P<multiple>\d+))?")


def parse_dims(texts: Sequence[str]) -> dict[str, DimSpec]:
    """`batch=4`, `batch=1..8`, `seq=1..` (no limit), `width=32..960:32` (a multiple of 32)."""
    out: dict[str, DimSpec] = {}
    for text in texts:
        match = _DIM.fullmatch(text)
        if match is None:
            raise InputError(
                f"--dim {text}: not understood",
                hint="write NAME=4, NAME=1..8, NAME=1.. or NAME=32..960:32",
            )
        lo = int(match["lo"])
        if match["range"] is None and match["multiple"] is None:
            out[match["name"]] = lo
        else:
            hi = int(match["hi"]) if match["hi"] else None
            out[match["name"]] = (lo, hi, int(match["multiple"] or 1))
    return out


def read_inputs(texts: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """`name=file.npy`, or `file.npz` with one array for each input."""
    out: dict[str, npt.NDArray[Any]] = {}
    for text in texts:
        name, sep, file = text.partition("=")
        path = Path(file if sep else text)
        if not path.is_file():
            raise InputError(
                f"--input {text}: {path} is no file", hint="write NAME=FILE.npy or FILE.npz"
            )
        loaded = _load(path)
        if isinstance(loaded, Mapping):
            out.update(loaded)
        elif sep:
            out[name] = loaded
        else:
            raise InputError(f"--input {text}: which input is it?", hint="write NAME=FILE.npy")
    return out


def _load(path: Path) -> npt.NDArray[Any] | dict[str, npt.NDArray[Any]]:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: not a numpy file: {error}") from error
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        return {name: loaded[name] for name in loaded.files}
