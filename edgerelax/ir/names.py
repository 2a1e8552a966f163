"""Names come from people and stay: hints cleaned to identifiers, made unique by a number."""

import keyword
import re
from collections.abc import Iterable


def identifier(hint: str) -> str:
    """The hint as a Python identifier: '/mlp/fc1' is mlp_fc1, '0' is v_0."""
    stem = re.sub(r"\W+", "_", hint, flags=re.ASCII).strip("_") or "v"
    return f"v_{stem}" if stem[0].isdigit() or keyword.iskeyword(stem) else stem


class Names:
    """Gives the hint if it is free, else the hint and a number. Same hints, same names."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self.taken = set(reserved)
        self._next: dict[str, int] = {}

    def pick(self, hint: str) -> str:
        stem = identifier(hint)
        name, k = stem, self._next.get(stem, 0)
        while name in self.taken:
            k += 1
            name = f"{stem}_{k}"
        self._next[stem] = k
        self.taken.add(name)
        return name
