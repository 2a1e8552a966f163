"""The files of a Hugging Face folder: settings, and weights one tensor at a time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 (numpy learns of bfloat16)
import numpy as np
from safetensors import SafetensorError, safe_open

from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.language.functions import longest
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.language.storage import Kind
from edgerelax.frontends.nn.module import Array
from edgerelax.frontends.nn.quantise import Quantiser
from edgerelax.ir.diagnostics import InputError, UnsupportedError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = ("F32", "F16", "BF16", "F64")


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder to become a module, its config.json, and what `load` is told besides."""

    path: Path
    settings: Settings
    dims: Mapping[str, DimSpec] | None = None
    quantiser: Quantiser | None = None
    cache: Kind | None = None

    @property
    def kind(self) -> str:
        """The `model_type`."""
        return self.settings.text("model_type")

    @property
    def longest(self) -> int | None:
        """The most tokens of a text that `dims` allow."""
        return longest(self.dims)

    @property
    def cached(self) -> Kind:
        """How keys and values are stored."""
        return self.cache or "f32"


def read_json(path: Path) -> Any:
    """A JSON file's value. Raises InputError where it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path.parent.name} has no {path.name}") from error
    except (ValueError, OSError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from error


def read_object(path: Path) -> Settings:
    """A JSON file that holds an object. Raises InputError where it is none."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError(f"{path.name} holds no object")
    return Settings(found, path.name)


def read_settings(folder: Path) -> Settings:
    """config.json. Raises InputError for a folder that has none, and is of no model known here."""
    if not (folder / "config.json").is_file():
        models = sorted(p.name for p in folder.iterdir() if p.suffix in (".onnx", ".gguf"))
        inside = f"; it holds {', '.join(models)}" if models else ""
        raise InputError(
            f"{folder.resolve().name} is a folder without config.json and without "
            f"genai_config.json{inside}",
            hint="name the model's file, or a folder of Hugging Face's or onnxruntime-genai's form",
        )
    return read_object(folder / "config.json")


class Weights:
    """The tensors of a folder's safetensors files, one file or several with an index.

    A file is mapped into memory; a tensor is converted to f32 when it is read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, Any] = {}
        self._file_of = self._index()

    @property
    def origin(self) -> str:
        return self.folder.name

    @property
    def names(self) -> set[str]:
        """The names of all tensors."""
        return set(self._file_of)

    def read(self, name: str) -> Array:
        """A tensor as f32."""
        file = self._file_of[name]
        opened = self._opened(file)
        kind = opened.get_slice(name).get_dtype()
        if kind not in FLOATS:
            raise UnsupportedError(
                f"{file}: {name} holds {kind}; weights of {', '.join(FLOATS)} are known",
                hint="quantised models are read from GGUF files",
            )
        return np.asarray(opened.get_tensor(name)).astype(np.float32)

    def _index(self) -> dict[str, str]:
        """The file of each tensor."""
        if not (self.folder / INDEX).is_file():
            if not (self.folder / SINGLE).is_file():
                raise InputError(
                    f"{self.folder.name} has no weights: neither {SINGLE} nor {INDEX}",
                    hint=_other_weights(self.folder),
                )
            return dict.fromkeys(self._opened_keys(SINGLE), SINGLE)
        index = read_json(self.folder / INDEX)
        found = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(found, dict):
            raise InputError(f"{INDEX} has no weight_map")
        shards = sorted({str(file) for file in found.values()})
        missing = [file for file in shards if not (self.folder / file).is_file()]
        if missing:
            raise InputError(
                f"{self.folder.name}: {len(missing)} of {len(shards)} shards are missing: "
                f"{', '.join(missing)}",
                hint="download them again",
            )
        self._check_index(found, shards)
        return {str(name): str(file) for name, file in found.items()}

    def _check_index(self, found: dict[str, str], shards: list[str]) -> None:
        for file in shards:
            there = set(self._opened_keys(file))
            lost = [name for name, where in found.items() if where == file and name not in there]
            if lost:
                raise InputError(f"{file} has no {lost[0]}, which {INDEX} says it has")

    def _opened_keys(self, file: str) -> list[str]:
        return list(self._opened(file).keys())

    def _opened(self, file: str) -> Any:
        if file not in self._open:
            try:
                self._open[file] = safe_open(self.folder / file, framework="numpy")
            except (SafetensorError, OSError) as error:
                raise InputError(
                    f"{file} is damaged or cut off: {error}", hint="download it again"
                ) from error
        return self._open[file]


def _other_weights(folder: Path) -> str:
    others = sorted(p.name for p in folder.glob("*.bin"))
    if others:
        return f"{others[0]} is a pickle, which may run code: convert it to safetensors"
    return "download the model's safetensors files"
