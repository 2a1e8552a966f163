"""What a model's file says of its sizes, under the names of Hugging Face's config.json.

Readers of other formats translate to these names, so that an architecture is described once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from edgerelax.ir.diagnostics import InputError

_REQUIRED = object()


class Settings:
    """Checked access to values by name; `origin` is the file that errors speak of.

    Where several names are given, the first that is there counts. A value of null counts as not
    there, unless `has` is asked.
    """

    def __init__(self, values: Mapping[str, Any], origin: str) -> None:
        self.values, self.origin = values, origin

    def has(self, name: str) -> bool:
        """Whether there is a value, be it null."""
        return name in self.values

    def value(self, *names: str, default: Any = _REQUIRED) -> Any:
        """A value of any kind. Raises InputError where it is missing and has no default."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is _REQUIRED:
            raise InputError(f"{self.origin} has no {' or '.join(names)}")
        return default

    def integer(self, *names: str, default: Any = _REQUIRED) -> int:
        """An integer."""
        found = self.value(*names, default=default)
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self._wrong(names, found, "an integer")
        return found

    def number(self, *names: str, default: Any = _REQUIRED) -> float:
        """A number."""
        found = self.value(*names, default=default)
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise self._wrong(names, found, "a number")
        return float(found)

    def maybe_number(self, *names: str) -> float | None:
        """A number, or None where there is none."""
        return None if self.value(*names, default=None) is None else self.number(*names)

    def flag(self, *names: str, default: Any = _REQUIRED) -> bool:
        """True or false."""
        found = self.value(*names, default=default)
        if not isinstance(found, bool):
            raise self._wrong(names, found, "true or false")
        return found

    def text(self, *names: str, default: Any = _REQUIRED) -> str:
        """A text."""
        found = self.value(*names, default=default)
        if not isinstance(found, str):
            raise self._wrong(names, found, "a text")
        return found

    def items(self, name: str, kind: type | tuple[type, ...]) -> list[Any]:
        """A list of one kind of values; empty where there is none."""
        found = self.value(name, default=[])
        if not isinstance(found, Sequence) or not all(isinstance(item, kind) for item in found):
            raise self._wrong((name,), found, "a list of fitting values")
        return list(found)

    def part(self, name: str) -> "Settings | None":
        """The settings that a name holds, or None where there are none."""
        found = self.value(name, default=None)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            raise self._wrong((name,), found, "an object")
        return Settings(found, f"{self.origin}: {name}")

    def _wrong(self, names: tuple[str, ...], found: object, wanted: str) -> InputError:
        return InputError(f"{self.origin}: {' or '.join(names)} is {found!r}, not {wanted}")
