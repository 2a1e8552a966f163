"""`edgerelax inspect`: what an artifact holds and needs."""

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from edgerelax.artifact.manifest import Manifest, ProgramInfo, TensorInfo
from edgerelax.artifact.store import Artifact
from edgerelax.cli.columns import columns
from edgerelax.codegen.disassemble import disassemble
from edgerelax.ir.diagnostics import InputError


def inspect(
    artifact: Annotated[Path, typer.Argument(help="An artifact folder.")],
    program: Annotated[str, typer.Option(help="Print the VM program of a variant, by name.")] = "",
    kernel: Annotated[str, typer.Option(help="Print the WGSL text of a kernel.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest.")] = False,
) -> None:
    """Show functions, signatures, kernels, the memory plan and needs."""
    opened = Artifact.open(artifact)
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(opened.manifest), indent=1).decode())
    elif program:
        info = opened.manifest.program(program)
        print(disassemble(opened.read(info.program)))
    elif kernel:
        _print_kernel(opened, kernel)
    else:
        _print(opened.manifest)


def _print_kernel(opened: Artifact, name: str) -> None:
    found = [k for p in opened.manifest.programs for k in p.gpu_kernels if k.name == name]
    if not found:
        raise InputError(f"no GPU kernel {name!r}", hint=_near(name, opened.manifest))
    for text in dict.fromkeys(opened.kernel_text(kernel) for kernel in found):
        print(text)


def _near(name: str, manifest: Manifest) -> str:
    """Kernels of names that hold this one or are spelled like it; else all."""
    known = sorted({k.name for p in manifest.programs for k in p.gpu_kernels})
    near = [k for k in known if name in k] or get_close_matches(name, known, 5, 0.5)
    return f"near: {', '.join(near[:9])}" if near else f"it has {', '.join(known) or 'none'}"


def _print(manifest: Manifest) -> None:
    console = Console(highlight=False, soft_wrap=True)
    source = manifest.source
    console.print(f"made by {manifest.producer} from {escape(source.file) or source.kind}")
    for name, symbol in manifest.symbols.items():
        upper = "" if symbol.hi is None else str(symbol.hi)
        multiple = f", a multiple of {symbol.multiple_of}" if symbol.multiple_of > 1 else ""
        console.print(f"  dim {name}: {symbol.lo}..{upper}{multiple}")
    for function in manifest.functions:
        console.print(f"[bold]{function.name}[/bold]")
        for label, tensors in (("in ", function.inputs), ("out", function.outputs)):
            for tensor in tensors:
                console.print(f"  {label} {_signature(tensor)}", markup=False)
    for program in manifest.programs:
        _print_program(console, manifest, program)
    total = sum(w.stored_bytes for w in manifest.weights)
    console.print(f"{len(manifest.weights)} weights, {total} bytes")


def _print_program(console: Console, manifest: Manifest, program: ProgramInfo) -> None:
    memory, needs = program.memory, program.needs
    made_for = "the CPU" if program.adapter is None else f"adapters of class {program.adapter}"
    console.print(f"[bold]variant {program.name}[/bold] for {made_for}")
    beyond = [f"{n} {v}" for n, v in needs.limits.items()] + needs.features
    console.print(f"  needs beyond the defaults: {', '.join(beyond) or 'nothing'}")
    files = manifest.files_of(program)
    total = sum(manifest.files[name].bytes for name in files)
    console.print(f"  downloads {total} bytes: {', '.join(files)}")
    for k, slab in enumerate(memory.slabs):
        console.print(f"  slab {k} on {slab.device}: {slab.bytes} bytes", markup=False)
    if memory.planned is not None:
        console.print(
            f"  planned {memory.planned} bytes; without reuse {memory.unplanned};"
            f" lower bound {memory.lower_bound}"
        )
    if program.gpu_kernels:
        rows = [["  kernel", "buffers", "scalars"]]
        for kernel in program.gpu_kernels:
            rows.append([f"  {kernel.name}", " ".join(kernel.buffers), str(kernel.scalars)])
        print(columns(rows))
    if program.cpu_kernels:
        console.print(f"  {len(program.cpu_kernels)} CPU kernels")
    for name in dict.fromkeys(entry.function for entry in program.libraries):
        console.print(f"  calls the library function {escape(name)}")


def _signature(tensor: TensorInfo) -> str:
    dims = "unknown shape" if tensor.shape is None else f"[{', '.join(map(str, tensor.shape))}]"
    return f"{tensor.name}: {tensor.dtype}{dims}"
