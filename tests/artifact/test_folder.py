"""The folder: what is saved is what is loaded; what is damaged is refused, by name."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.artifact.store import Artifact
from edgerelax.ir.diagnostics import EdgeRelaxError, FormatError, InputError
from tests.artifact.folders import INPUTS, compiled, contents, expected, write
from tests.faults.hosts import HOSTS
from tests.faults.models import F32, model, node

BOTH = pytest.mark.parametrize("host", HOSTS)
FILES = (
    "manifest.json", "vm.wasm",
    "program-gpu-subgroups_gpu.bin", "program-software.bin", "program-cpu-relaxed_cpu.bin",
    "kernels-gpu-subgroups.wgsl", "kernels-gpu-subgroups_gpu.wgsl", "kernels-gpu.wgsl",
    "kernels-software.wgsl", "kernels-cpu-relaxed.wasm", "kernels-cpu.wasm",
    "weights-00001-of-00003.safetensors",  # as both GPU variants have them
    "weights-00002-of-00003.safetensors",  # for all
    "weights-00003-of-00003.safetensors",  # packed for the CPU
)  # fmt: skip


def run_all(folder: Path) -> None:
    """Load on every host and run: reads every file that a host needs."""
    for host in HOSTS:
        with api.load(folder, host) as session:
            np.testing.assert_allclose(session.run(INPUTS)["y"], expected(), rtol=1e-5, atol=1e-6)


def test_files() -> None:
    assert set(contents()) == set(FILES)


def test_saved_and_loaded(tmp_path: Path) -> None:
    run_all(compiled().save(tmp_path / "deep" / "folder"))


def test_moved(tmp_path: Path) -> None:
    compiled().save(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    run_all(tmp_path / "b")


def test_saved_over_another(tmp_path: Path) -> None:
    """Files of the old artifact go; files of others stay."""
    compiled().save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    api.compile(_tiny(), target="cpu").save(tmp_path)
    left = {p.name for p in tmp_path.iterdir()}
    assert left == {"notes.txt", "manifest.json", "program-cpu.bin", "kernels-cpu.wasm", "vm.wasm"}
    compiled().save(tmp_path)
    run_all(tmp_path)


def test_saved_over_a_damaged_one(tmp_path: Path) -> None:
    write(tmp_path, {**contents(), "manifest.json": b"{"})
    compiled().save(tmp_path)
    run_all(tmp_path)


def _tiny() -> bytes:
    proto = model([node("Relu", ["x"], ["y"])], [("x", F32, ["n"])], [("y", F32, None)])
    return proto.SerializeToString()


def test_same_model_same_bytes() -> None:
    """Compiling twice gives the same artifact: it can be cached and compared."""
    first, second = (api.compile(_tiny()) for _ in range(2))
    assert first.artifact.manifest == second.artifact.manifest


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(data: bytes) -> bytes:
    at = len(data) * 2 // 3
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


def _longer(data: bytes) -> bytes:
    return data + b"\n\n"


def _empty(data: bytes) -> bytes:
    return b""


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": _cut, "flip": _flip, "longer": _longer, "empty": _empty
}  # fmt: skip
USED_BY = {"program-software.bin": ("wgpu",), "kernels-software.wgsl": ("wgpu",),
           "program-cpu-relaxed_cpu.bin": ("cpu",), "kernels-cpu-relaxed.wasm": ("cpu",),
           "weights-00001-of-00003.safetensors": ("wgpu",),
           "weights-00002-of-00003.safetensors": HOSTS,
           "weights-00003-of-00003.safetensors": ("cpu",)}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", USED_BY)
def test_damaged_files(name: str, damage: str, tmp_path: Path) -> None:
    data = contents()[name]
    write(tmp_path, {**contents(), name: DAMAGES[damage](data)})
    for host in USED_BY[name]:
        with pytest.raises(FormatError, match=name):
            api.load(tmp_path, host)


@pytest.mark.parametrize("name", USED_BY)
def test_missing_files(name: str, tmp_path: Path) -> None:
    files = {n: d for n, d in contents().items() if n != name}
    for host in USED_BY[name]:
        with pytest.raises(FormatError, match=f"{name}: missing"):
            api.load(write(tmp_path, files), host)


def test_what_a_host_does_not_need_may_be_missing(tmp_path: Path) -> None:
    """Only the files of the variant that runs are read."""
    manifest = compiled().artifact.manifest
    for program in manifest.programs:
        kept = {"manifest.json", *manifest.files_of(program)}
        files = {name: data for name, data in contents().items() if name in kept}
        folder = write(tmp_path / program.name, files)
        with api.load(folder, variant=program.name) as session:
            np.testing.assert_allclose(session.run(INPUTS)["y"], expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_manifest(damage: str, tmp_path: Path) -> None:
    data = DAMAGES[damage](contents()["manifest.json"])
    write(tmp_path, {**contents(), "manifest.json": data})
    if damage == "longer":
        run_all(tmp_path)
        return
    with pytest.raises(FormatError, match=r"manifest\.json"):
        api.load(tmp_path, "cpu")


def test_no_artifact(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no artifact here \(manifest\.json is missing\)"):
        api.load(tmp_path)
    with pytest.raises(InputError, match="no artifact here"):
        api.load(tmp_path / "missing")
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(InputError, match="no artifact here"):
        api.load(tmp_path)


@pytest.mark.parametrize("target", ["link", "parent"])
def test_files_outside_the_folder(target: str, tmp_path: Path) -> None:
    """A link in the folder to a file elsewhere, though its bytes are right."""
    folder = write(tmp_path / "artifact", contents())
    outside = tmp_path / "program-cpu-relaxed_cpu.bin"
    outside.write_bytes(contents()["program-cpu-relaxed_cpu.bin"])
    (folder / "program-cpu-relaxed_cpu.bin").unlink()
    if target == "link":
        (folder / "program-cpu-relaxed_cpu.bin").symlink_to(outside)
        with pytest.raises(FormatError, match="leaves the artifact's folder"):
            api.load(folder, "cpu")
        return
    manifest = contents()["manifest.json"].replace(
        b'"program-cpu-relaxed_cpu.bin"', b'"../program-cpu-relaxed_cpu.bin"'
    )
    (folder / "manifest.json").write_bytes(manifest)
    with pytest.raises(FormatError, match=r"manifest\.json"):
        api.load(folder, "cpu")


def test_hash_is_of_the_file_not_of_its_size(tmp_path: Path) -> None:
    """Every single byte counts: flipped one by one through the smallest file."""
    name = "program-cpu-relaxed_cpu.bin"
    good = contents()[name]
    artifact = Artifact.open(write(tmp_path, contents()))
    for at in range(0, len(good), max(1, len(good) // 50)):
        (tmp_path / name).write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        artifact.forget()
        with pytest.raises(EdgeRelaxError, match="sha256"):
            artifact.read(name)


@BOTH
def test_one_artifact_for_many_sessions(host: str, tmp_path: Path) -> None:
    artifact = Artifact.open(compiled().save(tmp_path))
    sessions = [api.open_session(artifact, host) for _ in range(3)]
    artifact.forget()
    for session in sessions:
        np.testing.assert_allclose(session.run(INPUTS)["y"], expected(), rtol=1e-5, atol=1e-6)
        session.close()
