"""Weight shards: safetensors files of at most 32 MiB.

Each tensor's bytes are aligned for direct upload. A tensor larger than a shard is cut into parts in
consecutive shards; the manifest says where. A shard holds only weights that the same programs use,
so that a loader fetches nothing but its own. An f32 tensor whose values are all those of f16 lies
there as f16, and loaders widen it: nothing is lost, half is fetched. Shards are plain safetensors,
so any tool can look into them.
"""

import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgerelax.artifact.manifest import Weight, WeightPart
from edgerelax.ir.dtypes import F16, F32, from_numpy
from edgerelax.ir.graph import Constant

SHARD_BYTES = 32 << 20
ALIGNMENT = 256
_SAMPLE = 1024  # of a tensor's elements: most of those that are not halves show it there


@dataclass(slots=True)
class _Shard:
    """Entries of a shard being filled: name, bytes, offset in its data."""

    entries: list[tuple[str, memoryview, int]] = field(default_factory=list)
    size: int = 0


def pack_weights(
    constants: Sequence[Constant], users: Sequence[Hashable]
) -> tuple[list[Weight], dict[str, bytes]]:
    """The manifest's weights in order, and the shards by file name.

    `users` says of each constant which programs use it: shards hold weights of equal users.
    """
    shards: list[_Shard] = []
    where: dict[int, list[tuple[int, int, int]]] = {}  # per constant: shard, entry, bytes
    stored = [stored_form(c.data) for c in constants]
    for group in dict.fromkeys(users):
        shards.append(_Shard())
        for index, form in enumerate(stored):
            if users[index] == group:
                data = storage_bytes(form)
                where[index] = list(_place(f"{index}", data, shards))
        if not shards[-1].entries:
            shards.pop()
    files: dict[str, bytes] = {}
    starts: list[int] = []
    count = len(shards)
    for k, shard in enumerate(shards):
        text, start = _serialise(shard)
        files[_file_name(k, count)] = text
        starts.append(start)
    weights = []
    for index, constant in enumerate(constants):
        places = [
            WeightPart(
                file=_file_name(s, count), offset=starts[s] + shards[s].entries[e][2], bytes=size
            )
            for s, e, size in where[index]
        ]
        weights.append(
            Weight(
                name=constant.name,
                dtype=str(from_numpy(constant.data.dtype)),
                stored="f16" if stored[index].dtype != constant.data.dtype else None,
                shape=[int(d) for d in constant.data.shape],
                bytes=constant.data.nbytes,
                parts=places,
            )
        )
    return weights, files


def stored_form(data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """What lies in the shard: f32 as f16 if that gives back every bit and saves a place."""
    if data.dtype != F32.numpy or data.nbytes < 2 * ALIGNMENT:
        return data
    if _as_halves(data.flat[:_SAMPLE]) is None:
        return data
    half = _as_halves(np.ascontiguousarray(data))
    return data if half is None else half


def _as_halves(data: npt.NDArray[np.generic]) -> npt.NDArray[np.generic] | None:
    """The f32 as f16; None if that loses any bit."""
    with np.errstate(over="ignore", invalid="ignore"):
        half = data.astype(F16.numpy)
        back = half.astype(F32.numpy)
    return half if np.array_equal(back.view(np.uint32), data.view(np.uint32)) else None


def widened(stored: bytes) -> bytes:
    """The f32 of bytes that lie in a shard as f16."""
    return np.frombuffer(stored, F16.numpy).astype(F32.numpy).tobytes()


def storage_bytes(data: npt.NDArray[np.generic]) -> memoryview:
    """Little-endian row-major bytes as both devices store them."""
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _place(name: str, data: memoryview, shards: list[_Shard]) -> Iterator[tuple[int, int, int]]:
    """Append a tensor to the last shard, or cut it over new ones."""
    if not len(data):
        return
    at = 0
    while at < len(data):
        room = SHARD_BYTES - shards[-1].size
        whole = len(data) - at
        if room < min(whole, SHARD_BYTES):
            shards.append(_Shard())
            continue
        shard = shards[-1]
        piece = data[at : at + min(whole, SHARD_BYTES)]
        shard.entries.append((f"{name}.{at}", piece, shard.size))
        shard.size += -(-len(piece) // ALIGNMENT) * ALIGNMENT
        yield len(shards) - 1, len(shard.entries) - 1, len(piece)
        at += len(piece)


def _serialise(shard: _Shard) -> tuple[bytes, int]:
    """A safetensors file and where its data begins, a multiple of ALIGNMENT."""
    header = {
        name: {"dtype": "U8", "shape": [len(piece)], "data_offsets": [offset, offset + len(piece)]}
        for name, piece, offset in _padded(shard)
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    start = -(-(8 + len(text)) // ALIGNMENT) * ALIGNMENT
    text = text.ljust(start - 8)
    pieces = (piece for _, piece, _ in _padded(shard))
    return b"".join((len(text).to_bytes(8, "little"), text, *pieces)), start


def _padded(shard: _Shard) -> Iterator[tuple[str, memoryview | bytes, int]]:
    """Entries and the padding between them: safetensors allows no holes."""
    for name, piece, offset in shard.entries:
        yield name, piece, offset
        end = offset + len(piece)
        hole = -end % ALIGNMENT
        if hole:
            yield f"{name}.pad", bytes(hole), end


def _file_name(k: int, count: int) -> str:
    return f"weights-{k + 1:05d}-of-{count:05d}.safetensors"
