"""What a pass did, and what it left alone and why, for the compile report.

A pass fills an `Outcome` and leaves it on its module; whoever runs the pass takes it from there.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

from edgerelax.ir.graph import Module

KEY = "outcome"


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that a pass could have changed and did not, and why; `at` names the value."""

    reason: str
    at: str


@dataclass(slots=True)
class Outcome:
    """What was done, as counts by kind of change, and what was skipped."""

    done: Counter[str] = field(default_factory=Counter)
    skipped: set[Skipped] = field(default_factory=set)

    def did(self, what: str) -> None:
        self.done[what] += 1

    def skip(self, reason: str, at: str) -> None:
        """Saying the same of the same value again adds nothing."""
        self.skipped.add(Skipped(reason, at))

    def on(self, module: Module) -> Module:
        """The module with this outcome on it."""
        return replace(module, attrs={**module.attrs, KEY: self})

    def summary(self) -> dict[str, dict[str, int]]:
        """For a report: plain words and numbers."""
        reasons = Counter(s.reason for s in self.skipped)
        return {"done": dict(self.done), "skipped": dict(reasons)}


def taken(module: Module) -> tuple[Module, Outcome | None]:
    """The module without its outcome, and the outcome, if its last pass left one."""
    found = module.attrs.get(KEY)
    if not isinstance(found, Outcome):
        return module, None
    attrs = {k: v for k, v in module.attrs.items() if k != KEY}
    return replace(module, attrs=attrs), found
