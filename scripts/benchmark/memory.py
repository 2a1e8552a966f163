"""Memory of activations: plans within bounds, and what growing sequences and batches allocate.

Nothing is timed. Plans are read from the compiler; growth is counted by the VM of the CPU host.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from edgerelax import api
from edgerelax.artifact.manifest import MemoryInfo
from edgerelax.cli.arguments import parse_dims
from tests.e2e.models import REAL

BOUNDS: Mapping[str, tuple[str, ...]] = {
    "minilm": ("batch_size=1..8", "sequence_length=1..256"),
    "ppocr-det": (
        "p2o_DynamicDimension_0=1",
        "p2o_DynamicDimension_1=32..960:32",
        "p2o_DynamicDimension_2=32..960:32",
    ),
    "ppocr-cls": ("x_0=1..8", "x_2=48", "x_3=1..192"),
    "ppocr-rec": ("p2o_DynamicDimension_0=1..8", "x_2=48", "p2o_DynamicDimension_1=1..960"),
    "silero": ("sequence_length=1..512",),
    "silero-if": ("input_0=1..8", "input_1=1..576", "state_1=1..8"),
    "silero-ifless": ("batch=1..8", "sequence=1..576"),
    "silero-op15": ("batch=1..8", "sequence=1..576"),
    "silero-half": ("batch=1..8", "sequence=1..576"),
    "silero-openvino": (),
    "minilm-int8": ("batch=1..8", "sequence=1..256"),
    "nsnet2": ("batch_size=1..8", "frames=1..512"),
    "nsnet2-48k": ("batch_size=1..8", "time=1..512"),
    "magika": ("unk__214=1..8",),
    "basic-pitch": ("unk__749=1..8",),
}
"""The dims of each model of the tests, as for `--dim`: batches of 8, texts of 256 tokens, pictures
of 960 pixels, speech of some seconds."""

GROWING = {
    "sequence": [(1, 16), (1, 32), (1, 64), (1, 128), (1, 256)],
    "batch": [(1, 32), (2, 32), (4, 32), (8, 32)],
}
"""Batch and length of the calls of two growing series; each goes down again to where it began."""

Row = dict[str, Any]


def plans(names: Iterable[str] = tuple(REAL)) -> dict[str, Row]:
    """Bytes planned within BOUNDS, without reuse, and live at once, for the GPU."""
    return {name: _planned(name) for name in names}


def _planned(name: str) -> Row:
    dims = parse_dims(BOUNDS[name])
    executable = api.compile(REAL[name].path, dims=dims, variants=("gpu",))
    (program,) = executable.artifact.manifest.programs
    done = executable.report.passes["gpu-plan_memory"]["done"]
    return {"bounds": list(BOUNDS[name]), "in_place": done["in place"]} | figures(program.memory)


def figures(memory: MemoryInfo) -> Row:
    """What a plan takes; None where a size has no bound."""
    return {
        "planned": memory.planned,
        "unplanned": memory.unplanned,
        "lower_bound": memory.lower_bound,
    }


def growth(name: str = "minilm") -> dict[str, Row]:
    """Bytes of the slabs after each call of the growing series, with bounds and without."""
    found: dict[str, Row] = {}
    for kind, dims in (("with bounds", BOUNDS[name]), ("without", ())):
        made = api.compile(REAL[name].path, dims=parse_dims(dims), variants=("cpu",))
        found[kind] = {series: _series(made, sizes) for series, sizes in GROWING.items()}
    return found


def _series(made: api.Executable, sizes: list[tuple[int, int]]) -> list[int]:
    after = []
    with made.session("cpu") as session:
        for batch, length in [*sizes, sizes[0]]:
            ids = np.full((batch, length), 1000, np.int64)
            session.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
            after.append(int(session.stats()["cpu_slab_bytes"]))
    return after


def allocations(after: list[int]) -> int:
    """Of the calls of a series, those that took more memory than the one before."""
    return sum(now > before for before, now in zip([0, *after], after, strict=False))


def measure(names: Iterable[str] = tuple(REAL)) -> Row:
    """Both, as plain data."""
    return {"plans": plans(names), "growth": growth()}
