"""The native hosts, where one GPU device with all that its adapter has serves all artifacts."""

from functools import cache
from typing import Any

from edgerelax.artifact.store import Artifact
from edgerelax.hosts.choose import Offer, candidates, choose
from edgerelax.hosts.cpu import OFFER, open_cpu
from edgerelax.hosts.session import Session
from edgerelax.hosts.wgpu import WgpuDevice, find_adapter, offer_of

HOSTS = ("cpu", "wgpu")


def open_on(host: str, artifact: Artifact) -> Session:
    """A session on a host."""
    manifest = artifact.manifest
    if host == "cpu":
        return open_cpu(artifact, choose(candidates(manifest, "cpu"), [OFFER]))
    offer, device = _gpu()
    program = choose(candidates(manifest, "gpu"), [offer])
    return Session(artifact, program, WgpuDevice(device, artifact, program))


@cache
def _gpu() -> tuple[Offer, Any]:
    adapter = find_adapter()
    assert adapter is not None, "no GPU adapter: install Mesa's lavapipe"
    device = adapter.request_device_sync(
        required_features=list(adapter.features), required_limits=adapter.limits
    )
    return offer_of(adapter), device
