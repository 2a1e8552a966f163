"""`edgerelax verify`: a compiled model against onnxruntime, or numpy, over a range of sizes."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from edgerelax.artifact.store import Artifact
from edgerelax.checking import Comparison, compare, first_difference, sample_sizes


def verify(
    model: Annotated[Path, typer.Argument(help="The ONNX file.")],
    artifact: Annotated[Path, typer.Argument(help="The folder that was exported from it.")],
    device: Annotated[str, typer.Option(help="auto, wgpu or cpu.")] = "auto",
    reference: Annotated[str, typer.Option(help="onnxruntime or numpy.")] = "onnxruntime",
    samples: Annotated[int, typer.Option(min=1, help="How many combinations of sizes.")] = 4,
    tolerance: Annotated[
        float, typer.Option(help="Allowed difference, of the output's scale.")
    ] = 1e-3,
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print for programs.")] = False,
) -> None:
    """Compare outputs; where they differ, name the first operator that does."""
    opened = Artifact.open(artifact)
    rows: list[Comparison] = []
    for sizes in sample_sizes(opened.manifest, samples, seed):
        rows += compare(model, opened, device, reference, sizes, seed)
    bad = [row for row in rows if not row.difference <= tolerance]
    if as_json:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        _print(rows, tolerance)
    if not bad:
        return
    culprit = first_difference(model, opened.manifest, device, bad[0].sizes, tolerance, seed)
    Console(stderr=True, highlight=False).print(culprit, markup=False)
    raise typer.Exit(1)


def _print(rows: list[Comparison], tolerance: float) -> None:
    table = Table("sizes", "output", "shape", "difference", box=None)
    for row in rows:
        mark = "" if row.difference <= tolerance else "  too large"
        sizes = ", ".join(f"{k}={v}" for k, v in row.sizes.items())
        table.add_row(sizes, row.output, str(list(row.shape)), f"{row.difference:.2e}{mark}")
    Console(highlight=False).print(table)
