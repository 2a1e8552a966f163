"""The section on memory of docs/bench.md."""

from collections.abc import Iterator, Mapping
from typing import Any

from scripts.benchmark.markdown import size, table
from scripts.benchmark.memory import GROWING, allocations
from scripts.benchmark.statistics import geometric_mean
from scripts.benchmark.tables import ratio

Data = Mapping[str, Any]


def memory_section(memory: Data) -> Iterator[str]:
    """Plans within bounds, and growth."""
    if not memory:
        return
    yield "## Memory"
    yield (
        "Activations of the GPU's program within the stated bounds, in bytes at the greatest "
        "sizes: if every tensor had memory of its own, as planned, and the most that is live at "
        "once, which no plan can go below. *In place* counts results that take the place of an "
        "operand. The goal for planned / lower bound is 1.10."
    )
    yield _plans(memory["plans"])
    yield (
        "What a growing series allocates, counted by the VM on the CPU host (bytes of activations "
        "after each call; the last call goes back to the first size). Within bounds all memory is "
        "there with the first call; without, it grows where a size exceeds all before, and only "
        "there."
    )
    yield _growth(memory["growth"])


def _plans(plans: Data) -> str:
    rows = []
    for name, row in plans.items():
        shares = [_over(row, "planned"), _over(row, "unplanned")]
        figures = (size(row[k]) for k in ("unplanned", "planned", "lower_bound"))
        bounds = ", ".join(f"`{b}`" for b in row["bounds"]) or "none: all dims are fixed"
        rows.append((name, bounds, *figures, str(row["in_place"]), *map(ratio, shares)))
    means = [geometric_mean(_over(r, k) for r in plans.values()) for k in ("planned", "unplanned")]
    rows.append(("geometric mean", "", "", "", "", "", *(f"**{ratio(m)}**" for m in means)))
    head = ("model", "bounds", "no planning", "planned", "lower bound", "in place",
            "planned / lower bound", "no planning / lower bound")  # fmt: skip
    return table(head, rows)


def _over(row: Data, figure: str) -> float | None:
    return row[figure] / row["lower_bound"] if row[figure] and row["lower_bound"] else None


def _growth(growth: Data) -> str:
    rows = []
    for kind, found in growth.items():
        for series, after in found.items():
            calls = [*GROWING[series], GROWING[series][0]]
            steps = ", ".join(f"{b}x{n}: {size(a)}" for (b, n), a in zip(calls, after, strict=True))
            rows.append((kind, series, steps, str(allocations(after))))
    return table(("MiniLM", "growing", "bytes after each call", "calls that allocated"), rows)
