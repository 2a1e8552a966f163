"""Machines without a GPU, with one that is too small, or with one that is lost in between."""

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import wgpu

import edgerelax.api as api
from edgerelax.artifact.manifest import Needs
from edgerelax.artifact.store import Artifact
from edgerelax.hosts.wgpu import DeviceError
from edgerelax.ir.diagnostics import FormatError, UnsupportedError
from tests.artifact.folders import INPUTS, compiled, contents, expected
from tests.faults.models import perceptron


def with_needs(artifact: Artifact, needs: Needs) -> Artifact:
    """The same artifact, whose programs for a GPU need more."""
    programs = [
        msgspec.structs.replace(p, needs=needs) if p.device == "gpu" else p
        for p in artifact.manifest.programs
    ]
    manifest = msgspec.structs.replace(artifact.manifest, programs=programs)
    return Artifact(manifest, {name: artifact.read(name) for name in manifest.files})


def needing(**limits: int) -> Artifact:
    return with_needs(compiled().artifact, Needs(limits=limits))


@pytest.fixture
def no_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("no suitable adapter")

    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", refuse)


@pytest.mark.usefixtures("no_adapter")
def test_no_adapter() -> None:
    with pytest.raises(UnsupportedError, match="no GPU adapter was found") as caught:
        compiled().session("wgpu")
    assert "--device cpu" in caught.value.hint


@pytest.mark.usefixtures("no_adapter")
def test_auto_falls_back_to_the_cpu() -> None:
    with compiled().session() as session:
        assert session.device_name == "cpu"
        np.testing.assert_allclose(session.run(INPUTS)["y"], expected(), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("no_adapter")
def test_no_adapter_and_no_fallback() -> None:
    with pytest.raises(UnsupportedError, match="no GPU adapter was found"):
        api.compile(perceptron(), fallback=False).session()


def test_limits_above_the_adapters() -> None:
    artifact = needing(maxStorageBuffersPerShaderStage=1 << 20)
    with pytest.raises(UnsupportedError) as caught:
        api.open_session(artifact, "wgpu")
    text = str(caught.value)
    assert "maxStorageBuffersPerShaderStage" in text
    assert str(1 << 20) in text


def test_auto_avoids_an_adapter_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    real = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    fake = SimpleNamespace(info={"adapter_type": "DiscreteGPU"}, limits=real.limits,
                           features=real.features)  # fmt: skip
    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", lambda **_: fake)
    with api.open_session(needing(maxBufferSize=1 << 50)) as session:
        assert session.device_name == "cpu"
    alone = api.compile(perceptron(), fallback=False).artifact
    alone = with_needs(alone, Needs(limits={"maxBufferSize": 1 << 50}))
    with pytest.raises(UnsupportedError, match="maxBufferSize"):
        api.open_session(alone)


def test_limits_and_features_nobody_knows() -> None:
    with pytest.raises(UnsupportedError, match="maxFlux, unknown"):
        api.open_session(needing(maxFlux=0), "wgpu")
    travelling = with_needs(compiled().artifact, Needs(features=["time-travel"]))
    with pytest.raises(UnsupportedError, match="software: there is no time-travel here"):
        api.open_session(travelling, "wgpu")
    with api.open_session(travelling) as session:
        assert session.variant == "cpu-relaxed"


def test_programs_that_are_not_there() -> None:
    with pytest.raises(FormatError, match="no program for cpu, only for gpu"):
        api.compile(perceptron(), fallback=False).session("cpu")
    with pytest.raises(FormatError, match="no program for gpu, only for cpu") as caught:
        api.compile(perceptron(), target="cpu").session("wgpu")
    assert "target" in caught.value.hint


def test_a_kernel_that_the_driver_refuses() -> None:
    files = dict(contents())
    kernel = compiled().artifact.manifest.program("software").gpu_kernels[0]
    files[kernel.file] = files[kernel.file].replace(b"@compute", b"@comfute")
    with pytest.raises(DeviceError, match=f"kernel {kernel.name}"):
        api.open_session(Artifact(compiled().artifact.manifest, files), "wgpu")


def test_errors_of_the_device_leave_the_session_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails once while commands are executed is told once; the next call records anew."""
    with compiled().session("wgpu") as session:
        good = session.run(INPUTS)["y"]
        device = session._device
        finish, calls = type(device).finish, []

        def fail_once(self: Any, commands: Any) -> None:
            calls.append(commands)
            if len(calls) == 1:
                raise wgpu.GPUError("out of luck")
            finish(self, commands)

        monkeypatch.setattr(type(device), "finish", fail_once)
        other = {"x": np.ones((9, 8), np.float32)}
        with pytest.raises(DeviceError, match="out of luck"):
            session.run(other)
        np.testing.assert_array_equal(session.run(INPUTS)["y"], good)
        assert session.run(other)["y"].shape == (9, 4)
