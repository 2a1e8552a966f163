"""`edgerelax export`: a model file to an artifact folder."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from edgerelax.api import Executable, compile
from edgerelax.cli.arguments import parse_dims, read_libraries
from edgerelax.cli.columns import columns
from edgerelax.frontends.nn.quantise import QuantisedTensor
from edgerelax.ir.diagnostics import InputError
from edgerelax.schedule.target import VARIANTS

SHOWN = 12  # tensors of the table of errors


def export(
    model: Annotated[Path, typer.Argument(help="An ONNX or GGUF file, or a Hugging Face folder.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The artifact folder to write.")],
    target: Annotated[str, typer.Option(help="webgpu or cpu.")] = "webgpu",
    dim: Annotated[
        list[str] | None,
        typer.Option(
            help="Size or bounds of a dim: NAME=4, NAME=1..8, NAME=1.., NAME=..8, NAME=8..64:8."
        ),
    ] = None,
    fallback: Annotated[bool, typer.Option(help="Include the CPU program.")] = True,
    variant: Annotated[
        str, typer.Option(help=f"Only these programs: of {', '.join(VARIANTS)}.")
    ] = "",
    without: Annotated[list[str] | None, typer.Option(help="Leave out a pass, by name.")] = None,
    fp16: Annotated[
        bool,
        typer.Option("--fp16", help="Store weights, and a GPU's activations, as f16 where safe."),
    ] = False,
    quantise: Annotated[
        str | None,
        typer.Option(
            help="How to store a language model's weights: q4, q8, q4s, q4-64, f16 …, or by role: "
            "linear=q4,embedding=q8,head=q8,experts=q4."
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option(help="How a language model's keys and values are stored: f32, f16 or int8."),
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="Of a folder with several ONNX models, which to take.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--input", help="An initializer that is an input too, and stays one."),
    ] = None,
    library: Annotated[
        list[Path] | None,
        typer.Option(help="A Python file with libraries of yours (docs/libraries.md)."),
    ] = None,
    dump: Annotated[Path | None, typer.Option(help="Write the module after every pass.")] = None,
    verify_ir: Annotated[bool, typer.Option("--verify", help="Check after every pass.")] = False,
    timings: Annotated[bool, typer.Option(help="Print where time goes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a report for programs.")] = False,
) -> None:
    """Compile a model once, for all sizes that its symbolic dimensions allow."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    if output.exists() and not output.is_dir():
        raise InputError(f"-o {output}: a file; an artifact is a folder")
    start = time.perf_counter()
    with console.status(f"compiling {escape(model.name)}"):
        compiled = compile(
            model,
            target=target,
            dims=parse_dims(dim or []),
            fallback=fallback,
            variants=tuple(filter(None, variant.split(","))),
            without=tuple(without or ()),
            dump=dump,
            verify=verify_ir,
            fp16=fp16,
            quantise=quantise,
            cache=cache,
            file=file,
            inputs=given or (),
            libraries=read_libraries(library or []),
        )
        compiled.save(output)
    if as_json:
        print(json.dumps(_report(compiled), indent=1))
        return
    _print(console, compiled, output)
    if compiled.report.quantised:
        console.print(quantisation_table(compiled.report.quantised), markup=False)
    if timings:
        _print_times(console, compiled.report.seconds, time.perf_counter() - start)


def _report(compiled: Executable) -> dict[str, object]:
    manifest = compiled.artifact.manifest
    return {
        "files": {name: info.bytes for name, info in manifest.files.items()},
        "launches": compiled.report.launches,
        "passes": compiled.report.passes,
        "strategies": compiled.report.strategies,
        "seconds": compiled.report.seconds,
        "quantised": [
            {**asdict(t), "bits": t.bits} for t in _worst_first(compiled.report.quantised)
        ],
    }


def _worst_first(tensors: Sequence[QuantisedTensor]) -> list[QuantisedTensor]:
    return sorted(tensors, key=lambda t: -t.rms)


def quantisation_table(tensors: Sequence[QuantisedTensor]) -> str:
    """Bits of all, then the tensors that changed most."""
    bits = 8 * sum(t.bytes for t in tensors) / sum(t.elements for t in tensors)
    shown = [t for t in _worst_first(tensors) if t.rms or t.largest]
    rows = [["    tensor", "stored as", "bits", "rms", "largest"]]
    for t in shown[:SHOWN]:
        error = f"{t.rms:.2%}", f"{t.largest:.2%}"
        rows.append([f"    {t.name}", t.scheme, f"{t.bits:.2f}", *error])
    lines = [f"  {bits:.2f} bits per weight; errors relative to the weights, worst first:"]
    lines += columns(rows).splitlines()
    if len(shown) > SHOWN:
        lines.append(f"    … and {len(shown) - SHOWN} more, all with --json")
    lines.append(f"    {len(tensors) - len(shown)} tensors are as the file has them")
    return "\n".join(lines)


def _print_times(console: Console, seconds: dict[str, float], total: float) -> None:
    rest = {"reading the model, writing the folder": total - sum(seconds.values())}
    for name, spent in sorted((seconds | rest).items(), key=lambda s: -s[1]):
        console.print(f"  {spent * 1e3:8.1f} ms  {name}")
    console.print(f"  {total * 1e3:8.1f} ms  in all")


def _print(console: Console, compiled: Executable, output: Path) -> None:
    manifest = compiled.artifact.manifest
    weights = sum(w.stored_bytes for w in manifest.weights)
    rest = sum(f.bytes for n, f in manifest.files.items() if not n.startswith("weights-"))
    console.print(f"[bold]{escape(str(output))}[/bold]:", end=" ")
    console.print(f"{weights / 1e6:.1f} MB of weights, {rest / 1e3:.0f} KB else")
    for program in manifest.programs:
        memory = program.memory
        launches = compiled.report.launches[program.name]
        if memory.planned is None:
            planned = "memory depends on sizes: give upper bounds with --dim to plan it"
        else:
            planned = f"{memory.planned / 1e6:.2f} MB of activations"
            live, unplanned = (memory.lower_bound or 0) / 1e6, (memory.unplanned or 0) / 1e6
            planned += f" (at once live {live:.2f} MB, without reuse {unplanned:.2f} MB)"
        console.print(f"  {program.name}: {launches} kernel launches, {planned}")
