"""Values of a model's symbolic dimensions for given inputs, and what depends on them."""

from collections.abc import Mapping
from typing import Any

from edgerelax.artifact.manifest import Manifest, ProgramInfo
from edgerelax.sym import parse, symbol

Sizes = dict[str, int]


def sizes_of(manifest: Manifest, inputs: Mapping[str, Any]) -> Sizes:
    """Symbols that stand alone in the signature of the first function, as the inputs have them."""
    found: Sizes = {}
    for spec in manifest.functions[0].inputs:
        for dim, value in zip(spec.shape or (), inputs[spec.name].shape, strict=False):
            if isinstance(dim, str) and dim in manifest.symbols:
                found[dim] = value
    return found


def activations(program: ProgramInfo, sizes: Sizes) -> int | None:
    """Bytes of the slabs at those sizes; None where one depends on what only a run knows."""
    total = 0
    for slab in program.memory.slabs:
        size = parse(str(slab.bytes), symbol)
        values = {s: sizes[s.name] for s in size.symbols() if s.name in sizes}
        if len(values) < len(size.symbols()):
            return None
        total += size.eval(values)
    return total
