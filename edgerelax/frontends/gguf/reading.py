"""A GGUF file's metadata and tensors, checked before anything is read (GGUF specification)."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from edgerelax.frontends.gguf.formats import stored
from edgerelax.frontends.nn.grouped import Grouped
from edgerelax.frontends.nn.module import Array
from edgerelax.ir.diagnostics import InputError

MAGIC = b"GGUF"
VERSIONS = (2, 3)


class File:
    """An open GGUF file. Tensors are mapped from disk and converted one at a time."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        _check_header(self.path)
        try:
            self._reader = GGUFReader(str(path))
        except (ValueError, IndexError, OverflowError, KeyError) as error:
            raise InputError(
                f"{self.path.name} is damaged or cut off: {error}", hint="download it again"
            ) from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self._check_extent()

    def value(self, key: str, default: Any = None) -> Any:
        """A value of the metadata. Raises InputError where it is missing and has no default."""
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise InputError(f"{self.path.name} has no {key}")
        return default

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
        return stored(np.asarray(tensor.data), tensor.tensor_type, shape)

    def _check_extent(self) -> None:
        size = os.path.getsize(self.path)
        for tensor in self._tensors.values():
            end = int(tensor.data_offset) + int(tensor.n_bytes)
            if end > size:
                raise InputError(
                    f"{self.path.name} is cut off: tensor {tensor.name} ends at byte {end}, the "
                    f"file at {size}",
                    hint="download it again",
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
    if head[:4] != MAGIC:
        raise InputError(f"{path.name} is no GGUF file: it starts with {head[:4]!r}")
    if len(head) < 8:
        raise InputError(f"{path.name} is cut off: it has no header", hint="download it again")
    version = int.from_bytes(head[4:8], "little")
    if version not in VERSIONS:
        known = " and ".join(str(v) for v in VERSIONS)
        raise InputError(f"{path.name} is GGUF version {version}; versions {known} are known")
