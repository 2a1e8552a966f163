"""An artifact: a manifest and its files, in memory or in a folder.

Reading checks sizes and hashes and never leaves the folder; writing is atomic per file and leaves
the manifest for last, so that a folder with a manifest is whole.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from edgerelax.artifact.manifest import MANIFEST, FileInfo, GpuKernel, Manifest, decode, encode
from edgerelax.artifact.weights import widened
from edgerelax.ir.diagnostics import FormatError, InputError


class Artifact:
    """A manifest and access to its files. Checked files are read once and kept until `forget`."""

    def __init__(self, manifest: Manifest, files: Mapping[str, bytes] | Path) -> None:
        self.manifest = manifest
        self._folder = files if isinstance(files, Path) else None
        self._files: dict[str, bytes] = {} if isinstance(files, Path) else dict(files)

    @staticmethod
    def open(folder: Path | str) -> "Artifact":
        """Open a folder. Raises InputError if it is none.

        FormatError if its manifest is damaged.
        """
        path = Path(folder)
        manifest = path / MANIFEST
        if not manifest.is_file():
            raise InputError(
                f"{path}: no artifact here ({MANIFEST} is missing)",
                hint="give the folder that `edgerelax export -o` wrote",
            )
        return Artifact(decode(manifest.read_bytes(), str(manifest)), path)

    def read(self, name: str) -> bytes:
        """A file's bytes, checked against the manifest."""
        if name not in self._files:
            assert self._folder is not None
            self._files[name] = self._read_checked(name, self._folder)
        return self._files[name]

    def _read_checked(self, name: str, folder: Path) -> bytes:
        info = self.manifest.files[name]
        path = folder / name
        if path.resolve().parent != folder.resolve():
            raise FormatError(f"{path}: leaves the artifact's folder")
        if not path.is_file():
            raise FormatError(f"{path}: missing", hint="copy the whole folder")
        data = path.read_bytes()
        if len(data) != info.bytes:
            raise FormatError(
                f"{path}: {len(data)} bytes, the manifest says {info.bytes}",
                hint="the file was cut off or replaced; copy the folder again",
            )
        if hashlib.sha256(data).hexdigest() != info.sha256:
            raise FormatError(
                f"{path}: its sha256 is not the manifest's",
                hint="the file is damaged or of another export; copy the folder again",
            )
        return data

    def asset(self, name: str) -> bytes:
        """A file that came with the model, checked. Raises InputError for a name it hasn't."""
        if name not in self.manifest.assets:
            raise InputError(
                f"this artifact has no asset {name!r}",
                hint=f"it has {', '.join(self.manifest.assets) or 'none'}",
            )
        return self.read(name)

    def weight(self, index: int) -> bytes:
        """The bytes of a weight."""
        weight = self.manifest.weights[index]
        parts = [self.read(p.file)[p.offset : p.offset + p.bytes] for p in weight.parts]
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        return data if weight.stored is None else widened(data)

    def kernel_text(self, kernel: GpuKernel) -> str:
        """The WGSL module of a kernel."""
        return self.read(kernel.file)[kernel.start : kernel.end].decode(errors="replace")

    def forget(self) -> None:
        """Let go of files that can be read again."""
        if self._folder is not None:
            self._files.clear()

    def save(self, folder: Path | str) -> None:
        """Write all files, then the manifest. Other artifacts' files in the folder are removed."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        old = path / MANIFEST
        stale = _listed(old)
        old.unlink(missing_ok=True)
        for name in self.manifest.files:
            _write(path / name, self.read(name))
        for name in stale - set(self.manifest.files):
            (path / name).unlink(missing_ok=True)
        _write(old, encode(self.manifest))


def file_info(data: bytes) -> FileInfo:
    """What the manifest says of a file."""
    return FileInfo(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _listed(manifest: Path) -> set[str]:
    """The files of an artifact that is about to be replaced; none if it cannot be read."""
    if not manifest.is_file():
        return set()
    try:
        return set(decode(manifest.read_bytes(), str(manifest)).files)
    except FormatError:
        return set()


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)
