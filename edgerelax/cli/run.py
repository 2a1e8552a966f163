"""`edgerelax run`: run an artifact natively on arrays from files."""

import json
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from edgerelax.api import load
from edgerelax.cli.arguments import Device, Threads, Variant, read_libraries
from edgerelax.cli.arrays import declared, read_inputs, write_npz


def run(
    artifact: Annotated[Path, typer.Argument(help="An artifact folder.")],
    given: Annotated[
        list[str] | None, typer.Option("--input", help="NAME=FILE.npy, or FILE.npz.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write an .npz file.")
    ] = None,
    device: Device = "auto",
    variant: Variant = None,
    threads: Threads = None,
    library: Annotated[
        list[Path] | None,
        typer.Option(help="A Python file with libraries of yours (docs/libraries.md)."),
    ] = None,
    function: Annotated[str, typer.Option(help="The function to run.")] = "main",
    repeat: Annotated[int, typer.Option(min=1, help="Run so many times; print the median.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print for programs.")] = False,
) -> None:
    """Run a compiled model here."""
    functions = {e.name: e.function for e in read_libraries(library or []) if e.function}
    with load(artifact, device, variant, functions, threads) as session:
        inputs = read_inputs(given or [])
        if function in session.functions:
            inputs = declared(inputs, session.functions[function].inputs)
        times: list[float] = []
        for _ in range(repeat):
            start = time.perf_counter()
            outputs = session.run(inputs, function)
            times.append(time.perf_counter() - start)
        where, chosen, threads = session.device_name, session.variant, session.threads
    milliseconds = float(np.median(times)) * 1e3
    if output is not None:
        write_npz(output, outputs)
    if as_json:
        shapes = {n: {"dtype": str(a.dtype), "shape": a.shape} for n, a in outputs.items()}
        report = {"device": where, "variant": chosen, "threads": threads}
        print(json.dumps(report | {"milliseconds": milliseconds, "outputs": shapes}))
        return
    for name, array in outputs.items():
        text = np.array2string(array, threshold=20, edgeitems=3)
        print(f"{name}: {array.dtype}{list(array.shape)}\n{text}")
    print(f"{milliseconds:.2f} ms on {where}, variant {chosen}, threads {threads}")
