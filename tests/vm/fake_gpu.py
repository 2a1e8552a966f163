"""A GPU host in numpy that executes the VM's commands, for tests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from edgerelax.hosts.vm import DONE, VmModel
from edgerelax.vm import isa

Kernel = Callable[[list[np.ndarray], list[int]], None]
NAMES = tuple(isa.COMMANDS)


@dataclass
class Command:
    name: str
    words: list[int]  # operands


def commands(words: np.ndarray) -> Iterator[Command]:
    values = words.tolist()
    at = 0
    while at < len(values):
        size = values[at] >> 8
        assert size >= 1
        yield Command(NAMES[values[at] & 255], values[at + 1 : at + size])
        at += size
    assert at == len(values)


def _counted(words: list[int], at: int, width: int) -> tuple[list[list[int]], int]:
    count = words[at]
    end = at + 1 + count * width
    return [words[k : k + width] for k in range(at + 1, end, width)], end


@dataclass
class FakeGpu:
    """Buffers by (kind, index); lists by number; `log` names all commands it was given."""

    model: VmModel
    kernels: list[Kernel] = field(default_factory=list)
    buffers: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    lists: dict[int, list[Command]] = field(default_factory=dict)
    library: dict[str, Kernel] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    drains: int = 0

    def set(self, kind: str, index: int, array: np.ndarray) -> None:
        data = array.reshape(-1).view(np.uint8)
        buffer = np.zeros(max(4, -(-data.size // 4) * 4), np.uint8)
        buffer[: data.size] = data
        self.buffers[kind, index] = buffer

    def run(self, function: int = 0) -> None:
        status = self.model.run(function)
        self.drain()
        while status != DONE:
            status = self.model.resume()
            self.drain()

    def drain(self) -> None:
        self.drains += 1
        recording: list[Command] | None = None
        for command in commands(self.model.commands()):
            self.log.append(command.name)
            if command.name == "record":
                recording = self.lists[command.words[0]] = []
            elif command.name == "end_record":
                recording = None
            else:
                if recording is not None:
                    recording.append(command)
                self.execute(command)
        assert recording is None

    def fetch(self, k: int = 0) -> np.ndarray:
        result = self.model.result(k)
        assert result.device == "gpu"
        data = self.buffers[result.kind, result.index][result.offset :][: result.bytes]
        return data.view(result.dtype.numpy).reshape(result.dims)

    def place(self, words: list[int]) -> np.ndarray:
        kind, index, offset, size = words
        assert size % 4 == 0
        buffer = self.buffers[isa.BINDING_KINDS[kind], index]
        assert offset + size <= buffer.size
        return buffer[offset : offset + size]

    def near(self, low: int, high: int, size: int) -> np.ndarray:
        assert high == 0
        return self.model.vm.bytes()[low & 0xFFFFFFFF :][:size]

    def execute(self, command: Command) -> None:
        words = command.words
        match command.name:
            case "reset":
                self.lists.clear()
            case "ensure":
                slab, size, keeps = words
                old = self.buffers.get(("slab", slab), np.empty(0, np.uint8))
                if size > old.size:
                    if not keeps:
                        old = np.full(old.size, 0xA5, np.uint8)
                    self.buffers["slab", slab] = np.concatenate(
                        [old, np.zeros(size - old.size, np.uint8)]
                    )
            case "replay":
                self.replay(words)
            case "forget":
                del self.lists[words[0]]
            case "dispatch":
                places, at = _counted(words, 1, 4)
                scalars, _ = _counted(words, at, 1)
                self.kernels[words[0]]([self.place(p) for p in places], [s for (s,) in scalars])
            case "copy":
                self.place(words[:4])[:] = self.place(words[4:])
            case "fill":
                self.place(words[:4]).view(np.int32)[:] = words[4]
            case "upload":
                self.place(words[:4])[: words[4]] = self.near(words[5], words[6], words[4])
            case "read":
                self.near(words[5], words[6], words[4])[:] = self.place(words[:4])[: words[4]]
            case "library":
                name = self.near(words[1], words[2], words[0]).tobytes().decode()
                places, at = _counted(words, 3, 4)
                scalars, _ = _counted(words, at, 1)
                self.library[name]([self.place(p) for p in places], [s for (s,) in scalars])

    def replay(self, words: list[int]) -> None:
        recorded = [Command(c.name, list(c.words)) for c in self.lists[words[0]]]
        dispatches = [c for c in recorded if c.name in ("dispatch", "library")]
        patches, _ = _counted(words, 1, 3)
        for dispatch, scalar, value in patches:
            command = dispatches[dispatch]
            start = 1 if command.name == "dispatch" else 3
            command.words[start + 1 + 4 * command.words[start] + 1 + scalar] = value
        for command in recorded:
            self.execute(command)
