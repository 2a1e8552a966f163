"""A GGUF file's metadata and tensors, checked before anything is read (GGUF specification)."""

import math
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, ReaderField

from edgerelax.frontends.gguf.formats import stored
from edgerelax.frontends.nn.grouped import Grouped
from edgerelax.frontends.nn.module import Array
from edgerelax.ir.diagnostics import InputError, UnsupportedError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
AGAIN = "download it again"


class File:
    """An open GGUF file. Tensors are mapped from disk and converted one at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        _check_header(self.path)
        try:
            self._reader = _Reader(str(path))
        except (ValueError, OverflowError, KeyError, RecursionError) as error:
            raise InputError(f"{self.path.name} is damaged: {error}", hint=AGAIN) from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def value(self, key: str, default: Any = None) -> Any:
        """A value of the metadata. Raises InputError where it is missing and has no default."""
        field = self._reader.get_field(key)
        if field is not None:
            try:
                return field.contents()
            except (ValueError, IndexError) as error:
                raise InputError(
                    f"{self.path.name} is damaged in {key}: {error}", hint=AGAIN
                ) from error
        if default is None:
            raise InputError(f"{self.path.name} has no {key}")
        return default

    def texts(self, key: str, default: list[str] | None = None) -> list[str]:
        """A list of texts of the metadata. Raises InputError where it is missing, or another."""
        found = self.value(key, default)
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise InputError(f"{self.path.name}: {key} is no list of texts", hint=AGAIN)
        return found

    @property
    def origin(self) -> str:
        return self.path.name

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._tensors.keys()

    def read(self, name: str) -> Array | Grouped:
        """A tensor, dims in numpy's order."""
        tensor = self._tensors[name]
        shape = tuple(int(n) for n in reversed(tensor.shape))
        try:
            return stored(np.asarray(tensor.data), tensor.tensor_type, shape)
        except UnsupportedError as error:
            told = f"{self.path.name}: tensor {name}: {error.message}"
            raise UnsupportedError(told) from error


class _Reader(GGUFReader):
    """The package's reader, held to the file's end and to tensors that can be."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Array:
        end, size = int(offset) + np.dtype(dtype).itemsize * int(count), len(self.data)
        if end > size:
            raise InputError(
                f"{self._file} is cut off or damaged: what it says of itself ends at byte {end}, "
                f"the file at {size}",
                hint=AGAIN,
            )
        found: Array = self._bytes[int(offset) : end].view(dtype)
        order = self.byte_order if override_order is None else override_order
        if order != "I":
            found = found.view(found.dtype.newbyteorder(order))
        return found

    @cached_property
    def _bytes(self) -> Array:
        """The file without numpy's class for maps, whose every view costs more than reading it."""
        return np.asarray(self.data)

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        for field in fields:
            _check_tensor(field, int(start_offs), len(self.data), self._file)
        super()._build_tensors(start_offs, fields)

    @property
    def _file(self) -> str:
        return Path(str(self.data.filename)).name


def _check_tensor(field: ReaderField, start: int, size: int, file: str) -> None:
    """Raises an error where its type is unknown, or its blocks do not fit its rows or the file."""
    _, _, _, dims, kind, offset = field.parts
    if kind[0] not in {known.value for known in GGMLQuantizationType}:
        raise UnsupportedError(
            f"{file}: tensor {field.name} is of type number {kind[0]}, which is not known",
            hint="the file is damaged, or newer than the gguf package that is installed",
        )
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
    shape = [int(n) for n in dims]
    if not shape or shape[0] % block:
        raise InputError(
            f"{file}: tensor {field.name} has dims {shape}; blocks of its type are of {block}",
            hint=AGAIN,
        )
    end = start + int(offset[0]) + math.prod(shape) // block * block_bytes
    if end > size:
        raise InputError(
            f"{file} is cut off: tensor {field.name} ends at byte {end}, the file at {size}",
            hint=AGAIN,
        )


def is_gguf(path: str | Path) -> bool:
    """Whether a file is named or begins as GGUF files do."""
    named = Path(path).suffix.lower() == ".gguf"
    if named or not Path(path).is_file():
        return named
    with Path(path).open("rb") as stream:
        return stream.read(4) == MAGIC


def _check_header(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path} is a folder" if path.exists() else f"{path}: no such file")
    with path.open("rb") as stream:
        head = stream.read(8)
    if len(head) < 8 and MAGIC.startswith(head[:4]):
        raise InputError(f"{path.name} is cut off: it has no header", hint=AGAIN)
    if head[:4] != MAGIC:
        raise InputError(f"{path.name} is no GGUF file: it starts with {head[:4]!r}")
    version = int.from_bytes(head[4:8], "little")
    if version not in VERSIONS:
        known = " and ".join(str(v) for v in VERSIONS)
        swapped = int.from_bytes(head[4:8], "big") in VERSIONS
        raise InputError(
            f"{path.name} is made for big-endian machines"
            if swapped
            else f"{path.name} is GGUF version {version}; versions {known} are known",
            hint="download one for little-endian machines" if swapped else "",
        )
