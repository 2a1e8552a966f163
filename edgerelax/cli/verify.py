"""`edgerelax verify`: a compiled model against onnxruntime, or numpy, over a range of sizes."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from edgerelax.api import open_session
from edgerelax.artifact.store import Artifact
from edgerelax.checking import Comparison, compare, first_difference, sample_sizes
from edgerelax.cli.arguments import Device, Variant
from edgerelax.cli.columns import columns
from edgerelax.frontends.onnx.reading import read_model


def verify(
    model: Annotated[Path, typer.Argument(help="The ONNX file.")],
    artifact: Annotated[Path, typer.Argument(help="The folder that was exported from it.")],
    device: Device = "auto",
    variant: Variant = None,
    reference: Annotated[str, typer.Option(help="onnxruntime or numpy.")] = "onnxruntime",
    samples: Annotated[int, typer.Option(min=1, help="How many combinations of sizes.")] = 4,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Allowed difference, of the output's scale.")
    ] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of the random inputs.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print for programs.")] = False,
) -> None:
    """Compare outputs; where they differ, name the first operator that does."""
    read_model(model)  # says what is wrong with the file, in words of ours
    opened = Artifact.open(artifact)
    rows: list[Comparison] = []
    with open_session(opened, device, variant) as session:
        for sizes in sample_sizes(opened.manifest, samples, seed):
            rows += compare(model, session, reference, sizes, seed)
    bad = [row for row in rows if not row.difference <= tolerance]
    if as_json:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        _print(rows, tolerance)
    if not bad:
        return
    culprit = first_difference(
        model, opened.manifest, session.variant, bad[0].sizes, tolerance, seed
    )
    print(culprit, file=sys.stderr)
    raise typer.Exit(1)


def _print(rows: list[Comparison], tolerance: float) -> None:
    lines = [["sizes", "output", "shape", "difference"]]
    for row in rows:
        mark = "" if row.difference <= tolerance else "  too large"
        sizes = ", ".join(f"{k}={v}" for k, v in row.sizes.items())
        lines.append([sizes, row.output, str(list(row.shape)), f"{row.difference:.2e}{mark}"])
    print(columns(lines))
