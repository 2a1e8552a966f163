"""Operators of the standard whose node tests leave much open, against onnxruntime."""

import numpy as np
import pytest

from tests.frontends.onnx.contributed import check, integers


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("shape", [(7, 2, 3), (3, 5, 1), (1, 1, 4), (4, 4, 4)], ids=str)
def test_unique_slices(axis: int, shape: tuple[int, ...]) -> None:
    x = integers(0, 2, *shape)
    for dtype, ordered in (("int64", 1), ("float32", 0)):
        check("Unique", ["x"], {"x": x.astype(dtype)}, outputs=4, axis=axis, sorted=ordered,
              domain="")  # fmt: skip


def test_unique_slices_without_numbers() -> None:
    x = np.zeros((0, 3), np.float32)
    check("Unique", ["x"], {"x": x}, outputs=4, axis=0, domain="")
