"""Text in columns, as wide as it must be: a name that a pipe gets is whole."""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> str:
    """The rows as lines; each column takes its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
