"""The native hosts, where one GPU device serves all artifacts of the same needs."""

from functools import cache
from typing import Any

from edgerelax.artifact.manifest import Needs
from edgerelax.artifact.store import Artifact
from edgerelax.hosts.cpu import open_cpu
from edgerelax.hosts.session import Session
from edgerelax.hosts.wgpu import WgpuDevice, request_device

HOSTS = ("cpu", "wgpu")


def open_on(host: str, artifact: Artifact) -> Session:
    """A session on a host."""
    if host == "cpu":
        return open_cpu(artifact)
    manifest = artifact.manifest
    program = manifest.program("gpu")
    features, limits = tuple(manifest.needs.features), tuple(manifest.needs.limits.items())
    return Session(artifact, program, WgpuDevice(_device(features, limits), artifact, program))


@cache
def _device(features: tuple[str, ...], limits: tuple[tuple[str, int], ...]) -> Any:
    return request_device(Needs(list(features), dict(limits)))
