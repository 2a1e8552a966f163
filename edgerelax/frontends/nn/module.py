"""Modules and their parameters, found by attribute name as in torch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgerelax.ir.builder import Builder
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.graph import Value

Array = npt.NDArray[Any]


class Stored(Protocol):
    """Data of a parameter in a form of its own: what it stands for is computed where it is used."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def emit(self, builder: Builder, name: str) -> Value:
        """The tensor that it stands for, from constants that hold the data."""

    def joined(self, others: "Sequence[Stored | Array]") -> "Stored | None":
        """Its rows and then those of others as one; None where that cannot be stored so."""


class Parameter:
    """A weight: its shape when the module is made, its data when it is loaded.

    `role` says which choice of quantisation it falls under (`nn.quantise.ROLES`); without one it
    is never quantised.
    """

    def __init__(self, *shape: int, role: str = "") -> None:
        self.shape, self.role = shape, role
        self.name = ""
        self._data: Array | Stored | None = None
        self._constant: tuple[Builder, Value] | None = None
        self._joined: tuple[tuple[Parameter, ...], Parameter | None] | None = None

    def load(self, data: Array | Stored) -> None:
        """Give it data. Raises InputError where the shape is not the expected one."""
        if tuple(data.shape) != self.shape:
            raise InputError(
                f"{self.name} is {list(data.shape)}, the model's sizes make it {list(self.shape)}"
            )
        self._data = data

    def joined(self, *others: "Parameter") -> "Parameter | None":
        """The rows of several parameters as one, if all are stored in one form of their own.

        It is made once.
        """
        if self._joined is None or self._joined[0] != others:
            data = [p._data for p in others if p._data is not None]
            own = self._data
            made = None
            if own is not None and not isinstance(own, np.ndarray) and len(data) == len(others):
                made = own.joined(data)
            whole = None if made is None else Parameter(*made.shape, role=self.role)
            if whole is not None and made is not None:
                whole.name = "+".join(p.name for p in (self, *others))
                whole.load(made)
            self._joined = others, whole
        return self._joined[1]

    def emit(self, builder: Builder) -> Value:
        """Its value in a function. Constants are made once; stored forms at every use."""
        if self._data is None:
            raise InputError(f"{self.name} has no data: load the weights before tracing")
        if not isinstance(self._data, np.ndarray):
            return self._data.emit(builder, self.name)
        if self._constant is None or self._constant[0] is not builder:
            self._constant = builder, builder.constant(self.name, self._data)
        return self._constant[1]


class Module:
    """A part of a model. Attributes that are modules, lists of them or parameters belong to it."""

    def parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every parameter by its dotted name, each once."""
        for name, value in vars(self).items():
            yield from _parameters(f"{prefix}{name}", value)

    def load(self, weights: Mapping[str, Array | Stored]) -> None:
        """Give every parameter its data. Raises InputError for all that are missing at once."""
        own = dict(self.parameters())
        missing = [name for name in own if name not in weights]
        if missing:
            shown = ", ".join(missing[:8]) + (", …" if len(missing) > 8 else "")
            raise InputError(f"{len(missing)} weights are missing: {shown}")
        for name, parameter in own.items():
            parameter.name = name
            parameter.load(weights[name])

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.forward(*args, **options)

    def forward(self, *args: Any, **options: Any) -> Any:
        """What the module computes; every module has its own."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")


def _parameters(name: str, value: Any) -> Iterator[tuple[str, Parameter]]:
    if isinstance(value, Parameter):
        yield name, value
    elif isinstance(value, Module):
        yield from value.parameters(f"{name}.")
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for k, item in enumerate(value):
            yield from _parameters(f"{name}.{k}", item)
