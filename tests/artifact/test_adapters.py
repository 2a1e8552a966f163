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
from edgerelax.hosts.wgpu import DeviceError, request_device
from edgerelax.ir.diagnostics import FormatError, UnsupportedError
from tests.artifact.folders import INPUTS, compiled, contents, expected
from tests.faults.models import perceptron


def needing(**limits: int) -> Artifact:
    needs = Needs(limits=limits)
    return Artifact(msgspec.structs.replace(compiled().artifact.manifest, needs=needs), contents())


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
    large = Needs(limits={"maxBufferSize": 1 << 50})
    alone = Artifact(msgspec.structs.replace(alone.manifest, needs=large), {})
    with pytest.raises(UnsupportedError, match="maxBufferSize"):
        api.open_session(alone)


def test_limits_and_features_nobody_knows() -> None:
    with pytest.raises(UnsupportedError, match="maxFlux, unknown"):
        request_device(Needs(limits={"maxFlux": 0}))
    with pytest.raises(UnsupportedError, match="the adapter has no time-travel"):
        request_device(Needs(features=["time-travel"]))


def test_programs_that_are_not_there() -> None:
    with pytest.raises(FormatError, match="no program for cpu, only for gpu"):
        api.compile(perceptron(), fallback=False).session("cpu")
    with pytest.raises(FormatError, match="no program for gpu, only for cpu") as caught:
        api.compile(perceptron(), target="cpu").session("wgpu")
    assert "target" in caught.value.hint


def test_a_kernel_that_the_driver_refuses() -> None:
    files = dict(contents())
    text = files["kernels.wgsl"]
    files["kernels.wgsl"] = text.replace(b"@compute", b"@comfute", 1)
    name = compiled().artifact.manifest.program("gpu").gpu_kernels[0].name
    with pytest.raises(DeviceError, match=f"kernel {name}"):
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
