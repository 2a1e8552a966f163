"""A model's weights from a file's tensors, by name, one at a time."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from edgerelax.frontends.nn import Module, Parameter
from edgerelax.frontends.nn.grouped import Grouped
from edgerelax.frontends.nn.module import Array
from edgerelax.frontends.nn.quantise import Quantiser
from edgerelax.ir.diagnostics import InputError, UnsupportedError

LAYER = re.compile(r"layers\.(\d+)\.")
SHOWN = 8


class Source(Protocol):
    """Tensors by name. `origin` is what errors call the file or folder."""

    @property
    def origin(self) -> str: ...

    @property
    def names(self) -> Collection[str]: ...

    def read(self, name: str) -> Array | Grouped:
        """A tensor's data as a parameter takes it."""


def name_of(parameter: str, names: Mapping[str, str]) -> str:
    """What a parameter is called in a file, by the names of modules; {e} stays for a stack's."""
    module, _, kind = parameter.rpartition(".")
    found = LAYER.search(module)
    general = LAYER.sub("layers.{n}.", module)
    if general not in names:
        raise InputError(f"the architecture gives {general} no name in the file")
    name = names[general]
    return f"{name if found is None else name.replace('{n}', found[1])}.{kind}"


def load_weights(
    model: Module,
    source: Source,
    name: Callable[[str], str],
    unused: Sequence[str] = (),
    change: Callable[[str, Array], Array] | None = None,
    quantiser: Quantiser | None = None,
) -> None:
    """Give a model's parameters their data from the tensors that `name` calls them.

    `change` makes of an array what the parameter of that name holds; `unused` are patterns of
    tensors that belong to no parameter; `quantiser` says how what comes out is stored. Raises
    InputError for tensors that are missing or whose shape is not what the model's sizes make it,
    UnsupportedError for one that nothing uses: the model is then not what it was taken for.
    """
    own = dict(model.parameters())
    parts = {key: _parts(name(key), source.names) for key in own}
    missing = [part for found in parts.values() for part in found if part not in source.names]
    if missing:
        raise InputError(f"{source.origin}: {len(missing)} tensors are missing: {_some(missing)}")
    used = {part for found in parts.values() for part in found}
    known = re.compile("|".join(f"(?:{p})" for p in unused) or r"(?!)")
    strange = [found for found in source.names if found not in used and not known.fullmatch(found)]
    if strange:
        raise UnsupportedError(
            f"{source.origin}: {len(strange)} tensors belong to no part of this architecture: "
            f"{_some(sorted(strange))}"
        )
    model.load(_Data(own, parts, source, change, quantiser))


class _Data(Mapping[str, Array | Grouped]):
    """Parameters' data, read when asked for."""

    def __init__(
        self,
        own: Mapping[str, Parameter],
        parts: Mapping[str, list[str]],
        source: Source,
        change: Callable[[str, Array], Array] | None,
        quantiser: Quantiser | None,
    ) -> None:
        self._own, self._parts, self._source = own, parts, source
        self._change, self._quantiser = change, quantiser

    def __contains__(self, key: object) -> bool:
        return key in self._own  # without reading it, as Mapping would

    def __len__(self) -> int:
        return len(self._own)

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __getitem__(self, key: str) -> Array | Grouped:
        names = self._parts[key]
        data = self._whole(key, names)
        wanted = self._own[key].shape
        if tuple(data.shape) != wanted:
            raise InputError(
                f"{self._source.origin}: {names[0]} makes {key} {list(data.shape)}; the sizes that "
                f"are stated make it {list(wanted)}"
            )
        if self._quantiser is None:
            return data
        return self._quantiser.stored(key, self._own[key].role, data)

    def _whole(self, key: str, names: Sequence[str]) -> Array | Grouped:
        read = [self._source.read(name) for name in names]
        wanted = len(self._own[key].shape)
        if isinstance(read[0], Grouped):
            return _flat(read[0], wanted)
        arrays = [array for array in read if isinstance(array, np.ndarray)]
        if self._change is not None:
            arrays = [self._change(key, array) for array in arrays]
        first = arrays[0]
        if len(arrays) > 1 or first.ndim < wanted:
            return np.stack(arrays) if first.ndim < wanted else np.concatenate(arrays)
        return _flat(first, wanted)


def _flat(data: Array | Grouped, rank: int) -> Array | Grouped:
    """Matrices of a stack one above the other, where the parameter has fewer axes."""
    return data.reshape(-1, data.shape[-1]) if len(data.shape) > rank else data


def _parts(name: str, names: Collection[str]) -> list[str]:
    """The tensor of that name, or all of the stack that it stands for."""
    if "{e}" not in name:
        return [name]
    found: list[str] = []
    while (part := name.replace("{e}", str(len(found)))) in names:
        found.append(part)
    return found or [part]


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
