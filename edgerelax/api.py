"""The Python interface: `compile`, `load`, and what they give (design 9)."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgerelax.artifact.manifest import Source
from edgerelax.artifact.store import Artifact
from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.gguf import is_gguf
from edgerelax.frontends.gguf import load as load_gguf
from edgerelax.frontends.hf import SETTINGS, WEIGHTS
from edgerelax.frontends.hf import load as load_hf
from edgerelax.frontends.language.storage import Kind, kind_of, no_cache
from edgerelax.frontends.nn.quantise import Quantiser
from edgerelax.frontends.onnx import load as load_onnx
from edgerelax.frontends.onnx.folders import FILES, is_genai, load_genai, load_optimum, onnx_files
from edgerelax.hosts.choose import candidates, choose
from edgerelax.hosts.cpu import ALLOWED_THREADS, open_cpu
from edgerelax.hosts.cpu import OFFER as CPU_OFFER
from edgerelax.hosts.library import Functions
from edgerelax.hosts.session import Session
from edgerelax.hosts.wgpu import find_adapter, offer_of, open_wgpu
from edgerelax.ir.arguments import checked
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.graph import Module
from edgerelax.ir.library import Function, Library
from edgerelax.pipeline import Options, Pass, Report, compile_module

Model = Any
"""An ONNX or GGUF file, a Hugging Face folder, an ONNX model's bytes or proto (onnx is untyped:
Any), or a Module."""

DEVICES: Mapping[str, str | None] = {"auto": None, "cpu": "cpu", "wgpu": "gpu"}
"""What `device` may be, and the device of the programs that it leaves to choose from."""


class Executable:
    """A compiled model: save it, look into it, run it here."""

    def __init__(
        self, artifact: Artifact, report: Report, libraries: Functions | None = None
    ) -> None:
        self.artifact = artifact
        self.report = report
        self.libraries = libraries or {}

    def save(self, folder: str | Path) -> Path:
        """Write the artifact folder."""
        self.artifact.save(folder)
        return Path(folder)

    def session(
        self, device: str = "auto", variant: str | None = None, threads: int | None = None
    ) -> Session:
        """Load it on a device of this machine, with the functions of its libraries."""
        return open_session(self.artifact, device, variant, self.libraries, threads)


@checked
def compile(
    model: Model,
    *,
    target: str = "webgpu",
    dims: Mapping[str, DimSpec] | None = None,
    fallback: bool = True,
    variants: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    dump: str | Path | None = None,
    verify: bool = False,
    fp16: bool = False,
    quantise: str | Mapping[str, str] | None = None,
    cache: str | None = None,
    file: str | None = None,
    inputs: Sequence[str] = (),
    libraries: Sequence[Library] = (),
    passes: Sequence[tuple[str, Pass]] = (),
) -> Executable:
    """Compile a model once for all sizes that its symbolic dimensions allow.

    Args:
        model: an ONNX or GGUF file, a Hugging Face folder (config.json, tokenizer.json, and
            safetensors or an ONNX decoder), an ONNX model's bytes or proto, or a Module.
        target: `webgpu` or `cpu`.
        dims: for a dimension's name its size; or its least and greatest size (None: unbounded)
            and, if wanted, what it is a multiple of.
        fallback: include the CPU program that runs where there is no GPU.
        variants: make only these programs: `gpu`, `software` (for a GPU that a CPU plays), `cpu`,
            `gpu-f16`, `gpu-subgroups`, `gpu-f16-subgroups` and `cpu-relaxed` (where the device has
            f16, subgroups or both, the engine relaxed SIMD).
        without: passes to leave out, by name.
        dump: a folder that gets the module after every pass.
        verify: check the module's invariants after every pass.
        fp16: store weights, and on a GPU activations, as f16 where that is safe; sums stay f32.
        quantise: how to store the weights of a language model: a scheme, `q4`, or schemes by role,
            `linear=q4,embedding=q8` (docs/nn.md). What that cost is in the report.
        cache: how a language model's cache stores keys and values: `f32` (so where nothing is
            said), `f16` or `int8` (docs/language.md).
        file: of a folder with several ONNX models, the name of the one to take.
        inputs: initializers of an ONNX model that are inputs too and stay such: every run gives
            them. Others are constants.
        libraries: functions that take the place of operators (docs/libraries.md).
        passes: passes of yours, each with the name of the one that it runs before
            (docs/builder.md).
    """
    quantiser = None if quantise is None else Quantiser.of(quantise)
    kind = None if cache is None else kind_of(cache)
    module = _import(model, dims, quantiser, kind, file, inputs)
    folder = None if dump is None else Path(dump)
    functions = _functions(libraries)
    options = Options(
        target, fallback, tuple(variants), frozenset(without), folder, verify, fp16,
        tuple(libraries), tuple(passes),
    )  # fmt: skip
    artifact, report = compile_module(module, _source(model, module), options)
    report.quantised = [] if quantiser is None else quantiser.tensors
    return Executable(artifact, report, functions)


def _import(
    model: Model,
    dims: Mapping[str, DimSpec] | None,
    quantiser: Quantiser | None,
    cache: Kind | None,
    file: str | None,
    inputs: Sequence[str],
) -> Module:
    folder = isinstance(model, str | Path) and Path(model).is_dir()
    genai = folder and is_genai(model)
    optimum = folder and not genai and _is_optimum(Path(model), file)
    if file is not None and not optimum:
        raise InputError(
            f"file {file!r} is for folders with config.json and ONNX models",
            hint="leave it out, or name such a folder",
        )
    gguf = isinstance(model, str | Path) and is_gguf(model)
    if inputs and (folder or gguf or isinstance(model, Module)):
        raise InputError("inputs with initializers are those of an ONNX model in one file")
    if isinstance(model, str | Path) and gguf:
        return load_gguf(model, dims, quantiser, cache)
    if folder and not genai and not optimum:
        return load_hf(model, dims, quantiser, cache)
    if quantiser is not None:
        raise InputError(
            "only the weights of language models are quantised at import",
            hint="that is of GGUF files and Hugging Face folders with safetensors; ONNX models "
            "keep their weights as they are stored, nn modules may load what nn.quantise makes "
            "(docs/nn.md)",
        )
    if folder:
        return load_genai(model, dims, cache) if genai else load_optimum(model, dims, cache, file)
    if cache is not None:
        raise no_cache("this model")
    return model if isinstance(model, Module) else load_onnx(model, dims=dims, inputs=inputs)


def _is_optimum(folder: Path, file: str | None) -> bool:
    """Whether a folder's weights are in ONNX; where it has others too, `file` says so."""
    if not (folder / "config.json").is_file() or not onnx_files(folder):
        return False
    return file is not None or not any(folder.glob("*.safetensors"))


def _functions(libraries: Sequence[Library]) -> Functions:
    """What this machine has of them, by name. Raises InputError for two of one name."""
    found: dict[str, Function] = {}
    for entry in libraries:
        own = entry.function
        if own is not None and found.setdefault(entry.name, own) is not own:
            raise InputError(f"two functions of one name: {entry.name}")
    return found


@checked
def load(
    folder: str | Path,
    device: str = "auto",
    variant: str | None = None,
    libraries: Functions | None = None,
    threads: int | None = None,
) -> Session:
    """Load an artifact folder. `device` is auto, wgpu or cpu; `variant` forces one by name.

    Auto takes a hardware GPU, else the CPU. `libraries` are the functions that the artifact was
    compiled to call, by name. `threads` share the work of the CPU's kernels; None takes one for
    each core, at most 8, and with fewer than 4 cores just one. Results do not depend on it.
    """
    return open_session(Artifact.open(folder), device, variant, libraries, threads)


@checked
def open_session(
    artifact: Artifact,
    device: str = "auto",
    variant: str | None = None,
    libraries: Functions | None = None,
    threads: int | None = None,
) -> Session:
    """Load an artifact on a device of this machine: the first variant that fits, or a named one.

    Raises InputError for an unknown device or variant, for no or too many threads and where
    library functions are missing, UnsupportedError where nothing fits.
    """
    if threads is not None and not 1 <= threads <= ALLOWED_THREADS:
        raise InputError(f"{threads} threads: at least 1, at most {ALLOWED_THREADS}")
    if device not in DEVICES:
        raise InputError(f"unknown device {device!r}; known: {', '.join(DEVICES)}")
    programs = candidates(artifact.manifest, DEVICES[device], variant)
    adapter = find_adapter() if any(p.device == "gpu" for p in programs) else None
    offers = [CPU_OFFER] if adapter is None else [offer_of(adapter), CPU_OFFER]
    program = choose(programs, offers)
    if program.device == "cpu":
        return open_cpu(artifact, program, libraries, threads)
    return open_wgpu(artifact, program, adapter, libraries)


def _source(model: Model, module: Module) -> Source:
    if isinstance(model, Module):
        return Source(file="", kind="module", sha256="")
    if isinstance(model, str | Path):
        path = Path(model)
        if path.is_dir():
            digest = _digest_of_folder(path, module)
            return Source(file=path.resolve().name, kind="hf", sha256=digest)
        digest = _digest(path)
        if is_gguf(path):
            return Source(file=path.name, kind="gguf", sha256=digest)
        metadata = module.attrs.get("metadata", {})
        return Source(file=path.name, kind="onnx", sha256=digest, metadata=metadata)
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return Source(file="", kind="onnx", sha256=hashlib.sha256(data).hexdigest())


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest_of_folder(folder: Path, module: Module) -> str:
    """Of the digests and names of the files that a model is read from, as sha256sum lists them."""
    patterns = SETTINGS if FILES in module.attrs else (*SETTINGS, WEIGHTS)
    found = {path for pattern in patterns for path in folder.glob(pattern)}
    files = {str(path.relative_to(folder)): path for path in found} | module.attrs.get(FILES, {})
    listed = "".join(f"{_digest(path)}  {name}\n" for name, path in sorted(files.items()))
    return hashlib.sha256(listed.encode()).hexdigest()


__all__ = ["Executable", "Library", "Session", "compile", "load", "open_session"]
