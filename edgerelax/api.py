"""The Python interface: `compile`, `load`, and what they give (design 9)."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

from edgerelax.artifact.manifest import Source
from edgerelax.artifact.store import Artifact
from edgerelax.frontends.onnx import load as load_onnx
from edgerelax.frontends.onnx.symbols import DimSpec
from edgerelax.hosts.cpu import open_cpu
from edgerelax.hosts.session import Session
from edgerelax.hosts.wgpu import hardware_adapter, open_wgpu
from edgerelax.ir.diagnostics import InputError, UnsupportedError
from edgerelax.ir.graph import Module
from edgerelax.pipeline import Options, Report, compile_module

Model = Any
"""An ONNX file, its bytes or proto (onnx is untyped: Any), or a Module."""

DEVICES: Mapping[str, Callable[[Artifact], Session]] = {"cpu": open_cpu, "wgpu": open_wgpu}


class Executable:
    """A compiled model: save it, look into it, run it here."""

    def __init__(self, artifact: Artifact, report: Report) -> None:
        self.artifact = artifact
        self.report = report

    def save(self, folder: str | Path) -> Path:
        """Write the artifact folder."""
        self.artifact.save(folder)
        return Path(folder)

    def session(self, device: str = "auto") -> Session:
        """Load it on a device of this machine."""
        return open_session(self.artifact, device)


def compile(
    model: Model,
    *,
    target: str = "webgpu",
    dims: Mapping[str, DimSpec] | None = None,
    fallback: bool = True,
    without: tuple[str, ...] = (),
    dump: str | Path | None = None,
    verify: bool = False,
) -> Executable:
    """Compile a model once for all sizes that its symbolic dimensions allow.

    Args:
        model: an ONNX file, its bytes or proto, or a Module.
        target: `webgpu`, `webgpu-software` or `cpu`.
        dims: for a dimension's name its size; or its least and greatest size (None: unbounded)
            and, if wanted, what it is a multiple of.
        fallback: include the CPU program that runs where there is no GPU.
        without: passes to leave out, by name.
        dump: a folder that gets the module after every pass.
        verify: check the module's invariants after every pass.
    """
    module = model if isinstance(model, Module) else load_onnx(model, dims=dims)
    folder = None if dump is None else Path(dump)
    options = Options(target, fallback, frozenset(without), folder, verify)
    return Executable(*compile_module(module, _source(model), options))


def load(folder: str | Path, device: str = "auto") -> Session:
    """Load an artifact folder. `device` is auto, wgpu or cpu.

    Auto takes a hardware GPU, else the CPU.
    """
    return open_session(Artifact.open(folder), device)


def open_session(artifact: Artifact, device: str = "auto") -> Session:
    """Load an artifact on a device of this machine."""
    if device == "auto":
        return _open_best(artifact)
    if device not in DEVICES:
        raise InputError(f"unknown device {device!r}; known: auto, {', '.join(DEVICES)}")
    return DEVICES[device](artifact)


def _open_best(artifact: Artifact) -> Session:
    offered = {p.device for p in artifact.manifest.programs}
    adapter = hardware_adapter() if "gpu" in offered else None
    if adapter is not None:
        try:
            return open_wgpu(artifact, adapter)
        except UnsupportedError:
            if "cpu" not in offered:
                raise
    return open_cpu(artifact) if "cpu" in offered else open_wgpu(artifact)


def _source(model: Model) -> Source:
    if isinstance(model, Module):
        return Source(file="", kind="module", sha256="")
    if isinstance(model, str | Path):
        path = Path(model)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return Source(file=path.name, kind="onnx", sha256=digest, metadata=_metadata(path))
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return Source(file="", kind="onnx", sha256=hashlib.sha256(data).hexdigest())


def _metadata(path: Path) -> dict[str, str]:
    proto = onnx.load(path, load_external_data=False)
    return {entry.key: entry.value for entry in proto.metadata_props}


__all__ = ["Executable", "Session", "compile", "load", "open_session"]
