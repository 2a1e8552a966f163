"""The weights of an artifact by number."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from edgerelax.ir.graph import Constant


@dataclass(slots=True)
class WeightTable:
    """The weights of an artifact, which its programs share: equal ones are one, in order."""

    weights: list[Constant] = field(default_factory=list)
    _by_identity: dict[Constant, int] = field(default_factory=dict)
    _by_content: dict[Hashable, int] = field(default_factory=dict)

    def index(self, constant: Constant) -> int:
        """The weight's number; it is added if it is new."""
        found = self._by_identity.get(constant)
        if found is None:
            found = self._by_content.setdefault(constant.content(), len(self.weights))
            if found == len(self.weights):
                self.weights.append(constant)
            self._by_identity[constant] = found
        return found
