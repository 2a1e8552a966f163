"""Tables for the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from scripts.benchmark.statistics import geometric_mean

Data = Mapping[str, Any]


def milliseconds(value: float | None) -> str:
    """Three digits."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def ratio(value: float | None) -> str:
    """Two decimals."""
    return "-" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """Half a spread, as what may be added or taken away."""
    return "-" if value is None else f"±{value / 2:.0%}"


def line(name: str, host: str, found: Data) -> str:
    """One contest in one line."""
    parts = []
    for contender, data in found.items():
        if data["failure"] is not None:
            parts.append(f"{contender}: failed ({data['failure']})")
            continue
        wrong = "" if data["equal"] else "WRONG "
        text = f"{contender} {wrong}{milliseconds(data['warm_median_ms'])} ms"
        text += f" {percent(data['warm_spread'])} (first {milliseconds(data['first_median_ms'])})"
        parts.append(text)
    return f"{name} {host}: {'; '.join(parts)}"


def summary(result: Data) -> Table:
    """All contests: times and ratios."""
    table = Table(title="ours / theirs")
    for column in ("model", "host", "rival", "warm ms", "theirs", "ratio", "first ms", "theirs",
                   "ratio", "new shape", "equal"):  # fmt: skip
        table.add_column(column)
    for name, model in result["models"].items():
        for host, found in model["hosts"].items():
            ours, *rivals = found.items()
            for rival, data in rivals:
                table.add_row(name, host, rival, *_row(ours[1], data))
    return table


def _row(ours: Data, theirs: Data) -> list[str]:
    return [
        milliseconds(ours["warm_median_ms"]),
        milliseconds(theirs["warm_median_ms"]),
        ratio(theirs["warm_ratio"]),
        milliseconds(ours["first_median_ms"]),
        milliseconds(theirs["first_median_ms"]),
        ratio(theirs["first_ratio"]),
        ratio(geometric_mean(n["ratio"] for n in ours["new_shapes"])),
        "yes" if ours["equal"] else "NO",
    ]
