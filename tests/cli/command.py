"""The command line in this process, and a folder with what its commands take."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgerelax.cli.main import main

WEIGHT = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
EXPECTED = np.maximum(X @ WEIGHT, 0)


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


class Command:
    """Runs `edgerelax …` in a folder. What escapes as an exception fails the test."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capture = capture

    def __call__(self, *words: str) -> Done:
        self._capture.readouterr()
        given = sys.argv
        sys.argv = ["edgerelax", *words]
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        finally:
            sys.argv = given
        out, err = self._capture.readouterr()
        return Done(code, out, err)

    def refused(self, *words: str) -> str:
        """What a command says that must end with code 1 and print nothing else."""
        done = self(*words)
        assert done.code == 1, done
        assert done.out == ""
        assert "error (" in done.err
        assert "Traceback" not in done.err
        return done.err


def perceptron() -> onnx.ModelProto:
    """relu(x @ w), its output called as an argument of numpy.savez is."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["file"])],
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("file", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
