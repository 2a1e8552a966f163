"""Threads that share the work of a VM's kernels. `vm/pool.c` says how they and the caller agree."""

import threading
import weakref

import wasmtime

from edgerelax.hosts.instance import Instance, SharedMemory

STACK_BYTES = 32 << 10  # kernels have none; functions of libm need a little


class Helpers:
    """`stacks` are the ends of blocks of STACK_BYTES in the memory, one for each thread.

    They end when the instance of the caller is closed or forgotten.
    """

    def __init__(
        self,
        memory: SharedMemory,
        caller: Instance,
        kernels: tuple[wasmtime.Module, int],
        stacks: list[int],
    ) -> None:
        # Threads that wait inside the VM must neither keep it alive nor the process from ending.
        self._dismiss = weakref.finalize(self, caller.call, "er_dismiss")
        self._threads = [
            threading.Thread(
                target=_help, args=(memory, kernels, stack), name="edgerelax", daemon=True
            )
            for stack in stacks
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ends the threads and waits for that; safe to call twice."""
        self._dismiss()
        for thread in self._threads:
            thread.join()


def _help(memory: SharedMemory, kernels: tuple[wasmtime.Module, int], stack: int) -> None:
    instance = Instance(memory)
    instance.add_kernels(*kernels)
    while True:
        instance.call("stackRestore", stack)
        try:
            instance.call("er_help")
            return
        except wasmtime.Trap:
            instance.call("stackRestore", stack)
            instance.call("er_help_trapped")
