"""The CPU host: a whole run happens inside the VM, one call from here."""

from edgerelax.artifact.manifest import ProgramInfo
from edgerelax.artifact.store import Artifact
from edgerelax.hosts.choose import Offer
from edgerelax.hosts.library import Functions, bind
from edgerelax.hosts.session import Session
from edgerelax.hosts.vm import WASM_FEATURES

OFFER = Offer("cpu", features=WASM_FEATURES)


def open_cpu(
    artifact: Artifact, program: ProgramInfo, libraries: Functions | None = None
) -> Session:
    """A session whose kernels run as WebAssembly on the CPU, library functions beside them."""
    return Session(artifact, program, None, bind(program, libraries or {})["cpu"])
