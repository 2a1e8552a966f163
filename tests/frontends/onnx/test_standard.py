"""Operators of the standard whose node tests leave much open, against onnxruntime."""

import numpy as np
import pytest

from tests.frontends.onnx.contributed import check, integers, normal


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


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("group", "own"), [(1, 1), (2, 4), (4, 2)])
def test_deformable_convolutions(masked: bool, group: int, own: int) -> None:
    taps = 3 * 2
    inputs = {"x": normal(2, 4, 6, 5), "o": normal(2, 2 * own * taps, 3, 4) * 2}
    operands, constants = ["x", "w", "o", "b"], {"w": normal(8, 4 // group, 3, 2), "b": normal(8)}
    if masked:
        inputs["m"] = normal(2, own * taps, 3, 4)
        operands.append("m")
    check("DeformConv", operands, inputs, constants, domain="", standard=19, exact=("o", "m"),
          group=group, offset_group=own, strides=[2, 1], pads=[1, 0, 1, 0], kernel_shape=[3, 2],
          atol=1e-4)  # fmt: skip
