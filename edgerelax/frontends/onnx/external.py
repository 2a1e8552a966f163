"""Files beside an ONNX model that hold its large tensors."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto

from edgerelax.frontends.onnx.ordering import subgraphs
from edgerelax.ir.diagnostics import FormatError


@dataclass(frozen=True, slots=True)
class Beside:
    """Where external data may lie: in the folder of the model's name, and of the file itself.

    They differ where the model is a link, as in the cache of huggingface_hub: there the data is a
    link of the first folder to a file of the second one, whose own name is a hash.
    """

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, model: Path) -> "Beside":
        """Of a model's file."""
        named, real = model.parent.resolve(), model.resolve().parent
        return cls((named,) if named == real else (named, real))

    def find(self, location: str, what: str) -> Path:
        """The file of that name, links followed. Raises FormatError for one that is elsewhere."""
        is_name = location and "\0" not in location
        paths = [(folder / location).resolve() for folder in self.folders if is_name]
        inside = [p for p in paths if any(map(p.is_relative_to, self.folders))]
        if not inside:
            raise FormatError(
                f"{what}: external data {location!r} is not inside the model's folder"
            )
        for path in inside:
            if path.is_file():
                return path
        raise FormatError(
            f"{what}: no external data file {location!r} beside the model",
            hint="download it to the same folder",
        )


def locations(graph: onnx.GraphProto) -> set[str]:
    """Names of the files that hold stored tensors of a graph and of those inside it."""
    found = {
        entry.value
        for tensor in _stored(graph)
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    inner = (sub for node in graph.node for sub in subgraphs(node))
    return found.union(*map(locations, inner))


def _stored(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
