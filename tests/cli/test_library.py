"""`--library`: a file with libraries, at export and when it is run."""

import numpy as np
import pytest

from tests.cli.command import EXPECTED, Command

LIBRARY = """
import numpy as np
import edgerelax
from edgerelax.ir.pattern import hole, op

def dense_relu(x, w, out):
    np.maximum(x @ w, 0, out=out)
    print("dense_relu was called")

own = edgerelax.Library(
    name="own.dense_relu",
    pattern=op("relu", op("matmul", hole("x"), hole("w"), transpose_a=False, transpose_b=False)),
    function=dense_relu,
)
"""


def test_export_and_run(cli: Command) -> None:
    (cli.folder / "own.py").write_text(LIBRARY)
    done = cli("export", "model.onnx", "-o", "own", "--target", "cpu", "--library", "own.py")
    assert done.code == 0, done
    given = ("--device", "cpu", "--input", "x=x.npy", "-o", "y.npz")
    assert "own.dense_relu" in cli.refused("run", "own", *given)
    done = cli("run", "own", *given, "--library", "own.py")
    assert done.code == 0, done
    assert "dense_relu was called" in done.out
    with np.load(cli.folder / "y.npz") as written:
        np.testing.assert_allclose(written["file"], EXPECTED, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "text,told",
    [
        (None, "--library own.py: No such file"),
        ("x = 1", "--library own.py: it has no Library"),
        ("1 / 0", "--library own.py: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_no_library(cli: Command, text: str | None, told: str) -> None:
    if text is not None:
        (cli.folder / "own.py").write_text(text)
    words = ("-o", "own", "--target", "cpu", "--library", "own.py")
    assert told in cli.refused("export", "model.onnx", *words)
