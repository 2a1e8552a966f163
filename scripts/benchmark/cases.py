"""What is measured: models at their sizes, their expected outputs, and their artifacts on disk."""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from edgerelax import api
from edgerelax.artifact.manifest import Manifest
from edgerelax.ir.dtypes import DTYPES
from tests.e2e.models import REAL, Inputs, run_reference, shape_text

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled model on disk; how long compiling took, with loading the model."""

    folder: Path
    seconds: float
    manifest: Manifest


@dataclass(slots=True)
class Subject:
    """A model with its cases. `warm` is the largest one: that is what warm calls are timed at."""

    name: str
    model: Path
    inputs: list[Inputs]
    warm: int
    cases: Path  # without suffix: .json and .bin
    artifacts: dict[tuple[str, ...], Artifact] = field(default_factory=dict)

    @property
    def shapes(self) -> list[str]:
        return [shape_text(inputs) for inputs in self.inputs]

    def artifact(self, *without: str) -> Artifact:
        """Compiled with all its variants, once; passes may be left out."""
        if without not in self.artifacts:
            folder = self.cases.parent / "-without-".join((self.name, *without))
            self.artifacts[without] = _compile(self.model, folder, without)
        return self.artifacts[without]


def subject(name: str, folder: Path) -> Subject:
    """Write the cases of a model of the tests, with what onnxruntime makes of them."""
    inputs = list(REAL[name].inputs())
    path = folder / name
    write_cases(path, inputs, [run_reference(name, given) for given in inputs])
    sizes = [sum(a.size for a in given.values()) for given in inputs]
    return Subject(name, REAL[name].path, inputs, int(np.argmax(sizes)), path)


def write_cases(path: Path, inputs: Sequence[Inputs], expected: Sequence[Arrays]) -> None:
    """PATH.json says where in PATH.bin each array lies; arrays start at multiples of 8."""
    data = bytearray()

    def put(array: np.ndarray) -> dict[str, Any]:
        data.extend(bytes(-len(data) % 8))
        dtype = next(d.name for d in DTYPES.values() if d.numpy == array.dtype)
        entry = {"dtype": dtype, "shape": list(array.shape), "offset": len(data)}
        data.extend(np.ascontiguousarray(array).tobytes())
        return entry | {"bytes": array.nbytes}

    index = [
        {
            "inputs": {name: put(array) for name, array in given.items()},
            "expected": {name: put(array) for name, array in wanted.items()},
        }
        for given, wanted in zip(inputs, expected, strict=True)
    ]
    path.with_name(f"{path.name}.json").write_text(json.dumps(index))
    path.with_name(f"{path.name}.bin").write_bytes(data)


def read_cases(path: Path) -> list[tuple[Arrays, Arrays]]:
    """Inputs and expected outputs of each case."""
    data = path.with_name(f"{path.name}.bin").read_bytes()

    def get(entry: Mapping[str, Any]) -> np.ndarray:
        raw = data[entry["offset"] : entry["offset"] + entry["bytes"]]
        return np.frombuffer(raw, DTYPES[entry["dtype"]].numpy).reshape(entry["shape"])

    def arrays(group: Mapping[str, Any]) -> Arrays:
        return {name: get(entry) for name, entry in group.items()}

    index = json.loads(path.with_name(f"{path.name}.json").read_text())
    return [(arrays(case["inputs"]), arrays(case["expected"])) for case in index]


def graph_bytes(model: Path) -> int:
    """Bytes of an ONNX file that are not weights: what an artifact without weights compares to."""
    proto = onnx.load(model)
    return model.stat().st_size - _weight_bytes(proto.graph)


def _weight_bytes(graph: onnx.GraphProto) -> int:
    total = sum(onnx.numpy_helper.to_array(t).nbytes for t in graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                total += onnx.numpy_helper.to_array(attribute.t).nbytes
            if attribute.HasField("g"):
                total += _weight_bytes(attribute.g)
    return total


def _compile(model: Path, folder: Path, without: tuple[str, ...]) -> Artifact:
    start = time.perf_counter()
    executable = api.compile(model, without=without)
    shutil.rmtree(folder, ignore_errors=True)
    executable.save(folder)
    return Artifact(folder, time.perf_counter() - start, executable.artifact.manifest)
