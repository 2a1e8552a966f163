"""The CPU host: a whole run happens inside the VM, one call from here."""

from edgerelax.artifact.store import Artifact
from edgerelax.hosts.session import Session


def open_cpu(artifact: Artifact) -> Session:
    """A session whose kernels run as WebAssembly on the CPU."""
    return Session(artifact, artifact.manifest.program("cpu"), None)
