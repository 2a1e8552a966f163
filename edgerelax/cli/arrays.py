"""Arrays in numpy's files: inputs of `run`, its outputs."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.artifact.manifest import TensorInfo
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import DTYPES

Array = npt.NDArray[Any]


def read_inputs(texts: Sequence[str]) -> dict[str, Array]:
    """`name=file.npy`, or `file.npz` with one array for each input."""
    out: dict[str, Array] = {}
    for text in texts:
        for name, array in _read_input(text).items():
            if name in out:
                raise InputError(f"--input {text}: '{name}' was given before")
            out[name] = array
    return out


def _read_input(text: str) -> Mapping[str, Array]:
    name, sep, file = text.partition("=")
    path = Path(file if sep else text)
    if (sep and not (name and file)) or not path.is_file():
        what = "is a folder" if path.is_dir() and file else "no such file"
        raise InputError(f"--input {text}: {what}", hint="write NAME=FILE.npy or FILE.npz")
    loaded = _load(path)
    if not isinstance(loaded, np.ndarray):
        if sep:
            raise InputError(
                f"--input {text}: {path} holds several arrays: {', '.join(loaded) or 'none'}",
                hint=f"write --input {path}; the arrays' names are the inputs'",
            )
        return loaded
    if not sep:
        raise InputError(f"--input {text}: which input is it?", hint=f"write NAME={text}")
    return {name: loaded}


def _load(path: Path) -> Array | dict[str, Array]:
    try:
        loaded = np.load(path, mmap_mode=None, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = "it is no .npy or .npz file, is damaged, or holds Python objects"
        raise InputError(
            f"{path}: not numbers in numpy's format: {reason}",
            hint="write it with numpy.save, from an array whose dtype is not object",
        ) from error


def declared(arrays: Mapping[str, Array], inputs: Sequence[TensorInfo]) -> dict[str, Array]:
    """Arrays of raw bytes as what the signature says.

    numpy's files keep bfloat16 and the 8-bit and 4-bit types as bytes without a dtype.
    """
    wanted = {spec.name: DTYPES[spec.dtype].numpy for spec in inputs}
    return {
        name: array.view(wanted[name])
        if array.dtype.kind == "V" and name in wanted and wanted[name].itemsize == array.itemsize
        else array
        for name, array in arrays.items()
    }


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """An .npz file of exactly these names. (`numpy.savez` takes some for its own arguments.)"""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
