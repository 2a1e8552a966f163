"""A manifest from a stranger: whatever is in it, only FormatError and InputError come out."""

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgerelax.api as api
from edgerelax.artifact.manifest import VERSION, decode, encode
from edgerelax.artifact.store import Artifact
from edgerelax.ir.diagnostics import EdgeRelaxError, FormatError, InputError
from tests.artifact.folders import INPUTS, compiled, contents, expected, write

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
GOOD: dict[str, Any] = json.loads(contents()["manifest.json"])


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where in a JSON value something stands."""
    found = [at] if at else []
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            found += paths(child, (*at, key))
    return found


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from(["", "../x", "/etc/passwd", "a/b", "n", "n//0", "2**n", "vm.wasm", "f32"]),
    st.just([]), st.just({}), st.lists(st.integers(0, 9), max_size=3),
)  # fmt: skip


def altered(at: tuple[Any, ...], value: Any, delete: bool) -> dict[str, Any]:
    raw = copy.deepcopy(GOOD)
    holder: Any = raw
    for key in at[:-1]:
        holder = holder[key]
    if delete:
        del holder[at[-1]]
    else:
        holder[at[-1]] = value
    return raw


def attempt(folder: Path) -> None:
    """Open and run; a changed field may be harmless, else the error says what is wrong."""
    try:
        session = api.load(folder, "cpu")
    except (FormatError, InputError) as error:
        assert str(error)
        return
    with session:
        try:
            session.run(INPUTS)
        except EdgeRelaxError as error:  # a program whose kernels are said to be elsewhere
            assert str(error)


@QUICK
@given(st.sampled_from(paths(GOOD)), VALUES, st.booleans())
def test_altered_fields(
    tmp_path_factory: pytest.TempPathFactory, at: tuple[Any, ...], value: Any, delete: bool
) -> None:
    text = json.dumps(altered(at, value, delete)).encode()
    folder = tmp_path_factory.getbasetemp() / "altered"
    attempt(write(folder, {**contents(), "manifest.json": text}))


@pytest.mark.parametrize("key", sorted(GOOD))
def test_deleted_fields(key: str) -> None:
    with pytest.raises(FormatError, match=r"manifest\.json"):
        decode(json.dumps(altered((key,), None, True)).encode())


@QUICK
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode(data)


@QUICK
@given(st.integers(0, len(contents()["manifest.json"]) - 1), st.integers(1, 255))
def test_flipped_bytes(tmp_path_factory: pytest.TempPathFactory, at: int, by: int) -> None:
    good = contents()["manifest.json"]
    text = good[:at] + bytes([good[at] ^ by]) + good[at + 1 :]
    folder = tmp_path_factory.getbasetemp() / "flipped"
    attempt(write(folder, {**contents(), "manifest.json": text}))


@QUICK
@given(st.integers(0, len(contents()["manifest.json"]) - 3))
def test_cut_short(end: int) -> None:
    with pytest.raises(FormatError):
        decode(contents()["manifest.json"][:end])


def test_nesting() -> None:
    with pytest.raises(FormatError):
        decode(b"[" * 100_000)
    with pytest.raises(FormatError):
        decode(b'{"a":' * 100_000)


@pytest.mark.parametrize("version", [VERSION + 1, 999])
def test_newer_version(version: int) -> None:
    raw = {**GOOD, "version": version, "something": "that only later versions know"}
    with pytest.raises(FormatError, match=f"version {version} is newer") as caught:
        decode(json.dumps(raw).encode())
    assert "update edgerelax" in caught.value.hint


@pytest.mark.parametrize("version", [VERSION - 1, 0, -1, "1", 1.5, None, True, []])
def test_other_versions(version: Any) -> None:
    with pytest.raises(FormatError, match="version"):
        decode(json.dumps({**GOOD, "version": version}).encode())


@pytest.mark.parametrize("format_", ["mlc", "", None, 3])
def test_other_formats(format_: Any) -> None:
    with pytest.raises(FormatError, match="not an edgerelax manifest"):
        decode(json.dumps({**GOOD, "format": format_}).encode())


@pytest.mark.parametrize("field", ["vm", "program", "cpu_kernels_file"])
@pytest.mark.parametrize("name", ["../x", "/x", "a/b", "a\\b", ".hidden", "", "x" * 201, "a\n"])
def test_file_names(field: str, name: str) -> None:
    raw = copy.deepcopy(GOOD)
    holder = raw if field in raw else raw["programs"][0]
    assert field in holder
    holder[field] = name
    raw["files"][name] = {"bytes": 0, "sha256": "0" * 64}
    with pytest.raises(FormatError):
        decode(json.dumps(raw).encode())


def test_round_trip() -> None:
    manifest = compiled().artifact.manifest
    assert decode(encode(manifest)) == manifest


PROGRAM = contents()["program-cpu-relaxed_cpu.bin"]


@QUICK
@given(st.integers(0, len(PROGRAM) - 1), st.integers(1, 255))
def test_a_program_of_the_right_hash(at: int, by: int) -> None:
    """A manifest that vouches for a damaged program: the VM checks it, or computes something."""
    data = PROGRAM[:at] + bytes([PROGRAM[at] ^ by]) + PROGRAM[at + 1 :]
    files = {n: d for n, d in contents().items() if n != "manifest.json"}
    artifact = Artifact(
        compiled().artifact.manifest, {**files, "program-cpu-relaxed_cpu.bin": data}
    )
    try:
        with api.open_session(artifact, "cpu") as session:
            session._model.set_budget(100_000)  # type: ignore[union-attr]  # a loop may be endless
            session.run(INPUTS)
    except EdgeRelaxError as error:
        assert str(error)


def test_what_is_promised_of_inputs() -> None:
    """The signature that pages show before they download anything."""
    (main,) = compiled().artifact.manifest.functions
    (x,), (y,) = main.inputs, main.outputs
    assert (x.name, x.dtype, x.shape) == ("x", "f32", ["batch", 8])
    assert (y.name, y.dtype, y.shape) == ("y", "f32", ["batch", 4])
    with compiled().session("cpu") as session:
        np.testing.assert_allclose(session.run(INPUTS)["y"], expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"stored": "f16"}, "do not add up"),
        ({"stored": "f16", "dtype": "f64"}, "weight .* of f64 is stored as f16"),
        ({"stored": "i8"}, "i8"),
    ],
)
def test_weights_stored_in_another_form(change: dict[str, str], fault: str) -> None:
    raw = copy.deepcopy(GOOD)
    assert raw["weights"][0]["stored"] is None
    raw["weights"][0] |= change
    with pytest.raises(FormatError, match=fault):
        decode(json.dumps(raw).encode())


def test_unknown_dtypes_and_devices() -> None:
    (main,) = GOOD["functions"]
    bad_input = {**main["inputs"][0], "dtype": "f999"}
    function = {**main, "inputs": [bad_input]}
    with pytest.raises(FormatError, match="x has the unknown dtype 'f999'"):
        decode(json.dumps({**GOOD, "functions": [function]}).encode())
    by_name = {program["name"]: program for program in GOOD["programs"]}
    first, second = by_name["gpu"], by_name["cpu-relaxed"]
    for programs, fault in (
        ([first, {**second, "name": first["name"]}], "two variants of one name"),
        ([{**first, "adapter": None}], "variant gpu: only those of a GPU have an adapter"),
        (
            [{**second, "adapter": "software"}],
            "variant cpu-relaxed: only those of a GPU have an adapter",
        ),
        (
            [{**second, "cpu_kernels_file": None}],
            "variant cpu-relaxed: its CPU kernels have no file",
        ),
        ([{**first, "device": "tpu"}], "tpu"),
        ([{**first, "name": "../x"}], "name"),
        ([{**first, "weights_on_gpu": [99]}], "no weight 99"),
    ):
        with pytest.raises(FormatError, match=fault):
            decode(json.dumps({**GOOD, "programs": programs}).encode())


@pytest.mark.parametrize(("variant", "device"), [("software", "gpu"), ("cpu", "cpu")])
def test_weights_that_are_said_to_be_elsewhere(variant: str, device: str) -> None:
    """A program whose weight the manifest does not put on its device: refused when loaded."""
    manifest = compiled().artifact.manifest
    field = f"weights_on_{device}"
    programs = [msgspec.structs.replace(p, **{field: []}) for p in manifest.programs]
    changed = msgspec.structs.replace(manifest, programs=programs)
    artifact = Artifact(changed, contents())
    with pytest.raises(FormatError, match=rf"program-\S*{variant}\.bin: needs weight"):
        api.open_session(artifact, variant=variant)


def test_launches_of_kernels_that_are_not_there() -> None:
    manifest = compiled().artifact.manifest
    programs = [msgspec.structs.replace(p, gpu_kernels=[]) for p in manifest.programs]
    changed = msgspec.structs.replace(manifest, programs=programs)
    with (
        api.open_session(Artifact(changed, contents()), "wgpu") as session,
        pytest.raises(FormatError, match="launches kernel"),
    ):
        session.run(INPUTS)
