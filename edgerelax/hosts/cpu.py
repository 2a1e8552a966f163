"""The CPU host: a whole run happens inside the VM, one call from here."""

import os

from edgerelax.artifact.manifest import ProgramInfo
from edgerelax.artifact.store import Artifact
from edgerelax.hosts.choose import Offer
from edgerelax.hosts.instance import WASM_FEATURES
from edgerelax.hosts.library import Functions, bind
from edgerelax.hosts.session import Session

OFFER = Offer("cpu", features=WASM_FEATURES)


# By default. With fewer cores threads gain less than their bounds checks take (instance.engine);
# with more, what they wait for is memory.
LEAST_CORES, MOST_THREADS = 4, 8
ALLOWED_THREADS = 256  # where they are asked for; each is a thread with an instance of the VM


def open_cpu(
    artifact: Artifact,
    program: ProgramInfo,
    libraries: Functions | None = None,
    threads: int | None = None,
) -> Session:
    """A session whose kernels run as WebAssembly on the CPU, library functions beside them.

    `threads` share the kernels' work. None: one for each core that this process may use, at most
    MOST_THREADS; one in all where there are fewer than LEAST_CORES.
    """
    bound = bind(program, libraries or {})["cpu"]
    return Session(artifact, program, None, bound, threads or _default_threads())


def _default_threads() -> int:
    cores = _cores()
    return 1 if cores < LEAST_CORES else min(cores, MOST_THREADS)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
