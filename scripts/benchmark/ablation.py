"""What each part of the compiler is worth: our own artifacts against each other, one part less."""

from typing import Any

from edgerelax.pipeline import OPTIONAL
from scripts.benchmark.cases import Subject
from scripts.benchmark.contest import Stand, describe
from scripts.benchmark.rounds import Effort, Race
from scripts.benchmark.statistics import paired_ratio

PARTS = tuple(p for p in ("fuse", "reuse", "capture", "strategies") if p in OPTIONAL)
"""Fusion, reuse of memory, capture and replay, strategies: those that can be left out."""
WHOLE = "all"


def ablate(
    stand: Stand, subject: Subject, host: str, parts: tuple[str, ...], effort: Effort
) -> Any:
    """Races the whole compiler against itself without each part, and without all of them."""
    left_out: dict[str, tuple[str, ...]] = {WHOLE: ()} | {f"-{p}": (p,) for p in parts}
    if len(parts) > 1:
        left_out["none"] = parts
    contenders = [
        stand.ours(subject, host, subject.artifact(*without), name)
        for name, without in left_out.items()
    ]
    records = Race(contenders, effort).run(1, subject.warm)
    whole = [s.milliseconds for s in records[WHOLE].warm]
    out: dict[str, Any] = {}
    for name, without in left_out.items():
        warm = [s.milliseconds for s in records[name].warm]
        out[name] = describe(records[name], subject) | {
            "ratio": paired_ratio(warm, whole),
            "activations": stand.activations(subject, host, *without),
        }
    return out
